//! The replay contract: what becomes of one request, whatever happens behind it.
//!
//! A [`Call`] is told how each attempt ended and what the outlook is, and answers with the next step.
//! It promises that
//!
//! - a request that may have been executed is sent again only if that is safe, and at most once;
//! - a request that cannot have been executed is sent to the next run;
//! - nothing waits longer than the hold, and nothing waits for a run that will not come in time;
//! - every sequence of steps ends with exactly one answer.

use std::time::{Duration, Instant};

/// After an attempt that reached nobody, a run that still counts as up is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// After an attempt that broke off, a run that still counts as up is tried again after this time. It has
/// most likely ended, which an engine of containers takes a moment to tell; and what stands before a
/// container takes connections after its death, so that a second attempt at it would be lost too.
const BROKEN_OFF: Duration = Duration::from_millis(500);

/// How long the reason for a death may take to arrive before the answer goes out without it.
const REASON: Duration = Duration::from_millis(60);

/// How often in a row a server may forget its session and still be asked again.
const FORGETFUL: u8 = 3;

/// One request on its way.
#[derive(Debug)]
pub(super) struct Call {
    hold: Duration,
    /// Since when it has been held, attempts that reached nobody included.
    held: Option<Instant>,
    /// The run of that generation is not tried again before then.
    avoid: Option<(u64, Instant)>,
    doom: Option<Doom>,
    replayed: bool,
    forgotten: u8,
}

/// It may have been executed and must not be again. Until then the reason of the death may still come.
#[derive(Debug, Clone, Copy)]
struct Doom {
    generation: u64,
    until: Instant,
    verdict: Verdict,
}

/// What there is to send to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prospect {
    /// The run of this generation.
    Up(u64),
    /// A run that is being started, or is due then.
    Coming(Option<Instant>),
    /// None.
    Down,
    /// None ever again.
    Removed,
}

/// How an attempt ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The server cannot have seen the request.
    Unsent,
    /// It may have seen it.
    Sent {
        /// Whether the request may be executed twice.
        safe: bool,
    },
    /// It said that it does not know the session, and did nothing.
    Forgotten,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Send it to the run that is up.
    Send,
    /// Wait until the prospect changes, but not longer than this.
    Wait(Instant),
    /// Answer.
    Answer(Verdict),
}

/// An answer that is ours, because the server's will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server is down, and will be for longer than the request can wait.
    Down,
    /// The server did not come back within the hold.
    Late,
    /// The server is gone for good.
    Removed,
    /// The server stopped during the request; its effect is unknown.
    Unknown {
        /// The run that had it.
        generation: u64,
    },
    /// The server stopped during the request twice.
    Poison {
        /// The run that had it last.
        generation: u64,
    },
    /// The server forgets its sessions as fast as they are opened.
    Forgetful,
}

impl Call {
    /// A request that has just come in, and may be held that long.
    pub(super) fn new(hold: Duration) -> Self {
        Self { hold, held: None, avoid: None, doom: None, replayed: false, forgotten: 0 }
    }

    /// Whether the request was sent a second time although the server may have seen it.
    pub(super) fn was_replayed(&self) -> bool {
        self.replayed
    }

    /// Since when the request has been held, if it was.
    pub(super) fn held_since(&self) -> Option<Instant> {
        self.held
    }

    /// The answer when the request cannot wait although it should: too many do. What may have been
    /// executed is said even then.
    pub(super) fn no_room(&self) -> Verdict {
        self.doom.map_or(Verdict::Down, |doom| doom.verdict)
    }

    /// The answer when nobody will tell of the server any more.
    pub(super) fn no_news(&self) -> Verdict {
        self.doom.map_or(Verdict::Removed, |doom| doom.verdict)
    }

    /// What to do now.
    pub(super) fn step(&mut self, now: Instant, prospect: Prospect) -> Step {
        if let Some(Doom { generation, until, verdict }) = self.doom {
            let told = prospect != Prospect::Up(generation);
            return if told || now >= until { Step::Answer(verdict) } else { Step::Wait(until) };
        }
        match prospect {
            Prospect::Up(generation) => self.approach(now, generation),
            Prospect::Coming(due) => {
                let deadline = *self.held.get_or_insert(now) + self.hold;
                if due.is_some_and(|due| due > deadline) || self.hold.is_zero() {
                    Step::Answer(Verdict::Down)
                } else if now >= deadline {
                    Step::Answer(Verdict::Late)
                } else {
                    Step::Wait(deadline)
                }
            }
            Prospect::Down => Step::Answer(Verdict::Down),
            Prospect::Removed => Step::Answer(Verdict::Removed),
        }
    }

    /// Takes note of how the attempt at a run ended.
    pub(super) fn lost(&mut self, now: Instant, generation: u64, loss: Loss) {
        let doom = |verdict| Some(Doom { generation, until: now + REASON, verdict });
        match loss {
            Loss::Unsent => self.avoid = Some((generation, now + TRY_AGAIN)),
            Loss::Forgotten if self.forgotten < FORGETFUL => self.forgotten += 1,
            Loss::Forgotten => self.doom = doom(Verdict::Forgetful),
            Loss::Sent { safe: true } if !self.replayed => {
                self.replayed = true;
                self.held = None;
                self.avoid = Some((generation, now + BROKEN_OFF));
            }
            Loss::Sent { safe: true } => self.doom = doom(Verdict::Poison { generation }),
            Loss::Sent { safe: false } => self.doom = doom(Verdict::Unknown { generation }),
        }
        self.held.get_or_insert(now);
    }

    /// A run is up; but if it did not answer a moment ago it is most likely ending.
    fn approach(&mut self, now: Instant, generation: u64) -> Step {
        match (self.avoid, self.held) {
            (Some((avoided, until)), Some(since)) => {
                if self.hold.is_zero() {
                    Step::Answer(Verdict::Down)
                } else if now >= since + self.hold {
                    Step::Answer(Verdict::Late)
                } else if avoided == generation && now < until {
                    Step::Wait(until)
                } else {
                    Step::Send
                }
            }
            _ => Step::Send,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOLD: Duration = Duration::from_secs(45);

    fn start() -> (Instant, Call) {
        (tokio::time::Instant::now().into_std(), Call::new(HOLD))
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_request_goes_to_the_run_that_is_up() {
        let (now, mut call) = start();
        assert_eq!(call.step(now, Prospect::Up(1)), Step::Send);
        assert_eq!(call.held_since(), None);
    }

    #[test]
    fn a_request_is_held_for_a_run_that_comes_in_time() {
        let (now, mut call) = start();
        assert_eq!(call.step(now, Prospect::Coming(None)), Step::Wait(now + HOLD));
        let due = now + seconds(40);
        assert_eq!(
            call.step(now + seconds(1), Prospect::Coming(Some(due))),
            Step::Wait(now + HOLD)
        );
        assert_eq!(call.step(now + seconds(41), Prospect::Up(2)), Step::Send);
    }

    #[test]
    fn a_run_that_will_be_late_is_not_waited_for() {
        let (now, mut call) = start();
        let due = Some(now + HOLD + seconds(1));
        assert_eq!(call.step(now, Prospect::Coming(due)), Step::Answer(Verdict::Down));
        assert_eq!(call.step(now, Prospect::Down), Step::Answer(Verdict::Down));
        assert_eq!(call.step(now, Prospect::Removed), Step::Answer(Verdict::Removed));
    }

    #[test]
    fn the_hold_has_an_end() {
        let (now, mut call) = start();
        call.step(now, Prospect::Coming(None));
        let end = call.step(now + HOLD, Prospect::Coming(None));
        assert_eq!(end, Step::Answer(Verdict::Late));
    }

    #[test]
    fn without_a_hold_nothing_waits() {
        let now = start().0;
        let mut call = Call::new(Duration::ZERO);
        assert_eq!(call.step(now, Prospect::Coming(None)), Step::Answer(Verdict::Down));
        let mut call = Call::new(Duration::ZERO);
        call.lost(now, 1, Loss::Unsent);
        assert_eq!(call.step(now, Prospect::Up(1)), Step::Answer(Verdict::Down));
    }

    #[test]
    fn what_broke_off_is_not_sent_again_to_a_run_that_is_most_likely_ending() {
        let (now, mut call) = start();
        call.lost(now, 1, Loss::Sent { safe: true });
        assert_eq!(call.step(now, Prospect::Up(1)), Step::Wait(now + BROKEN_OFF));
        assert_eq!(call.step(now, Prospect::Up(2)), Step::Send);
        assert!(call.was_replayed());
    }

    #[test]
    fn what_was_never_sent_goes_to_the_next_run() {
        let (now, mut call) = start();
        call.lost(now, 1, Loss::Unsent);
        assert_eq!(call.step(now, Prospect::Up(1)), Step::Wait(now + TRY_AGAIN));
        assert_eq!(call.step(now, Prospect::Coming(None)), Step::Wait(now + HOLD));
        assert_eq!(call.step(now, Prospect::Up(2)), Step::Send);
        assert!(!call.was_replayed());
    }

    #[test]
    fn a_run_that_cannot_be_reached_is_tried_until_the_hold_is_over() {
        let (begun, mut call) = start();
        let (mut now, mut tries) = (begun, 0);
        loop {
            match call.step(now, Prospect::Up(1)) {
                Step::Send => {
                    tries += 1;
                    call.lost(now, 1, Loss::Unsent);
                }
                Step::Wait(until) => now = until,
                Step::Answer(verdict) => break assert_eq!(verdict, Verdict::Late),
            }
        }
        assert!(tries > 100 && now <= begun + HOLD + TRY_AGAIN, "{tries}");
    }

    #[test]
    fn a_safe_request_is_replayed_once() {
        let (now, mut call) = start();
        call.lost(now, 1, Loss::Sent { safe: true });
        assert_eq!(call.step(now, Prospect::Up(2)), Step::Send);
        assert!(call.was_replayed());
        call.lost(now, 2, Loss::Sent { safe: true });
        let poison = Step::Answer(Verdict::Poison { generation: 2 });
        assert_eq!(call.step(now, Prospect::Up(3)), poison);
    }

    #[test]
    fn an_unsafe_request_waits_only_for_the_reason() {
        let (now, mut call) = start();
        call.lost(now, 1, Loss::Sent { safe: false });
        assert_eq!(call.step(now, Prospect::Up(1)), Step::Wait(now + REASON));
        let unknown = Step::Answer(Verdict::Unknown { generation: 1 });
        assert_eq!(call.step(now + REASON, Prospect::Up(1)), unknown);
        assert_eq!(call.step(now, Prospect::Coming(None)), unknown);
    }

    #[test]
    fn a_forgetful_server_is_asked_again_but_not_for_ever() {
        let (now, mut call) = start();
        for _ in 0..FORGETFUL {
            call.lost(now, 1, Loss::Forgotten);
            assert_eq!(call.step(now, Prospect::Up(1)), Step::Send);
        }
        call.lost(now, 1, Loss::Forgotten);
        assert_eq!(call.step(now + REASON, Prospect::Up(1)), Step::Answer(Verdict::Forgetful));
    }

    fn prospect() -> impl Strategy<Value = Prospect> {
        prop_oneof![
            4 => (1..5_u64).prop_map(Prospect::Up),
            3 => Just(Prospect::Coming(None)),
            1 => Just(Prospect::Down),
            1 => Just(Prospect::Removed),
        ]
    }

    fn loss(safe: bool) -> impl Strategy<Value = Option<Loss>> {
        prop_oneof![
            2 => Just(Some(Loss::Unsent)),
            2 => Just(Some(Loss::Sent { safe })),
            1 => Just(Some(Loss::Forgotten)),
            1 => Just(None),
        ]
    }

    proptest! {
        /// Whatever goes wrong: one answer, within bounded time, and no second execution unless safe.
        #[test]
        fn the_contract_holds(
            script in any::<bool>().prop_flat_map(|safe| {
                let turn = (prospect(), loss(safe), 0..60_000_u64);
                (Just(safe), prop::collection::vec(turn, 1..40))
            }),
        ) {
            let (safe, turns) = script;
            let (begun, mut call) = start();
            let (mut now, mut executions, mut answers) = (begun, 0, 0);
            for (prospect, loss, pause) in turns.into_iter().cycle().take(20_000) {
                match call.step(now, prospect) {
                    Step::Send => {
                        let Prospect::Up(generation) = prospect else { panic!("sent to nobody") };
                        executions += u32::from(matches!(loss, Some(Loss::Sent { .. }) | None));
                        let Some(loss) = loss else {
                            answers += 1;
                            break;
                        };
                        call.lost(now, generation, loss);
                        // An attempt takes its time.
                        now += Duration::from_millis(10);
                    }
                    Step::Wait(until) => {
                        prop_assert!(until > now, "a wait that is over");
                        now = until.min(now + Duration::from_millis(pause));
                    }
                    Step::Answer(_) => { answers += 1; break }
                }
            }
            prop_assert_eq!(answers, 1);
            prop_assert!(executions <= if safe { 2 } else { 1 }, "{} executions", executions);
        }
    }
}

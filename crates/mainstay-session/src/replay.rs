//! The replay contract: what becomes of one request, whatever happens behind it.
//!
//! A [`Replay`] takes how each attempt ended and whether the server is available, and returns the next step.
//! It promises that
//!
//! - a request that may have been executed is sent again only if that is safe, and to one further run at most (to the
//!   same run a few times, if it outlives the connection to it);
//! - a request that cannot have been executed is sent to the next run;
//! - nothing waits longer than the hold, and nothing waits for a run that will not come in time;
//! - every sequence of steps ends with exactly one answer.
//!
//! A request that an earlier daemon had sent begins with its run: if that comes up and can still answer,
//! its answer is waited for; if not, the request was lost with it.

use std::time::{Duration, Instant};

/// How often a request is made again because the connection to the server was interrupted.
pub(crate) const MAX_INTERRUPTIONS: u8 = 3;

/// After an attempt that did not reach the server, a run that still counts as up is tried again after this time.
const NOT_REACHED_RETRY_DELAY: Duration = Duration::from_millis(50);

/// After an attempt that broke off, a run that still counts as up is tried again after this time. It has
/// most likely ended, which a container engine takes a moment to report; and a proxy before a
/// container takes connections after its death, so that a second attempt at it would be lost too.
const BROKEN_OFF_RETRY_DELAY: Duration = Duration::from_millis(500);

/// After two attempts at a run that broke off, its end is awaited for this time. Container engines may report it late.
const RUN_END_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the reason for a death may take to arrive before the answer is sent without it.
const END_CAUSE_TIMEOUT: Duration = Duration::from_millis(60);

/// How long a run that has a request may take to be reachable again, however short the hold is.
const RUN_BACK_TIMEOUT: Duration = Duration::from_secs(10);

/// How often in a row a server may forget its session before a request to it fails.
const MAX_SESSION_LOSSES: u8 = 3;

/// One request on its way.
#[derive(Debug)]
pub(crate) struct Replay {
    hold: Duration,
    /// Since when it has been held, including attempts that did not reach the server.
    held: Option<Instant>,
    /// The run of that generation is not tried again before then.
    avoid: Option<(u64, Instant)>,
    pending_failure: Option<PendingFailure>,
    /// The run at which the last attempt broke off.
    broke_off: Option<u64>,
    /// The run at which two attempts broke off. It is not tried again, and its end is awaited until then.
    ending: Option<(u64, Instant)>,
    replayed: bool,
    forgotten: u8,
    /// How often the connection to a run was interrupted while it had the request.
    interruptions: u8,
    /// The run that has it since an earlier daemon sent it there.
    in_flight_on: Option<InFlightOn>,
}

/// A run that was sent a request by an earlier daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InFlightOn {
    /// 0 if it is not known.
    pub(crate) generation: u64,
    /// Whether its answer can still be received.
    pub(crate) can_answer: bool,
    /// How often the request was sent in all.
    pub(crate) attempts: u32,
}

/// It may have been executed and must not be again. Until then the reason of the death may still come.
#[derive(Debug, Clone, Copy)]
struct PendingFailure {
    generation: u64,
    until: Instant,
    no_answer: NoAnswer,
}

/// What there is to send to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamState {
    /// The run of this generation.
    Up(u64),
    /// A run that is being started, or is due then.
    Coming(Option<Instant>),
    /// None.
    Down,
    /// None, and there will be none.
    Removed,
}

/// How an attempt ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The server cannot have seen the request.
    Unsent,
    /// It may have seen it.
    Sent {
        /// Whether the request may be executed twice.
        safe: bool,
    },
    /// The connection to it was interrupted. It continues, and may have seen the request.
    Interrupted {
        /// Whether the request may be executed twice.
        safe: bool,
    },
    /// It does not know the session, and did nothing.
    Forgotten,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send it to the run that is up.
    Send,
    /// Wait for the answer of the run that is up, which has it.
    Rejoin,
    /// The run that had it is not there, or cannot answer: see [`Replay::missed`].
    Miss,
    /// Wait until the upstream state changes, but not longer than this.
    Wait(Instant),
    /// Answer.
    Answer(NoAnswer),
}

/// An answer in place of the server's, which will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The server is down, and will be for longer than the request can wait.
    Down,
    /// The server did not come back within the hold.
    Late,
    /// The server was removed.
    Removed,
    /// The server stopped during the request; its effect is unknown.
    Unknown {
        /// The run that had it.
        generation: u64,
    },
    /// The server runs, but the connection for its answer was lost with an earlier daemon; the effect of the request is
    /// unknown.
    Severed {
        /// The run that had it; 0 if that is not known.
        generation: u64,
    },
    /// The server is there, but the connection to it was interrupted; the effect of the request is unknown.
    Interrupted {
        /// The run that had it.
        generation: u64,
    },
    /// The server stopped during the request twice.
    DiedTwice {
        /// The run that had it last.
        generation: u64,
    },
    /// The server broke the connection off twice, and has not stopped.
    BrokenOff {
        /// The run that had it.
        generation: u64,
    },
    /// The server loses its sessions as soon as they are opened.
    SessionLostRepeatedly,
}

impl Replay {
    /// A request that has just come in, and may be held that long.
    pub(crate) fn new(hold: Duration) -> Self {
        Self {
            hold,
            held: None,
            avoid: None,
            pending_failure: None,
            broke_off: None,
            ending: None,
            replayed: false,
            forgotten: 0,
            interruptions: 0,
            in_flight_on: None,
        }
    }

    /// A request that an earlier daemon sent, and that may be held that long.
    pub(crate) fn recovered(hold: Duration, run: InFlightOn) -> Self {
        Self { replayed: run.attempts > 1, in_flight_on: Some(run), ..Self::new(hold) }
    }

    /// Whether the request was sent a second time although the server may have seen it.
    pub(crate) fn was_replayed(&self) -> bool {
        self.replayed || self.interruptions > 0
    }

    /// Whether a server may have executed the request, as far as attempts are over.
    pub(crate) fn may_have_run(&self) -> bool {
        self.was_replayed() || self.known().is_some() || self.ending.is_some()
    }

    /// Since when the request has been held, if it was.
    pub(crate) fn held_since(&self) -> Option<Instant> {
        self.held
    }

    /// The answer when the request cannot wait although it should: too many do. A request that may have been
    /// executed is answered with that even then.
    pub(crate) fn no_room(&self) -> NoAnswer {
        self.known().unwrap_or(NoAnswer::Down)
    }

    /// Why there will be no answer, whatever happens.
    fn known(&self) -> Option<NoAnswer> {
        let with = self.in_flight_on.map(|with| NoAnswer::Unknown { generation: with.generation });
        self.pending_failure.map(|pending_failure| pending_failure.no_answer).or(with)
    }

    /// What to do now.
    pub(crate) fn step(&mut self, now: Instant, upstream_state: UpstreamState) -> Step {
        if let Some(PendingFailure { generation, until, no_answer }) = self.pending_failure {
            let is_reported = upstream_state != UpstreamState::Up(generation);
            return if is_reported || now >= until {
                Step::Answer(no_answer)
            } else {
                Step::Wait(until)
            };
        }
        if let Some((generation, until)) = self.ending {
            match upstream_state {
                UpstreamState::Up(present) if present == generation && now < until => {
                    return Step::Wait(until);
                }
                UpstreamState::Up(present) if present == generation => {
                    return Step::Answer(NoAnswer::BrokenOff { generation });
                }
                UpstreamState::Up(_)
                | UpstreamState::Coming(_)
                | UpstreamState::Down
                | UpstreamState::Removed => {}
            }
        }
        if let Some(with) = self.in_flight_on {
            return self.look_for(now, with, upstream_state);
        }
        match upstream_state {
            UpstreamState::Up(generation) => self.approach(now, generation),
            UpstreamState::Coming(due) => {
                let deadline = *self.held.get_or_insert(now) + self.hold;
                if due.is_some_and(|due| due > deadline) || self.hold.is_zero() {
                    Step::Answer(NoAnswer::Down)
                } else if now >= deadline {
                    Step::Answer(NoAnswer::Late)
                } else {
                    Step::Wait(deadline)
                }
            }
            UpstreamState::Down => Step::Answer(NoAnswer::Down),
            UpstreamState::Removed => Step::Answer(NoAnswer::Removed),
        }
    }

    /// Records how the attempt at a run ended.
    pub(crate) fn lost(&mut self, now: Instant, generation: u64, loss: Loss) {
        let failure = |no_answer| {
            Some(PendingFailure { generation, until: now + END_CAUSE_TIMEOUT, no_answer })
        };
        self.in_flight_on = None;
        match loss {
            Loss::Unsent => self.avoid = Some((generation, now + NOT_REACHED_RETRY_DELAY)),
            Loss::Forgotten if self.forgotten < MAX_SESSION_LOSSES => self.forgotten += 1,
            Loss::Forgotten => self.pending_failure = failure(NoAnswer::SessionLostRepeatedly),
            Loss::Interrupted { safe: true } if self.interruptions < MAX_INTERRUPTIONS => {
                self.interruptions += 1;
            }
            Loss::Interrupted { .. } => {
                self.pending_failure = failure(NoAnswer::Interrupted { generation });
            }
            Loss::Sent { safe: true } if !self.replayed => {
                self.replayed = true;
                self.broke_off = Some(generation);
                self.held = None;
                self.avoid = Some((generation, now + BROKEN_OFF_RETRY_DELAY));
            }
            // Both went to the same run, which has stopped once at most.
            Loss::Sent { safe: true }
                if self.broke_off == Some(generation) && self.ending.is_none() =>
            {
                let deadline = self.held.unwrap_or(now) + self.hold;
                self.ending = Some((generation, deadline.min(now + RUN_END_TIMEOUT)));
            }
            Loss::Sent { safe: true } => {
                self.pending_failure = failure(NoAnswer::DiedTwice { generation });
            }
            Loss::Sent { safe: false } => {
                self.pending_failure = failure(NoAnswer::Unknown { generation });
            }
        }
        self.held.get_or_insert(now);
    }

    /// Records that the run to which an earlier daemon had sent the request cannot answer.
    pub(crate) fn missed(&mut self, now: Instant, upstream_state: UpstreamState, safe: bool) {
        let Some(InFlightOn { generation, .. }) = self.in_flight_on.take() else { return };
        let is_up = generation == 0 || upstream_state == UpstreamState::Up(generation);
        if safe && !self.replayed {
            self.replayed = true;
            self.held = Some(now);
            // If the same run breaks off too, it has stopped once at most: a daemon was lost the other time.
            self.broke_off = is_up.then_some(generation);
            return;
        }
        let no_answer = match (is_up, safe) {
            (true, _) => NoAnswer::Severed { generation },
            (false, true) => NoAnswer::DiedTwice { generation },
            (false, false) => NoAnswer::Unknown { generation },
        };
        self.pending_failure = Some(PendingFailure { generation, until: now, no_answer });
    }

    /// The run that has the request may be the one that is up, or is starting.
    fn look_for(&mut self, now: Instant, with: InFlightOn, upstream_state: UpstreamState) -> Step {
        match upstream_state {
            UpstreamState::Up(generation) if generation == with.generation && with.can_answer => {
                Step::Rejoin
            }
            UpstreamState::Coming(None) => {
                let deadline = *self.held.get_or_insert(now) + self.hold.max(RUN_BACK_TIMEOUT);
                if now < deadline { Step::Wait(deadline) } else { Step::Miss }
            }
            UpstreamState::Up(_)
            | UpstreamState::Coming(Some(_))
            | UpstreamState::Down
            | UpstreamState::Removed => Step::Miss,
        }
    }

    /// A run is up; but if it did not answer a moment ago it is most likely ending.
    fn approach(&mut self, now: Instant, generation: u64) -> Step {
        match (self.avoid, self.held) {
            (Some((avoided, until)), Some(since)) => {
                if self.hold.is_zero() {
                    Step::Answer(NoAnswer::Down)
                } else if now >= since + self.hold {
                    Step::Answer(NoAnswer::Late)
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
mod tests;

//! Decides when a daemon ends and in which steps: takes events and the time, and returns actions.
//!
//! A hand-over from an old daemon to a new one:
//!
//! | step | daemon | what happens |
//! |---|---|---|
//! | wait for calls | old | calls that the new daemon could not continue finish |
//! | prepare | new | it checks that it can serve, and waits |
//! | close intake | old | requests that it has begun to read are finished, no other is begun |
//! | settle and freeze | old | requests are answered or in the journal, then nothing changes any more |
//! | pass connections | old | idle ones, and those in the middle of a response |
//! | release | old | commands end, state is flushed, servers are no longer supervised |
//! | report | old | the holder is notified that everything is released |
//! | serve | new | it opens the state, attaches to servers and continues connections |
//! | relay | old | it finishes the calls that only it can finish |
//!
//! Until the holder asks the old daemon to hand over, a failure costs nothing. The other endings of a daemon are some of
//! the same steps. [`limits`](mainstay_hold::limits) has the time limits.

use mainstay_hold::limits::{QUIET, STILL_QUIET};
use tokio::time::Instant;

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Servers keep running for the next daemon.
    KeepServers,
    StopServers,
    /// Another daemon continues at once, with the same listeners.
    HandOver,
    /// A later daemon has taken over, or is about to, so there is nothing to hand over.
    Superseded,
}

/// One step of an ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    CloseIntake,
    /// Closes the listeners for good. Clients that connect later are refused.
    ReleaseListeners,
    /// Waits for the answers to all requests.
    FinishRequests,
    SettleAndFreeze,
    PassConnections,
    /// Release: intent does not change any more.
    RefuseChanges,
    StopServers,
    /// Release: commands end, or are repeated with the next daemon.
    FinishCommands,
    /// Release: what is in memory only is written to disk.
    Flush,
    Report,
    Relay,
}

impl Ending {
    pub(crate) fn steps(self) -> &'static [Step] {
        match self {
            Self::HandOver => &[
                Step::CloseIntake,
                Step::SettleAndFreeze,
                Step::PassConnections,
                Step::RefuseChanges,
                Step::FinishCommands,
                Step::Flush,
                Step::Report,
                Step::Relay,
            ],
            Self::KeepServers => &[
                Step::CloseIntake,
                Step::ReleaseListeners,
                Step::SettleAndFreeze,
                Step::PassConnections,
                Step::RefuseChanges,
                Step::FinishCommands,
                Step::Flush,
            ],
            Self::StopServers => &[
                Step::ReleaseListeners,
                Step::FinishRequests,
                Step::RefuseChanges,
                Step::StopServers,
                Step::FinishCommands,
                Step::Flush,
            ],
            // It exits as after a kill, so that it does not disturb the later daemon.
            Self::Superseded => &[],
        }
    }
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A command asks for a new daemon.
    Requested,
    /// No call is left that the new daemon could not continue, or [`Lifecycle::waits_until`] has passed.
    Quiet,
    /// The new daemon is prepared: the holder asks this one to hand over.
    Prepared,
    /// There will be no new daemon, and why.
    NotReplaced(String),
    HolderGone,
    Stop {
        keep_servers: bool,
    },
    /// A later daemon has registered, or the holder starts one.
    Superseded,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Refuse the request that has just arrived.
    RefuseNew,
    /// Refuse the request that is in progress, and why.
    Refuse(String),
    /// Answer the request that is in progress: a new daemon takes over.
    Grant,
    /// Ask the holder for a new daemon. If that fails: [`Event::NotReplaced`].
    AskHolder,
    StartHolder,
    /// Stop serving. The ending was decided at this time.
    Drain(Ending, Instant),
}

/// The state of a daemon that serves.
#[derive(Debug)]
pub(crate) struct Lifecycle(Phase);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// A request waits for calls.
    WaitingForCalls {
        until: Instant,
    },
    /// The new daemon prepares.
    Preparing,
    /// The new daemon is prepared. Calls that began meanwhile are waited for.
    LastCalls {
        since: Instant,
    },
    Draining,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self(Phase::Serving)
    }

    /// Set while [`Event::Quiet`] is expected.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        match self.0 {
            Phase::WaitingForCalls { until } => Some(until),
            Phase::LastCalls { since } => Some(since + STILL_QUIET),
            Phase::Serving | Phase::Preparing | Phase::Draining => None,
        }
    }

    pub(crate) fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        use {Action as A, Event as E, Phase as P};
        let drain = |ending| (P::Draining, vec![A::Drain(ending, now)]);
        let (phase, actions) = match (self.0, event) {
            (P::Draining, _) => (P::Draining, vec![]),
            (_, E::Stop { keep_servers: true }) => drain(Ending::KeepServers),
            (_, E::Stop { keep_servers: false }) => drain(Ending::StopServers),
            (_, E::Superseded) => drain(Ending::Superseded),
            (P::Serving, E::Requested) => (P::WaitingForCalls { until: now + QUIET }, vec![]),
            (phase, E::Requested) => (phase, vec![A::RefuseNew]),
            (P::WaitingForCalls { .. }, E::Quiet) => (P::Preparing, vec![A::AskHolder]),
            (P::LastCalls { since }, E::Quiet) => {
                (P::Draining, vec![A::Grant, A::Drain(Ending::HandOver, since)])
            }
            (P::LastCalls { since }, E::Prepared) => (P::LastCalls { since }, vec![]),
            (P::Serving | P::WaitingForCalls { .. } | P::Preparing, E::Prepared) => {
                (P::LastCalls { since: now }, vec![])
            }
            (P::Preparing | P::LastCalls { .. }, E::NotReplaced(why)) => {
                (P::Serving, vec![A::Refuse(why)])
            }
            (P::Preparing | P::LastCalls { .. }, E::HolderGone) => {
                (P::Serving, vec![A::Refuse("the holder died meanwhile".into()), A::StartHolder])
            }
            // A request that waits for calls has not reached the holder yet.
            (phase @ (P::Serving | P::WaitingForCalls { .. }), E::HolderGone) => {
                (phase, vec![A::StartHolder])
            }
            (phase @ (P::Serving | P::WaitingForCalls { .. }), E::NotReplaced(_))
            | (phase @ (P::Serving | P::Preparing), E::Quiet) => (phase, vec![]),
        };
        self.0 = phase;
        actions
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refuse(why: &str) -> Action {
        Action::Refuse(why.into())
    }

    /// Handles events one second apart, and returns the actions.
    fn after(events: impl IntoIterator<Item = Event>) -> (Lifecycle, Instant, Vec<Action>) {
        let (mut lifecycle, mut now, mut actions) = (Lifecycle::new(), Instant::now(), Vec::new());
        for event in events {
            now += Duration::from_secs(1);
            actions.extend(lifecycle.handle(now, event));
        }
        (lifecycle, now, actions)
    }

    #[tokio::test]
    async fn a_hand_over_waits_for_calls_before_and_after_the_new_daemon_prepares() {
        let (mut lifecycle, mut now, actions) = after([Event::Requested]);
        assert_eq!((actions, lifecycle.waits_until()), (vec![], Some(now + QUIET)));
        now += QUIET;
        assert_eq!(lifecycle.handle(now, Event::Quiet), [Action::AskHolder]);
        assert_eq!(lifecycle.waits_until(), None, "the holder has its own limits");
        let prepared = now + Duration::from_secs(2);
        assert_eq!(lifecycle.handle(prepared, Event::Prepared), []);
        assert_eq!(lifecycle.waits_until(), Some(prepared + STILL_QUIET));
        assert_eq!(
            lifecycle.handle(prepared + STILL_QUIET, Event::Quiet),
            [Action::Grant, Action::Drain(Ending::HandOver, prepared)],
        );
        assert_eq!(lifecycle.handle(prepared, Event::Requested), [], "it is draining");
    }

    #[tokio::test]
    async fn one_request_at_a_time() {
        let busy = [Event::Requested, Event::Requested, Event::Quiet, Event::Requested];
        let (.., actions) = after(busy);
        assert_eq!(actions, [Action::RefuseNew, Action::AskHolder, Action::RefuseNew]);
    }

    #[tokio::test]
    async fn a_failed_replacement_is_refused_and_the_next_request_is_accepted() {
        for prepared in [None, Some(Event::Prepared)] {
            let events = [Event::Requested, Event::Quiet].into_iter().chain(prepared);
            let events = events.chain([Event::NotReplaced("no".into()), Event::Requested]);
            let (lifecycle, now, actions) = after(events);
            assert_eq!(actions, [Action::AskHolder, refuse("no")]);
            assert_eq!(lifecycle.waits_until(), Some(now + QUIET));
        }
    }

    #[tokio::test]
    async fn the_death_of_the_holder_ends_a_replacement_in_progress() {
        let (.., actions) = after([Event::HolderGone]);
        assert_eq!(actions, [Action::StartHolder]);
        let (lifecycle, .., actions) = after([Event::Requested, Event::HolderGone]);
        assert_eq!(actions, [Action::StartHolder]);
        assert!(lifecycle.waits_until().is_some(), "the next holder gets the request");
        let (.., actions) = after([Event::Requested, Event::Quiet, Event::HolderGone]);
        let died = refuse("the holder died meanwhile");
        assert_eq!(actions, [Action::AskHolder, died, Action::StartHolder]);
    }

    #[tokio::test]
    async fn a_stop_ends_the_daemon_in_every_phase() {
        let all = [Event::Requested, Event::Quiet, Event::Prepared];
        for count in 0..=all.len() {
            for (event, ending) in [
                (Event::Stop { keep_servers: true }, Ending::KeepServers),
                (Event::Stop { keep_servers: false }, Ending::StopServers),
                (Event::Superseded, Ending::Superseded),
            ] {
                let (_, now, actions) = after(all[..count].iter().cloned().chain([event]));
                assert_eq!(actions.last(), Some(&Action::Drain(ending, now)));
            }
        }
    }

    #[test]
    fn steps_are_in_the_order_that_preserves_requests_and_state() {
        let comes_before = |ending: Ending, first: Step, second: Step| {
            let at = |step| ending.steps().iter().position(|it| *it == step);
            assert!(
                at(first) < at(second) && at(first).is_some(),
                "{ending:?} {first:?} {second:?}"
            );
        };
        for ending in [Ending::HandOver, Ending::KeepServers] {
            comes_before(ending, Step::CloseIntake, Step::SettleAndFreeze);
            comes_before(ending, Step::SettleAndFreeze, Step::PassConnections);
            comes_before(ending, Step::PassConnections, Step::Flush);
        }
        // The new daemon opens the state after the report.
        comes_before(Ending::HandOver, Step::Flush, Step::Report);
        comes_before(Ending::HandOver, Step::Report, Step::Relay);
        // A late client is refused rather than left waiting.
        comes_before(Ending::StopServers, Step::ReleaseListeners, Step::FinishRequests);
        comes_before(Ending::StopServers, Step::FinishRequests, Step::StopServers);
        for ending in [Ending::KeepServers, Ending::HandOver] {
            assert!(!ending.steps().contains(&Step::StopServers));
        }
        assert!(!Ending::HandOver.steps().contains(&Step::ReleaseListeners));
        assert_eq!(Ending::Superseded.steps(), []);
    }
}

//! What others do behind our back, and what turns out later about ends that were judged before.
//!
//! An engine tells what happened, but not always at once why: a container that somebody stops or
//! restarts dies first, and one whose engine stops dies first, too. Such an end is judged as an exit,
//! so that nothing waits, and is judged again here.

use std::time::{Duration, Instant};

use super::budget::{PROVISIONAL, WAKING, is_recent};
use super::phase::{Ending, Failure, Phase, Run, StartReason, Wait, after};
use super::{Ended, LoggedEvent, Outage, Unit, end};
use crate::{Cause, OnStop, RunId, Wanted};

/// How long deaths are excused after the host woke up.
const RESUME_GRACE: Duration = Duration::from_secs(30);

impl Unit {
    /// Whether this says more about the last end than is known.
    pub(super) fn is_amended_by(&self, run: RunId, cause: &Cause) -> bool {
        self.last_end.as_ref().is_some_and(|end| {
            let more = match (&end.cause, cause) {
                (Cause::Exited(_), Cause::StoppedBySomeone | Cause::RestartedBySomeone)
                | (Cause::StoppedBySomeone, Cause::RestartedBySomeone) => true,
                (_, _) => false,
            };
            end.run == run && more
        })
    }

    /// Somebody stopped or restarted what ended last. A stop stays charged; a restart is nobody's
    /// fault.
    pub(super) fn amend(&mut self, now: Instant, cause: Cause) {
        let respected = self.has_respected();
        let Some(end) = &mut self.last_end else { return };
        let run = end.run;
        end.cause.clone_from(&cause);
        let restarted = cause == Cause::RestartedBySomeone;
        self.logged.push(LoggedEvent::Amended { run, cause });
        if !restarted {
            return self.respect();
        }
        if respected {
            self.wanted = Wanted::On;
        }
        if self.budget.refund_run(run) {
            self.excuse(now);
        }
    }

    /// Somebody started the workload again. The new run takes over what its user asked of the old one,
    /// but not the old one's faults. A stop that was respected is undone, however long ago it was: it
    /// was no wish of our user's, and whoever starts the workload by hand takes it back. If the old run
    /// had ended a moment ago, that is made up for, too. Any other intent stays.
    pub(super) fn adopt(&mut self, now: Instant, old: RunId, new: RunId) {
        let ending = match &self.phase {
            Phase::Up(run) => run.pending_end.clone(),
            Phase::Stopping { ending, .. } => Some(ending.clone()),
            Phase::Idle | Phase::Waiting(_) | Phase::Failed(_) => None,
            Phase::Removed | Phase::Finished => return,
        };
        let respected = self.has_respected();
        match self.phase.run() {
            Some(run) => self.last_end = Some(end::ended(now, run, Cause::RestartedBySomeone)),
            None => self.undo_last_end(now, respected),
        }
        if respected {
            self.wanted = Wanted::On;
        }
        self.logged.push(LoggedEvent::Adopted { old, new });
        self.last = new;
        let pending_end = ending.filter(|ending| *ending == Ending::Asked && !respected);
        self.phase = Phase::Up(Run::adopted(now, new, pending_end));
    }

    /// Whoever started the workload again has made up for its last end, if that was a moment ago: its
    /// charge is taken back, and a stop that was respected turns out to be a restart.
    fn undo_last_end(&mut self, now: Instant, respected: bool) {
        let last_end = self.last_end.as_mut();
        let Some(end) = last_end.filter(|end| is_recent(end.at, now, PROVISIONAL)) else { return };
        if respected {
            end.cause = Cause::RestartedBySomeone;
        }
        if self.budget.refund_run(end.run) {
            self.logged.push(LoggedEvent::Refunded { count: 1 });
        }
    }

    pub(super) fn engine_away(&mut self, now: Instant, why: String) {
        if let Some(outage) = &mut self.away {
            outage.why = why;
            return;
        }
        self.logged.push(LoggedEvent::EngineAway { why: why.clone() });
        self.away = Some(Outage { since: now, why });
        self.refund(now, PROVISIONAL, StartReason::Outage);
    }

    pub(super) fn engine_back(&mut self, now: Instant) {
        let Some(Outage { since, .. }) = self.away.take() else { return };
        self.logged.push(LoggedEvent::EngineBack);
        let lasted = now.saturating_duration_since(since);
        let spread = self.spread(now);
        match &mut self.phase {
            Phase::Waiting(Wait { until, again: StartReason::Outage }) => *until = spread,
            Phase::Waiting(Wait { until, .. }) => *until += lasted,
            Phase::Stopping { kill_at, .. } => *kill_at += lasted,
            Phase::Idle | Phase::Up(_) | Phase::Failed(_) | Phase::Removed | Phase::Finished => {}
        }
    }

    pub(super) fn host_resumed(&mut self, now: Instant) {
        self.excused_until = Some(after(now, RESUME_GRACE));
        self.logged.push(LoggedEvent::HostResumed);
        self.refund(now, WAKING, StartReason::Excused);
    }

    /// Undoes what failures of the last moments led to, because they turn out to be nobody's fault;
    /// `again` says what they belong to.
    fn refund(&mut self, now: Instant, within: Duration, again: StartReason) {
        let count = self.budget.refund(now, within);
        if count > 0 {
            self.logged.push(LoggedEvent::Refunded { count });
        }
        let undone = match &self.phase {
            // The charge that led here is the latest, so it is among those that were taken back.
            Phase::Waiting(Wait { again: StartReason::Charged { .. }, .. })
            | Phase::Failed(Failure::GivenUp { .. }) => count > 0,
            // Without its engine nothing can start; a host that sleeps does not make a spec wrong.
            Phase::Failed(Failure::CannotStart { since, .. }) => {
                again == StartReason::Outage && is_recent(*since, now, within)
            }
            Phase::Idle
            | Phase::Waiting(_)
            | Phase::Up(_)
            | Phase::Stopping { .. }
            | Phase::Removed
            | Phase::Finished => false,
        };
        if undone {
            self.phase = self.wait(now, again);
        }
    }

    /// The last end, whose charge was just taken back, is nobody's fault: nothing waits because of it.
    fn excuse(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Waiting(Wait { again: StartReason::Charged { .. }, .. })
            | Phase::Failed(Failure::GivenUp { .. }) => {
                self.phase = self.wait(now, StartReason::Excused);
            }
            Phase::Up(run) | Phase::Stopping { run, .. } => {
                if let Some(StartReason::Charged { .. }) = run.again {
                    run.again = Some(StartReason::Excused);
                }
            }
            Phase::Idle
            | Phase::Waiting(_)
            | Phase::Failed(Failure::CannotStart { .. })
            | Phase::Removed
            | Phase::Finished => {}
        }
    }

    /// Whether it is off because somebody stopped it.
    pub(super) fn has_respected(&self) -> bool {
        let stopped = |end: &Ended| end.cause == Cause::StoppedBySomeone;
        self.wanted == Wanted::Off
            && self.policy.on_stop == OnStop::Respect
            && self.last_end.as_ref().is_some_and(stopped)
    }

    /// A stop that became known too late is respected, too, unless somebody has asked for the present
    /// run since.
    fn respect(&mut self) {
        let ours = match &self.phase {
            Phase::Waiting(_) | Phase::Failed(Failure::GivenUp { .. }) => true,
            Phase::Up(run) | Phase::Stopping { run, .. } => match run.again {
                Some(
                    StartReason::Charged { .. }
                    | StartReason::Excused
                    | StartReason::Postponed { .. }
                    | StartReason::Outage
                    | StartReason::HalfOpen,
                ) => true,
                Some(StartReason::Adopted) | None => false,
            },
            Phase::Idle
            | Phase::Failed(Failure::CannotStart { .. })
            | Phase::Removed
            | Phase::Finished => false,
        };
        if !ours || self.policy.on_stop != OnStop::Respect || self.wanted != Wanted::On {
            return;
        }
        self.wanted = Wanted::Off;
        self.logged.push(LoggedEvent::Respected);
        if let Phase::Stopping { ending, .. } = &mut self.phase {
            *ending = Ending::Asked;
        }
        self.stop_waiting();
    }
}

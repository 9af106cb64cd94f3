//! Actions of others, and causes that become known after an end was judged.
//!
//! An engine reports an end, but not always its cause at the same time: a container that someone stops or
//! restarts dies first, and so does one whose engine stops. Such an end is judged as an exit,
//! so that nothing waits, and is corrected here.

use std::time::Instant;

use super::budget::{PROVISIONAL, is_recent};
use super::phase::{Ending, Failure, Phase, Run, StartReason, Wait};
use super::{Ended, LoggedEvent, Unit, end};
use crate::{Cause, OnStop, RunId, Wanted};

impl Unit {
    /// Whether this adds to what is known about the last end.
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

    /// Someone else stopped or restarted what ended last. A stop stays charged; a restart is refunded.
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

    /// Someone else started the workload again. The new run inherits a requested stop of the old one,
    /// but not its faults. A stop that was respected is undone, however long ago it was: the
    /// user did not ask for it. If the old run
    /// had ended a moment ago, its charge is refunded. Any other intent stays.
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

    /// Refunds the last end, if that was a moment ago, because someone else started the workload again. A stop that was
    /// respected turns out to be a restart.
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

    /// The charge of the last end was refunded, so nothing waits because of it.
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

    /// Whether it is off because someone else stopped it.
    pub(super) fn has_respected(&self) -> bool {
        let stopped = |end: &Ended| end.cause == Cause::StoppedBySomeone;
        self.wanted == Wanted::Off
            && self.policy.on_stop == OnStop::Respect
            && self.last_end.as_ref().is_some_and(stopped)
    }

    /// A stop that became known late is respected, too, unless the user has asked for the present
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

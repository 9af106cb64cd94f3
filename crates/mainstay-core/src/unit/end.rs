//! Effects of the end of a run.
//!
//! First the cause is determined, from what the engine reports and what the unit knows; then a pure function
//! returns a verdict; then the verdict is applied. A run whose exit was reported
//! before it was gone is judged as of that exit: killing its remaining processes does not count.

use std::mem;
use std::time::{Duration, Instant};

use super::phase::{Ending, Failure, Phase, Run, StartReason, Wait, after};
use super::{Ended, LoggedEvent, Unit};
use crate::{Cause, Exit, OnStop, Wanted, backoff};

/// The minimum interval of starts after ends that are not charged.
const EXCUSED_PACE: Duration = Duration::from_secs(1);
/// The delay after a start that failed for lack of resources. It doubles with each further failure.
const POSTPONED: Duration = Duration::from_millis(500);
/// The maximum of that delay.
const POSTPONED_CAP: Duration = Duration::from_secs(30);
/// After an outage, starts are spread over this time.
const OUTAGE_SPREAD: Duration = Duration::from_secs(2);
/// Remaining processes of a run are killed after this time.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(15);

enum Verdict {
    /// The workload was removed.
    Forget,
    /// It was stopped on request.
    Done,
    /// Trying again would not help.
    CannotStart(String),
    /// Someone else stopped it, and the policy is to leave it stopped.
    Respect,
    /// It ended in an outage of its engine.
    Outage,
    /// It is restarted without a charge.
    Excuse,
    /// The start failed for lack of resources, for the `attempt`th time in a row.
    Postpone { attempt: u32 },
    /// A failure, followed by this restart.
    Charge { attempt: u32 },
    /// A failure beyond the budget.
    GiveUp,
}

impl Unit {
    /// The process of the present run has exited. The engine kills the remaining processes; the unit only checks
    /// that this succeeds in time.
    pub(super) fn exit(&mut self, now: Instant) {
        // During an outage all clocks show the time of its beginning.
        let patience =
            after(self.away.as_ref().map_or(now, |outage| outage.since), LEFTOVERS_TIMEOUT);
        match &mut self.phase {
            Phase::Up(run) => {
                let asked = self.wanted != Wanted::On || run.pending_end == Some(Ending::Asked);
                let ending = if asked { Ending::Asked } else { Ending::Exited };
                run.exited = Some(now);
                self.phase = Phase::Stopping { run: run.clone(), ending, kill_at: patience };
            }
            Phase::Stopping { run, kill_at, .. } => {
                run.exited = run.exited.or(Some(now));
                *kill_at = patience.min(*kill_at);
            }
            Phase::Idle
            | Phase::Waiting(_)
            | Phase::Failed(_)
            | Phase::Removed
            | Phase::Finished => {}
        }
    }

    /// Whether the end of a run that has exited will exceed the budget.
    pub(super) fn will_give_up(&self, run: &Run) -> bool {
        let exit = Cause::Exited(Exit::UNKNOWN);
        run.exited.is_some_and(|at| matches!(self.verdict(at, &exit, run, None), Verdict::GiveUp))
    }

    /// The present run is over. Without one, this is about the workload.
    pub(super) fn end(&mut self, now: Instant, reported: Cause) {
        let (run, ending) = match mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Up(run) => (run, None),
            Phase::Stopping { run, ending, .. } => (run, Some(ending)),
            Phase::Idle
            | Phase::Waiting(_)
            | Phase::Failed(_)
            | Phase::Removed
            | Phase::Finished => return self.end_without_run(now, reported),
        };
        let ended = ended(now, &run, self.cause(reported, ending.as_ref()));
        let verdict = self.verdict(ended.at, &ended.cause, &run, ending.as_ref());
        self.phase = self.apply(now, ended, verdict);
    }

    /// The workload of the last run was removed or cannot be used any more.
    fn end_without_run(&mut self, now: Instant, reported: Cause) {
        match reported {
            Cause::CannotStart(why) if self.wanted == Wanted::On => {
                self.logged.push(LoggedEvent::CannotStart { run: self.last, why: why.clone() });
                self.phase = Phase::Failed(Failure::CannotStart { since: now, why });
            }
            // The next start will report it.
            Cause::CannotStart(_) => {}
            Cause::Removed
            | Cause::Exited(_)
            | Cause::Hung(_)
            | Cause::NotReady(_)
            | Cause::StoppedBySomeone
            | Cause::RestartedBySomeone
            | Cause::EngineAway
            | Cause::MachineRestarted
            | Cause::NotStarted(_)
            | Cause::Asked => self.phase = Phase::Removed,
        }
    }

    /// When a server may be started after an outage.
    pub(super) fn spread(&mut self, now: Instant) -> Instant {
        let wait = self.jitter.up_to(OUTAGE_SPREAD);
        self.paced(now + wait)
    }

    /// What the unit knows takes precedence over the engine's report, except for workloads that were
    /// removed or cannot be used, outages, and starts that failed.
    fn cause(&self, reported: Cause, ending: Option<&Ending>) -> Cause {
        match (reported, ending) {
            (Cause::Removed, _) => Cause::Removed,
            (_, Some(Ending::Asked)) => Cause::Asked,
            (cause @ Cause::CannotStart(_), _) => cause,
            (_, _) if self.away.is_some() => Cause::EngineAway,
            (cause @ (Cause::EngineAway | Cause::NotStarted(_)), _)
            | (cause, None | Some(Ending::Exited)) => cause,
            (_, Some(Ending::Faulty(fault))) => fault.cause(),
        }
    }

    fn verdict(&self, at: Instant, cause: &Cause, run: &Run, ending: Option<&Ending>) -> Verdict {
        // An engine that lost a container's standard input in an outage starts it with that closed, once.
        let had_no_input = run.again == Some(StartReason::Outage)
            && run.ready.is_none()
            && *cause == Cause::Exited(Exit::code(0));
        let excused = had_no_input || self.excused_until.is_some_and(|until| at <= until);
        let attempt = self.budget.failures().saturating_add(1);
        match cause {
            Cause::Removed => Verdict::Forget,
            _ if self.wanted != Wanted::On || ending == Some(&Ending::Asked) => Verdict::Done,
            Cause::CannotStart(why) => Verdict::CannotStart(why.clone()),
            Cause::StoppedBySomeone if self.policy.on_stop == OnStop::Respect => Verdict::Respect,
            Cause::EngineAway => Verdict::Outage,
            Cause::Asked | Cause::RestartedBySomeone | Cause::MachineRestarted => Verdict::Excuse,
            Cause::NotStarted(_) => Verdict::Postpone {
                attempt: match run.again {
                    Some(StartReason::Postponed { attempt }) => attempt.saturating_add(1),
                    _ => 1,
                },
            },
            Cause::Exited(_) | Cause::Hung(_) | Cause::NotReady(_) | Cause::StoppedBySomeone => {
                if excused {
                    Verdict::Excuse
                } else if attempt <= self.policy.max {
                    Verdict::Charge { attempt }
                } else {
                    Verdict::GiveUp
                }
            }
        }
    }

    fn record(&mut self, ended: Ended, verdict: &Verdict) {
        let run = ended.run;
        self.logged.push(match verdict {
            Verdict::CannotStart(why) => LoggedEvent::CannotStart { run, why: why.clone() },
            Verdict::Forget
            | Verdict::Done
            | Verdict::Respect
            | Verdict::Outage
            | Verdict::Excuse
            | Verdict::Postpone { .. }
            | Verdict::Charge { .. }
            | Verdict::GiveUp => LoggedEvent::Ended {
                run,
                cause: ended.cause.clone(),
                ran_for: ended.ran_for,
                charged: matches!(verdict, Verdict::Charge { .. }),
            },
        });
        self.last_end = Some(ended);
    }

    fn apply(&mut self, now: Instant, ended: Ended, verdict: Verdict) -> Phase {
        let (run, at) = (ended.run, ended.at);
        self.record(ended, &verdict);
        match verdict {
            Verdict::Forget => Phase::Removed,
            Verdict::Done => Phase::Idle,
            Verdict::CannotStart(why) => Phase::Failed(Failure::CannotStart { since: at, why }),
            Verdict::Respect => {
                self.wanted = Wanted::Off;
                self.logged.push(LoggedEvent::Respected);
                Phase::Idle
            }
            Verdict::Outage => self.wait(now, StartReason::Outage),
            Verdict::Excuse => self.wait(now, StartReason::Excused),
            Verdict::Postpone { attempt } => self.wait(now, StartReason::Postponed { attempt }),
            Verdict::Charge { attempt } => {
                self.budget.charge(run, at);
                self.wait(now, StartReason::Charged { attempt })
            }
            Verdict::GiveUp => {
                self.budget.charge(run, at);
                self.logged.push(LoggedEvent::GaveUp { restarts: self.policy.max });
                Phase::Failed(Failure::GivenUp { since: at })
            }
        }
    }

    /// Decides when the next run is due.
    pub(super) fn wait(&mut self, now: Instant, again: StartReason) -> Phase {
        // A restart that is rescheduled is still the same one.
        if !matches!(self.phase, Phase::Waiting(_)) {
            self.restarts_total += 1;
            self.last_restart = Some(now);
        }
        let until = match again {
            StartReason::Charged { attempt } => {
                let delay = self.jitter.stretch(self.policy.delay(attempt));
                self.logged.push(LoggedEvent::Scheduled { attempt, of: self.policy.max, delay });
                after(now, delay)
            }
            StartReason::Outage => self.spread(now),
            StartReason::Postponed { attempt } => {
                let delay = backoff(POSTPONED, attempt - 1, POSTPONED_CAP);
                after(now, self.jitter.stretch(delay))
            }
            StartReason::Excused => self.paced(now),
            StartReason::HalfOpen | StartReason::Adopted => now,
        };
        Phase::Waiting(Wait { until, again })
    }

    fn paced(&self, at: Instant) -> Instant {
        self.last_start.map_or(at, |last| at.max(last + EXCUSED_PACE))
    }
}

/// The record of a run that is gone now.
pub(super) fn ended(now: Instant, run: &Run, cause: Cause) -> Ended {
    let at = run.exited.unwrap_or(now);
    Ended {
        run: run.id,
        cause,
        at,
        ran_for: run.age(at),
        ready_for: run.ready.map(|ready| at.saturating_duration_since(ready.at)),
    }
}

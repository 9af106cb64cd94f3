//! What the end of a run leads to.
//!
//! First the cause is settled, from what the engine reports and what we know ourselves; then a
//! verdict is reached, which is pure; then the verdict is carried out.

use std::mem;
use std::time::{Duration, Instant};

use super::budget::provisional;
use super::phase::{Again, Ending, Failure, Phase, Rest, Run, after};
use super::{Ended, Note, Unit};
use crate::{Cause, OnStop, Wanted};

/// Runs that nobody is blamed for follow each other no faster than this.
const EXCUSED_PACE: Duration = Duration::from_secs(1);
/// Servers that an outage took are started again spread over this time.
const OUTAGE_SPREAD: Duration = Duration::from_secs(2);

/// What to make of the end of a run.
enum Verdict {
    /// The workload is no more.
    Forget,
    /// It was meant to end, so there is nothing to make up for.
    Done,
    /// Trying again would not help.
    CannotStart(String),
    /// Somebody stopped it, and the policy is to leave it so.
    Respect,
    /// The engine's outage took it.
    Outage,
    /// Nobody is blamed.
    Excuse,
    /// A failure, made up for by this restart.
    Charge { attempt: u32 },
    /// A failure too many.
    GiveUp,
}

impl Unit {
    /// Takes in that the present run is over; with none, that the workload is.
    pub(super) fn end(&mut self, now: Instant, reported: Cause) {
        let (run, ending) = match mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Up(run) => (run, None),
            Phase::Stopping { run, ending, .. } => (run, Some(ending)),
            Phase::Idle
            | Phase::Resting(_)
            | Phase::Failed(_)
            | Phase::Removed
            | Phase::Finished => {
                self.phase = Phase::Removed;
                return;
            }
        };
        let cause = self.cause(reported, ending.as_ref());
        let verdict = self.verdict(now, &cause, ending.as_ref());
        self.record(now, &run, cause, &verdict);
        self.phase = self.carry_out(now, verdict);
    }

    /// Undoes what recent failures led to, because they belong to the outage that has just begun.
    pub(super) fn refund(&mut self, now: Instant) {
        let count = self.budget.refund(now);
        if count > 0 {
            self.notes.push(Note::Refunded { count });
        }
        match &mut self.phase {
            Phase::Resting(Rest { again: again @ Again::Charged { .. }, .. }) if count > 0 => {
                *again = Again::Outage;
            }
            Phase::Failed(failure) if provisional(failure.since(), now) => {
                self.phase = self.rest(now, Again::Outage);
            }
            Phase::Idle
            | Phase::Resting(_)
            | Phase::Up(_)
            | Phase::Stopping { .. }
            | Phase::Failed(_)
            | Phase::Removed
            | Phase::Finished => {}
        }
    }

    /// When a server that an outage took may be started.
    pub(super) fn spread(&mut self, now: Instant) -> Instant {
        let wait = self.jitter.up_to(OUTAGE_SPREAD);
        self.paced(now + wait)
    }

    /// What we know ourselves outweighs what the engine can tell, except that a workload that is
    /// no more is no more, and that it knows of outages and of impossible starts.
    fn cause(&self, reported: Cause, ending: Option<&Ending>) -> Cause {
        match (reported, ending) {
            (Cause::Removed, _) => Cause::Removed,
            (_, Some(Ending::Asked)) => Cause::Asked,
            (_, _) if self.away.is_some() => Cause::EngineAway,
            (cause @ (Cause::EngineAway | Cause::CannotStart(_)), _) | (cause, None) => cause,
            (_, Some(ending @ (Ending::Late(_) | Ending::Hung(_)))) => ending.cause(),
        }
    }

    fn verdict(&self, now: Instant, cause: &Cause, ending: Option<&Ending>) -> Verdict {
        let excused = self.excused_until.is_some_and(|until| now <= until);
        let attempt = self.budget.failures().saturating_add(1);
        match cause {
            Cause::Removed => Verdict::Forget,
            _ if self.wanted != Wanted::On || ending == Some(&Ending::Asked) => Verdict::Done,
            Cause::CannotStart(why) => Verdict::CannotStart(why.clone()),
            Cause::StoppedBySomeone if self.policy.on_stop == OnStop::Respect => Verdict::Respect,
            Cause::EngineAway => Verdict::Outage,
            Cause::Asked | Cause::RestartedBySomeone => Verdict::Excuse,
            Cause::Exited(_) | Cause::Hung(_) | Cause::StoppedBySomeone if excused => {
                Verdict::Excuse
            }
            Cause::Exited(_) | Cause::Hung(_) | Cause::StoppedBySomeone => {
                if attempt <= self.policy.max {
                    Verdict::Charge { attempt }
                } else {
                    Verdict::GiveUp
                }
            }
        }
    }

    fn record(&mut self, now: Instant, run: &Run, cause: Cause, verdict: &Verdict) {
        let ended = ended(now, run, cause);
        self.notes.push(match verdict {
            Verdict::CannotStart(why) => Note::CannotStart { run: run.id, why: why.clone() },
            Verdict::Forget
            | Verdict::Done
            | Verdict::Respect
            | Verdict::Outage
            | Verdict::Excuse
            | Verdict::Charge { .. }
            | Verdict::GiveUp => Note::Ended {
                run: run.id,
                cause: ended.cause.clone(),
                ran_for: ended.ran_for,
                charged: matches!(verdict, Verdict::Charge { .. }),
            },
        });
        self.last_end = Some(ended);
    }

    fn carry_out(&mut self, now: Instant, verdict: Verdict) -> Phase {
        match verdict {
            Verdict::Forget => Phase::Removed,
            Verdict::Done => Phase::Idle,
            Verdict::CannotStart(why) => Phase::Failed(Failure::CannotStart { since: now, why }),
            Verdict::Respect => {
                self.wanted = Wanted::Off;
                self.notes.push(Note::Respected);
                Phase::Idle
            }
            Verdict::Outage => self.rest(now, Again::Outage),
            Verdict::Excuse => self.rest(now, Again::Excused),
            Verdict::Charge { attempt } => {
                self.budget.charge(now);
                self.rest(now, Again::Charged { attempt })
            }
            Verdict::GiveUp => {
                self.budget.charge(now);
                self.notes.push(Note::GaveUp { restarts: self.policy.max });
                Phase::Failed(Failure::GivenUp { since: now })
            }
        }
    }

    /// Decides when the next run is due.
    pub(super) fn rest(&mut self, now: Instant, again: Again) -> Phase {
        self.restarts_total += 1;
        let until = match again {
            Again::Charged { attempt } => {
                let delay = self.jitter.stretch(self.policy.delay(attempt));
                self.notes.push(Note::Scheduled { attempt, of: self.policy.max, delay });
                after(now, delay)
            }
            Again::Outage => self.spread(now),
            Again::Excused => self.paced(now),
            Again::HalfOpen | Again::Adopted => now,
        };
        Phase::Resting(Rest { until, again })
    }

    fn paced(&self, at: Instant) -> Instant {
        self.last_start.map_or(at, |last| at.max(last + EXCUSED_PACE))
    }
}

/// The record of a run that ends now.
pub(super) fn ended(now: Instant, run: &Run, cause: Cause) -> Ended {
    Ended {
        run: run.id,
        cause,
        at: now,
        ran_for: run.age(now),
        ready_for: run.ready.map(|ready| now.saturating_duration_since(ready.at)),
    }
}

//! The phase of a unit, and its run.

use std::time::{Duration, Instant};

use super::LoggedEvent;
use super::budget::Budget;
use crate::policy::LONGEST;
use crate::start_activity::StartActivity;
use crate::{Cause, RestartPolicy, RunId, StableFrom, human_duration};

/// The minimum start timeout.
const SHORTEST_START: Duration = Duration::from_millis(1);

/// The sum, limited so that it does not overflow.
pub(super) fn after(at: Instant, wait: Duration) -> Instant {
    at + wait.min(LONGEST)
}

/// `Waiting` and `Failed` occur only while the unit is wanted on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phase {
    /// No run; one may be started.
    Idle,
    /// No run until a certain time.
    Waiting(Wait),
    /// A run that is starting or up.
    Up(Run),
    /// A run that is being stopped.
    Stopping { run: Run, ending: Ending, kill_at: Instant },
    /// No run, and none is started.
    Failed(Failure),
    /// The workload was removed; this has to be reported.
    Removed,
    /// The removal was reported.
    Finished,
}

impl Phase {
    pub(super) fn run(&self) -> Option<&Run> {
        match self {
            Self::Up(run) | Self::Stopping { run, .. } => Some(run),
            Self::Idle | Self::Waiting(_) | Self::Failed(_) | Self::Removed | Self::Finished => {
                None
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wait {
    pub(super) until: Instant,
    pub(super) again: StartReason,
}

/// Why a run is started without a request of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartReason {
    /// Restart number `attempt` after a charged failure.
    Charged { attempt: u32 },
    /// After an end that is not charged.
    Excused,
    /// After a start that failed for lack of resources, the `attempt`th in a row.
    Postponed { attempt: u32 },
    /// After an end in an outage of the engine.
    Outage,
    /// The single attempt of a given-up unit.
    HalfOpen,
    /// Someone else restarted the workload.
    Adopted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its user asked for that.
    Asked,
    /// It is at fault.
    Faulty(Fault),
    /// It exited by itself and left something behind.
    Exited,
}

/// A fault of a live run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It did not become ready within this time; the text says what it did last, if that is known.
    Late(Duration, Option<String>),
    /// It did not behave like an MCP server when it was started.
    Refused(String),
    /// It was seen to hang after it had been ready.
    Hung(String),
}

impl Fault {
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Late(limit, doing) => Cause::NotReady(late(*limit, doing.as_deref())),
            Self::Refused(what) => Cause::NotReady(what.clone()),
            Self::Hung(what) => Cause::Hung(what.clone()),
        }
    }
}

/// That a run did not become ready, and what it did last.
pub(super) fn late(limit: Duration, doing: Option<&str>) -> String {
    let limit = human_duration(limit);
    match doing {
        Some(doing) => format!("did not answer `initialize` within {limit}: at the end, {doing}"),
        None => format!("did not answer `initialize` within {limit}"),
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Failure {
    CannotStart { since: Instant, why: String },
    GivenUp { since: Instant },
}

/// A moment on two clocks: the real one, and the run's own, which stands
/// still while the run is paused or its engine away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moment {
    pub(super) at: Instant,
    clock: Instant,
}

impl Moment {
    pub(super) fn new(at: Instant) -> Self {
        Self { at, clock: at }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    pub(super) id: RunId,
    /// Why it was started; nothing if its user asked for it.
    pub(super) again: Option<StartReason>,
    pub(super) asked: Moment,
    pub(super) started: Option<Moment>,
    pub(super) ready: Option<Moment>,
    /// What it does, if it takes long to become ready.
    pub(super) doing: Option<StartActivity>,
    pub(super) paused: bool,
    pub(super) unhealthy: bool,
    /// Whether it was found to be stable.
    pub(super) stable: bool,
    /// The failures that were forgotten then.
    pub(super) forgotten: Option<Budget>,
    /// Why it has to be stopped.
    pub(super) pending_end: Option<Ending>,
    /// When its process exited, if that was reported before it was gone.
    pub(super) exited: Option<Instant>,
    /// Since when its clock stands still.
    frozen: Option<Instant>,
}

impl Run {
    pub(super) fn new(id: RunId, again: Option<StartReason>, now: Instant) -> Self {
        Self {
            id,
            again,
            asked: Moment::new(now),
            started: None,
            ready: None,
            doing: None,
            paused: false,
            unhealthy: false,
            stable: false,
            forgotten: None,
            pending_end: None,
            exited: None,
            frozen: None,
        }
    }

    /// A run of an earlier daemon. Its start deadline begins again, because no daemon
    /// was there to initialize it; its uptime counts.
    pub(super) fn found(now: Instant, id: RunId, age: Duration, ready: Option<Duration>) -> Self {
        let ago = |span| now.checked_sub(span).unwrap_or(now);
        Self {
            asked: Moment { at: ago(age), clock: now },
            started: Some(Moment::new(ago(age))),
            ready: ready.map(|span| Moment::new(ago(span))),
            ..Self::new(id, None, now)
        }
    }

    /// A run that someone else has just started.
    pub(super) fn adopted(now: Instant, id: RunId, pending_end: Option<Ending>) -> Self {
        Self {
            pending_end,
            started: Some(Moment::new(now)),
            ..Self::new(id, Some(StartReason::Adopted), now)
        }
    }

    /// Like all updates of a run, this is logged only if it is new.
    pub(super) fn set_started(&mut self, now: Instant) -> Option<LoggedEvent> {
        let new = self.started.is_none();
        self.started = self.started.or(Some(self.moment(now)));
        new.then_some(LoggedEvent::Started { run: self.id })
    }

    pub(super) fn set_ready(&mut self, now: Instant) -> Option<LoggedEvent> {
        let new = self.ready.is_none();
        let moment = Some(self.moment(now));
        self.started = self.started.or(moment);
        self.ready = self.ready.or(moment);
        self.doing = None;
        let took = now.saturating_duration_since(self.asked.at);
        new.then_some(LoggedEvent::Ready { run: self.id, took })
    }

    pub(super) fn set_paused(&mut self, paused: bool) -> Option<LoggedEvent> {
        let run = self.id;
        let new = std::mem::replace(&mut self.paused, paused) != paused;
        new.then_some(if paused {
            LoggedEvent::Paused { run }
        } else {
            LoggedEvent::Unpaused { run }
        })
    }

    pub(super) fn set_unhealthy(&mut self, unhealthy: bool) -> Option<LoggedEvent> {
        let run = self.id;
        let new = std::mem::replace(&mut self.unhealthy, unhealthy) != unhealthy;
        new.then_some(if unhealthy {
            LoggedEvent::Unhealthy { run }
        } else {
            LoggedEvent::Healthy { run }
        })
    }

    /// It does not answer. That is not a fault while it is paused or its engine away.
    pub(super) fn set_hung(&mut self, what: String) -> Option<LoggedEvent> {
        if self.frozen.is_some() || self.pending_end.is_some() {
            return None;
        }
        let fault = if self.ready.is_none() { Fault::Refused } else { Fault::Hung };
        self.pending_end = Some(Ending::Faulty(fault(what.clone())));
        Some(LoggedEvent::Hung { run: self.id, what })
    }

    /// This moment, on a clock that may stand still.
    fn moment(&self, now: Instant) -> Moment {
        Moment { at: now, clock: self.frozen.unwrap_or(now) }
    }

    /// Stops the clock of the run or lets it go on.
    pub(super) fn freeze(&mut self, now: Instant, frozen: bool) {
        match (self.frozen, frozen) {
            (None, true) => self.frozen = Some(now),
            (Some(since), false) => {
                let lost = now.saturating_duration_since(since);
                let moments = [Some(&mut self.asked), self.started.as_mut(), self.ready.as_mut()];
                for moment in moments.into_iter().flatten() {
                    moment.clock += lost;
                }
                self.frozen = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started.unwrap_or(self.asked).at)
    }

    /// When time alone will change its state.
    pub(super) fn deadline(&self, policy: &RestartPolicy) -> Option<Instant> {
        self.stable_at(policy).into_iter().chain(self.late_at(policy)).min()
    }

    /// When it becomes stable, if it is not yet.
    pub(super) fn stable_at(&self, policy: &RestartPolicy) -> Option<Instant> {
        let pending = !self.stable && self.frozen.is_none();
        pending.then(|| self.stable_after(policy))?
    }

    fn stable_after(&self, policy: &RestartPolicy) -> Option<Instant> {
        let from = match policy.stable_from {
            StableFrom::Ready => self.ready,
            StableFrom::Start => self.started,
        };
        Some(after(from?.clock, policy.stable_after))
    }

    /// The failures that were forgotten although it was silent when it became stable.
    pub(super) fn forgotten_in_silence(
        &mut self,
        policy: &RestartPolicy,
        since: Instant,
    ) -> Option<Budget> {
        self.stable_after(policy).filter(|at| since < *at)?;
        self.forgotten.take()
    }

    /// When it is too late to become ready, if it is not yet.
    pub(super) fn late_at(&self, policy: &RestartPolicy) -> Option<Instant> {
        let pending = self.ready.is_none() && self.pending_end.is_none() && self.frozen.is_none();
        pending.then(|| after(self.asked.clock, policy.start_timeout.max(SHORTEST_START)))
    }
}

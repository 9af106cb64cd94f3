//! The inputs and outputs of a unit.

use std::time::{Duration, Instant};

use crate::start_activity::StartActivity;
use crate::{Cause, RestartPolicy, RunId, Wanted};

/// An input of a [`Unit`](crate::Unit). Events of a run other than the present one are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The intent, given by the user; [`Wanted::Gone`] is `rm`. [`Wanted::On`] given again brings
    /// back a unit that is in error.
    Want(Wanted),
    /// The user asked for a restart. It acts at once in every phase, is never charged, clears the
    /// budget and turns a stopped unit on.
    Restart,
    /// The spec was replaced, and this is its policy. The budget is cleared, the intent
    /// stays. A live run is ended and the next one started as soon as it is gone, uncharged; without
    /// a run, one is started at once if the server is wanted on.
    Replaced(RestartPolicy),
    /// The process or container of this run exists.
    Started {
        run: RunId,
    },
    /// The run could not be started, and trying again would not help.
    StartFailed {
        run: RunId,
        why: String,
    },
    /// What a run does that has not become ready; none if that cannot be seen.
    Doing {
        run: RunId,
        activity: Option<StartActivity>,
    },
    /// The run answered `initialize`.
    Ready {
        run: RunId,
    },
    /// The server's process has exited, and its remaining processes are being killed; [`Event::Gone`]
    /// follows. The duration and stability of the run are judged at this moment. This event is optional.
    Exited {
        run: RunId,
    },
    /// The run is over and none of its descendants is left. A start that failed for a temporary reason
    /// is such an end too, with [`Cause::NotStarted`]. Without a present run, [`Cause::Removed`] may be
    /// reported for any earlier run, and [`Cause::CannotStart`] for the last one.
    Gone {
        run: RunId,
        cause: Cause,
    },
    /// The cause of a run that was reported gone with [`Cause::Exited`] has become known: someone else
    /// stopped or restarted the workload. Only the consequences of the last end are corrected, and a restart
    /// overrides a stop.
    Amended {
        run: RunId,
        cause: Cause,
    },
    /// Someone else started the workload again, whether its last run was reported gone before or not. `old` is the
    /// present or last run, `new` is newer than every run before.
    Adopted {
        old: RunId,
        new: RunId,
    },
    /// Someone else paused the run.
    Paused {
        run: RunId,
    },
    Unpaused {
        run: RunId,
    },
    /// The run does not answer as it used to.
    Unhealthy {
        run: RunId,
    },
    Healthy {
        run: RunId,
    },
    /// The run, which is about to be killed for it, has been silent since then.
    Silent {
        run: RunId,
        since: Instant,
    },
    /// The evidence about the run is a reason to kill it.
    Hung {
        run: RunId,
        what: String,
    },
    /// The engine does not answer. A repetition only changes the reason.
    EngineAway {
        why: String,
    },
    /// The engine answers again. Runs that ended in the outage should be reported before this; a later
    /// report should have [`Cause::EngineAway`].
    EngineBack,
    /// The host woke up; deaths of the last 5 seconds, because this is noticed late, and of the
    /// next 30 are excused.
    HostResumed,
    Demand,
    /// Nothing but time.
    Tick,
}

impl Event {
    /// The run that this is about.
    pub(super) fn subject(&self) -> Option<RunId> {
        match self {
            Self::Started { run }
            | Self::StartFailed { run, .. }
            | Self::Doing { run, .. }
            | Self::Ready { run }
            | Self::Exited { run }
            | Self::Gone { run, .. }
            | Self::Amended { run, .. }
            | Self::Adopted { old: run, .. }
            | Self::Paused { run }
            | Self::Unpaused { run }
            | Self::Unhealthy { run }
            | Self::Healthy { run }
            | Self::Silent { run, .. }
            | Self::Hung { run, .. } => Some(*run),
            _ => None,
        }
    }
}

/// What to do next. Executing an action twice is harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start this run, and report it started or failed.
    Start(RunId),
    /// End this run: TERM, wait the stop timeout, KILL, and report it gone.
    Stop(RunId),
    /// End this run now, and report it gone.
    Kill(RunId),
    /// Drop everything known about the server. The unit is finished.
    Forget,
}

/// A run that was found alive when the daemon started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub run: RunId,
    /// How long ago it was started.
    pub age: Duration,
    /// How long it has been ready, if it is known to be.
    pub ready_for: Option<Duration>,
}

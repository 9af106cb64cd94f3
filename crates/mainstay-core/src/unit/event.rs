//! What a unit is told, and what it answers.

use std::time::Duration;

use crate::{Cause, RestartPolicy, RunId, Wanted};

/// A fact for a [`Unit`](crate::Unit). News that names a run other than the present one is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The intent, given by the user; [`Wanted::Gone`] is `rm`. [`Wanted::On`] given again brings
    /// back a unit that is in error.
    Want(Wanted),
    /// The user asked for a restart. It acts at once in every phase, is never charged, clears the
    /// budget and turns a stopped unit on.
    Restart,
    /// The server was described anew, and this is its policy now. The budget is cleared, the intent
    /// stays. A live run is ended and the next one started as soon as it is gone, uncharged; without
    /// a run, one is started at once if the server is wanted on.
    Replaced(RestartPolicy),
    /// The process or container of this run exists.
    Started {
        /// Which run.
        run: RunId,
    },
    /// The run could not be started, and trying again would not help.
    StartFailed {
        /// Which run.
        run: RunId,
        /// The reason, for people.
        why: String,
    },
    /// The run answered `initialize`.
    Ready {
        /// Which run.
        run: RunId,
    },
    /// The server's own process has ended, and what it left behind is being ended; [`Event::Gone`]
    /// follows. How long the run lived and whether it was stable is judged at this moment, and
    /// nothing but its end is awaited of it any more. It may be left out.
    Exited {
        /// Which run.
        run: RunId,
    },
    /// The run is over and none of its descendants is left. A start that failed for a passing reason
    /// is such an end too, with [`Cause::NotStarted`]. While there is no present run, it may also be
    /// told that the workload was removed, of any run before, or of the last one that it can never be
    /// started again.
    Gone {
        /// Which run.
        run: RunId,
        /// How it ended, as far as the engine can tell.
        cause: Cause,
    },
    /// It has become known why a run ended that was reported gone with [`Cause::Exited`]: somebody
    /// stopped or restarted the workload. Only what the last end led to is amended, and a restart
    /// after a stop is the last word.
    Amended {
        /// The run that ended.
        run: RunId,
        /// [`Cause::StoppedBySomeone`] or [`Cause::RestartedBySomeone`].
        cause: Cause,
    },
    /// Somebody started the workload again, whether its last run was reported gone before or not.
    Adopted {
        /// The present run; if there is none, the last one.
        old: RunId,
        /// The run that took its place; newer than every run before.
        new: RunId,
    },
    /// Somebody paused the run.
    Paused {
        /// Which run.
        run: RunId,
    },
    /// The run goes on.
    Unpaused {
        /// Which run.
        run: RunId,
    },
    /// The run does not answer as it used to.
    Unhealthy {
        /// Which run.
        run: RunId,
    },
    /// The run answers again.
    Healthy {
        /// Which run.
        run: RunId,
    },
    /// Probes failed and a request is overdue.
    Hung {
        /// Which run.
        run: RunId,
        /// What was missed, for people.
        what: String,
    },
    /// The engine does not answer. Told again, it is only the reason that changes.
    EngineAway {
        /// What is wrong, for people.
        why: String,
    },
    /// The engine answers again. Runs that the outage took are best reported before this; a later
    /// report should say [`Cause::EngineAway`].
    EngineBack,
    /// The host woke up; deaths of the last 5 seconds, because this is noticed late, and of the
    /// next 30 are excused.
    HostResumed,
    /// A client calls the server.
    Demand,
    /// Nothing but time.
    Tick,
}

impl Event {
    /// The run this is news of.
    pub(super) fn subject(&self) -> Option<RunId> {
        match self {
            Self::Started { run }
            | Self::StartFailed { run, .. }
            | Self::Ready { run }
            | Self::Exited { run }
            | Self::Gone { run, .. }
            | Self::Amended { run, .. }
            | Self::Adopted { old: run, .. }
            | Self::Paused { run }
            | Self::Unpaused { run }
            | Self::Unhealthy { run }
            | Self::Healthy { run }
            | Self::Hung { run, .. } => Some(*run),
            Self::Want(_)
            | Self::Restart
            | Self::Replaced(_)
            | Self::EngineAway { .. }
            | Self::EngineBack
            | Self::HostResumed
            | Self::Demand
            | Self::Tick => None,
        }
    }
}

/// What is to be done next. Each is idempotent for whoever carries it out.
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

/// A run of ours that was found alive when the daemon started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Which run.
    pub run: RunId,
    /// How long ago it was started.
    pub age: Duration,
    /// How long it has been ready, if it is known to be.
    pub ready_for: Option<Duration>,
}

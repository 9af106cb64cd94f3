//! Events of a unit, for the event log.

use std::fmt;
use std::time::Duration;

use super::phase::late;
use super::reason::times;
use crate::{Cause, RunId, Wanted, human_duration};

/// An event of a unit. Its `Display` is a short fragment for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoggedEvent {
    Wanted {
        wanted: Wanted,
    },
    RestartAsked,
    Replaced,
    /// A run is being started; `attempt` is the number of the charged restart, or 0.
    Starting {
        run: RunId,
        attempt: u32,
    },
    Started {
        run: RunId,
    },
    /// The run answered `initialize`.
    Ready {
        run: RunId,
        took: Duration,
    },
    /// The run is over; `charged` says whether that uses up a restart.
    Ended {
        run: RunId,
        cause: Cause,
        ran_for: Duration,
        charged: bool,
    },
    /// A charged restart was scheduled.
    Scheduled {
        attempt: u32,
        of: u32,
        delay: Duration,
    },
    /// No restart is left.
    GaveUp {
        restarts: u32,
    },
    /// The run is stable, so earlier failures are forgotten.
    BudgetReset {
        run: RunId,
    },
    /// The cause of the end has become known.
    Amended {
        run: RunId,
        cause: Cause,
    },
    /// Recent charges were taken back because an outage had begun or the host had woken up.
    Refunded {
        count: u32,
    },
    /// Someone else restarted the workload.
    Adopted {
        old: RunId,
        new: RunId,
    },
    /// The run is the single try of a given-up unit.
    HalfOpen {
        run: RunId,
    },
    EngineAway {
        why: String,
    },
    EngineBack,
    /// The host woke up.
    HostResumed,
    /// Someone else stopped the server, and it stays stopped.
    Respected,
    CannotStart {
        run: RunId,
        why: String,
    },
    /// The run did not become ready in time.
    StartTimedOut {
        run: RunId,
        after: Duration,
        /// What it did last, if that is known.
        doing: Option<String>,
    },
    /// The run takes long to become ready, and this is what it does.
    SlowStart {
        run: RunId,
        activity: &'static str,
        what: String,
    },
    Hung {
        run: RunId,
        what: String,
    },
    /// The evidence about a run that does not answer, or answers again, gives another verdict.
    Verdict {
        run: RunId,
        verdict: &'static str,
        what: String,
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
    Stopping {
        run: RunId,
    },
    Killing {
        run: RunId,
    },
    Removed,
}

impl LoggedEvent {
    /// The event as a word, as in JSON.
    pub fn event(&self) -> &'static str {
        match self {
            Self::Wanted { .. } => "wanted",
            Self::RestartAsked => "restart-asked",
            Self::Replaced => "replaced",
            Self::Starting { .. } => "starting",
            Self::Started { .. } => "started",
            Self::Ready { .. } => "ready",
            Self::Ended { .. } => "ended",
            Self::Scheduled { .. } => "scheduled",
            Self::GaveUp { .. } => "gave-up",
            Self::BudgetReset { .. } => "budget-reset",
            Self::Amended { .. } => "amended",
            Self::Refunded { .. } => "refunded",
            Self::Adopted { .. } => "adopted",
            Self::HalfOpen { .. } => "half-open",
            Self::EngineAway { .. } => "engine-away",
            Self::EngineBack => "engine-back",
            Self::HostResumed => "host-resumed",
            Self::Respected => "respected",
            Self::CannotStart { .. } => "cannot-start",
            Self::StartTimedOut { .. } => "start-timed-out",
            Self::SlowStart { .. } => "slow-start",
            Self::Hung { .. } => "hung",
            Self::Verdict { verdict, .. } => verdict,
            Self::Paused { .. } => "paused",
            Self::Unpaused { .. } => "unpaused",
            Self::Unhealthy { .. } => "unhealthy",
            Self::Healthy { .. } => "healthy",
            Self::Stopping { .. } => "stopping",
            Self::Killing { .. } => "killing",
            Self::Removed => "removed",
        }
    }

    /// The run it is about; of an adoption, the new one.
    pub fn run(&self) -> Option<RunId> {
        match self {
            Self::Starting { run, .. }
            | Self::Started { run }
            | Self::Ready { run, .. }
            | Self::Ended { run, .. }
            | Self::BudgetReset { run }
            | Self::Amended { run, .. }
            | Self::Adopted { new: run, .. }
            | Self::HalfOpen { run }
            | Self::CannotStart { run, .. }
            | Self::StartTimedOut { run, .. }
            | Self::SlowStart { run, .. }
            | Self::Hung { run, .. }
            | Self::Verdict { run, .. }
            | Self::Paused { run }
            | Self::Unpaused { run }
            | Self::Unhealthy { run }
            | Self::Healthy { run }
            | Self::Stopping { run }
            | Self::Killing { run } => Some(*run),
            _ => None,
        }
    }

    /// The kind of cause behind it, as in [`Cause::kind`].
    pub fn cause(&self) -> Option<&'static str> {
        match self {
            Self::Ended { cause, .. } | Self::Amended { cause, .. } => Some(cause.kind()),
            Self::StartTimedOut { .. } => Some("not-ready"),
            Self::SlowStart { activity, .. } => Some(activity),
            Self::Hung { .. } => Some("hung"),
            Self::Respected => Some("stopped"),
            Self::Adopted { .. } => Some("restarted"),
            Self::Removed => Some("removed"),
            Self::EngineAway { .. } => Some("engine-away"),
            Self::CannotStart { .. } => Some("cannot-start"),
            _ => None,
        }
    }
}

impl fmt::Display for LoggedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wanted { wanted: Wanted::On } => f.write_str("asked to start"),
            Self::Wanted { wanted: Wanted::Off } => f.write_str("asked to stop"),
            Self::Wanted { wanted: Wanted::Gone } => f.write_str("asked to remove"),
            Self::RestartAsked => f.write_str("asked to restart"),
            Self::Replaced => f.write_str("its spec was replaced"),
            Self::Starting { run, attempt: 0 } => write!(f, "starting run {run}"),
            Self::Starting { run, attempt } => write!(f, "starting run {run} (restart {attempt})"),
            Self::Started { run } => write!(f, "run {run} has started"),
            Self::Ready { took, .. } => write!(f, "ready after {}", human_duration(*took)),
            Self::Ended { cause, ran_for, charged, .. } => {
                f.write_str(&cause.after(*ran_for))?;
                if *charged { f.write_str(" (uses up a restart)") } else { Ok(()) }
            }
            Self::Scheduled { attempt, of, delay: Duration::ZERO } => {
                write!(f, "restart {attempt} of {of} now")
            }
            Self::Scheduled { attempt, of, delay } => {
                write!(f, "restart {attempt} of {of} in {}", human_duration(*delay))
            }
            Self::GaveUp { restarts: 0 } => f.write_str("not restarted, as its spec says"),
            Self::GaveUp { restarts } => write!(f, "gave up after {}", times(*restarts)),
            Self::BudgetReset { .. } => f.write_str("stable, earlier failures are forgotten"),
            Self::Amended { cause: Cause::RestartedBySomeone, .. } => {
                f.write_str("it was restarted by someone else, so this does not count")
            }
            Self::Amended { cause, .. } => write!(f, "it was {cause}"),
            Self::Refunded { count: 1 } => {
                f.write_str("1 failure was not the server's fault and no longer counts")
            }
            Self::Refunded { count } => {
                write!(f, "{count} failures were not the server's fault and no longer count")
            }
            Self::Adopted { old, new } => {
                write!(f, "restarted by someone else: run {old} became run {new}")
            }
            Self::HalfOpen { .. } => f.write_str("given up, but called: one more try"),
            Self::EngineAway { why } => f.write_str(why),
            Self::EngineBack => f.write_str("the engine answers again"),
            Self::HostResumed => f.write_str("the host woke up"),
            Self::Respected => f.write_str("stopped by someone else and left so"),
            Self::CannotStart { why, .. } => write!(f, "cannot start: {why}"),
            Self::StartTimedOut { after, doing, .. } => {
                f.write_str(&late(*after, doing.as_deref()))
            }
            Self::SlowStart { what, .. } => write!(f, "not ready yet: {what}"),
            Self::Hung { what, .. } => write!(f, "failed: {what}"),
            Self::Verdict { what, .. } => f.write_str(what),
            Self::Paused { .. } => f.write_str("paused by someone else"),
            Self::Unpaused { .. } => f.write_str("no longer paused"),
            Self::Unhealthy { .. } => f.write_str("does not answer as it used to"),
            Self::Healthy { .. } => f.write_str("answers again"),
            Self::Stopping { run } => write!(f, "stopping run {run}"),
            Self::Killing { run } => write!(f, "killing run {run}"),
            Self::Removed => f.write_str("removed for good"),
        }
    }
}

//! Decides which runs of single sessions (`--isolate`) to stop. Pure.
//!
//! A run is kept while its client waits for an answer. Otherwise it is stopped some time after the last
//! message of its client, however long the client keeps a stream open, or some time after the end of its
//! session. The number of runs that are kept for absent clients is limited.

use std::time::Duration;

use crate::presence::{Presence, lowest_ranked};

/// A run is kept for this time after its client has ended the session, so that it can finish what it does in
/// the background. No other session uses it.
pub(crate) const RETENTION: Duration = Duration::from_secs(60);

/// How many runs are kept for absent clients, including those that have ended their sessions.
const MAX_IDLE_RUNS: usize = 16;

/// How a run of a single session is used. Times are those of the session clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunUse {
    /// The client waits for an answer, or listens for updates of resources that it has subscribed to.
    InUse,
    Idle {
        last_message: Duration,
        presence: Presence,
        /// Whether the client has sent more than `initialize`.
        is_used: bool,
    },
    /// The client has ended the session.
    SessionEnded { at: Duration },
}

/// The order in which runs are stopped when there are too many: lowest first, by the time at which the client
/// ended its session or left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    SessionEnded(Duration),
    Unused(Duration),
    Used(Duration),
}

impl RunUse {
    /// When the run is stopped if its use does not change.
    fn ends_at(&self, idle: Duration) -> Option<Duration> {
        match self {
            Self::InUse => None,
            Self::Idle { last_message, .. } => Some(last_message.saturating_add(idle)),
            Self::SessionEnded { at } => Some(at.saturating_add(RETENTION)),
        }
    }

    /// `None` for a run that does not count toward the limit.
    fn rank(&self) -> Option<Rank> {
        match *self {
            Self::InUse | Self::Idle { presence: Presence::Present, .. } => None,
            Self::Idle { presence: Presence::Absent { since }, is_used, .. } => {
                Some(if is_used { Rank::Used(since) } else { Rank::Unused(since) })
            }
            Self::SessionEnded { at } => Some(Rank::SessionEnded(at)),
        }
    }
}

/// Selects the runs to stop: those that have been idle for `idle`, those whose sessions ended [`RETENTION`]
/// ago, and those of other absent clients beyond the limit.
pub(crate) fn runs_to_end<T>(
    runs: impl IntoIterator<Item = (T, RunUse)>,
    now: Duration,
    idle: Duration,
) -> Vec<T> {
    let (mut ended, mut absent) = (Vec::new(), Vec::new());
    for (run, usage) in runs {
        if usage.ends_at(idle).is_some_and(|at| at <= now) {
            ended.push(run);
        } else if let Some(rank) = usage.rank() {
            absent.push((rank, run));
        }
    }
    let excess = absent.len().saturating_sub(MAX_IDLE_RUNS);
    ended.extend(lowest_ranked(absent, excess));
    ended
}

#[cfg(test)]
mod tests;

//! Decides which sessions are active, which may be moved to disk, and which have expired. Pure.
//!
//! A client is present while it has an unanswered request, an open stream, or a live `connect` (which reads
//! the general stream). The decisions depend on that, and on how long an absent client has been away.

use std::time::Duration;

/// A session stays active for this time after its client has left: the client may be between two requests, or
/// reconnect.
pub(crate) const GRACE: Duration = Duration::from_secs(30);

/// A session that was never used expires after this absence.
const UNUSED_EXPIRY: Duration = Duration::from_secs(5 * 60);

/// A session expires after this absence.
const EXPIRY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Present,
    Absent {
        /// Time of the session clock.
        since: Duration,
    },
}

/// The facts that the decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionFacts {
    pub(crate) presence: Presence,
    /// Whether the client has sent `initialized` or a request after `initialize`.
    pub(crate) is_used: bool,
    /// Whether its record has everything that is needed to load it again.
    pub(crate) is_recorded: bool,
}

impl SessionFacts {
    /// Whether the session is a candidate when a server message could be for any client. A late message may
    /// be about the last call of a client that has just left.
    pub(crate) fn is_active(&self, now: Duration) -> bool {
        self.is_used && self.absence(now).is_none_or(|absence| absence < GRACE)
    }

    pub(crate) fn is_expired(&self, now: Duration) -> bool {
        let limit = if self.is_used { EXPIRY } else { UNUSED_EXPIRY };
        self.absence(now).is_some_and(|absence| absence >= limit)
    }

    /// How long the client has been away; none while it is present.
    pub(crate) fn absence(&self, now: Duration) -> Option<Duration> {
        match self.presence {
            Presence::Present => None,
            Presence::Absent { since } => Some(now.saturating_sub(since)),
        }
    }

    /// Orders sessions for eviction, lowest first; `None` while the client is present. Sessions that were
    /// never used come first, then those absent longest, so a flood of unused sessions displaces no used one.
    fn eviction_rank(&self) -> Option<(bool, Duration)> {
        match self.presence {
            Presence::Present => None,
            Presence::Absent { since } => Some((self.is_used, since)),
        }
    }
}

/// Selects the sessions to move to disk so that at most `limit` stay in memory. Sessions of present clients,
/// and those that could not be loaded again, always stay.
pub(crate) fn to_move_to_disk<T>(
    sessions: impl IntoIterator<Item = (T, SessionFacts)>,
    limit: usize,
) -> Vec<T> {
    let mut count = 0_usize;
    let candidates = sessions.into_iter().inspect(|_| count += 1).filter_map(|(session, it)| {
        let rank = it.eviction_rank().filter(|_| it.is_recorded)?;
        Some((rank, session))
    });
    let candidates: Vec<_> = candidates.collect();
    lowest_ranked(candidates, count.saturating_sub(limit))
}

/// The `count` candidates with the lowest rank.
pub(crate) fn lowest_ranked<R: Ord + Copy, T>(mut candidates: Vec<(R, T)>, count: usize) -> Vec<T> {
    if count < candidates.len() && count > 0 {
        candidates.select_nth_unstable_by_key(count - 1, |(rank, _)| *rank);
    }
    candidates.truncate(count);
    candidates.into_iter().map(|(_, session)| session).collect()
}

#[cfg(test)]
mod tests;

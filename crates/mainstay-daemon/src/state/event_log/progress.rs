//! The stored progress of a server: its failures, and what they have led to.
//!
//! It is the [`UnitHistory`] of a unit in wall-clock time, which continues across reboots.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_core::{Cause, Ended, RestartState, RunId, UnitHistory};
use serde::{Deserialize, Serialize};

use crate::clock;

/// The progress of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// When the server was created, which distinguishes it from others of the same name.
    created_at: Timestamp,
    /// The boot of the machine in which this was stored; the first version did not store it.
    #[serde(default)]
    boot: Option<String>,
    last: u64,
    failures: u32,
    restarts_total: u64,
    #[serde(default)]
    last_restart: Option<Timestamp>,
    standing: StoredStanding,
    last_end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StoredStanding {
    Free,
    Due { attempt: u32, at: Timestamp },
    GivenUp { since: Timestamp },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    run: u64,
    cause: Cause,
    at: Timestamp,
    ran_for: Duration,
    ready_for: Option<Duration>,
}

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    pub(crate) now: Instant,
    pub(crate) wall: Timestamp,
}

impl Clocks {
    pub(crate) fn read() -> Self {
        Self { now: clock::now(), wall: clock::wall() }
    }

    fn to_wall(self, at: Instant) -> Timestamp {
        let ahead = at.saturating_duration_since(self.now);
        let ago = self.now.saturating_duration_since(at);
        self.wall.checked_add(ahead).and_then(|at| at.checked_sub(ago)).unwrap_or(self.wall)
    }

    fn to_instant(self, at: Timestamp) -> Instant {
        let ahead = Duration::try_from(at.duration_since(self.wall)).unwrap_or_default();
        let ago = Duration::try_from(self.wall.duration_since(at)).unwrap_or_default();
        self.now.checked_add(ahead).and_then(|at| at.checked_sub(ago)).unwrap_or(self.now)
    }
}

impl Progress {
    /// The progress of the server that was created at this time, in this boot.
    pub(crate) fn of(
        created_at: Timestamp,
        past: &UnitHistory,
        clocks: Clocks,
        boot: &str,
    ) -> Self {
        Self {
            created_at,
            boot: Some(boot.to_owned()),
            last: past.last.generation(),
            failures: past.failures,
            restarts_total: past.restarts_total,
            last_restart: past.last_restart.map(|at| clocks.to_wall(at)),
            standing: match past.restart_state {
                RestartState::Free => StoredStanding::Free,
                RestartState::Due { attempt, at } => {
                    StoredStanding::Due { attempt, at: clocks.to_wall(at) }
                }
                RestartState::GivenUp { since } => {
                    StoredStanding::GivenUp { since: clocks.to_wall(since) }
                }
            },
            last_end: past.last_end.as_ref().map(|end| End {
                run: end.run.generation(),
                cause: end.cause.clone(),
                at: clocks.to_wall(end.at),
                ran_for: end.ran_for,
                ready_for: end.ready_for,
            }),
        }
    }

    /// Whether the machine was restarted after this was stored, if that is known.
    pub(crate) fn is_of_earlier_boot(&self, boot: &str) -> bool {
        let is_known = |boot: &str| !boot.is_empty();
        is_known(boot)
            && self.boot.as_deref().is_some_and(|stored| is_known(stored) && stored != boot)
    }

    /// The history of the server that was created at this time. `None` if this is the progress of another one.
    pub(crate) fn past(&self, created_at: Timestamp, clocks: Clocks) -> Option<UnitHistory> {
        (self.created_at == created_at).then(|| UnitHistory {
            last: RunId::new(self.last),
            failures: self.failures,
            restarts_total: self.restarts_total,
            last_restart: self.last_restart.map(|at| clocks.to_instant(at)),
            restart_state: match self.standing {
                StoredStanding::Free => RestartState::Free,
                StoredStanding::Due { attempt, at } => {
                    RestartState::Due { attempt, at: clocks.to_instant(at) }
                }
                StoredStanding::GivenUp { since } => {
                    RestartState::GivenUp { since: clocks.to_instant(since) }
                }
            },
            last_end: self.last_end.as_ref().map(|end| Ended {
                run: RunId::new(end.run),
                cause: end.cause.clone(),
                at: clocks.to_instant(end.at),
                ran_for: end.ran_for,
                ready_for: end.ready_for,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use mainstay_core::Exit;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_history_is_read_as_it_was_stored() {
        let wall = Timestamp::from_second(1_000_000).unwrap();
        let clocks = Clocks { now: clock::now(), wall };
        let (second, now) = (Duration::from_secs(1), clocks.now);
        for restart_state in [
            RestartState::Free,
            RestartState::Due { attempt: 4, at: now + 20 * second },
            RestartState::GivenUp { since: now },
        ] {
            let end = Ended {
                run: RunId::new(7),
                cause: Cause::Exited(Exit::signal(9)),
                at: now,
                ran_for: 3 * second,
                ready_for: None,
            };
            let (last, last_end) = (RunId::new(8), Some(end));
            let last_restart = Some(now);
            let past = UnitHistory {
                last,
                failures: 4,
                restarts_total: 9,
                last_restart,
                restart_state,
                last_end,
            };
            let stored = Progress::of(wall, &past, clocks, "boot");
            let text = serde_json::to_string(&stored).unwrap();
            let stored: Progress = serde_json::from_str(&text).unwrap();
            let later = Clocks { now: now + 5 * second, wall: wall + 5 * second };
            assert_eq!(stored.past(wall, later), Some(past));
            assert_eq!(stored.past(wall + second, later), None, "another server");
            assert!(stored.is_of_earlier_boot("next boot") && !stored.is_of_earlier_boot("boot"));
            assert!(!stored.is_of_earlier_boot(""), "it cannot be read");
        }
    }
}

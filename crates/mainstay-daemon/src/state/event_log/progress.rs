//! The stored progress of a server: its failures, and what they have led to.
//!
//! It is the [`UnitHistory`] of a unit in wall-clock time.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_core::UnitHistory;
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
    #[serde(flatten)]
    history: UnitHistory<Timestamp>,
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
        let history = past.clone().map_times(|at| clocks.to_wall(at));
        Self { created_at, boot: Some(boot.to_owned()), history }
    }

    /// Whether the machine was restarted after this was stored, if that is known.
    pub(crate) fn is_of_earlier_boot(&self, boot: &str) -> bool {
        let is_known = |boot: &str| !boot.is_empty();
        is_known(boot)
            && self.boot.as_deref().is_some_and(|stored| is_known(stored) && stored != boot)
    }

    /// The history of the server that was created at this time. `None` if this is the progress of another one.
    pub(crate) fn past(&self, created_at: Timestamp, clocks: Clocks) -> Option<UnitHistory> {
        let is_own = self.created_at == created_at;
        is_own.then(|| self.history.clone().map_times(|at| clocks.to_instant(at)))
    }
}

#[cfg(test)]
mod tests {
    use mainstay_core::{Cause, Ended, Exit, RestartState, RunId};

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
                ignores_ping: true,
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

    #[test]
    fn what_the_first_version_stored_can_be_read() {
        let text = r#"{"created_at":"1970-01-12T13:46:40Z","last":8,"failures":4,"restarts_total":9,
            "standing":{"due":{"attempt":4,"at":"1970-01-12T13:47:00Z"}},
            "last_end":{"run":7,"cause":{"Exited":{"code":3,"signal":null,"oom":false}},
                "at":"1970-01-12T13:46:40Z","ran_for":{"secs":3,"nanos":0},"ready_for":null}}"#;
        let wall = Timestamp::from_second(1_000_000).unwrap();
        let progress: Progress = serde_json::from_str(text).unwrap();
        let (at, history) = (wall + Duration::from_secs(20), &progress.history);
        assert_eq!((progress.created_at, &progress.boot), (wall, &None));
        assert_eq!(history.restart_state, RestartState::Due { attempt: 4, at });
        assert_eq!(history.last_end.as_ref().unwrap().cause, Cause::Exited(Exit::code(3)));
        let stored = serde_json::to_value(&progress).unwrap();
        let again = serde_json::from_str::<serde_json::Value>(text).unwrap();
        for (field, value) in again.as_object().unwrap() {
            assert_eq!(stored[field], *value, "{field}");
        }
    }
}

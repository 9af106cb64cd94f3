//! Events as sentences.

use super::{SessionRunEnd, Supervisor};
use crate::{LoggedEvent, Wanted, WorkloadKind};

impl Supervisor {
    /// What happened, as a sentence.
    pub(super) fn describe(&self, event: &LoggedEvent) -> String {
        match (event, self.session_run_end) {
            (LoggedEvent::Wanted { .. }, Some(SessionRunEnd::Idle)) => {
                return "asked to stop: its client is idle".to_owned();
            }
            (LoggedEvent::Wanted { .. }, Some(SessionRunEnd::Shared)) => {
                return "asked to stop: all sessions share one run now".to_owned();
            }
            (LoggedEvent::Wanted { .. }, Some(SessionRunEnd::SessionEnded)) => {
                return "asked to stop: its session has ended".to_owned();
            }
            (LoggedEvent::Removed, Some(SessionRunEnd::Idle)) => {
                return "stopped; the next request of its client starts another run".to_owned();
            }
            (LoggedEvent::Removed, Some(SessionRunEnd::Shared)) => {
                return "stopped because all sessions share one run now".to_owned();
            }
            (LoggedEvent::Removed, Some(SessionRunEnd::SessionEnded)) => {
                return "stopped because its session has ended".to_owned();
            }
            _ => {}
        }
        match (event, self.engine) {
            (LoggedEvent::EngineBack, WorkloadKind::Remote) if self.session.is_open() => {
                "it answers again".to_owned()
            }
            (LoggedEvent::EngineBack, WorkloadKind::Remote) => "no longer waited for".to_owned(),
            (LoggedEvent::Removed, WorkloadKind::Container)
                if self.unit.wanted() != Wanted::Gone =>
            {
                "its container was removed by someone else".to_owned()
            }
            (event, _) => event.to_string(),
        }
    }
}

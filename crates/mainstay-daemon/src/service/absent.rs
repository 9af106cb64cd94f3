//! Errors about servers that do not exist, or were removed.
//!
//! The event log outlives a server, so the error for a removed one says when and how it was removed.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_api::{ApiError, ErrorKind, EventRecord};
use mainstay_core::{LoggedEvent, ServerName, Status, human_duration};

use super::{Service, WHY_READ};
use crate::clock;
use crate::driver::Handle;
use crate::state::event_log::Part;

impl Service {
    /// One server. If it was removed, the error says when and how, as far as the event log goes back.
    pub(super) async fn find(&self, name: &ServerName) -> Result<Handle, ApiError> {
        let unknown = match self.registry.get(name) {
            Ok(handle) => return Ok(handle),
            Err(unknown) => unknown,
        };
        let events = self.context.event_log.read(Some(name.clone()), Part::Last(WHY_READ)).await;
        let removal = events.iter().map(|(_, event)| event).rfind(|event| is_removal(event));
        Err(removal.map_or(unknown, |removal| was_removed(name, removal, clock::wall())))
    }

    /// The help for a failed request. Only the events of a server outlive its removal.
    pub(super) fn next_step(&self, name: &ServerName) -> String {
        next_step(name, self.info(name).ok().map(|info| info.status))
    }
}

/// The error for a server that was removed during the request.
pub(super) fn just_removed(name: &ServerName) -> ApiError {
    ApiError::new(ErrorKind::NoSuchServer, format!("`{name}` has just been removed"))
        .with_help(see_events(name))
}

fn is_removal(event: &EventRecord) -> bool {
    event.event == LoggedEvent::Removed.event()
}

fn was_removed(name: &ServerName, removal: &EventRecord, now: Timestamp) -> ApiError {
    let ago = Duration::try_from(now.duration_since(removal.at)).unwrap_or_default();
    let mut message = format!("`{name}` was removed {} ago", human_duration(ago));
    // A removal on request needs no explanation.
    if !removal.detail.starts_with(&LoggedEvent::Removed.to_string()) {
        message.push_str(": ");
        message.push_str(&removal.detail);
    }
    ApiError::new(ErrorKind::NoSuchServer, message).with_help(see_events(name))
}

fn next_step(name: &ServerName, status: Option<Status>) -> String {
    match status {
        Some(Status::Stopped) => format!("`mainstay start {name}` starts it"),
        None | Some(Status::Removing) => see_events(name),
        Some(_) => format!("`mainstay why {name}` explains what happened"),
    }
}

fn see_events(name: &ServerName) -> String {
    format!("see `mainstay events {name}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> ServerName {
        "st".parse().unwrap()
    }

    #[test]
    fn the_error_for_a_removed_server_says_when_and_how_it_was_removed() {
        let check = |detail: &str, expected: &str| {
            let removal = EventRecord {
                at: Timestamp::from_second(20).unwrap(),
                server: Some(name()),
                run: None,
                event: "removed".to_owned(),
                cause: Some("removed".to_owned()),
                detail: detail.to_owned(),
            };
            assert!(is_removal(&removal));
            let error = was_removed(&name(), &removal, Timestamp::from_second(200).unwrap());
            assert_eq!(error.kind, ErrorKind::NoSuchServer);
            assert_eq!(error.message, expected);
            assert_eq!(error.help.as_deref(), Some("see `mainstay events st`"));
        };
        check(
            "its container was removed by someone else",
            "`st` was removed 3 min ago: its container was removed by someone else",
        );
        check("removed for good", "`st` was removed 3 min ago");
        check("removed for good (for session 0a1b2c3d)", "`st` was removed 3 min ago");
    }

    #[test]
    fn the_help_for_a_removed_server_is_its_events() {
        let check = |status, expected| assert_eq!(next_step(&name(), status), expected);
        check(Some(Status::Stopped), "`mainstay start st` starts it");
        check(Some(Status::Error), "`mainstay why st` explains what happened");
        check(Some(Status::Removing), "see `mainstay events st`");
        check(None, "see `mainstay events st`");
    }
}

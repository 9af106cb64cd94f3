//! What somebody who waits for a server is told while it does not come up.

use mainstay_api::{LastExit, ServerInfo};
use mainstay_core::Status;

use crate::text::tame;

/// What has been told so far.
pub(super) struct Progress {
    /// The end that was known before.
    before: Option<LastExit>,
    reason: String,
    waiting: bool,
}

impl Progress {
    /// Nothing yet, of a server that was just accepted.
    pub(super) fn since(accepted: &ServerInfo) -> Self {
        Self { before: accepted.last_exit.clone(), reason: String::new(), waiting: false }
    }

    /// The next line, if there is anything new: a run that ended, or that the server waits for
    /// something.
    pub(super) fn line(&mut self, server: &ServerInfo) -> Option<String> {
        let waits = server.status == Status::Waiting;
        let failed = server
            .last_exit
            .as_ref()
            .is_some_and(|exit| exit.cause != "asked" && self.before.as_ref() != Some(exit));
        // How long it has been waiting is no news, and neither is that what was due has begun.
        let known = if waits { self.waiting } else { self.reason.starts_with(&server.reason) };
        self.waiting = waits;
        if known || !(waits || failed) {
            return None;
        }
        self.reason.clone_from(&server.reason);
        Some(format!("{}: {}", server.name, tame(&server.reason)))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::super::ls::tests::server;
    use super::*;

    fn seen(status: Status, reason: &str, cause: Option<&str>) -> ServerInfo {
        let mut time = server("time", status);
        time.reason = reason.to_owned();
        time.last_exit = cause.map(|cause| LastExit {
            cause: cause.to_owned(),
            detail: String::new(),
            code: None,
            signal: None,
            oom: false,
            at: Timestamp::UNIX_EPOCH,
        });
        time
    }

    #[test]
    fn a_crash_loop_is_told_end_by_end() {
        let accepted = seen(Status::Starting, "starting", None);
        let mut progress = Progress::since(&accepted);
        let mut check = |reason: &str, cause: Option<&str>, expected: Option<&str>| {
            let line = progress.line(&seen(Status::Starting, reason, cause));
            assert_eq!(line.as_deref(), expected);
        };
        check("starting", None, None);
        check("stopping, then starting", Some("asked"), None);
        check("exited 1, restarting", Some("exited"), Some("time: exited 1, restarting"));
        check("exited 1, restarting", Some("exited"), None);
        let next = "exited 1, restart 2 of 10 in 5 s";
        check(next, Some("exited"), Some("time: exited 1, restart 2 of 10 in 5 s"));
        check("exited 1, restart 2 of 10", Some("exited"), None);
        let next = "exited 1, restart 3 of 10 in 10 s";
        check(next, Some("exited"), Some("time: exited 1, restart 3 of 10 in 10 s"));
    }

    #[test]
    fn an_end_from_before_is_no_news() {
        let accepted = seen(Status::Starting, "starting", Some("exited"));
        let mut progress = Progress::since(&accepted);
        assert_eq!(progress.line(&accepted), None);
    }

    #[test]
    fn a_wait_is_told_once() {
        let mut progress = Progress::since(&seen(Status::Starting, "starting", None));
        let mut check = |status, reason: &str, expected: Option<&str>| {
            assert_eq!(progress.line(&seen(status, reason, None)).as_deref(), expected);
        };
        check(Status::Waiting, "away for 1 s", Some("time: away for 1 s"));
        check(Status::Waiting, "away for 9 s", None);
        check(Status::Starting, "starting", None);
        check(Status::Waiting, "away for 2 s", Some("time: away for 2 s"));
    }
}

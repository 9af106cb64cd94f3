//! Replaces the daemon, for `daemon reload` and `update`.
//!
//! A daemon is reported to serve only if it has answered.

use std::path::Path;
use std::time::Duration;

use mainstay_api::{DaemonInfo, Request};
use mainstay_core::with_causes;
use mainstay_hold::limits::{FAILURE_REPORT, SUCCESSION};
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep};

use crate::error::CliError;
use crate::failure_report::FailureReport;
use crate::remote::{ProcessHandle, Remote};

/// How often to check for the new daemon.
const POLL: Duration = Duration::from_millis(20);

/// Why the new daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandoverError {
    /// The old one keeps running, and reports why.
    #[error("{}", .0.message)]
    Refused(FailureReport),
    /// The old one keeps running, although it did not refuse.
    #[error("the old daemon keeps running: {0}")]
    NotReplaced(String),
    /// The new one failed after the hand-over. A daemon of the old program serves.
    #[error("the new daemon failed: {}", why.message)]
    RolledBack { why: FailureReport, pid: u32 },
    /// The socket is closed.
    #[error("no daemon is running any more{}", after_colon(.0.as_ref()))]
    NoDaemon(Option<FailureReport>),
    /// The socket is open, but no daemon answers.
    #[error("no daemon answers: {0}")]
    NoAnswer(String),
}

impl HandoverError {
    /// What the user can do about it. `old` is the daemon that was there before.
    pub(super) fn help(&self, old: &DaemonInfo) -> Option<String> {
        let advice = self.advice().map(str::to_owned);
        let log = || format!("see its log: {}", old.log.display());
        match self {
            Self::Refused(_) => advice,
            Self::RolledBack { pid, .. } => {
                let serves = format!("the old version is running again (pid {pid})");
                Some(format!("{serves}; {}", advice.unwrap_or_else(log)))
            }
            Self::NoDaemon(_) => {
                Some(advice.unwrap_or_else(|| format!("the next command starts one; {}", log())))
            }
            Self::NotReplaced(_) | Self::NoAnswer(_) => Some(log()),
        }
    }

    /// The advice of the daemon that failed.
    pub(super) fn advice(&self) -> Option<&str> {
        match self {
            Self::Refused(why) | Self::RolledBack { why, .. } | Self::NoDaemon(Some(why)) => {
                why.help.as_deref()
            }
            Self::NoDaemon(None) | Self::NotReplaced(_) | Self::NoAnswer(_) => None,
        }
    }

    /// Why the new daemon failed.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::Refused(why) | Self::RolledBack { why, .. } | Self::NoDaemon(Some(why)) => {
                why.message.clone()
            }
            Self::NoDaemon(None) => "no daemon was left".to_owned(),
            Self::NotReplaced(_) | Self::NoAnswer(_) => self.to_string(),
        }
    }
}

/// Replaces `old` by a new daemon, and waits until that serves.
pub(super) async fn hand_over(
    remote: &Remote,
    old: &DaemonInfo,
    exe: Option<&Path>,
    fallback: Option<&Path>,
) -> Result<DaemonInfo, HandoverError> {
    let request =
        Request::Reload { exe: exe.map(Path::to_owned), fallback: fallback.map(Path::to_owned) };
    let request_error = match ask(remote, &request).await {
        // The new one could not be prepared.
        Err(CliError::Api(refusal)) => {
            let FailureReport { message, help } = FailureReport::parse(&refusal.message);
            let help = help.or(refusal.help);
            return Err(HandoverError::Refused(FailureReport { message, help }));
        }
        // If the answer was lost, a hand-over may be in progress, so that is waited for too.
        request_error => request_error.err().map(|error| with_causes(&error)),
    };
    let found = wait_for_successor(remote, old).await;
    if let Found::Closed = found
        && let Some(holder) = old.holder.and_then(ProcessHandle::open)
    {
        holder.wait_exit(FAILURE_REPORT).await;
    }
    successor(old.number, found, request_error, || remote.failure_report())
}

/// Requests a new daemon. The answer arrives when it is prepared and the old one hands over.
async fn ask(remote: &Remote, request: &Request) -> Result<(), CliError> {
    let answer: Option<IgnoredAny> = remote.call_if_running(request).await?;
    answer.map(drop).ok_or_else(|| {
        let help = "start it with `mainstay daemon start`";
        CliError::failed("the daemon has ended meanwhile", help)
    })
}

/// What answers at the socket.
#[derive(Debug)]
enum Found {
    Daemon(Box<DaemonInfo>),
    /// The socket is closed.
    Closed,
    /// It is open, but no daemon answers, for this reason.
    NoAnswer(String),
}

/// The daemon after `old`, or what answers after the time limit. Starts no daemon. A failed handshake is retried: there
/// may be no daemon for a moment. A running holder keeps the socket open, so a socket that refuses twice is closed.
async fn wait_for_successor(remote: &Remote, old: &DaemonInfo) -> Found {
    let deadline = Instant::now() + SUCCESSION;
    let mut refused = false;
    loop {
        let found = match remote.inspect().await {
            Ok(Some(daemon)) if daemon.number > old.number => {
                return Found::Daemon(Box::new(daemon));
            }
            Ok(None) if refused => return Found::Closed,
            Ok(Some(daemon)) => Found::Daemon(Box::new(daemon)),
            Ok(None) => Found::Closed,
            Err(error) => Found::NoAnswer(with_causes(&error)),
        };
        if Instant::now() >= deadline {
            return found;
        }
        refused = matches!(found, Found::Closed);
        sleep(POLL).await;
    }
}

/// The daemon that was found if it is the new one, or why that failed. `request_error` is what went wrong with the request.
fn successor(
    old: u64,
    found: Found,
    request_error: Option<String>,
    failure_report: impl FnOnce() -> Option<FailureReport>,
) -> Result<DaemonInfo, HandoverError> {
    match found {
        Found::Daemon(found) if found.number <= old => {
            // Its `replacement_failed` may be of an earlier update.
            let late = || format!("no new one started within {} s", SUCCESSION.as_secs());
            Err(HandoverError::NotReplaced(request_error.unwrap_or_else(late)))
        }
        Found::Daemon(found) => match &found.replacement_failed {
            Some(why) => {
                Err(HandoverError::RolledBack { why: FailureReport::parse(why), pid: found.pid })
            }
            None => Ok(*found),
        },
        Found::Closed => Err(HandoverError::NoDaemon(failure_report())),
        Found::NoAnswer(why) => Err(HandoverError::NoAnswer(why)),
    }
}

fn after_colon(why: Option<&FailureReport>) -> String {
    why.map(|why| format!(": {}", why.message)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(number: u64, replacement_failed: Option<&str>) -> DaemonInfo {
        DaemonInfo {
            pid: 1,
            version: "0.1.0".to_owned(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
            servers: 0,
            running: 0,
            listen: None,
            listen_problem: None,
            more_addresses: Vec::new(),
            sessions: 0,
            state_dir: "/s".into(),
            socket: "/r/daemon.sock".into(),
            log: "/s/daemon.log".into(),
            instance: "i".to_owned(),
            number,
            holder: Some(2),
            replacement_failed: replacement_failed.map(str::to_owned),
        }
    }

    /// The error if this is found instead of daemon 7, or the number of the new one.
    #[track_caller]
    fn check(found: Found, request_error: Option<&str>, expected: Result<u64, &str>) {
        let report = || Some(FailureReport::parse("it fell"));
        let result = successor(7, found, request_error.map(str::to_owned), report);
        let result = result.map(|new| new.number).map_err(|error| error.to_string());
        assert_eq!(result, expected.map_err(str::to_owned));
    }

    fn met(number: u64, replacement_failed: Option<&str>) -> Found {
        Found::Daemon(Box::new(daemon(number, replacement_failed)))
    }

    #[test]
    fn a_daemon_with_a_higher_number_is_the_new_one_unless_it_rolled_back() {
        check(met(8, None), None, Ok(8));
        check(met(8, None), Some("the answer was lost"), Ok(8));
        check(met(9, Some("it fell")), None, Err("the new daemon failed: it fell"));
    }

    #[test]
    fn only_a_daemon_that_answers_is_reported_to_serve() {
        let late = "the old daemon keeps running: no new one started within 30 s";
        check(met(7, None), None, Err(late));
        check(met(7, Some("another one fell, long ago")), None, Err(late));
        check(met(7, None), Some("cut"), Err("the old daemon keeps running: cut"));
        check(Found::Closed, None, Err("no daemon is running any more: it fell"));
        let no_answer = Found::NoAnswer("no hello".to_owned());
        check(no_answer, None, Err("no daemon answers: no hello"));
        assert_eq!(HandoverError::NoDaemon(None).to_string(), "no daemon is running any more");
    }

    #[test]
    fn the_help_depends_on_the_daemon_that_serves() {
        let old = daemon(7, None);
        let why = |help: Option<&str>| FailureReport {
            message: "bad file".to_owned(),
            help: help.map(str::to_owned),
        };
        let check = |error: HandoverError, expected: Option<&str>| {
            assert_eq!(error.help(&old).as_deref(), expected, "{error}");
        };
        check(HandoverError::Refused(why(Some("correct it"))), Some("correct it"));
        check(HandoverError::Refused(why(None)), None);
        check(
            HandoverError::RolledBack { why: why(Some("correct it")), pid: 3 },
            Some("the old version is running again (pid 3); correct it"),
        );
        check(HandoverError::NoDaemon(Some(why(Some("correct it")))), Some("correct it"));
        check(
            HandoverError::NoDaemon(None),
            Some("the next command starts one; see its log: /s/daemon.log"),
        );
    }
}

//! One daemon after another: what `daemon reload` and `update` ask for.
//!
//! What is told of a failure was seen: a daemon is said to serve only if it was met.

use std::path::Path;
use std::time::Duration;

use mainstay_api::{DaemonInfo, Request};
use mainstay_core::with_causes;
use mainstay_hold::limits::{FAILURE_REPORT, SUCCESSION};
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep};

use crate::error::CliError;
use crate::failure_report::FailureReport;
use crate::remote::{Ending, Remote};

/// How often the next daemon is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Why the daemon that was asked for does not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSucceeded {
    /// The old one goes on, and says why.
    #[error("{}", .0.message)]
    Refused(FailureReport),
    /// The old one goes on, although it did not refuse.
    #[error("the old daemon keeps running: {0}")]
    Unmoved(String),
    /// It gave way, and the new one did not serve: another one like the old one does.
    #[error("the new daemon did not come up: {}", why.message)]
    Undone { why: FailureReport, pid: u32 },
    /// Nobody holds the socket.
    #[error("no daemon serves any more{}", after_colon(.0.as_ref()))]
    Nobody(Option<FailureReport>),
    /// Somebody holds the socket, and no daemon answers on it.
    #[error("no daemon answers: {0}")]
    Silent(String),
}

impl NotSucceeded {
    /// What the user can do about it. `old` is the daemon that was there before.
    pub(super) fn help(&self, old: &DaemonInfo) -> Option<String> {
        let advice = self.advice().map(str::to_owned);
        let log = || format!("see its log: {}", old.log.display());
        match self {
            Self::Refused(_) => advice,
            Self::Undone { pid, .. } => {
                let serves = format!("another one like the old one serves (pid {pid})");
                Some(format!("{serves}; {}", advice.unwrap_or_else(log)))
            }
            Self::Nobody(_) => {
                Some(advice.unwrap_or_else(|| format!("the next command starts one; {}", log())))
            }
            Self::Unmoved(_) | Self::Silent(_) => Some(log()),
        }
    }

    /// What the daemon that failed says should be done about it.
    pub(super) fn advice(&self) -> Option<&str> {
        match self {
            Self::Refused(why) | Self::Undone { why, .. } | Self::Nobody(Some(why)) => {
                why.help.as_deref()
            }
            Self::Nobody(None) | Self::Unmoved(_) | Self::Silent(_) => None,
        }
    }

    /// What became of the new daemon, for those who have seen to the rest.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::Refused(why) | Self::Undone { why, .. } | Self::Nobody(Some(why)) => {
                why.message.clone()
            }
            Self::Nobody(None) => "no daemon was left".to_owned(),
            Self::Unmoved(_) | Self::Silent(_) => self.to_string(),
        }
    }
}

/// Has another daemon take the place of `old`, and waits until it serves.
pub(super) async fn succeed(
    remote: &Remote,
    old: &DaemonInfo,
    exe: Option<&Path>,
    fallback: Option<&Path>,
) -> Result<DaemonInfo, NotSucceeded> {
    let request =
        Request::Reload { exe: exe.map(Path::to_owned), fallback: fallback.map(Path::to_owned) };
    let asked = match ask(remote, &request).await {
        // The new one was not even prepared.
        Err(CliError::Api(refusal)) => {
            let FailureReport { message, help } = FailureReport::parse(&refusal.message);
            let help = help.or(refusal.help);
            return Err(NotSucceeded::Refused(FailureReport { message, help }));
        }
        // An answer that was lost does not tell what is under way, so that is waited for too.
        asked => asked.err().map(|error| with_causes(&error)),
    };
    let found = next(remote, old).await;
    if let Found::Nobody = found
        && let Some(holder) = old.holder.and_then(Ending::of)
    {
        holder.within(FAILURE_REPORT).await;
    }
    successor(old.number, found, asked, || remote.failure_report())
}

/// Asks for it. Answered when the new daemon is prepared and the old one gives way.
async fn ask(remote: &Remote, request: &Request) -> Result<(), CliError> {
    let Some(connection) = remote.probe().await? else {
        return Err(CliError::failed("the daemon has ended meanwhile", "start it again"));
    };
    let _null: IgnoredAny = remote.finish(connection.call(request).await)?;
    Ok(())
}

/// Who was found in the daemon's place.
#[derive(Debug)]
enum Found {
    /// This one serves.
    Daemon(Box<DaemonInfo>),
    /// Nobody holds the socket.
    Nobody,
    /// Somebody does, and no daemon answers, for this reason.
    Silence(String),
}

/// Who is there after `old`, or whoever is there when the time is over. No daemon is started for this, and
/// a handshake that fails is tried again: there may be no daemon for a moment. But a holder that lives
/// holds the socket all the time, so one that refuses twice is nobody's.
async fn next(remote: &Remote, old: &DaemonInfo) -> Found {
    let deadline = Instant::now() + SUCCESSION;
    let mut refused = false;
    loop {
        let found = match remote.inspect().await {
            Ok(Some(daemon)) if daemon.number > old.number => {
                return Found::Daemon(Box::new(daemon));
            }
            Ok(None) if refused => return Found::Nobody,
            Ok(Some(daemon)) => Found::Daemon(Box::new(daemon)),
            Ok(None) => Found::Nobody,
            Err(error) => Found::Silence(with_causes(&error)),
        };
        if Instant::now() >= deadline {
            return found;
        }
        refused = matches!(found, Found::Nobody);
        sleep(LOOK).await;
    }
}

/// The daemon that was found if it is the new one, else what became of that. `asked` is what went wrong
/// with the asking.
fn successor(
    old: u64,
    found: Found,
    asked: Option<String>,
    failure_report: impl FnOnce() -> Option<FailureReport>,
) -> Result<DaemonInfo, NotSucceeded> {
    match found {
        Found::Daemon(found) if found.number <= old => {
            // It may still tell of an earlier update.
            let late = || format!("no new one has come within {} s", SUCCESSION.as_secs());
            Err(NotSucceeded::Unmoved(asked.unwrap_or_else(late)))
        }
        Found::Daemon(found) => match &found.replacement_failed {
            Some(why) => {
                Err(NotSucceeded::Undone { why: FailureReport::parse(why), pid: found.pid })
            }
            None => Ok(*found),
        },
        Found::Nobody => Err(NotSucceeded::Nobody(failure_report())),
        Found::Silence(why) => Err(NotSucceeded::Silent(why)),
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

    /// What is said if this is found in place of daemon 7, or the number of the new one.
    #[track_caller]
    fn check(found: Found, asked: Option<&str>, expected: Result<u64, &str>) {
        let words = || Some(FailureReport::parse("it fell"));
        let told = successor(7, found, asked.map(str::to_owned), words);
        let told = told.map(|new| new.number).map_err(|error| error.to_string());
        assert_eq!(told, expected.map_err(str::to_owned));
    }

    fn met(number: u64, replacement_failed: Option<&str>) -> Found {
        Found::Daemon(Box::new(daemon(number, replacement_failed)))
    }

    #[test]
    fn a_later_daemon_is_the_new_one_unless_it_says_otherwise() {
        check(met(8, None), None, Ok(8));
        check(met(8, None), Some("the answer was lost"), Ok(8));
        check(met(9, Some("it fell")), None, Err("the new daemon did not come up: it fell"));
    }

    #[test]
    fn only_a_daemon_that_was_met_is_said_to_serve() {
        let late = "the old daemon keeps running: no new one has come within 30 s";
        check(met(7, None), None, Err(late));
        check(met(7, Some("another one fell, long ago")), None, Err(late));
        check(met(7, None), Some("cut"), Err("the old daemon keeps running: cut"));
        check(Found::Nobody, None, Err("no daemon serves any more: it fell"));
        let silence = Found::Silence("no hello".to_owned());
        check(silence, None, Err("no daemon answers: no hello"));
        assert_eq!(NotSucceeded::Nobody(None).to_string(), "no daemon serves any more");
    }

    #[test]
    fn what_to_do_is_what_the_daemon_says_or_told_by_who_serves() {
        let old = daemon(7, None);
        let why = |help: Option<&str>| FailureReport {
            message: "bad file".to_owned(),
            help: help.map(str::to_owned),
        };
        let check = |error: NotSucceeded, expected: Option<&str>| {
            assert_eq!(error.help(&old).as_deref(), expected, "{error}");
        };
        check(NotSucceeded::Refused(why(Some("correct it"))), Some("correct it"));
        check(NotSucceeded::Refused(why(None)), None);
        check(
            NotSucceeded::Undone { why: why(Some("correct it")), pid: 3 },
            Some("another one like the old one serves (pid 3); correct it"),
        );
        check(NotSucceeded::Nobody(Some(why(Some("correct it")))), Some("correct it"));
        check(
            NotSucceeded::Nobody(None),
            Some("the next command starts one; see its log: /s/daemon.log"),
        );
    }
}

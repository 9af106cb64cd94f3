//! Waits until a server is ready, for `run`, `start` and `restart`, and describes the result.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use indicatif::ProgressBar;
use jiff::Timestamp;
use mainstay_api::{LogLine, Request, ServerInfo};
use mainstay_core::{ServerName, Status};
use tokio::time::sleep;

use super::why;
use crate::context::Context;
use crate::error::{CliError, Exit};
use crate::remote::Remote;
use crate::text::{clip, plain_line, short_id};
use crate::ui::{Ui, paint};

/// How many of the last lines of a server that failed are shown.
const LAST_LINES: usize = 5;

/// How often the status of a server that waits for its engine is checked.
const LOOK: Duration = Duration::from_secs(1);

/// How many things that a slow start does are shown.
const MAX_SHOWN: usize = 10;

/// How many characters of a server's line the spinner shows.
const SHOWN_LINE: usize = 60;

/// Which server is waited for, and until when.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    pub(super) name: &'a ServerName,
    /// Failures count from then on; by default, from when the server was added.
    pub(super) since: Option<Timestamp>,
    /// Whether to wait also while the engine or the remote server cannot be reached.
    pub(super) through_absence: bool,
}

impl Wait<'_> {
    /// Waits until the server is ready or has failed once. None if the user pressed Ctrl-C. A terminal shows its last
    /// line meanwhile.
    pub(super) async fn finish(&self, ctx: &mut Context) -> Result<Option<ServerInfo>, CliError> {
        let remote = Remote::of(ctx)?;
        let spinner = ctx.ui.spinner(&format!("starting {}", self.name));
        let waited = tokio::select! {
            settled = self.settled(&remote, &spinner, ctx) => settled.map(Some),
            never = self.show_lines(&remote, &spinner) => match never {},
            // If the signal cannot be caught, it ends the process as usual.
            Ok(()) = tokio::signal::ctrl_c() => Ok(None),
        };
        spinner.finish_and_clear();
        waited
    }

    async fn settled(
        &self,
        remote: &Remote,
        spinner: &ProgressBar,
        ctx: &mut Context,
    ) -> Result<ServerInfo, CliError> {
        let request = Request::Settle { name: self.name.clone(), any_end: true, since: self.since };
        let mut reported = false;
        let mut shown = Vec::new();
        loop {
            let show = |servers: Vec<ServerInfo>| {
                for server in &servers {
                    show_slow_start(server, &mut shown, spinner, &mut ctx.ui);
                }
                Ok(())
            };
            let server: ServerInfo = remote.stream(&request, show).await?;
            if !(self.through_absence && server.status == Status::Waiting) {
                return Ok(server);
            }
            if !std::mem::replace(&mut reported, true) {
                let line = format!("{}: {}", server.name, plain_line(&server.reason));
                spinner.suspend(|| ctx.ui.message(line));
            }
            sleep(LOOK).await;
        }
    }

    /// Shows the newest line of the server's log beside the spinner.
    async fn show_lines(&self, remote: &Remote, spinner: &ProgressBar) -> Infallible {
        if !spinner.is_hidden() {
            let request = Request::Logs {
                name: self.name.clone(),
                tail: Some(1),
                since: None,
                grep: None,
                follow: true,
            };
            let show = |lines: Vec<LogLine>| {
                if let Some(LogLine { line, .. }) =
                    lines.iter().rfind(|line| !why::is_marker(&line.line))
                {
                    let line = clip(&plain_line(line), SHOWN_LINE);
                    spinner.set_message(format!("starting {}: {line}", self.name));
                }
                Ok(())
            };
            // Without a log there is only the spinner.
            remote.stream::<LogLine, ()>(&request, show).await.ok();
        }
        pending().await
    }
}

/// Says what a server does that takes long to become ready, once for each thing that it does.
fn show_slow_start(
    server: &ServerInfo,
    shown: &mut Vec<(String, Option<String>)>,
    spinner: &ProgressBar,
    ui: &mut Ui,
) {
    let Some(start) = &server.start else { return };
    let what = (start.activity.clone(), start.child.clone());
    if shown.len() < MAX_SHOWN && !shown.contains(&what) {
        shown.push(what);
        let line = format!("{}: {}", server.name, plain_line(&server.reason));
        spinner.suspend(|| ui.message(line));
    }
}

/// The result of Ctrl-C while a server is starting.
pub(super) fn interrupted(name: &ServerName, ctx: &mut Context) -> CliError {
    ctx.ui.message(format!("{name} is still starting; see `mainstay status {name}`"));
    CliError::Answered(Exit::Interrupted)
}

/// The state of a server, or how it failed.
pub(super) fn verdict(server: &ServerInfo, settled: bool) -> Result<String, String> {
    let ServerInfo { name, status, reason, .. } = server;
    match status {
        Status::Running
        | Status::Busy
        | Status::Blocked
        | Status::Hung
        | Status::Suspended
        | Status::Unresponsive
        | Status::Unhealthy => {
            let container = server.container_id.as_deref().map(short_id);
            let place = match (container, server.pid) {
                (Some(id), _) => format!(" (container {id})"),
                (None, Some(pid)) => format!(" (pid {pid})"),
                (None, None) => String::new(),
            };
            Ok(format!("{name} is {}{place}", paint::status(*status)(status.as_str())))
        }
        Status::Error => Err(format!("{name} is down: {}", plain_line(reason))),
        Status::Starting | Status::Restarting if settled => Err(not_up(server)),
        // A remote server may be reachable later, so this is not an error.
        Status::Waiting if settled && server.is_remote() => {
            Ok(format!("{name} is not reachable yet: {}", plain_line(reason)))
        }
        Status::Waiting if settled => Err(format!("{name} is waiting: {}", plain_line(reason))),
        Status::Starting
        | Status::Restarting
        | Status::Waiting
        | Status::Stopping
        | Status::Stopped
        | Status::Removing => {
            let status = paint::status(*status)(status.as_str());
            Ok(format!("{name} is {status}; see `mainstay status {name}`"))
        }
    }
}

/// How a server failed that is being restarted.
fn not_up(server: &ServerInfo) -> String {
    let ServerInfo { name, reason, last_exit, .. } = server;
    let Some(exit) = last_exit.as_ref().filter(|exit| exit.cause == "exited") else {
        let reason = reason.strip_prefix("not ready: ").unwrap_or(reason);
        return format!("{name} is not ready: {}", plain_line(reason));
    };
    let then = match reason.strip_prefix(&format!("{}, ", exit.detail)) {
        Some(then) if then.starts_with("restart ") => format!(", {then}"),
        Some(_) | None => " and is being restarted".to_owned(),
    };
    format!("{name} ended ({}){then}", plain_line(&exit.detail))
}

/// The last lines of a server that failed, if it ran.
pub(super) async fn failure_report(server: &ServerInfo, ctx: &Context) -> String {
    let ran = server.last_exit.as_ref().is_some_and(|exit| exit.cause != "cannot-start");
    if !ran {
        return String::new();
    }
    // The failure itself is reported without them.
    let report = why::ask(server.name.clone(), ctx).await.ok();
    report.map(|report| in_lines(&report.stderr)).unwrap_or_default()
}

fn in_lines(stderr: &[String]) -> String {
    let last = &stderr[stderr.len().saturating_sub(LAST_LINES)..];
    if last.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = last.iter().map(|line| format!("  {}", plain_line(line))).collect();
    format!("\nits last lines:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use mainstay_api::LastExit;

    use super::super::ls::tests::server;
    use super::*;

    #[test]
    fn the_verdict_depends_on_the_status() {
        let mut time = server("time", Status::Running);
        time.pid = Some(4_711);
        let plain = |result: Result<String, String>| {
            result.map(|text| anstream::adapter::strip_str(&text).to_string())
        };
        assert_eq!(plain(verdict(&time, true)), Ok("time is running (pid 4711)".to_owned()));
        time.container_id = Some("3f2a9c01b7d4e5f60718".to_owned());
        let contained = "time is running (container 3f2a9c01b7d4)".to_owned();
        assert_eq!(plain(verdict(&time, true)), Ok(contained));
        time.status = Status::Starting;
        time.reason = "starting".to_owned();
        assert_eq!(
            plain(verdict(&time, false)),
            Ok("time is starting; see `mainstay status time`".to_owned())
        );
        time.status = Status::Error;
        time.reason = "cannot start: no such program".to_owned();
        assert_eq!(
            plain(verdict(&time, true)),
            Err("time is down: cannot start: no such program".to_owned())
        );
    }
    #[test]
    fn a_server_that_is_restarted_is_reported_so() {
        let check = |status, cause: &str, reason: &str, expected: &str| {
            let mut hot = server("hot", status);
            hot.reason = reason.to_owned();
            hot.last_exit = Some(LastExit {
                cause: cause.to_owned(),
                detail: "exited 0 after 85 ms".to_owned(),
                code: Some(0),
                signal: None,
                oom: false,
                at: Timestamp::UNIX_EPOCH,
            });
            assert_eq!(verdict(&hot, true), Err(expected.to_owned()));
        };
        let restarted = "hot ended (exited 0 after 85 ms) and is being restarted";
        check(Status::Starting, "exited", "exited 0 after 85 ms, restarting", restarted);
        check(Status::Starting, "exited", "it has not answered `initialize` yet", restarted);
        check(
            Status::Starting,
            "exited",
            "exited 0 after 85 ms, restart 2 of 10 in 5 s",
            "hot ended (exited 0 after 85 ms), restart 2 of 10 in 5 s",
        );
        check(Status::Starting, "hung", "gave no answer", "hot is not ready: gave no answer");
        check(
            Status::Waiting,
            "exited",
            "its engine is away",
            "hot is waiting: its engine is away",
        );
    }

    #[test]
    fn only_the_last_lines_are_shown() {
        assert_eq!(in_lines(&[]), "");
        let lines: Vec<String> = (1..=7).map(|n| format!("line {n}\u{1b}[0m")).collect();
        insta::assert_snapshot!(format!("time is down{}", in_lines(&lines)), @"
        time is down
        its last lines:
          line 3
          line 4
          line 5
          line 6
          line 7
        ");
    }
}

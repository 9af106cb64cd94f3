//! `mainstay run`

mod args;
mod container;
mod describe;
mod progress;

use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_api::{ClientReport, Described, Request, ServerInfo};
use mainstay_core::{EngineKind, ServerName, Status, Workload};
use mainstay_daemon::discover::Disk;

pub(crate) use self::args::Args;
use self::args::OnStopName;
use self::container::mount_warnings;
use self::describe::spec_from;
use self::progress::Progress;
use super::why;
use crate::clients;
use crate::context::Context;
use crate::engine_host;
use crate::error::CliError;
use crate::images::ask_with_images;
use crate::remote::Remote;
use crate::text::{short_id, tame};
use crate::ui::paint;

/// How long a new server is watched before the prompt comes back.
const WATCH: Duration = Duration::from_secs(3);

/// How many of the last lines of a server that failed are shown.
const LAST_LINES: usize = 5;

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let files = args.env_file.iter().map(|file| read_env_file(file)).collect::<Result<_, _>>()?;
    let mut spec = spec_from(&args, &ctx.caller, files)?;
    engine_host::settle(&mut spec, &ctx.caller, &Disk)?;
    let name = spec.name.clone();
    let specs = [spec.clone()];
    let around = clients::around(&ctx.caller);
    let only = spec.clients.only.clone();
    let request = Request::Run { spec: Box::new(spec), replace: args.replace, around };
    let described = ask_with_images(ctx, "asking the daemon", &request, &specs).await?;
    let Described { server: accepted, clients: reports } = described;
    if !args.json {
        // A client that the server names no longer loses its entry.
        let is_wanted =
            |report: &ClientReport| only.as_ref().is_none_or(|only| only.contains(&report.client));
        let lines = clients::lines(&reports, is_wanted, ctx.caller.home().as_deref());
        for line in lines.into_iter().chain(clients::outlook(&reports, None)) {
            ctx.ui.say(line);
        }
        if accepted.url.is_none() {
            ctx.warn_of_listener().await;
        }
    }
    if let Some(caveat) = caveat(&accepted, args.restart.on_stop) {
        ctx.ui.say(format!("{} {caveat}", paint::odd("warning:")));
    }
    if let Workload::Container(container) = &specs[0].workload {
        for warning in mount_warnings(container, ctx.caller.home().as_deref()) {
            ctx.ui.say(format!("{} {warning}", paint::odd("warning:")));
        }
    }
    let (server, settled) = if args.wait {
        (wait(&name, &accepted, ctx).await?, true)
    } else {
        watch(&name, accepted, ctx).await?
    };
    let verdict = verdict(&server, settled);
    let described = Described { server, clients: reports };
    if args.json {
        ctx.ui.answer(true, &described, |_| String::new())?;
    }
    match verdict {
        Ok(_) if args.json => Ok(()),
        Ok(text) => {
            ctx.ui.print(text)?;
            clients::say_none_chosen(&specs, &described.clients, ctx).await;
            Ok(())
        }
        Err(text) => {
            let text = text + &last_words(&described.server, ctx).await;
            let help = format!(
                "`mainstay why {name}` tells more; Mainstay keeps it: correct it with \
                 `mainstay run {name} --replace ...`, or `mainstay rm {name}`"
            );
            Err(CliError::failed(text, help))
        }
    }
}

/// What was asked for and cannot be had from the engine that was found.
fn caveat(server: &ServerInfo, on_stop: OnStopName) -> Option<String> {
    let (name, engine) = (&server.name, server.engine.as_str());
    match on_stop {
        OnStopName::Respect if engine == EngineKind::Podman.as_str() => Some(format!(
            "Podman does not tell a stop from an exit: {name} is started again after both"
        )),
        OnStopName::Respect | OnStopName::Restart => None,
    }
}

/// Waits until the server is ready or given up, and tells what is in the way meanwhile.
async fn wait(
    name: &ServerName,
    accepted: &ServerInfo,
    ctx: &mut Context,
) -> Result<ServerInfo, CliError> {
    let remote = Remote::of(ctx)?;
    let request = Request::Settle { name: name.clone(), any_end: false };
    let mut progress = Progress::since(accepted);
    let spinner = ctx.ui.spinner(&format!("waiting for {name}"));
    let each = |servers: Vec<ServerInfo>| {
        for line in servers.iter().filter_map(|server| progress.line(server)) {
            spinner.suspend(|| ctx.ui.say(line));
        }
        Ok(())
    };
    let settled = remote.stream(&request, each).await;
    spinner.finish_and_clear();
    settled
}

/// Looks at the first moments of the server, and tells whether they have decided anything.
async fn watch(
    name: &ServerName,
    accepted: ServerInfo,
    ctx: &Context,
) -> Result<(ServerInfo, bool), CliError> {
    let request = Request::Settle { name: name.clone(), any_end: true };
    let waiting = format!("waiting for {name}");
    match tokio::time::timeout(WATCH, ctx.ask(&waiting, &request)).await {
        Ok(server) => Ok((server?, true)),
        Err(_) => Ok((accepted, false)),
    }
}

/// What became of a server that was just run: how it is, or how it failed.
fn verdict(server: &ServerInfo, settled: bool) -> Result<String, String> {
    let ServerInfo { name, status, reason, .. } = server;
    match status {
        Status::Running | Status::Unhealthy => {
            let container = server.container_id.as_deref().map(short_id);
            let place = match (container, server.pid) {
                (Some(id), _) => format!(" (container {id})"),
                (None, Some(pid)) => format!(" (pid {pid})"),
                (None, None) => String::new(),
            };
            Ok(format!("{name} is {}{place}", paint::status(*status)(status.as_str())))
        }
        Status::Error => Err(format!("{name} is down: {}", tame(reason))),
        Status::Starting | Status::Restarting if settled => Err(not_up(server)),
        Status::Waiting if settled => Err(format!("{name} is waiting: {}", tame(reason))),
        Status::Starting
        | Status::Restarting
        | Status::Waiting
        | Status::Stopping
        | Status::Stopped
        | Status::Removing => {
            let status = paint::status(*status)(status.as_str());
            Ok(format!("{name} is {status}; `mainstay status {name}` tells more"))
        }
    }
}

/// How a server failed that is started again.
fn not_up(server: &ServerInfo) -> String {
    let ServerInfo { name, reason, last_exit, .. } = server;
    let Some(exit) = last_exit.as_ref().filter(|exit| exit.cause == "exited") else {
        return format!("{name} is not up: {}", tame(reason));
    };
    let then = match reason.strip_prefix(&format!("{}, ", exit.detail)) {
        Some(then) if then.starts_with("restart ") => format!(", {then}"),
        Some(_) | None => " and is being restarted".to_owned(),
    };
    format!("{name} ended at once ({}){then}", tame(&exit.detail))
}

/// What a server that failed wrote last, if it got so far, to go on with after how it failed.
async fn last_words(server: &ServerInfo, ctx: &Context) -> String {
    let ran = server.last_exit.as_ref().is_some_and(|exit| exit.cause != "cannot-start");
    if !ran {
        return String::new();
    }
    // Nobody who is told of a failure needs to hear that there is no more to be had.
    let report = why::ask(server.name.clone(), ctx).await.ok();
    report.map(|report| in_lines(&report.stderr)).unwrap_or_default()
}

fn in_lines(stderr: &[String]) -> String {
    let last = &stderr[stderr.len().saturating_sub(LAST_LINES)..];
    if last.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = last.iter().map(|line| format!("  {}", tame(line))).collect();
    format!("\nits last words:\n{}", lines.join("\n"))
}

fn read_env_file(file: &Path) -> Result<(PathBuf, String), CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CliError::usage(format!("`{}`: {error}", file.display())))?;
    Ok((file.to_owned(), text))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use mainstay_api::LastExit;

    use super::super::ls::tests::server;
    use super::*;

    #[test]
    fn only_docker_tells_that_somebody_stopped_a_container() {
        let on = |engine: &str, on_stop| {
            let mut time = server("time", Status::Starting);
            engine.clone_into(&mut time.engine);
            caveat(&time, on_stop)
        };
        let told = on("podman", OnStopName::Respect).unwrap();
        assert_eq!(
            told,
            "Podman does not tell a stop from an exit: time is started again after both"
        );
        assert_eq!(on("podman", OnStopName::Restart), None);
        assert_eq!(on("docker", OnStopName::Respect), None);
    }

    #[test]
    fn the_first_moments_decide_the_verdict() {
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
            Ok("time is starting; `mainstay status time` tells more".to_owned())
        );
        time.status = Status::Error;
        time.reason = "cannot start: no such program".to_owned();
        assert_eq!(
            plain(verdict(&time, true)),
            Err("time is down: cannot start: no such program".to_owned())
        );
    }
    #[test]
    fn a_server_that_is_started_again_is_told_as_that() {
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
        let restarted = "hot ended at once (exited 0 after 85 ms) and is being restarted";
        check(Status::Starting, "exited", "exited 0 after 85 ms, restarting", restarted);
        check(Status::Starting, "exited", "it has not answered `initialize` yet", restarted);
        check(
            Status::Starting,
            "exited",
            "exited 0 after 85 ms, restart 2 of 10 in 5 s",
            "hot ended at once (exited 0 after 85 ms), restart 2 of 10 in 5 s",
        );
        check(Status::Starting, "hung", "gave no answer", "hot is not up: gave no answer");
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
        its last words:
          line 3
          line 4
          line 5
          line 6
          line 7
        ");
    }
}

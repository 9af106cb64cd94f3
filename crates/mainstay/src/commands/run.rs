//! `mainstay run`

mod args;
mod changes;
mod container;
mod describe;

use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_api::{ClientReport, Described, Request, ServerInfo};
use mainstay_core::{EngineKind, OnStop, ServerName, ServerSpec, Status, Workload};
use mainstay_daemon::discover::Disk;

pub(crate) use self::args::Args;
use self::args::RestartArgs;
use self::changes::changes;
use self::container::mount_warnings;
use self::describe::spec_from;
use super::readiness::{self, Wait};
use crate::clients;
use crate::context::Context;
use crate::engine_host;
use crate::error::{CliError, Exit};
use crate::images::ask_with_images;
use crate::remote::Remote;
use crate::text::and;
use crate::ui::paint;

/// How long the start of a server is watched without a terminal.
const WATCH: Duration = Duration::from_secs(3);

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let files = args.env_file.iter().map(|file| read_env_file(file)).collect::<Result<_, _>>()?;
    let existing = if args.replace || args.reset { existing(&args, ctx).await? } else { None };
    let is_new = existing.is_none();
    let old = existing.filter(|_| args.replace);
    let mut spec = spec_from(&args, &ctx.caller, files, old.as_ref())?;
    engine_host::set_engine(&mut spec, args.container.image.is_some(), &ctx.caller, &Disk)?;
    if let Some(error) = quoted_command(&spec, Path::exists) {
        return Err(error);
    }
    let name = spec.name.clone();
    let specs = [spec.clone()];
    let around = clients::around(&ctx.caller);
    let only = spec.clients.only.clone();
    let replace = args.replace || args.reset;
    let request = Request::Run { spec: Box::new(spec), replace, around };
    let described = ask_with_images(ctx, "asking the daemon", &request, &specs).await?;
    let Described { server: accepted, clients: reports, unchanged } = described;
    if !args.json {
        if let Some(line) = old.map(|old| comparison(&old, &specs[0], unchanged)) {
            ctx.ui.message(line);
        }
        // A client that the server no longer names loses its entry.
        let is_wanted =
            |report: &ClientReport| only.as_ref().is_none_or(|only| only.contains(&report.client));
        let lines = clients::lines(&reports, is_wanted, ctx.caller.home().as_deref());
        for line in lines.into_iter().chain(clients::retry_hint(&reports, None)) {
            ctx.ui.message(line);
        }
        if accepted.url.is_none() {
            ctx.warn_if_not_listening().await;
        }
    }
    if let Some(stop_warning) = stop_warning(&accepted, specs[0].restart.on_stop) {
        ctx.ui.message(format!("{} {stop_warning}", paint::warning("warning:")));
    }
    if let Some(warning) = limits_warning(&args.restart, &specs[0].workload) {
        ctx.ui.message(format!("{} {warning}", paint::warning("warning:")));
    }
    if let Workload::Container(container) = &specs[0].workload {
        for warning in mount_warnings(container, ctx.caller.home().as_deref()) {
            ctx.ui.message(format!("{} {warning}", paint::warning("warning:")));
        }
    }
    let done = match (unchanged, is_new) {
        (true, _) => "unchanged",
        (false, true) => "added",
        (false, false) => "changed",
    };
    let (server, settled) = match watch_start(&args, accepted, ctx).await {
        Err(error) if error.exit() == Exit::Unreachable => {
            return Err(daemon_ended(&name, done, ctx));
        }
        Ok(Some((server, _))) if is_stopped(&server) && is_stopped_by_user(ctx) => {
            return Err(daemon_ended(&name, done, ctx));
        }
        Ok(Some(seen)) => seen,
        Ok(None) => return Err(readiness::interrupted(&name, ctx)),
        Err(error) => return Err(error),
    };
    let verdict = readiness::verdict(&server, settled);
    let described = Described { server, clients: reports, unchanged };
    if args.json {
        ctx.ui.json(&described)?;
    }
    match verdict {
        Ok(_) if args.json => Ok(()),
        Ok(text) if described.server.status == Status::Waiting => {
            ctx.ui.print(format!("{done}; {text}"))
        }
        Ok(text) => {
            ctx.ui.print(text)?;
            clients::hint_if_no_client(&specs, &described.clients, ctx).await;
            Ok(())
        }
        Err(text) => {
            let text = text + &readiness::failure_report(&described.server, ctx).await;
            let kept = match described.server.status {
                Status::Error => "keeps it",
                _ => "keeps it and tries again",
            };
            let help = format!(
                "see `mainstay why {name}`; Mainstay {kept}: correct it with \
                 `mainstay run {name} --replace ...`, or `mainstay rm {name}`"
            );
            Err(CliError::failed(text, help))
        }
    }
}

/// The error for a command in quotes, which the shell passes as one argument.
fn quoted_command(spec: &ServerSpec, exists: impl Fn(&Path) -> bool) -> Option<CliError> {
    let Workload::Process(process) = &spec.workload else { return None };
    let [word] = &process.command[..] else { return None };
    let dirs = process.path.as_deref().unwrap_or_default().split(':').map(Path::new);
    let is_program =
        exists(&process.cwd.join(word)) || dirs.into_iter().any(|dir| exists(&dir.join(word)));
    let is_quoted = word.trim().contains(char::is_whitespace) && !is_program;
    is_quoted.then(|| {
        let help = format!("leave out the quotes: `mainstay run {} -- {word}`", spec.name);
        CliError::misuse(format!("program `{word}` not found"), help)
    })
}

/// The server that is to be replaced. Its absence is an error only if the arguments contain nothing to run.
async fn existing(args: &Args, ctx: &mut Context) -> Result<Option<ServerSpec>, CliError> {
    let absent = match ctx.described(Some(&args.name)).await {
        Ok(specs) => return Ok(specs.into_iter().next()),
        Err(error) if error.exit() == Exit::NoSuchServer => error,
        Err(error) => return Err(error),
    };
    if args.replace && has_no_workload(args) {
        return Err(absent);
    }
    if let Some(line) = similar_name_hint(&args.name, &absent).filter(|_| !args.json) {
        ctx.ui.message(line);
    }
    Ok(None)
}

/// Whether the arguments only change settings of a server.
fn has_no_workload(args: &Args) -> bool {
    args.command.is_empty() && args.container.image.is_none() && args.remote.url.is_none()
}

/// The hint for a name that is similar to that of another server.
fn similar_name_hint(name: &ServerName, absent: &CliError) -> Option<String> {
    let advice = absent.advice()?;
    let suggestion = advice.split_inclusive('?').next()?;
    suggestion
        .starts_with("did you mean")
        .then(|| format!("there is no server `{name}` to replace, so it is added; {suggestion}"))
}

/// The error if the daemon ended before the server was ready.
fn daemon_ended(name: &ServerName, done: &str, ctx: &Context) -> CliError {
    let (what, help) = if is_stopped_by_user(ctx) {
        ("Mainstay was stopped", "`mainstay daemon start` starts it".to_owned())
    } else {
        ("the daemon ended", format!("see `mainstay status {name}`"))
    };
    let was = if done == "unchanged" { "is" } else { "was" };
    CliError::failed(format!("{name} {was} {done}, but {what} before it was ready"), help)
}

fn is_stopped(server: &ServerInfo) -> bool {
    matches!(server.status, Status::Stopping | Status::Stopped)
}

fn is_stopped_by_user(ctx: &Context) -> bool {
    Remote::of(ctx).is_ok_and(|remote| remote.is_stopped_by_user())
}

/// What a replacement changed.
fn comparison(old: &ServerSpec, new: &ServerSpec, unchanged: bool) -> String {
    let name = &new.name;
    match &changes(old, new)[..] {
        [] if unchanged => format!("{name} is unchanged and was not restarted"),
        [] => format!("{name} is unchanged"),
        changed => format!("changed: {}", changed.join(", ")),
    }
}

/// The warning about an option that the engine does not support.
fn stop_warning(server: &ServerInfo, on_stop: OnStop) -> Option<String> {
    let (name, engine) = (&server.name, server.engine.as_str());
    match on_stop {
        OnStop::Respect if engine == EngineKind::Podman.as_str() => {
            Some(format!("Podman reports a stop as an exit, so {name} is restarted after both"))
        }
        OnStop::Respect | OnStop::Restart => None,
    }
}

/// The warning about limits of silent servers that are given for one that Mainstay cannot kill.
fn limits_warning(given: &RestartArgs, workload: &Workload) -> Option<String> {
    let options = [
        ("--hang-after", given.hang_after.is_some()),
        ("--busy-limit", given.busy_limit.is_some()),
        ("--block-limit", given.block_limit.is_some()),
    ];
    let given: Vec<&str> =
        options.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option).collect();
    let can_kill = match workload {
        Workload::Remote(_) => given.is_empty(),
        Workload::Process(_) | Workload::Container(_) => true,
    };
    let verb = if given.len() == 1 { "says" } else { "say" };
    (!can_kill).then(|| format!("a remote server is never killed, whatever {} {verb}", and(&given)))
}

/// Watches the start of the server. The flag is true if it became ready or failed. None if the user pressed Ctrl-C.
async fn watch_start(
    args: &Args,
    accepted: ServerInfo,
    ctx: &mut Context,
) -> Result<Option<(ServerInfo, bool)>, CliError> {
    if !args.wait && !ctx.ui.has_stderr_terminal() {
        return watch(&args.name, accepted, ctx).await.map(Some);
    }
    let wait = Wait { name: &args.name, since: None, through_absence: args.wait };
    Ok(wait.finish(ctx).await?.map(|server| (server, true)))
}

async fn watch(
    name: &ServerName,
    accepted: ServerInfo,
    ctx: &Context,
) -> Result<(ServerInfo, bool), CliError> {
    let request = Request::Settle { name: name.clone(), any_end: true, since: None };
    let waiting = format!("waiting for {name}");
    match tokio::time::timeout(WATCH, ctx.ask(&waiting, &request)).await {
        Ok(server) => Ok((server?, true)),
        Err(_) => Ok((accepted, false)),
    }
}

fn read_env_file(file: &Path) -> Result<(PathBuf, String), CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CliError::usage(format!("`{}`: {error}", file.display())))?;
    Ok((file.to_owned(), text))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::ls::tests::server;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        restart: RestartArgs,
    }

    #[test]
    fn a_command_in_quotes_is_recognized() {
        let check = |line: &[&str], there: &str, expected: Option<&str>| {
            let command: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
            let spec = serde_json::json!({"name": "x", "workload": {"process": {
                "command": command, "cwd": "/w", "path": "/bin:/opt", "transport": "stdio",
            }}});
            let spec = serde_json::from_value(spec).unwrap();
            let error = quoted_command(&spec, |path| path == Path::new(there));
            assert_eq!(error.and_then(|error| error.advice()).as_deref(), expected);
        };
        let hint = "leave out the quotes: `mainstay run x -- python3 x.py`";
        check(&["python3 x.py"], "", Some(hint));
        check(&["python3 x.py"], "/opt/python3 x.py", None);
        check(&["my server"], "/w/my server", None);
        check(&["python3", "x y.py"], "", None);
        check(&["python3"], "", None);
    }

    #[test]
    fn podman_cannot_respect_a_stop() {
        let on = |engine: &str, on_stop| {
            let mut time = server("time", Status::Starting);
            engine.clone_into(&mut time.engine);
            stop_warning(&time, on_stop)
        };
        let warning = on("podman", OnStop::Respect).unwrap();
        assert_eq!(warning, "Podman reports a stop as an exit, so time is restarted after both");
        assert_eq!(on("podman", OnStop::Restart), None);
        assert_eq!(on("docker", OnStop::Respect), None);
    }

    #[test]
    fn a_remote_server_is_never_killed() {
        let workload = |json| serde_json::from_value::<Workload>(json).unwrap();
        let remote = workload(serde_json::json!({"remote": {"url": "http://h/"}}));
        let process =
            serde_json::json!({"process": {"command": ["x"], "cwd": "/", "transport": "stdio"}});
        let check = |flags: &str, workload: &Workload, expected: Option<&str>| {
            let words = std::iter::once("run").chain(flags.split(' '));
            let Line { restart } = Line::parse_from(words);
            assert_eq!(limits_warning(&restart, workload).as_deref(), expected);
        };
        check("--hang-after 5s", &workload(process), None);
        check("--stop-timeout 5s", &remote, None);
        let one = "a remote server is never killed, whatever --hang-after says";
        check("--hang-after 5s", &remote, Some(one));
        let two = "a remote server is never killed, whatever --busy-limit and --block-limit say";
        check("--busy-limit 5s --block-limit never", &remote, Some(two));
    }
}

//! `mainstay run`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use mainstay_api::{Request, ServerInfo};
use mainstay_core::{
    OnStop, ProcessSpec, RestartPolicy, ServerName, ServerSpec, StableFrom, Status, Transport,
    Workload,
};

use crate::context::{Caller, Context};
use crate::environment;
use crate::error::CliError;
use crate::text::duration;
use crate::transport::{Mismatch, TransportName};
use crate::ui::paint;

/// How long a new server is watched before the prompt comes back.
const WATCH: Duration = Duration::from_secs(3);

/// Run a local MCP server, now and from now on
///
/// The server is started, watched, and started again when it ends. It gets a clean environment: add
/// what it needs with `-e` and `--env-file`.
///
/// Example: `mainstay run time -- uvx mcp-server-time`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server: lower-case letters, digits and hyphens
    name: ServerName,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// How it speaks MCP
    #[arg(long, value_enum, default_value = "stdio")]
    transport: TransportName,
    /// The port it listens on, with streamable-http
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..),
          required_if_eq("transport", "streamable-http"))]
    target_port: Option<u16>,
    /// The path of its endpoint, with streamable-http [default: /mcp]
    #[arg(long)]
    path: Option<String>,
    /// Give it a variable; without a value, the one of your environment
    #[arg(short, long, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Give it the variables of a file of KEY=VALUE lines
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Where it runs [default: the current directory]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Take the place of a server with the same name
    #[arg(long)]
    replace: bool,
    /// Wait until it is ready or given up
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    restart: RestartArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Restarts")]
struct RestartArgs {
    /// Restarts in a row before it is given up
    #[arg(long, value_name = "N", default_value = "10")]
    restart_max: u32,
    /// Delay before the second restart; the first is immediate, the others double it
    #[arg(long, value_name = "TIME", default_value = "5s",
          value_parser = duration)]
    restart_initial: Duration,
    /// The longest delay
    #[arg(long, value_name = "TIME", default_value = "60s",
          value_parser = duration)]
    restart_cap: Duration,
    /// How long it must have been up for its next end to count as a first one
    #[arg(long, value_name = "TIME", default_value = "30s",
          value_parser = duration)]
    stable_after: Duration,
    /// From when on that is counted
    #[arg(long, value_enum, default_value = "ready")]
    stable_from: StableFromName,
    /// Never start it again
    #[arg(long, conflicts_with = "restart_max")]
    no_restart: bool,
    /// What to do when somebody else stops it
    #[arg(long, value_enum, default_value = "restart")]
    on_stop: OnStopName,
    /// How long it may take to answer `initialize`
    #[arg(long, value_name = "TIME", default_value = "2m",
          value_parser = duration)]
    start_timeout: Duration,
    /// How long it may take to end before it is killed
    #[arg(long, value_name = "TIME", default_value = "10s",
          value_parser = duration)]
    stop_timeout: Duration,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StableFromName {
    /// From its answer to `initialize`
    Ready,
    /// From its start
    Start,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnStopName {
    /// Start it again
    Restart,
    /// Leave it stopped
    Respect,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let files = args.env_file.iter().map(|file| read_env_file(file)).collect::<Result<_, _>>()?;
    let spec = spec_from(&args, &ctx.caller, files)?;
    let name = spec.name.clone();
    let request = Request::Run { spec: Box::new(spec), replace: args.replace };
    let accepted: ServerInfo = ctx.ask("asking the daemon", &request).await?;
    let settle = Request::Settle { name: name.clone(), any_end: !args.wait };
    let waiting = format!("waiting for {name}");
    let settled = ctx.ask::<ServerInfo>(&waiting, &settle);
    let (server, settled) = if args.wait {
        (settled.await?, true)
    } else {
        match tokio::time::timeout(WATCH, settled).await {
            Ok(server) => (server?, true),
            Err(_) => (accepted, false),
        }
    };
    let verdict = verdict(&server, settled);
    if args.json {
        ctx.ui.answer(true, &server, |_| String::new())?;
    }
    match verdict {
        Ok(text) if !args.json => ctx.ui.print(text),
        Ok(_) => Ok(()),
        Err(text) => {
            let help = format!(
                "`mainstay why {name}` tells more; it stays registered: correct it with \
                 `mainstay run {name} --replace ...`, or `mainstay rm {name}`"
            );
            Err(CliError::failed(text, help))
        }
    }
}

/// What became of a server that was just run: how it is, or how it failed.
fn verdict(server: &ServerInfo, settled: bool) -> Result<String, String> {
    let ServerInfo { name, status, reason, .. } = server;
    match status {
        Status::Running | Status::Unhealthy => {
            let pid = server.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            Ok(format!("{name} is {}{pid}", paint::status(*status)(status.as_str())))
        }
        Status::Error => Err(format!("{name} is down: {reason}")),
        Status::Starting | Status::Waiting if settled => Err(format!("{name} {reason}")),
        Status::Starting
        | Status::Waiting
        | Status::Stopping
        | Status::Stopped
        | Status::Removing => {
            let status = paint::status(*status)(status.as_str());
            Ok(format!("{name} is {status}; `mainstay status {name}` tells more"))
        }
    }
}

/// The server that the arguments describe.
fn spec_from(
    args: &Args,
    caller: &Caller,
    env_files: Vec<(PathBuf, String)>,
) -> Result<ServerSpec, CliError> {
    let spec = ServerSpec {
        name: args.name.clone(),
        workload: Workload::Process(ProcessSpec {
            command: args.command.clone(),
            cwd: caller.absolute(args.cwd.as_deref().unwrap_or(Path::new(".")))?,
            env: env_from(args, caller, env_files)?,
            path: caller.search_path(),
        }),
        transport: transport_from(args)?,
        restart: policy_from(&args.restart),
    };
    spec.validate().map_err(|error| CliError::usage(error.to_string()))?;
    Ok(spec)
}

/// Flags win over files, later ones over earlier ones.
fn env_from(
    args: &Args,
    caller: &Caller,
    files: Vec<(PathBuf, String)>,
) -> Result<BTreeMap<String, mainstay_core::EnvVar>, CliError> {
    let mut env = BTreeMap::new();
    for (file, text) in files {
        env.extend(environment::from_file(&file, &text)?);
    }
    for flag in &args.env {
        env.extend([environment::from_flag(flag, caller)?]);
    }
    Ok(env)
}

fn transport_from(args: &Args) -> Result<Transport, CliError> {
    let transport = args.transport.with(args.target_port, args.path.as_deref());
    transport.map_err(|mismatch| match mismatch {
        Mismatch::NotHttp => CliError::Usage {
            message: "--target-port and --path are for servers that speak HTTP".to_owned(),
            help: Some("add `--transport streamable-http`".to_owned()),
        },
        Mismatch::NoPort => CliError::usage("--transport streamable-http needs --target-port"),
    })
}

fn policy_from(args: &RestartArgs) -> RestartPolicy {
    RestartPolicy {
        max: if args.no_restart { 0 } else { args.restart_max },
        initial: args.restart_initial,
        cap: args.restart_cap,
        stable_after: args.stable_after,
        stable_from: match args.stable_from {
            StableFromName::Ready => StableFrom::Ready,
            StableFromName::Start => StableFrom::Start,
        },
        on_stop: match args.on_stop {
            OnStopName::Restart => OnStop::Restart,
            OnStopName::Respect => OnStop::Respect,
        },
        start_timeout: args.start_timeout,
        stop_timeout: args.stop_timeout,
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
        args: Args,
    }

    fn spec(line: &str) -> Result<ServerSpec, String> {
        let words = std::iter::once("run").chain(line.split(' '));
        let Line { args } = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let env = [("PATH", "/bin"), ("TOKEN", "hush")].map(|(k, v)| (k.into(), v.into())).into();
        let caller = Caller { env, cwd: Some("/project".into()) };
        let files = vec![("f.env".into(), "A=file\nB=file".to_owned())];
        spec_from(&args, &caller, files).map_err(|error| error.to_string())
    }

    #[test]
    fn a_bare_command_gets_the_documented_defaults() {
        let spec = spec("time -- uvx mcp-server-time --utc").unwrap();
        assert_eq!(spec.name.as_str(), "time");
        assert_eq!(spec.transport, Transport::Stdio);
        assert_eq!(spec.restart, RestartPolicy::default());
        let Workload::Process(process) = &spec.workload;
        assert_eq!(process.command, ["uvx", "mcp-server-time", "--utc"]);
        assert_eq!(process.cwd, Path::new("/project"));
        assert_eq!(process.path.as_deref(), Some("/bin"));
    }

    #[test]
    fn every_option_finds_its_place() {
        let spec = spec(
            "web --transport streamable-http --target-port 8080 --path /x --cwd sub -e A=flag \
             -e TOKEN --restart-max 3 --restart-initial 1s --restart-cap 2m --stable-after 0s \
             --stable-from start --on-stop respect --start-timeout 4s --stop-timeout 5s -- serve",
        )
        .unwrap();
        assert_eq!(
            spec.transport,
            Transport::StreamableHttp { port: 8_080, path: "/x".to_owned() }
        );
        let Workload::Process(process) = &spec.workload;
        assert_eq!(process.cwd, Path::new("/project/sub"));
        let env: Vec<_> =
            process.env.iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
        assert_eq!(env, [("A", "flag"), ("B", "file"), ("TOKEN", "hush")]);
        let secs = Duration::from_secs;
        let expected = RestartPolicy {
            max: 3,
            initial: secs(1),
            cap: secs(120),
            stable_after: Duration::ZERO,
            stable_from: StableFrom::Start,
            on_stop: OnStop::Respect,
            start_timeout: secs(4),
            stop_timeout: secs(5),
        };
        assert_eq!(spec.restart, expected);
    }

    #[test]
    fn no_restart_means_none() {
        assert_eq!(spec("a --no-restart -- x").unwrap().restart.max, 0);
        assert!(spec("a --no-restart --restart-max 3 -- x").is_err());
    }

    #[test]
    fn http_flags_go_together() {
        let check = |line: &str, expected: &str| {
            let error = spec(line).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("a --target-port 80 -- x", "are for servers that speak HTTP");
        check("a --transport streamable-http -- x", "--target-port <PORT>");
        check("a --transport streamable-http --target-port 0 -- x", "0 is not in 1..=65535");
        check(
            "a --transport streamable-http --target-port 1 --path mcp -- x",
            "server `a`: the path `mcp` must begin with `/`",
        );
    }

    #[test]
    fn the_first_moments_decide_the_verdict() {
        let mut time = server("time", Status::Running);
        time.pid = Some(4_711);
        let plain = |result: Result<String, String>| {
            result.map(|text| anstream::adapter::strip_str(&text).to_string())
        };
        assert_eq!(plain(verdict(&time, true)), Ok("time is running (pid 4711)".to_owned()));
        time.status = Status::Starting;
        time.reason = "exited 1 after 40 ms, restart 2 of 10 in 5 s".to_owned();
        assert_eq!(
            plain(verdict(&time, true)),
            Err("time exited 1 after 40 ms, restart 2 of 10 in 5 s".to_owned())
        );
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
}

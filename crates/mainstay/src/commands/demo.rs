//! `mainstay demo`: kills a server without its client noticing, on a private instance that is removed afterwards.

mod client;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_api::{Around, Described, EventRecord, Request, ServerInfo};
use mainstay_core::{
    ClientSettings, ProcessSpec, ProxySettings, RestartPolicy, ServerName, ServerSpec, Status,
    Transport, Workload,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, timeout};

use self::client::Client;
use super::daemon::shut_down;
use crate::context::{Context, now};
use crate::error::CliError;
use crate::remote::Remote;
use crate::text::since;
use crate::ui::{Ui, paint};

/// How long each step may take on a slow machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Show that a client does not notice when its server is killed
///
/// Starts a private daemon in a temporary directory, runs a small MCP server that is part of this
/// program, and connects to it once. Then it calls the server, kills it, calls it again in the same session, and
/// removes everything. Your own servers and files are not affected.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let home = tempfile::Builder::new()
        .prefix("mainstay-demo-")
        .tempdir()
        .map_err(CliError::io("no temporary directory can be created"))?;
    let private = Context {
        caller: ctx.caller.with_private_home(home.path()),
        exe: ctx.exe.clone(),
        ui: Ui::new(),
    };
    let listening = CliError::io("signals cannot be listened for");
    let (mut interrupt, mut terminate) = signal(SignalKind::interrupt())
        .and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?)))
        .map_err(listening)?;
    let mut demo = Demo { remote: Remote::of(&private)?, ui: &mut ctx.ui };
    let shown = match demo.start_daemon().await {
        Ok(()) => tokio::select! {
            shown = demo.show(&ctx.exe) => shown,
            _ = interrupt.recv() => Err(interrupted()),
            _ = terminate.recv() => Err(interrupted()),
        },
        failed => failed,
    };
    let stopped = shut_down(&demo.remote, false).await;
    home.close().map_err(CliError::io("the temporary directory cannot be removed"))?;
    shown?;
    stopped?;
    ctx.ui.print(format!(
        "\nEverything is removed again. Try it yourself: {}",
        paint::note("mainstay run NAME -- COMMAND")
    ))
}

fn interrupted() -> CliError {
    CliError::Failed { message: "interrupted; everything is removed again".to_owned(), help: None }
}

struct Demo<'a> {
    remote: Remote,
    ui: &'a mut Ui,
}

impl Demo<'_> {
    /// Starts the private daemon. Must not be interrupted: a daemon that is starting could not be stopped.
    async fn start_daemon(&self) -> Result<(), CliError> {
        self.remote.call(&Request::List).await.map(|_: Vec<ServerInfo>| ())
    }

    async fn show(&mut self, exe: &Path) -> Result<(), CliError> {
        self.ui.print(
            "Mainstay keeps MCP servers running. This demo kills one while a client uses it.\n",
        )?;
        self.print_command("mainstay run demo -- mainstay __demo-server")?;
        let spec = Box::new(demo_spec(exe)?);
        let name = spec.name.clone();
        let _accepted: Described =
            self.ask(&Request::Run { spec, replace: false, around: Around::default() }).await?;
        let settle = Request::Settle { name: name.clone(), any_end: true, since: None };
        let server: ServerInfo = self.ask(&settle).await?;
        let pid = server.pid.filter(|_| server.status == Status::Running);
        let pid =
            pid.ok_or_else(|| failed(format!("the server is not ready: {}", server.reason)))?;
        self.print_result(&format!("demo is {} (pid {pid})", paint::good("running")))?;

        self.print_comment("An MCP client connects once.")?;
        let mut client = with_limit(Client::connect(self.remote.clone(), &name)).await?;
        let session = client.session.get(..8).unwrap_or_default().to_owned();
        self.print_result(&format!("session {session}"))?;
        let (sum, first) = self.add(&mut client, 2, 3).await?;
        self.print_result(&format!("2 + 3 = {sum} (from pid {first})"))?;

        self.print_command(&format!("kill -9 {pid}"))?;
        let (killed, killed_at) = (Instant::now(), now());
        kill(pid)?;

        self.print_comment("The client calls again at once, in the same session.")?;
        let (sum, second) = self.add(&mut client, 20, 22).await?;
        let gap = killed.elapsed();
        if first == second {
            return Err(failed("the killed process answered"));
        }
        self.print_result(&format!("20 + 22 = {sum} (from pid {second})"))?;
        self.print_result(&format!("still session {session}: no error, no second `initialize`"))?;
        if let Some((noticed, started)) = self.recovery(&name, killed_at).await? {
            self.ui.print(format!(
                "\n{:>7} from the kill until Mainstay noticed it\n{:>7} until a new process was started",
                millis(noticed),
                millis(started)
            ))?;
        }
        let line = format!("{:>7} until the client had both answers", millis(gap));
        self.ui.print(paint::good(&line))
    }

    /// Calls the server to add two numbers. Returns the sum and the pid of the server.
    async fn add(&self, client: &mut Client, a: u32, b: u32) -> Result<(String, String), CliError> {
        let calls = async {
            let sum = client.call("add", &json!({"a": a, "b": b})).await?.swap_remove(0);
            let pid = client.call("pid", &json!({})).await?.swap_remove(0);
            Ok((sum, pid))
        };
        with_limit(calls).await
    }

    async fn recovery(
        &self,
        name: &ServerName,
        killed_at: Timestamp,
    ) -> Result<Option<(Duration, Duration)>, CliError> {
        let mut events = Vec::new();
        let request = Request::Events { name: Some(name.clone()), tail: None, follow: false };
        self.remote
            .stream::<_, ()>(&request, |more: Vec<EventRecord>| {
                events.extend(more);
                Ok(())
            })
            .await?;
        Ok(recovery(&events, killed_at))
    }

    async fn ask<T: serde::de::DeserializeOwned>(&self, request: &Request) -> Result<T, CliError> {
        with_limit(self.remote.call(request)).await
    }

    fn print_comment(&mut self, text: &str) -> Result<(), CliError> {
        self.ui.print(paint::faint(&format!("# {text}")))
    }

    fn print_command(&mut self, command: &str) -> Result<(), CliError> {
        self.ui.print(format!("{} {}", paint::faint("$"), paint::strong(command)))
    }

    fn print_result(&mut self, text: &str) -> Result<(), CliError> {
        self.ui.print(format!("  {text}"))
    }
}

async fn with_limit<T>(step: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let late = |_| failed(format!("no answer within {} s", LIMIT.as_secs()));
    timeout(LIMIT, step).await.map_err(late)?
}

fn demo_spec(exe: &Path) -> Result<ServerSpec, CliError> {
    let exe = exe.to_str().ok_or_else(|| failed("the path of this program is not valid UTF-8"))?;
    Ok(ServerSpec {
        name: "demo".parse().map_err(|error| failed(format!("{error}")))?,
        workload: Workload::Process(ProcessSpec {
            command: vec![exe.to_owned(), "__demo-server".to_owned()],
            cwd: "/".into(),
            env: BTreeMap::new(),
            path: None,
            transport: Transport::Stdio,
        }),
        restart: RestartPolicy::default(),
        proxy: ProxySettings::default(),
        // The demo is short, so the server is not added to any client.
        clients: ClientSettings { only: Some(BTreeSet::new()), refresh: None },
    })
}

fn kill(pid: u32) -> Result<(), CliError> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| failed("the server has no process"))?;
    kill_process(pid, Signal::KILL)
        .map_err(|error| CliError::io("the server cannot be killed")(error.into()))
}

/// When the daemon noticed the kill, and when it started the next process.
fn recovery(events: &[EventRecord], killed_at: Timestamp) -> Option<(Duration, Duration)> {
    let ended = events.iter().position(|event| event.event == "ended")?;
    let started = events[ended..].iter().find(|event| event.event == "started")?;
    Some((since(killed_at, events[ended].at), since(killed_at, started.at)))
}

fn millis(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

fn failed(message: impl Into<String>) -> CliError {
    CliError::failed(message, "please report this: the demo should work on every machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_times_come_from_events() {
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let event = |millis, event: &str| EventRecord {
            at: at(millis),
            server: None,
            run: None,
            event: event.to_owned(),
            cause: None,
            detail: String::new(),
        };
        let events = [
            event(0, "started"),
            event(1_003, "ended"),
            event(1_003, "x"),
            event(1_009, "started"),
        ];
        let expected = (Duration::from_millis(3), Duration::from_millis(9));
        assert_eq!(recovery(&events, at(1_000)), Some(expected));
        assert_eq!(recovery(&events[..3], at(1_000)), None);
    }
}

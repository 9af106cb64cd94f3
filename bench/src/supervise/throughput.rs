//! Echo calls through Mainstay, next to the same calls to the fixture itself.
//!
//! Load generator, Mainstay and fixture share the machine, so the ratio says more than the rates.

use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::BenchError;
use super::contract::Load;
use super::instance::{Instance, output, parse};
use super::table::Table;

const NAME: &str = "echo";
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    sessions: u32,
    /// To the fixture over HTTP, without Mainstay.
    direct: Way,
    /// To Mainstay over HTTP, which has the fixture on stdio.
    through: Way,
    /// How much of the direct rate is left.
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Way {
    calls_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of the process that was called: the fixture or the daemon.
    cpu_us_per_call: f64,
    errors: u64,
    wrong: u64,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        let headings = ["calls/s", "p50", "p99", "CPU per call", "errors", "wrong"];
        Table::new(format!("echo, {} sessions", self.sessions), &headings)
            .row("fixture direct", self.direct.cells())
            .row(format!("through Mainstay ({:.2}x)", self.ratio), self.through.cells())
    }
}

impl Way {
    fn cells(&self) -> Vec<String> {
        vec![
            format!("{:.0}", self.calls_per_s),
            format!("{:.0} us", self.p50_us),
            format!("{:.0} us", self.p99_us),
            format!("{:.1} us", self.cpu_us_per_call),
            self.errors.to_string(),
            self.wrong.to_string(),
        ]
    }
}

impl From<Load> for Way {
    fn from(load: Load) -> Self {
        Self {
            calls_per_s: load.calls_per_s,
            p50_us: load.latency.p50_us,
            p99_us: load.latency.p99_us,
            cpu_us_per_call: load.cpu.iter().map(|cpu| cpu.us_per_call).sum(),
            errors: load.errors,
            wrong: load.wrong,
        }
    }
}

pub(super) async fn measure(
    instance: &Instance,
    sessions: u32,
    seconds: u64,
) -> Result<Figures, BenchError> {
    let direct = {
        let (fixture, url) = http_fixture(instance).await?;
        load(instance, &url, fixture.id(), sessions, seconds).await?
    };
    instance.add_server(NAME).await?;
    let servers = instance.ready_servers(1, LIMIT).await?;
    let url = servers.into_iter().find_map(|server| server.url);
    let url = url.ok_or(BenchError::Untold { server: NAME, what: "url" })?;
    let daemon = instance.daemon_pid().await?;
    let through = load(instance, &url, Some(daemon), sessions, seconds).await?;
    let ratio =
        if direct.calls_per_s > 0.0 { through.calls_per_s / direct.calls_per_s } else { 0.0 };
    Ok(Figures { sessions, direct, through, ratio })
}

/// A fixture that serves HTTP until it is dropped, and its URL.
async fn http_fixture(instance: &Instance) -> Result<(Child, String), BenchError> {
    let late = || BenchError::Late { what: "the start of the fixture".to_owned(), limit: LIMIT };
    let mut fixture = Command::new(instance.fixture())
        .args(["--http", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| BenchError::Start { program: "fixture-mcp".to_owned(), source })?;
    let stderr = fixture.stderr.take().expect("stderr was asked for as a pipe");
    let mut lines = BufReader::new(stderr).lines();
    let line = timeout(LIMIT, lines.next_line()).await.map_err(|_| late())?;
    let line = line.map_err(BenchError::SetUp)?.ok_or_else(late)?;
    let address = line.strip_prefix("listening on ").ok_or_else(late)?;
    Ok((fixture, format!("http://{address}/mcp")))
}

async fn load(
    instance: &Instance,
    url: &str,
    pid: Option<u32>,
    sessions: u32,
    seconds: u64,
) -> Result<Way, BenchError> {
    let mut command = instance.mcpload();
    command
        .args(["http", url, "--warmup", "1", "--json"])
        .args(["--sessions", &sessions.to_string()])
        .args(["--seconds", &seconds.to_string()]);
    if let Some(pid) = pid {
        command.args(["--cpu-pid", &pid.to_string()]);
    }
    let output = output(&mut command, LIMIT + Duration::from_secs(seconds)).await?;
    if output.stdout.is_empty() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(BenchError::Failed { command: "mcpload".to_owned(), stderr });
    }
    parse::<Load>("mcpload", &output.stdout).map(Way::from)
}

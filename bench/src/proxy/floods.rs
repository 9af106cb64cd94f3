//! Measures what a well-behaved client notices while another one floods Mainstay.
//!
//! The flood runs on a thread of its own, on another core than the daemon. Meanwhile a client makes a call
//! every 10 ms in its own session, and each must be answered correctly. A flood runs as fast as it can, and
//! reopens connections that Mainstay closes.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::peers::endpoint;
use crate::load::{Pace, Tool, Work};
use crate::procfs::pss_kib;
use crate::rig::{
    BenchError, Instance, Programs, Table, Upstream, milliseconds, unless_interrupted,
    with_instance,
};
use crate::stats::Percentiles;

const SERVER: &str = "fixture";
const START_LIMIT: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(10);
/// How many connections a flood keeps open at most.
const OPEN: usize = 2_000;
/// How long a flooder waits for an answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// When memory is measured again after the last flood.
const AFTERWARDS: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// How long each flood lasts, in seconds.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// What the flooding client does, again and again.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Flood {
    /// Nothing: the client alone.
    None,
    /// Connects.
    Connections,
    /// Connects and sends half a head.
    HalfHeads,
    /// Connects and sends a part of a body of 16 MiB.
    HalfBodies,
    /// Opens a session and leaves.
    Sessions,
    /// Makes calls that are never answered.
    HungCalls,
    /// Makes quick calls on new connections.
    Calls,
    /// Sends requests that are refused immediately.
    Refused,
}

const FLOODS: [Flood; 8] = [
    Flood::None,
    Flood::Connections,
    Flood::HalfHeads,
    Flood::HalfBodies,
    Flood::Sessions,
    Flood::HungCalls,
    Flood::Calls,
    Flood::Refused,
];

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    seconds: u64,
    idle_kib: u64,
    rows: Vec<Row>,
    /// Half a minute after the last flood.
    afterwards_kib: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    flood: Flood,
    /// How often the flooder did it.
    times: u64,
    calls: usize,
    failed: u64,
    /// The first failure, as an example.
    failure: Option<String>,
    latency: Percentiles,
    /// The daemon's memory at the end of the flood.
    pss_kib: u64,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        let title = format!("floods of {} s; a client with 100 calls/s", self.seconds);
        let headings = ["flood/s", "calls", "failed", "p50", "p99", "max", "daemon"];
        let mib = |kib: u64| format!("{} MiB", kib / 1024);
        let table = self.rows.iter().fold(Table::new(title, &headings), |table, row| {
            let Percentiles { p50_us, p99_us, max_us, .. } = row.latency;
            let cells = vec![
                (row.times / self.seconds).to_string(),
                row.calls.to_string(),
                row.failed.to_string(),
                milliseconds(p50_us),
                milliseconds(p99_us),
                milliseconds(max_us),
                mib(row.pss_kib),
            ];
            table.row(format!("{:?}", row.flood), cells)
        });
        let memory = |kib| [vec!["-".to_owned(); 6], vec![mib(kib)]].concat();
        table
            .row("idle, before", memory(self.idle_kib))
            .row("30 s later", memory(self.afterwards_kib))
    }
}

pub(super) async fn measure(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    with_instance(programs, async |instance| {
        unless_interrupted(measure_all(instance, options.seconds)).await
    })
    .await
}

async fn measure_all(instance: &Instance, seconds: u64) -> Result<Figures, BenchError> {
    instance.add(SERVER, Upstream::Stdio).await?;
    instance.ready_pid(SERVER, START_LIMIT).await?;
    let daemon = instance.daemon_pid().await?;
    let cores = thread::available_parallelism().map_err(BenchError::SetUp)?.get();
    stay_on(Pid::from_raw(i32::try_from(daemon).unwrap_or(0)), 0)?;
    let idle_kib = pss_kib(daemon)?;
    let mut rows = Vec::new();
    for flood in FLOODS {
        let work = Work {
            sessions: 1,
            tool: Tool::Echo,
            tool_prefix: String::new(),
            size: 64,
            timeout: START_LIMIT,
        };
        let mut pace = Pace::start(&endpoint(&instance.url(SERVER))?, PERIOD, &work).await?;
        let flooder = Flooder::start(flood, instance.address(), cores - 1);
        let end = Instant::now() + Duration::from_secs(seconds);
        let (mut latencies, mut failed, mut failure) = (Vec::new(), 0, None);
        loop {
            let done = tokio::select! {
                done = pace.done.recv() => done.ok_or(BenchError::Interrupted)?,
                () = sleep_until(end) => break,
            };
            match done.outcome {
                Ok(()) => latencies.push(done.ended - done.begun),
                Err(error) => {
                    failed += 1;
                    failure.get_or_insert_with(|| crate::chain(&error));
                }
            }
        }
        let pss_kib = pss_kib(daemon)?;
        let times = flooder.stop()?;
        let calls = latencies.len();
        let latency = Percentiles::of(latencies);
        rows.push(Row { flood, times, calls, failed, failure, latency, pss_kib });
    }
    sleep(AFTERWARDS).await;
    Ok(Figures { seconds, idle_kib, rows, afterwards_kib: pss_kib(daemon)? })
}

/// Keeps a process, or the calling thread, on one core.
fn stay_on(pid: Option<Pid>, core: usize) -> Result<(), BenchError> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(pid, &cores).map_err(|error| BenchError::SetUp(error.into()))
}

/// The thread that floods.
struct Flooder {
    ends: Arc<AtomicBool>,
    times: Arc<AtomicU64>,
    thread: JoinHandle<Result<(), BenchError>>,
}

impl Flooder {
    fn start(flood: Flood, address: SocketAddr, core: usize) -> Self {
        let (ends, times) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (Arc::clone(&ends), Arc::clone(&times));
        let thread = thread::spawn(move || {
            stay_on(None, core)?;
            let mut open = VecDeque::new();
            let session = open_session(address).map_err(BenchError::SetUp)?;
            while !told.load(Ordering::Relaxed) {
                match flood.run_once(address, &session) {
                    Ok(Some(connection)) => open.push_back(connection),
                    Ok(None) => {}
                    // The connection budget of Mainstay is used up.
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
                if open.len() > OPEN {
                    open.pop_front();
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Self { ends, times, thread }
    }

    /// Ends the flood, and returns how often it was repeated.
    fn stop(self) -> Result<u64, BenchError> {
        self.ends.store(true, Ordering::Relaxed);
        let panicked = || BenchError::SetUp(io::Error::other("the flooder panicked"));
        self.thread.join().map_err(|_| panicked())??;
        Ok(self.times.load(Ordering::Relaxed))
    }
}

impl Flood {
    /// Does it once, and returns the connection if it stays open.
    fn run_once(self, address: SocketAddr, session: &str) -> io::Result<Option<TcpStream>> {
        let tool = |name: &str, arguments| {
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                   "params": {"name": name, "arguments": arguments}})
            .to_string()
        };
        let post = |body: &str| request(address, Some(session), body);
        match self {
            Self::None => {
                thread::sleep(Duration::from_millis(100));
                Ok(None)
            }
            Self::Connections => connect(address).map(Some),
            Self::HalfHeads => send(address, "POST /fixture/mcp HTTP/1.1\r\nHost: local").map(Some),
            Self::HalfBodies => {
                let head = post("").replace("Content-Length: 0", "Content-Length: 16000000");
                send(address, &(head + &" ".repeat(100_000))).map(Some)
            }
            Self::Sessions => open_session(address).map(|_| None),
            Self::HungCalls => {
                send(address, &post(&tool("sleep", json!({"ms": 600_000})))).map(Some)
            }
            Self::Calls => {
                answer(send(address, &post(&tool("echo", json!({"text": "x"}))))?).map(|_| None)
            }
            Self::Refused => {
                let foreign = post("{}").replace("Host: ", "Host: evil.example\r\nX-Was: ");
                answer(send(address, &foreign)?).map(|_| None)
            }
        }
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&address, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

fn send(address: SocketAddr, text: &str) -> io::Result<TcpStream> {
    let mut connection = connect(address)?;
    connection.write_all(text.as_bytes())?;
    Ok(connection)
}

/// The head of an answer, and what came with it.
fn answer(mut connection: TcpStream) -> io::Result<String> {
    let mut text = [0; 4096];
    let length = connection.read(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

fn open_session(address: SocketAddr) -> io::Result<String> {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                        "clientInfo": {"name": "flood", "version": "1"}});
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let answer = answer(send(address, &request(address, None, &body.to_string()))?)?;
    let name = "mcp-session-id: ";
    let id = answer.lines().find_map(|line| {
        line.get(..name.len()).filter(|start| start.eq_ignore_ascii_case(name))?;
        Some(line[name.len()..].trim().to_owned())
    });
    id.ok_or_else(|| io::Error::other("no session was opened"))
}

fn request(address: SocketAddr, session: Option<&str>, body: &str) -> String {
    let session = session.map_or(String::new(), |id| format!("Mcp-Session-Id: {id}\r\n"));
    format!(
        "POST /{SERVER}/mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{session}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

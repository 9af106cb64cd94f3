//! Sessions of the Python SDK while the daemon is killed.
//!
//! The SDK ends a whole session when a connection breaks before the head of a response, so a kill that breaks one is
//! noticed at once.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::clients::SERVER;
use super::disrupt::{CALM, Daemon, LIMIT, late, whim};
use crate::rig::{BenchError, Instance, Table, Upstream, kill};

const SCRIPT: &str = include_str!("python.py");
/// How long a call of each client takes. The longer one is answered on an event stream.
const CALLS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(300)];
const POLL: Duration = Duration::from_millis(20);

/// What the kills cost one client.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    client: String,
    kills: u32,
    calls: u64,
    errors: u64,
    sessions_lost: u64,
    /// Why the first session was lost.
    example: Option<String>,
}

impl Figures {
    /// At most 1 of 200 kills may cost a session.
    pub(super) fn is_clean(&self) -> bool {
        self.sessions_lost <= u64::from(self.kills) / 200
    }
}

/// The figures for people.
pub(super) fn text(figures: &[Figures]) -> String {
    let headings = ["kills", "calls", "errors told", "sessions lost"];
    let table = Table::new("kill -9, Python SDK", &headings);
    let table = figures.iter().fold(table, |table, it| {
        let cells = [u64::from(it.kills), it.calls, it.errors, it.sessions_lost];
        table.row(&it.client, cells.map(|count| count.to_string()).to_vec())
    });
    let examples = figures.iter().filter_map(|it| {
        Some(format!("{}, the first lost session: {}", it.client, it.example.as_ref()?))
    });
    std::iter::once(table.to_string()).chain(examples).collect::<Vec<_>>().join("\n\n")
}

/// Kills the daemon so many times while clients of these interpreters call.
pub(super) async fn measure(
    instance: &Instance,
    interpreters: &[PathBuf],
    kills: u32,
) -> Result<Vec<Figures>, BenchError> {
    instance.add(SERVER, Upstream::Stdio).await?;
    instance.ready_pid(SERVER, super::START_LIMIT).await?;
    let mut clients = Vec::new();
    for interpreter in interpreters {
        for call in CALLS {
            clients.push(Client::start(interpreter, &instance.url(SERVER), call).await?);
        }
    }
    let mut daemon = Daemon::of(instance).await?;
    for _ in 0..kills {
        sleep(CALM + Duration::from_millis(whim()?)).await;
        kill(daemon.pid);
        daemon = daemon.successor(instance).await?;
        for client in &clients {
            client.is_answered().await?;
        }
    }
    Ok(clients.into_iter().map(|client| client.figures(kills)).collect())
}

/// A Python process; killed when dropped.
struct Client {
    name: String,
    _child: Child,
    reader: JoinHandle<()>,
    events: Arc<Events>,
}

/// What a client reported.
#[derive(Debug, Default)]
struct Events {
    sessions: AtomicU64,
    answers: AtomicU64,
    errors: AtomicU64,
    lost: Mutex<Option<String>>,
}

impl Client {
    /// Resolves when its first call was answered.
    async fn start(interpreter: &Path, url: &str, call: Duration) -> Result<Self, BenchError> {
        let milliseconds = call.as_millis().to_string();
        let mut child = Command::new(interpreter)
            .args(["-c", SCRIPT, url, &milliseconds])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| BenchError::Start {
                program: interpreter.display().to_string(),
                source,
            })?;
        let stdout = child.stdout.take().expect("stdout was asked for as a pipe");
        let mut lines = BufReader::new(stdout).lines();
        let Ok(Ok(Some(version))) = timeout(LIMIT, lines.next_line()).await else {
            let what = format!("`{}` has no package mcp", interpreter.display());
            return Err(BenchError::Wrong(what));
        };
        let events = Arc::new(Events::default());
        let reader = tokio::spawn(read(lines, Arc::clone(&events)));
        let name = format!("mcp {version}, calls of {milliseconds} ms");
        let client = Self { name, _child: child, reader, events };
        client.is_answered().await.map(|()| client)
    }

    /// Waits for another answer.
    async fn is_answered(&self) -> Result<(), BenchError> {
        let answers = || self.events.answers.load(Ordering::Relaxed);
        let (before, deadline) = (answers(), Instant::now() + LIMIT);
        while answers() == before {
            if Instant::now() >= deadline || self.reader.is_finished() {
                return Err(late(&format!("an answer to {}", self.name)));
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    fn figures(self, kills: u32) -> Figures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (answers, errors) = (count(&self.events.answers), count(&self.events.errors));
        let example = self.events.lost.lock().unwrap_or_else(PoisonError::into_inner).take();
        Figures {
            client: self.name,
            kills,
            calls: answers + errors,
            errors,
            sessions_lost: count(&self.events.sessions).saturating_sub(1),
            example,
        }
    }
}

async fn read(mut lines: Lines<BufReader<ChildStdout>>, events: Arc<Events>) {
    while let Ok(Some(line)) = lines.next_line().await {
        let (event, reason) = line.split_once(' ').unwrap_or((&line, ""));
        let counter = match event {
            "session" => &events.sessions,
            "answer" => &events.answers,
            "error" => &events.errors,
            _ => {
                let mut lost = events.lost.lock().unwrap_or_else(PoisonError::into_inner);
                lost.get_or_insert_with(|| reason.to_owned());
                continue;
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

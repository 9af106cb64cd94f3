//! A daemon that is killed while a command changes what it keeps.
//!
//! Each round runs one command (`run`, `stop`, `start`, `rm`), kills the daemon at a random moment of it, and
//! looks at what the next daemon knows: every server is as the acknowledged commands left it, and the one that
//! the command was about is as before or as asked, but as asked if the command succeeded.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::rig::{BenchError, Instance, Server, kill, output};

/// As long as the longest of the commands takes.
const COMMAND: Duration = Duration::from_millis(150);
/// How long a command may take, with a daemon that dies in the middle of it.
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// The servers there are, and whether each is on.
type Known = BTreeMap<String, bool>;

#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    deaths: u32,
    /// Commands that succeeded although the daemon was killed.
    acknowledged: u32,
    /// Commands that failed and had changed nothing.
    undone: u32,
    /// Commands that failed although the change had been made.
    done: u32,
}

pub(super) async fn measure(instance: &Instance, deaths: u32) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    // Which starts the first daemon.
    let mut known = settled(instance).await?;
    for _ in 0..deaths {
        let (name, change) = draw(&known);
        let mut wanted = known.clone();
        change.apply(&mut wanted, &name);
        let daemon = instance.daemon_pid().await?;
        let succeeded = interrupt(instance, &change.words(instance, &name), daemon).await?;
        let found = settled(instance).await?;
        if found != wanted && (succeeded || found != known) {
            let what = format!("{change:?} {name}: {known:?} became {found:?}, not {wanted:?}");
            return Err(BenchError::Wrong(what));
        }
        figures.deaths += 1;
        match (succeeded, found == wanted) {
            (true, _) => figures.acknowledged += 1,
            (false, true) => figures.done += 1,
            (false, false) => figures.undone += 1,
        }
        known = found;
    }
    Ok(figures)
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Run,
    Stop,
    Start,
    Remove,
}

impl Change {
    fn apply(self, known: &mut Known, name: &str) {
        match self {
            Self::Run | Self::Start => drop(known.insert(name.to_owned(), true)),
            Self::Stop => drop(known.insert(name.to_owned(), false)),
            Self::Remove => drop(known.remove(name)),
        }
    }

    fn words(self, instance: &Instance, name: &str) -> Vec<String> {
        let fixture = instance.fixture().to_string_lossy().into_owned();
        let words: &[&str] = match self {
            Self::Run => &["run", name, "--", &fixture],
            Self::Stop => &["stop", name],
            Self::Start => &["start", name],
            Self::Remove => &["rm", name],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }
}

/// A change that makes sense.
fn draw(known: &Known) -> (String, Change) {
    let name = format!("server-{}", below(4));
    let change = match known.get(&name) {
        None => Change::Run,
        Some(_) if below(3) == 0 => Change::Remove,
        Some(true) => Change::Stop,
        Some(false) => Change::Start,
    };
    (name, change)
}

fn below(limit: u64) -> u64 {
    // Without chance it is still a measure, of one moment.
    getrandom::u64().unwrap_or_default() % limit
}

/// Runs a command, kills the daemon in the middle of it, and says whether it succeeded all the same.
async fn interrupt(instance: &Instance, words: &[String], daemon: u32) -> Result<bool, BenchError> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = instance.command(&words);
    let killing = async {
        let micros = u64::try_from(COMMAND.as_micros()).unwrap_or(u64::MAX);
        sleep(Duration::from_micros(below(micros))).await;
        kill(daemon);
    };
    let (ended, ()) = tokio::join!(output(&mut command, LIMIT), killing);
    Ok(ended?.status.success())
}

/// What the next daemon knows, once it has ended what is to be ended.
async fn settled(instance: &Instance) -> Result<Known, BenchError> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let servers = instance.all_servers().await?;
        if servers.iter().all(|server| !is_ending(server)) {
            let on = |server: Server| (server.name, server.status != "stopped");
            return Ok(servers.into_iter().map(on).collect());
        }
        if Instant::now() >= deadline {
            return Err(BenchError::Late { what: "the end of servers".to_owned(), limit: LIMIT });
        }
        sleep(POLL).await;
    }
}

fn is_ending(server: &Server) -> bool {
    matches!(server.status.as_str(), "stopping" | "removing")
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deaths, acknowledged, undone, done } = self;
        write!(
            f,
            "daemon: {deaths} deaths in the middle of commands: 0 unreadable states, 0 of {acknowledged} \
             acknowledged commands lost; of {} that failed, {done} had taken effect",
            undone + done
        )
    }
}

//! What clients notice of the daemon's own restarts: `kill -9` and `reload`, under load.
//!
//! 29 sessions call one stdio server through a Mainstay whose daemon comes and goes: over HTTP on kept
//! connections, on a new one for every call and with slow calls on event streams, and through
//! `mainstay connect`; one more listens on its session's own stream. Every answer is checked, and
//! every effect counted. All that must not happen is counted by [`Ordeal::faults`]; one such thing, and
//! the run has failed.

mod board;
mod clients;
mod disrupt;
mod python;
mod sse;
mod tally;
mod updates;
mod web;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::board::Board;
use self::clients::{Crew, Left, SERVER};
use self::disrupt::{Daemon, Kind, disrupt};
use self::tally::{Counts, Times};
use self::updates::Versions;
use self::work::Misdeeds;
use crate::rig::{
    self, BenchError, Instance, Programs, Table, Upstream, unless_interrupted, with_instance,
};
use crate::stats::Percentiles;

pub(crate) use self::disrupt::Death;
pub(crate) use self::web::{Fall, Web};
pub(crate) use self::work::{INITIALIZED, NEWEST, answered_id, initialize, tool_call};

/// How long the server may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Measures what clients notice when the daemon is killed and reloaded.
#[derive(Debug, clap::Parser)]
#[command(name = "restart-bench", version)]
pub struct Options {
    /// How many times the daemon is killed, and how many times it is reloaded.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// How many times it is updated to a version that cannot serve.
    #[arg(long, default_value_t = 100)]
    updates: u32,
    /// How many milliseconds each client rests after a call.
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pause: u64,
    /// Only kill it, while clients of the Python SDK call: the interpreter of an environment with the package mcp.
    #[arg(long, value_name = "FILE")]
    python: Vec<PathBuf>,
    /// The program to measure; by default `mainstay` beside this program.
    #[arg(long, value_name = "FILE")]
    mainstay: Option<PathBuf>,
    /// Also write the figures to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The figures for people, and whether all went well.
#[derive(Debug)]
pub struct Report {
    /// Small tables, and what went wrong.
    pub text: String,
    /// Whether nothing happened that must not.
    pub clean: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    kill: Ordeal,
    reload: Ordeal,
    /// Nothing if none was asked for.
    failed_update: Option<Ordeal>,
}

/// What so many disruptions of a kind did.
#[derive(Debug, Serialize)]
struct Ordeal {
    times: u32,
    /// Whether the daemon was not killed, so that clients must notice nothing at all.
    #[serde(skip)]
    gentle: bool,
    #[serde(flatten)]
    counts: Counts,
    executed_twice: u64,
    /// Calls that were answered, but not executed.
    never_executed: u64,
    servers_restarted: u64,
    holders_lost: u64,
    /// How many sessions more or less there are than were opened.
    sessions_off: u64,
    /// How many notifications less the listener was told than there were.
    updates_missed: u64,
    /// How many more, but for the one after each restart that says that something may have changed.
    updates_twice: u64,
    #[serde(flatten)]
    took: Times,
    /// From the disruption to the next daemon's word that it is ready.
    start: Percentiles,
    /// The first thing that should not have happened.
    example: Option<String>,
}

impl Ordeal {
    /// What must be 0.
    fn faults(&self) -> [(&'static str, u64); 14] {
        let Counts { told, wrong, answered_twice, unanswered, .. } = self.counts;
        let Counts { cut_otherwise, refused, sessions_lost, misled, .. } = self.counts;
        [
            ("connections refused", refused),
            ("sessions lost", sessions_lost),
            ("sessions more or less", self.sessions_off),
            ("servers restarted", self.servers_restarted),
            ("holders lost", self.holders_lost),
            ("calls cut otherwise", cut_otherwise),
            ("calls unanswered", unanswered),
            ("calls answered twice", answered_twice),
            ("calls executed twice", self.executed_twice),
            ("answered, not executed", self.never_executed),
            ("wrong answers", wrong),
            ("errors told", told),
            ("reloads that said they failed", misled),
            ("notifications missed", self.updates_missed),
        ]
    }

    /// What a death of the daemon costs, and nothing else may.
    fn costs(&self) -> [(&'static str, u64); 6] {
        let Counts { cut_kept, cut_fresh, cut_slow, cut_old, effect_unknown, .. } = self.counts;
        [
            ("cut in flight, kept connection", cut_kept),
            ("cut in flight, new connection", cut_fresh),
            ("cut in flight, slow, no stream yet", cut_slow),
            ("cut in flight, slow, no event id", cut_old),
            ("effect unknown", effect_unknown),
            ("notifications told twice", self.updates_twice),
        ]
    }

    fn is_clean(&self) -> bool {
        let is_nothing = |(_, count): &(&str, u64)| *count == 0;
        self.faults().iter().all(is_nothing)
            && (!self.gentle || self.costs().iter().all(is_nothing))
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let Counts { calls, answered, resumed, .. } = self.counts;
        let mut rows =
            vec![("times", u64::from(self.times)), ("calls", calls), ("answered", answered)];
        rows.push(("streams resumed", resumed));
        rows.extend(self.costs());
        rows.extend(self.faults());
        rows
    }

    fn table(&self, title: &str) -> Table {
        let took = self.took;
        Table::of_times(format!("{title}, {} times", self.times))
            .times("old daemon gone", took.gone)
            .times("next daemon ready", self.start)
            .times("gap, HTTP, new connection", took.gap_fresh)
            .times("gap, connect", took.gap_connect)
            .times("longest call, HTTP, new connection", took.longest_fresh)
            .times("longest call, HTTP, kept connection", took.longest_kept)
            .times("longest call, connect", took.longest_connect)
    }
}

impl Figures {
    /// The ordeals with their names.
    fn ordeals(&self) -> Vec<(&'static str, &Ordeal)> {
        let updates = self.failed_update.as_ref().map(|ordeal| ("failed update", ordeal));
        [("kill -9", &self.kill), ("reload", &self.reload)].into_iter().chain(updates).collect()
    }

    fn text(&self) -> String {
        let ordeals = self.ordeals();
        let mut parts = vec![counts(&ordeals).to_string()];
        parts.extend(ordeals.iter().map(|(name, ordeal)| ordeal.table(name).to_string()));
        parts.extend(ordeals.iter().filter_map(|(name, ordeal)| {
            let example = ordeal.example.as_ref()?;
            Some(format!("{name}, the first fault: {example}"))
        }));
        parts.join("\n\n")
    }
}

fn counts(ordeals: &[(&'static str, &Ordeal)]) -> Table {
    let headings: Vec<_> = ordeals.iter().map(|(name, _)| *name).collect();
    let columns: Vec<_> = ordeals.iter().map(|(_, ordeal)| ordeal.counts()).collect();
    let labels = columns.first().into_iter().flatten().map(|(label, _)| *label);
    labels.enumerate().fold(Table::new("restarts", &headings), |table, (row, label)| {
        table.row(label, columns.iter().map(|column| column[row].1.to_string()).collect())
    })
}

/// Measures and stores the figures if asked to.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let programs = Programs::beside_this(options.mainstay.as_deref()).map_err(BenchError::SetUp)?;
    if !options.python.is_empty() {
        return run_python(&programs, options);
    }
    let figures = rig::block_on(async {
        Ok(Figures {
            kill: measure(&programs, Kind::Kill, options.count, options).await?,
            reload: measure(&programs, Kind::Reload, options.count, options).await?,
            failed_update: failed_updates(options).await?,
        })
    })?;
    rig::store(options.out.as_deref(), &figures)?;
    let clean = figures.ordeals().iter().all(|(_, ordeal)| ordeal.is_clean());
    Ok(Report { text: figures.text(), clean })
}

fn run_python(programs: &Programs, options: &Options) -> Result<Report, BenchError> {
    let figures = rig::block_on(with_instance(programs, async |instance| {
        unless_interrupted(python::measure(instance, &options.python, options.count)).await
    }))?;
    rig::store(options.out.as_deref(), &figures)?;
    let clean = figures.iter().all(python::Figures::is_clean);
    Ok(Report { text: python::text(&figures), clean })
}

async fn failed_updates(options: &Options) -> Result<Option<Ordeal>, BenchError> {
    if options.updates == 0 {
        return Ok(None);
    }
    let mainstay = match &options.mainstay {
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(BenchError::SetUp)?.with_file_name("mainstay"),
    };
    let versions = Versions::of(&mainstay).map_err(BenchError::SetUp)?;
    let programs = versions.programs().map_err(BenchError::SetUp)?;
    measure(&programs, Kind::Update(&versions), options.updates, options).await.map(Some)
}

async fn measure(
    programs: &Programs,
    kind: Kind<'_>,
    times: u32,
    options: &Options,
) -> Result<Ordeal, BenchError> {
    let pause = Duration::from_millis(options.pause);
    with_instance(programs, async |instance| {
        unless_interrupted(endure(instance, kind, times, pause)).await
    })
    .await
}

async fn endure(
    instance: &Instance,
    kind: Kind<'_>,
    times: u32,
    pause: Duration,
) -> Result<Ordeal, BenchError> {
    instance.add(SERVER, Upstream::Stdio).await?;
    instance.ready_pid(SERVER, START_LIMIT).await?;
    let board = Arc::new(Board::default());
    let crew = Crew::start(instance, &board, pause).await?;
    let before = (Server::of(instance).await?, Daemon::of(instance).await?);
    let starts = disrupt(instance, kind, times, &board).await?;
    let after = (Server::of(instance).await?, Daemon::of(instance).await?);
    let Left { works, touches } = crew.end().await?;
    let mut misdeeds = Misdeeds::default();
    for work in works {
        let Misdeeds { executed_twice, never_executed } =
            work.misdeeds().map_err(BenchError::SetUp)?;
        misdeeds.executed_twice += executed_twice;
        misdeeds.never_executed += never_executed;
    }
    let tally = board.take();
    let most_updates = touches.answered + touches.unknown + u64::from(times);
    let (counts, example) = (tally.counts.clone(), tally.example.clone());
    Ok(Ordeal {
        times,
        gentle: !matches!(kind, Kind::Kill),
        executed_twice: misdeeds.executed_twice,
        never_executed: misdeeds.never_executed,
        servers_restarted: u64::from(!before.0.is_same_run(&after.0)),
        holders_lost: u64::from(before.1.holder != after.1.holder),
        sessions_off: before.0.sessions.abs_diff(after.0.sessions),
        updates_missed: touches.answered.saturating_sub(counts.updates),
        updates_twice: counts.updates.saturating_sub(most_updates),
        counts,
        took: tally.times(),
        start: Percentiles::of(starts),
        example,
    })
}

/// The part of `mainstay ls --json` that is read here.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Server {
    name: String,
    pid: Option<u32>,
    generation: u64,
    restarts_total: u64,
    sessions: u64,
}

impl Server {
    async fn of(instance: &Instance) -> Result<Self, BenchError> {
        let stdout = instance.mainstay(&["ls", "--json"]).await?;
        let command = "mainstay ls --json".to_owned();
        let servers: Vec<Self> = serde_json::from_slice(&stdout)
            .map_err(|source| BenchError::Unreadable { command, source })?;
        let found = servers.into_iter().find(|server| server.name == SERVER);
        found.ok_or(BenchError::Untold { server: SERVER.to_owned(), what: "entry" })
    }

    fn is_same_run(&self, other: &Self) -> bool {
        let identity = |server: &Self| (server.pid, server.generation, server.restarts_total);
        identity(self) == identity(other)
    }
}

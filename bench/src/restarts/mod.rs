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
mod sse;
mod tally;
mod web;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::board::Board;
use self::clients::{Crew, Left, SERVER};
use self::disrupt::{Daemon, Kind, disrupt};
use self::tally::{Counts, Times};
use self::work::Misdeeds;
use crate::rig::{
    self, BenchError, Instance, Programs, Table, Upstream, unless_interrupted, with_instance,
};
use crate::stats::Percentiles;

/// How long the server may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Measures what clients notice when the daemon is killed and reloaded.
#[derive(Debug, clap::Parser)]
#[command(name = "restart-bench", version)]
pub struct Options {
    /// How many times the daemon is killed, and how many times it is reloaded.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// How many milliseconds each client rests after a call.
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pause: u64,
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
    count: u32,
    kill: Ordeal,
    reload: Ordeal,
}

/// What so many disruptions of a kind did.
#[derive(Debug, Serialize)]
struct Ordeal {
    #[serde(flatten)]
    counts: Counts,
    executed_twice: u64,
    /// Calls that were answered, but not executed.
    never_executed: u64,
    servers_restarted: u64,
    holders_lost: u64,
    /// How many sessions more or less there are than were opened.
    sessions_off: u64,
    /// Notifications that were never told to the listener, and those told twice.
    updates_missed: u64,
    updates_twice: u64,
    #[serde(flatten)]
    times: Times,
    /// From the disruption to the next daemon's word that it is ready.
    start: Percentiles,
    /// The first thing that should not have happened.
    example: Option<String>,
}

impl Ordeal {
    /// What must be 0.
    fn faults(&self) -> [(&'static str, u64); 14] {
        let Counts { told, wrong, answered_twice, unanswered, .. } = self.counts;
        let Counts { cut_otherwise, refused, sessions_lost, .. } = self.counts;
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
            ("notifications missed", self.updates_missed),
            ("notifications told twice", self.updates_twice),
        ]
    }

    fn is_clean(&self) -> bool {
        self.faults().iter().all(|(_, count)| *count == 0)
    }
}

impl Figures {
    fn tables(&self) -> [Table; 3] {
        [self.counts(), self.times("kill -9", &self.kill), self.times("reload", &self.reload)]
    }

    fn counts(&self) -> Table {
        let events = |ordeal: &Ordeal| {
            let Counts { calls, answered, cut_in_flight, effect_unknown, resumed, .. } =
                ordeal.counts;
            [
                ("calls", calls),
                ("answered", answered),
                ("cut, in flight without a stream", cut_in_flight),
                ("effect unknown (connect)", effect_unknown),
                ("streams resumed", resumed),
            ]
            .into_iter()
            .chain(ordeal.faults())
        };
        let table = Table::new(format!("{} times each", self.count), &["kill -9", "reload"]);
        let rows = events(&self.kill).zip(events(&self.reload));
        rows.fold(table, |table, ((label, kill), (_, reload))| {
            table.row(label, vec![kill.to_string(), reload.to_string()])
        })
    }

    fn times(&self, kind: &str, ordeal: &Ordeal) -> Table {
        let times = ordeal.times;
        Table::of_times(format!("{kind}, {} times", self.count))
            .times("old daemon gone", times.gone)
            .times("next daemon ready", ordeal.start)
            .times("gap, HTTP, new connection", times.gap_fresh)
            .times("gap, connect", times.gap_connect)
            .times("longest call, HTTP, new connection", times.longest_fresh)
            .times("longest call, HTTP, kept connection", times.longest_kept)
            .times("longest call, connect", times.longest_connect)
    }
}

/// Measures and stores the figures if asked to.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let programs = Programs::beside_this(options.mainstay.as_deref()).map_err(BenchError::SetUp)?;
    let figures = rig::block_on(async {
        let kill = measure(&programs, Kind::Kill, options).await?;
        let reload = measure(&programs, Kind::Reload, options).await?;
        Ok(Figures { count: options.count, kill, reload })
    })?;
    rig::store(options.out.as_deref(), &figures)?;
    let mut parts = figures.tables().map(|table| table.to_string()).to_vec();
    let examples = [&figures.kill, &figures.reload].into_iter().filter_map(|it| it.example.clone());
    parts.extend(examples.map(|example| format!("the first fault: {example}")));
    let clean = figures.kill.is_clean() && figures.reload.is_clean();
    Ok(Report { text: parts.join("\n\n"), clean })
}

async fn measure(programs: &Programs, kind: Kind, options: &Options) -> Result<Ordeal, BenchError> {
    with_instance(programs, async |instance| {
        unless_interrupted(endure(instance, kind, options)).await
    })
    .await
}

async fn endure(instance: &Instance, kind: Kind, options: &Options) -> Result<Ordeal, BenchError> {
    instance.add(SERVER, Upstream::Stdio).await?;
    instance.ready_pid(SERVER, START_LIMIT).await?;
    let board = Arc::new(Board::default());
    let crew = Crew::start(instance, &board, Duration::from_millis(options.pause)).await?;
    let before = (Server::of(instance).await?, Daemon::of(instance).await?);
    let starts = disrupt(instance, kind, options.count, &board).await?;
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
    let (counts, example) = (tally.counts.clone(), tally.example.clone());
    Ok(Ordeal {
        executed_twice: misdeeds.executed_twice,
        never_executed: misdeeds.never_executed,
        servers_restarted: u64::from(!before.0.is_same_run(&after.0)),
        holders_lost: u64::from(before.1.holder != after.1.holder),
        sessions_off: before.0.sessions.abs_diff(after.0.sessions),
        updates_missed: touches.answered.saturating_sub(counts.updates),
        updates_twice: counts.updates.saturating_sub(touches.answered + touches.unknown),
        counts,
        times: tally.times(),
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

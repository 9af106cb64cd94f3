//! Many servers that are silent but do not hang: none of them may be killed.
//!
//! By the definition, a server is hung that runs and reads nothing for the limit, while input waits and no client waits for
//! a call that it has read. The clients make sure that no server ever is: where none of its threads runs during a
//! call, a client leaves that call only shortly before its end. So every kill is false.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use super::client::{Client, Leave, file_of, killed_command};
use super::kind::{Kind, Work};
use super::late::LateServer;
use super::{add, endpoint};
use crate::load::{CallError, Endpoint};
use crate::procfs::{cpu_time, pss_kib};
use crate::random::Random;
use crate::rig::{BenchError, Event, Events, Instance, Table, Upstream};

const START_LIMIT: Duration = Duration::from_secs(120);
/// How long all servers are blocked at once, and the part of it in which the cost is measured.
const BLOCKED: Duration = Duration::from_secs(45);
const SETTLE: Duration = Duration::from_secs(15);
const MEASURED: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// How many servers.
    #[arg(long, default_value_t = 200)]
    servers: usize,
    /// For how long, in seconds.
    #[arg(long, default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The limit after which a hung server is killed, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..))]
    hang_after: u64,
    /// Let every second server of a kind speak HTTP.
    #[arg(long)]
    http: bool,
    /// How many threads compute all the time.
    #[arg(long, default_value_t = 2)]
    load: usize,
    /// What the random order of calls depends on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    servers: usize,
    hang_after_s: u64,
    watched_s: f64,
    kinds: Vec<KindFigures>,
    /// How often each event was recorded.
    events: BTreeMap<String, u64>,
    /// Runs that ended, by a kill or otherwise.
    ended: u64,
    /// The first things that should not have happened.
    examples: Vec<String>,
    daemon_cpu_percent: f64,
    /// The same while all servers are blocked in a call, and another call is unread.
    daemon_cpu_percent_blocked: f64,
    daemon_pss_kib: u64,
}

/// What clients of the servers of one kind did and were told.
#[derive(Debug, Clone, Serialize)]
struct KindFigures {
    kind: Kind,
    servers: usize,
    #[serde(flatten)]
    tally: Tally,
    kills: u64,
}

#[derive(Debug, Clone, Default, Serialize)]
struct Tally {
    answered: u64,
    /// Answers to calls that were made while the server was in another one.
    answered_behind: u64,
    left: u64,
    failed: u64,
    longest_s: f64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.answered_behind += other.answered_behind;
        self.left += other.left;
        self.failed += other.failed;
        self.longest_s = self.longest_s.max(other.longest_s);
    }
}

impl Figures {
    pub(super) fn is_clean(&self) -> bool {
        self.ended == 0 && self.kinds.iter().all(|kind| kind.kills + kind.tally.failed == 0)
    }

    pub(super) fn text(&self) -> String {
        let title = format!("{} servers, {:.0} s", self.servers, self.watched_s);
        let headings = ["servers", "answered", "behind", "left", "longest", "failed", "kills"];
        let table = self.kinds.iter().fold(Table::new(title, &headings), |table, kind| {
            let Tally { answered, answered_behind, left, failed, longest_s } = &kind.tally;
            let mut cells =
                [kind.servers.to_string(), answered.to_string(), answered_behind.to_string()]
                    .to_vec();
            cells.extend([left.to_string(), format!("{longest_s:.0} s")]);
            cells.extend([failed.to_string(), kind.kills.to_string()]);
            table.row(kind.kind.as_str(), cells)
        });
        let percent = |percent: f64| vec![format!("{percent:.2} % of a core")];
        let blocked = format!("daemon CPU, {} servers blocked", self.servers);
        let cost = Table::new("cost", &["value"])
            .row("daemon CPU", percent(self.daemon_cpu_percent))
            .row(blocked, percent(self.daemon_cpu_percent_blocked))
            .row("daemon PSS", vec![format!("{} KiB", self.daemon_pss_kib)]);
        let events =
            self.events.iter().fold(Table::new("events", &["times"]), |table, (kind, n)| {
                table.row(kind, vec![n.to_string()])
            });
        let mut parts = vec![table.to_string(), cost.to_string(), events.to_string()];
        parts.extend((!self.examples.is_empty()).then(|| self.examples.join("\n")));
        parts.join("\n\n")
    }
}

pub(super) async fn measure(instance: &Instance, options: &Options) -> Result<Figures, BenchError> {
    let late = LateServer::start().await.map_err(BenchError::SetUp)?;
    let names: Vec<(String, Kind)> = (0..options.servers)
        .map(|number| (format!("s{number}"), Kind::ALL[number % Kind::ALL.len()]))
        .collect();
    let limit = format!("{}s", options.hang_after);
    for (number, (name, kind)) in names.iter().enumerate() {
        let is_second = (number / Kind::ALL.len()) % 2 == 1;
        let upstream = if options.http && is_second { Upstream::Http } else { Upstream::Stdio };
        add(instance, name, upstream, &["--hang-after", &limit], kind.flags()).await?;
    }
    instance.ready_servers(names.len(), START_LIMIT).await?;
    let mut events = instance.follow()?;
    let daemon = instance.daemon_pid().await?;
    let _load = Load::start(options.load);

    let mut drivers = Vec::new();
    for (number, (name, kind)) in names.iter().enumerate() {
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        let random = Random::new(seed);
        let still_limit = Duration::from_secs(options.hang_after) / 2;
        let clients = Clients::open(&endpoint(&instance.url(name))?).await?;
        drivers.push(Driver {
            instance,
            late: &late,
            name,
            kind: *kind,
            still_limit,
            random,
            clients,
            tally: Tally::default(),
            example: None,
        });
    }
    let daemon_cpu_percent_blocked = block_all(daemon, &mut drivers).await?;

    let (began, before) = (Instant::now(), cpu_time(daemon)?);
    let until = began + Duration::from_secs(options.seconds);
    let mut running: FuturesUnordered<_> =
        drivers.iter_mut().map(|driver| driver.drive_until(until)).collect();
    let mut recorded = Recorded::default();
    tokio::select! {
        // Calls that are in progress at the end are dropped.
        () = async { while running.next().await.is_some() {} } => {}
        failed = recorded.follow(&mut events) => failed?,
    }
    drop(running);
    let used = cpu_time(daemon)?.saturating_sub(before);
    let watched = began.elapsed();
    recorded.take_the_rest(&mut events).await?;
    let mut examples: Vec<String> = recorded.kills.clone();
    examples.extend(drivers.iter().filter_map(|driver| driver.example.clone()));
    examples.truncate(10);
    let kinds = Kind::ALL.map(|kind| {
        let of_kind = || drivers.iter().filter(move |driver| driver.kind == kind);
        let mut tally = Tally::default();
        of_kind().for_each(|driver| tally.add(&driver.tally));
        let kills = of_kind().map(|driver| recorded.kills_of(driver.name)).sum();
        KindFigures { kind, servers: of_kind().count(), tally, kills }
    });
    Ok(Figures {
        servers: options.servers,
        hang_after_s: options.hang_after,
        watched_s: watched.as_secs_f64(),
        kinds: kinds.to_vec(),
        ended: recorded.count("ended"),
        events: recorded.events,
        examples,
        daemon_cpu_percent: percent(used, watched),
        daemon_cpu_percent_blocked,
        daemon_pss_kib: pss_kib(daemon)?,
    })
}

/// Blocks all servers in a call, with another one behind it, and measures what the daemon uses.
async fn block_all(daemon: u32, drivers: &mut [Driver<'_>]) -> Result<f64, BenchError> {
    let work = Work::stall(BLOCKED);
    let mut blocked: FuturesUnordered<_> =
        drivers.iter_mut().map(|driver| driver.two_calls(&work, Duration::from_secs(1))).collect();
    let measured = async {
        sleep(SETTLE).await;
        let (began, before) = (Instant::now(), cpu_time(daemon)?);
        sleep(MEASURED).await;
        Ok(percent(cpu_time(daemon)?.saturating_sub(before), began.elapsed()))
    };
    let all = async { while blocked.next().await.is_some() {} };
    let (used, ()) = tokio::join!(measured, all);
    drop(blocked);
    for Driver { tally, .. } in drivers {
        *tally = Tally { failed: tally.failed, ..Tally::default() };
    }
    used
}

fn percent(used: Duration, of: Duration) -> f64 {
    used.as_secs_f64() / of.as_secs_f64() * 100.0
}

/// The clients of one server.
struct Clients {
    first: Client,
    second: Client,
}

impl Clients {
    async fn open(endpoint: &Endpoint) -> Result<Self, BenchError> {
        let open = async || {
            let opened = Client::open(endpoint).await;
            opened.map_err(|error| BenchError::Load(crate::load::LoadError::Open(error)))
        };
        Ok(Self { first: open().await?, second: open().await? })
    }
}

/// Calls one server, again and again.
struct Driver<'a> {
    instance: &'a Instance,
    late: &'a LateServer,
    name: &'a str,
    kind: Kind,
    /// How long before the end of a call a client may leave it, if no thread of the server runs meanwhile.
    still_limit: Duration,
    random: Random,
    clients: Clients,
    tally: Tally,
    example: Option<String>,
}

impl Driver<'_> {
    async fn drive_until(&mut self, until: Instant) {
        // A call that is in progress at the end is dropped.
        timeout_at(until, async {
            loop {
                let file = file_of(self.instance.folder(), self.name);
                let work = self.kind.work(&mut self.random, self.late.address, &file);
                let behind = self.random.time_below(work.time.max(Duration::from_millis(1)));
                match self.random.below(10) {
                    0..3 => self.first_call(&work).await,
                    3..8 => self.two_calls(&work, behind).await,
                    _ => self.leave(&work, behind).await,
                }
                let rest = self.kind.rest(&mut self.random);
                sleep(rest).await;
            }
        })
        .await
        .ok();
    }

    async fn first_call(&mut self, work: &Work) {
        let answered = self.clients.first.work(work).await;
        self.note(answered, work.time, false);
    }

    /// Another client calls a while later.
    async fn two_calls(&mut self, work: &Work, behind: Duration) {
        let Clients { first, second } = &mut self.clients;
        let (first, second) = tokio::join!(first.work(work), call_behind(second, behind));
        self.note(first, work.time, false);
        self.note(second, work.time, true);
    }

    /// The first client leaves, while another one waits.
    async fn leave(&mut self, work: &Work, behind: Duration) {
        let after = if self.kind.is_still() {
            let rest = self.random.time_below(self.still_limit);
            work.time.saturating_sub(rest)
        } else {
            self.random.time_below(work.time.max(Duration::from_millis(1)))
        };
        let how = Leave::ALL[self.random.below(Leave::ALL.len())];
        let Clients { first, second } = &mut self.clients;
        let leaving = async {
            if how != Leave::Kill {
                return first.leave(work, after, how).await;
            }
            let killed = killed_command(self.instance, self.name, work, after).await;
            killed.map_err(|error| CallError::Io(std::io::Error::other(error)))
        };
        let (left, second) = tokio::join!(leaving, call_behind(second, behind));
        match left {
            Ok(()) => self.tally.left += 1,
            Err(error) => self.fail(&error),
        }
        self.note(second, work.time, true);
    }

    fn note(&mut self, answered: Result<(), CallError>, time: Duration, is_behind: bool) {
        match answered {
            Ok(()) if is_behind => self.tally.answered_behind += 1,
            Ok(()) => {
                self.tally.answered += 1;
                self.tally.longest_s = self.tally.longest_s.max(time.as_secs_f64());
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &CallError) {
        self.tally.failed += 1;
        let text = || format!("{} ({}): {}", self.name, self.kind.as_str(), crate::chain(error));
        self.example.get_or_insert_with(text);
    }
}

async fn call_behind(client: &mut Client, after: Duration) -> Result<(), CallError> {
    sleep(after).await;
    let text = format!("behind {} ms", after.as_millis());
    client.call("echo", &json!({"text": text})).await?.expect(&text)
}

/// What Mainstay recorded.
#[derive(Debug, Default)]
struct Recorded {
    events: BTreeMap<String, u64>,
    killed: BTreeMap<String, u64>,
    kills: Vec<String>,
}

impl Recorded {
    async fn follow(&mut self, events: &mut Events) -> Result<(), BenchError> {
        loop {
            let far = Instant::now() + Duration::from_secs(3600);
            if let Some(event) = events.next(far).await? {
                self.note(&event);
            }
        }
    }

    /// Notes what was recorded before the end and is still to come.
    async fn take_the_rest(&mut self, events: &mut Events) -> Result<(), BenchError> {
        let until = Instant::now() + Duration::from_secs(2);
        while let Some(event) = events.next(until).await? {
            self.note(&event);
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) {
        *self.events.entry(event.kind.clone()).or_default() += 1;
        if event.kind == "hung" {
            let server = event.server.clone().unwrap_or_default();
            let why = event.detail.as_deref().unwrap_or_default();
            self.kills.push(format!("{server} was killed at {}: {why}", event.at));
            *self.killed.entry(server).or_default() += 1;
        }
    }

    fn count(&self, kind: &str) -> u64 {
        self.events.get(kind).copied().unwrap_or_default()
    }

    fn kills_of(&self, server: &str) -> u64 {
        self.killed.get(server).copied().unwrap_or_default()
    }
}

/// Threads that compute until this is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start(threads: usize) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(ended)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

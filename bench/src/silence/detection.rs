//! Real deadlocks: how soon they are killed.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};

use super::client::{Client, Leave};
use super::kind::Work;
use super::{add, endpoint};
use crate::chain;
use crate::load::{CallError, Endpoint, LoadError};
use crate::random::Random;
use crate::rig::{BenchError, Event, Events, Instance, Table, Upstream};
use crate::stats::Percentiles;
use crate::supervise::kill::wall_clock;

const START_LIMIT: Duration = Duration::from_secs(120);
/// How many servers deadlock at the same time, for each row.
const SERVERS: u32 = 20;
/// The longest times between the start and the deadlock, and between that and the call that is not read.
const BEFORE: Duration = Duration::from_secs(5);
const PHASE: Duration = Duration::from_secs(7);
/// A server that speaks HTTP deadlocks within this time after its answer.
const PARKED: Duration = Duration::from_millis(400);
/// How much later than its limit a kill may come before it counts as none.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a kill may take beyond its limit (p99).
const GOAL_US: f64 = 2e6;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// How many deadlocks of each kind.
    #[arg(long, default_value_t = 100)]
    deadlocks: u32,
    /// What the random moments depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    deadlocks: u32,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    case: Case,
    hang_after_s: u64,
    /// From the moment at which the server is hung by definition to its end, less the limit.
    beyond: Percentiles,
    /// The shortest time from that moment to the end, with the limit.
    earliest_s: f64,
}

/// How a server becomes hung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Case {
    /// It deadlocks after a call; the next one is not read.
    Deadlock,
    /// The same for a server that speaks HTTP.
    HttpDeadlock,
    /// It deadlocks, and the call that it has not read is ended by `--call-timeout`.
    ShortCall,
    /// It never ends a call, which the client cancels while another one is not read.
    CancelledCall,
}

impl Case {
    fn upstream(self) -> Upstream {
        match self {
            Self::HttpDeadlock => Upstream::Http,
            Self::Deadlock | Self::ShortCall | Self::CancelledCall => Upstream::Stdio,
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::ShortCall => &["--call-timeout", "1s"],
            Self::Deadlock | Self::HttpDeadlock | Self::CancelledCall => &[],
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Deadlock => "deadlock",
            Self::HttpDeadlock => "deadlock, HTTP",
            Self::ShortCall => "deadlock, --call-timeout 1s",
            Self::CancelledCall => "cancelled call",
        }
    }
}

/// Each with its `--hang-after`, in seconds.
const CASES: [(Case, u64); 5] = [
    (Case::Deadlock, 5),
    (Case::Deadlock, 10),
    (Case::HttpDeadlock, 5),
    (Case::ShortCall, 5),
    (Case::CancelledCall, 5),
];

impl Figures {
    pub(super) fn is_clean(&self) -> bool {
        self.rows.iter().all(|row| !row.is_early() && row.beyond.p99_us < GOAL_US)
    }

    pub(super) fn text(&self) -> String {
        let title = format!("{} deadlocks, until the kill, less the limit", self.deadlocks);
        let table = self.rows.iter().fold(Table::of_times(title), |table, row| {
            let what = row.case.as_str();
            table.times(format!("{what}, --hang-after {}s", row.hang_after_s), row.beyond)
        });
        let early = self.rows.iter().filter(|row| row.is_early()).map(|row| {
            format!("{:?}: killed after {:.2} s, which is too early", row.case, row.earliest_s)
        });
        let lines: Vec<_> = std::iter::once(table.to_string()).chain(early).collect();
        lines.join("\n")
    }
}

impl Row {
    fn is_early(&self) -> bool {
        self.earliest_s < f64::from(u32::try_from(self.hang_after_s).unwrap_or(u32::MAX))
    }
}

pub(super) async fn measure(instance: &Instance, options: &Options) -> Result<Figures, BenchError> {
    let count = options.deadlocks.min(SERVERS);
    let name = |case: usize, number: u32| format!("c{case}-{number}");
    for (case, (how, limit)) in CASES.into_iter().enumerate() {
        for number in 0..count {
            let limit = format!("{limit}s");
            let options = [&["--hang-after", &limit][..], how.options()].concat();
            let name = name(case, number);
            add(instance, &name, how.upstream(), &options, &["--blocking-tools"]).await?;
        }
    }
    instance.ready_servers(CASES.len() * count as usize, START_LIMIT).await?;
    let events = instance.follow()?;
    let (sender, _) = broadcast::channel(10_000);
    let mut trials = FuturesUnordered::new();
    for (case, (how, limit)) in CASES.into_iter().enumerate() {
        for number in 0..count {
            let name = name(case, number);
            let trial = Trial {
                endpoint: endpoint(&instance.url(&name))?,
                name,
                case: how,
                limit: Duration::from_secs(limit),
                ended: sender.subscribe(),
                random: Random::new(options.seed.wrapping_mul(1_000_003) + u64::from(number)),
            };
            // The first ones take one more, if the servers cannot share them equally.
            let times = (options.deadlocks - number).div_ceil(count);
            trials.push(async move { (case, trial.take(times).await) });
        }
    }
    let mut taken = vec![Vec::new(); CASES.len()];
    tokio::select! {
        failed = publish(events, sender) => return Err(failed),
        failed = async {
            while let Some((case, times)) = trials.next().await {
                taken[case].extend(times?);
            }
            Ok::<_, BenchError>(())
        } => failed?,
    }
    drop(trials);
    let rows = CASES.into_iter().zip(taken).map(|((case, limit), taken)| {
        let limited = Duration::from_secs(limit);
        let beyond = taken.iter().map(|time| time.saturating_sub(limited)).collect();
        let earliest_s = taken.iter().min().map_or(0.0, Duration::as_secs_f64);
        Row { case, hang_after_s: limit, beyond: Percentiles::of(beyond), earliest_s }
    });
    Ok(Figures { deadlocks: options.deadlocks, rows: rows.collect() })
}

/// Passes all events on, until they end.
async fn publish(mut events: Events, to: broadcast::Sender<Event>) -> BenchError {
    loop {
        let far = tokio::time::Instant::now() + Duration::from_secs(3600);
        match events.next(far).await {
            Ok(Some(event)) => drop(to.send(event)),
            Ok(None) => {}
            Err(error) => return error,
        }
    }
}

/// The deadlocks of one server, one after the other.
struct Trial {
    endpoint: Endpoint,
    name: String,
    case: Case,
    limit: Duration,
    ended: broadcast::Receiver<Event>,
    random: Random,
}

impl Trial {
    /// The times from hung to killed.
    async fn take(mut self, times: u32) -> Result<Vec<Duration>, BenchError> {
        let failed = |error| BenchError::Load(LoadError::Open(error));
        let mut first = Client::open(&self.endpoint).await.map_err(failed)?;
        let mut second = Client::open(&self.endpoint).await.map_err(failed)?;
        let mut taken = Vec::new();
        for _ in 0..times {
            sleep(self.random.time_below(BEFORE)).await;
            let phase = self.random.time_below(PHASE);
            let hung = match self.case {
                Case::Deadlock => deadlock(&mut first, &mut second, phase).await,
                Case::HttpDeadlock => {
                    first.call("park", &json!({})).await.map_err(failed)?;
                    sleep(PARKED + phase).await;
                    answered_or_unknown(&mut second).await
                }
                Case::ShortCall => {
                    first.call("deadlock", &json!({})).await.map_err(failed)?;
                    sleep(phase).await;
                    answered_or_unknown(&mut second).await
                }
                Case::CancelledCall => cancelled_call(&mut first, &mut second, phase).await,
            };
            let hung_at = hung.map_err(failed)?;
            taken.push(self.killed_after(hung_at).await?);
        }
        Ok(taken)
    }

    /// The time from a moment to the first end of the server after it.
    async fn killed_after(&mut self, hung_at: Timestamp) -> Result<Duration, BenchError> {
        let limit = self.limit + PATIENCE;
        let late = || BenchError::Late { what: format!("the kill of `{}`", self.name), limit };
        let found = timeout(limit, async {
            loop {
                let event = match self.ended.recv().await {
                    Ok(event) => event,
                    Err(broadcast::error::RecvError::Lagged(_)) => continue,
                    Err(broadcast::error::RecvError::Closed) => {
                        return Err(BenchError::EventsEnded);
                    }
                };
                let is_end = event.kind == "ended" && event.server.as_ref() == Some(&self.name);
                let since = Duration::try_from(event.at.duration_since(hung_at));
                if let (true, Ok(since)) = (is_end, since) {
                    return Ok(since);
                }
            }
        });
        found.await.map_err(|_| late())?
    }
}

/// Returns when the call that was not read is answered, by the next run.
async fn deadlock(
    first: &mut Client,
    second: &mut Client,
    phase: Duration,
) -> Result<Timestamp, CallError> {
    first.call("deadlock", &json!({})).await?.expect("deadlocked")?;
    sleep(phase).await;
    let hung_at = wall_clock();
    echo(second).await?;
    Ok(hung_at)
}

/// Returns when the call that was not read is answered, by the next run or as one whose effect is unknown.
async fn answered_or_unknown(client: &mut Client) -> Result<Timestamp, CallError> {
    let hung_at = wall_clock();
    match echo(client).await {
        Err(error) if !chain(&error).contains("effect is unknown") => Err(error),
        Ok(()) | Err(_) => Ok(hung_at),
    }
}

async fn echo(client: &mut Client) -> Result<(), CallError> {
    client.call("echo", &json!({"text": "still there"})).await?.expect("still there")
}

async fn cancelled_call(
    first: &mut Client,
    second: &mut Client,
    phase: Duration,
) -> Result<Timestamp, CallError> {
    let work = Work::stall(Duration::from_secs(3600));
    let unread_after = Duration::from_millis(500);
    let leaving = async {
        first.leave(&work, unread_after + phase, Leave::Cancel).await?;
        Ok(wall_clock())
    };
    let waiting = async {
        sleep(unread_after).await;
        echo(second).await
    };
    let (left_at, ()) = tokio::try_join!(leaving, waiting)?;
    Ok(left_at)
}

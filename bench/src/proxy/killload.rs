//! kill -9 of the server while a session calls it.
//!
//! First a steady load of safe calls: none may fail, and the gap in the answers should be little
//! longer than the server's own start. Then an unsafe call in flight at each death: it must be
//! answered once, at once, and executed once.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::cold::server_alone;
use super::peers::endpoint;
use crate::load::{
    CallError, Done, Endpoint, LoadError, Mistake, Pace, Tool, Transport as _, Work,
};
use crate::rig::{
    BenchError, Instance, Programs, Table, Upstream, kill, unless_interrupted, with_instance,
};
use crate::stats::Percentiles;

const SERVER: &str = "victim";
/// How long one recovery, and one answer, may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The load goes on undisturbed for this long before each kill.
const CALM: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(1);
/// An unsafe call that nobody kills takes longer than any measure.
const UNSAFE_CALL_MS: u64 = 600_000;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// How many kills under a load of safe calls.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,
    /// How many kills with an unsafe call in flight.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    unsafe_kills: u32,
    /// Safe calls per second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
}

/// What happened to each transport's server.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    kills: u32,
    rate: u32,
    server_start: Percentiles,
    stdio: Ordeal,
    http: Ordeal,
}

#[derive(Debug, Serialize)]
struct Ordeal {
    calls: u64,
    failed: u64,
    wrong: u64,
    /// The first failure, as an example.
    failure: Option<String>,
    /// From the last good answer before a kill to the first good one to a call begun after it.
    gap: Percentiles,
    /// From the death to the one answer of the call in flight.
    unsafe_answer: Percentiles,
}

impl Figures {
    pub(super) fn tables(&self) -> Vec<Table> {
        let title = format!("kill -9, {} times, {} calls/s", self.kills, self.rate);
        let times = Table::of_times(title)
            .times("gap, stdio", self.stdio.gap)
            .times("gap, HTTP", self.http.gap)
            .times("unsafe call answered, stdio", self.stdio.unsafe_answer)
            .times("unsafe call answered, HTTP", self.http.unsafe_answer)
            .times("the server's own start", self.server_start);
        let row = |table: Table, label: &str, ordeal: &Ordeal| {
            let counts = [ordeal.calls, ordeal.failed, ordeal.wrong];
            table.row(label, counts.map(|count| count.to_string()).to_vec())
        };
        let counts = Table::new("safe calls", &["calls", "failed", "wrong"]);
        let counts = row(row(counts, "stdio", &self.stdio), "HTTP", &self.http);
        vec![times, counts]
    }
}

pub(super) async fn measure(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    let server_start = with_instance(programs, async |instance| starts(instance).await).await?;
    let ordeal = async |upstream| {
        with_instance(programs, async |instance| {
            unless_interrupted(endure(instance, upstream, options)).await
        })
        .await
    };
    Ok(Figures {
        kills: options.kills,
        rate: options.rate,
        server_start,
        stdio: ordeal(Upstream::Stdio).await?,
        http: ordeal(Upstream::Http).await?,
    })
}

async fn starts(instance: &Instance) -> Result<Percentiles, BenchError> {
    let mut times = Vec::new();
    for _ in 0..20 {
        times.push(server_alone(instance).await?);
    }
    Ok(Percentiles::of(times))
}

async fn endure(
    instance: &Instance,
    upstream: Upstream,
    options: &Options,
) -> Result<Ordeal, BenchError> {
    instance.add(SERVER, upstream).await?;
    let endpoint = endpoint(&instance.url(SERVER))?;
    let tally = safe_calls(instance, &endpoint, options).await?;
    let mut answers = Vec::new();
    for number in 0..options.unsafe_kills {
        answers.push(unsafe_call(instance, &endpoint, number).await?);
    }
    Ok(Ordeal {
        calls: tally.calls,
        failed: tally.failed,
        wrong: tally.wrong,
        failure: tally.failure,
        gap: Percentiles::of(tally.gaps),
        unsafe_answer: Percentiles::of(answers),
    })
}

async fn safe_calls(
    instance: &Instance,
    endpoint: &Endpoint,
    options: &Options,
) -> Result<Tally, BenchError> {
    let work = Work {
        sessions: 1,
        tool: Tool::Echo,
        tool_prefix: String::new(),
        size: 64,
        timeout: LIMIT,
    };
    instance.ready_pid(SERVER, LIMIT).await?;
    let period = Duration::from_secs(1) / options.rate;
    let mut pace = Pace::start(endpoint, period, &work).await?;
    let mut tally = Tally::default();
    for number in 1..=options.kills {
        let pid = instance.ready_pid(SERVER, LIMIT).await?;
        sleep(CALM).await;
        while let Ok(done) = pace.done.try_recv() {
            tally.learn(&done);
        }
        tally.killed(Instant::now());
        kill(pid);
        let recovered = timeout(LIMIT, async {
            while tally.waits() {
                match pace.done.recv().await {
                    Some(done) => tally.learn(&done),
                    None => return,
                }
            }
        });
        recovered.await.map_err(|_| BenchError::Late {
            what: format!("a good answer after kill {number}"),
            limit: LIMIT,
        })?;
    }
    Ok(tally)
}

/// What became of the calls.
#[derive(Debug, Default)]
struct Tally {
    calls: u64,
    failed: u64,
    wrong: u64,
    failure: Option<String>,
    last_good: Option<Instant>,
    /// The last kill and the last good answer before it, until there is a good one after it.
    gap_since: Option<(Instant, Instant)>,
    gaps: Vec<Duration>,
}

impl Tally {
    fn killed(&mut self, at: Instant) {
        self.gap_since = self.last_good.map(|good| (at, good));
    }

    /// Whether the first good answer after the last kill is still to come.
    fn waits(&self) -> bool {
        self.gap_since.is_some()
    }

    fn learn(&mut self, done: &Done) {
        self.calls += 1;
        match &done.outcome {
            Ok(()) => {
                self.last_good = self.last_good.max(Some(done.ended));
                if let Some((killed, good)) = self.gap_since
                    && done.begun > killed
                {
                    self.gaps.push(done.ended - good);
                    self.gap_since = None;
                }
            }
            Err(error) => {
                match error {
                    CallError::Mistake(Mistake::Wrong(_)) => self.wrong += 1,
                    CallError::Mistake(Mistake::Refused(_))
                    | CallError::NoCommand
                    | CallError::Io(_)
                    | CallError::Http(_)
                    | CallError::Status(_)
                    | CallError::Closed
                    | CallError::Late => self.failed += 1,
                }
                self.failure.get_or_insert_with(|| crate::chain(error));
            }
        }
    }
}

/// Kills the server during a call that must not be repeated; returns from death to answer.
async fn unsafe_call(
    instance: &Instance,
    endpoint: &Endpoint,
    number: u32,
) -> Result<Duration, BenchError> {
    let pid = instance.ready_pid(SERVER, LIMIT).await?;
    let file = instance.folder().join(format!("appended-{number}"));
    let arguments = json!({"path": file, "line": "once", "ms": UNSAFE_CALL_MS});
    let params = json!({"name": "append", "arguments": arguments});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let mut session = endpoint.open().await.map_err(LoadError::Open)?;
    let call = async {
        let answer = endpoint.call(&mut session, request.to_string().into_bytes()).await;
        (Instant::now(), answer)
    };
    let death = async {
        executed(&file).await;
        let at = Instant::now();
        kill(pid);
        at
    };
    let ((answered, answer), killed) =
        timeout(LIMIT, async { tokio::join!(call, death) }).await.map_err(|_| {
            BenchError::Late { what: "an unsafe call's answer".to_owned(), limit: LIMIT }
        })?;
    let answer = answer.map_err(LoadError::Open)?;
    instance.ready_pid(SERVER, LIMIT).await?;
    check_unsafe(&answer, &file)?;
    endpoint.close(session).await;
    Ok(answered - killed)
}

/// Returns when the call has had its effect.
async fn executed(file: &Path) {
    while !file.exists() {
        sleep(POLL).await;
    }
}

/// The answer must tell of the failure, and the effect must have happened once.
fn check_unsafe(answer: &[u8], file: &Path) -> Result<(), BenchError> {
    #[derive(Deserialize)]
    struct Answer {
        id: u64,
        result: Told,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Told {
        is_error: bool,
    }
    let text = String::from_utf8_lossy(answer).into_owned();
    let told = serde_json::from_slice::<Answer>(answer)
        .is_ok_and(|answer| answer.id == 1 && answer.result.is_error);
    let lines = std::fs::read_to_string(file).map_err(BenchError::SetUp)?;
    if told && lines == "once\n" { Ok(()) } else { Err(BenchError::Wrong(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_ends_with_the_first_good_answer_to_a_later_call() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let done = |begun, ended, outcome| Done { begun: at(begun), ended: at(ended), outcome };
        let mut tally = Tally::default();
        tally.learn(&done(0, 1, Ok(())));
        tally.killed(at(5));
        assert!(tally.waits());
        tally.learn(&done(4, 20, Ok(())));
        tally.learn(&done(10, 30, Err(CallError::Closed)));
        assert!(tally.waits(), "the one was begun before, the other was not good");
        tally.learn(&done(12, 41, Ok(())));
        assert!(!tally.waits());
        assert_eq!(tally.gaps, [Duration::from_millis(40)]);
        assert_eq!((tally.calls, tally.failed, tally.wrong), (4, 1, 0));
    }
}

//! Paired slices: all contestants are up at once and take turns in short slices, so that whatever
//! slows the machine down hits all of them alike. What counts is the ratio within a cycle.
//!
//! The load comes from this process. Each contestant's sessions are opened once, before the first
//! slice, and are idle while the others have their turn. A slice begins with an unmeasured part.

use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::load::{Crew, Endpoint, Tool, Work};
use crate::rig::{BenchError, Table};
use crate::stats::{Interval, Quartiles};

/// The unmeasured beginning of a slice.
const WARMUP: Duration = Duration::from_millis(200);
/// How long one answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One that takes part.
#[derive(Debug)]
pub(super) struct Contestant {
    pub(super) name: &'static str,
    pub(super) endpoint: Endpoint,
    /// What it puts before the names of tools.
    pub(super) tool_prefix: &'static str,
    /// The processes whose CPU time is its price.
    pub(super) pids: Vec<u32>,
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) sessions: u32,
    pub(super) cycles: u32,
    pub(super) slice: Duration,
    /// The contestant that the others are compared with.
    pub(super) baseline: &'static str,
}

/// The outcome of a contest.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    sessions: u32,
    cycles: u32,
    slice_ms: u128,
    baseline: &'static str,
    contestants: Vec<Standing>,
}

/// How one contestant did: medians over its slices, and ratios to the baseline within each cycle.
#[derive(Debug, PartialEq, Serialize)]
struct Standing {
    name: &'static str,
    calls_per_s: Quartiles,
    cpu_us_per_call: Quartiles,
    p50_us: f64,
    p99_us: f64,
    rate_ratio: Option<Quartiles>,
    /// Within which the median of the ratios lies, with a confidence of 95 %.
    rate_interval: Option<Interval>,
    cpu_ratio: Option<Quartiles>,
    errors: u64,
    wrong: u64,
    failure: Option<String>,
}

/// What one slice showed.
#[derive(Debug, Clone, Default)]
struct Sample {
    calls_per_s: f64,
    cpu_us_per_call: f64,
    p50_us: f64,
    p99_us: f64,
    errors: u64,
    wrong: u64,
    failure: Option<String>,
}

pub(super) async fn hold(contestants: &[Contestant], rules: Rules) -> Result<Outcome, BenchError> {
    let mut crews = Vec::new();
    for contestant in contestants {
        let work = Work {
            sessions: rules.sessions,
            tool: Tool::Echo,
            tool_prefix: contestant.tool_prefix.to_owned(),
            size: 64,
            timeout: TIMEOUT,
        };
        crews.push(Crew::open(&contestant.endpoint, &work).await?);
    }
    let mut samples = vec![Vec::new(); contestants.len()];
    for _ in 0..rules.cycles {
        for turn in shuffled(contestants.len())? {
            samples[turn].push(slice(&mut crews[turn], &contestants[turn], rules.slice).await?);
        }
    }
    for crew in crews {
        crew.close().await;
    }
    let names: Vec<_> = contestants.iter().map(|contestant| contestant.name).collect();
    Ok(Outcome {
        sessions: rules.sessions,
        cycles: rules.cycles,
        slice_ms: rules.slice.as_millis(),
        baseline: rules.baseline,
        contestants: standings(&names, &samples, rules.baseline),
    })
}

impl Outcome {
    pub(super) fn table(&self, title: &str) -> Table {
        let title = format!("{title}, {} sessions, {} cycles", self.sessions, self.cycles);
        let headings = ["calls/s", "rate x", "95 %", "us/call", "CPU x", "p50", "p99", "bad"];
        let ratio = |ratio: Option<Quartiles>| {
            ratio.map_or("-".to_owned(), |Quartiles { q1, median, q3 }| {
                format!("{median:.2} ({q1:.2}-{q3:.2})")
            })
        };
        self.contestants.iter().fold(Table::new(title, &headings), |table, standing| {
            let cells = vec![
                format!("{:.0}", standing.calls_per_s.median),
                ratio(standing.rate_ratio),
                standing
                    .rate_interval
                    .map_or("-".to_owned(), |Interval { low, high }| format!("{low:.2}-{high:.2}")),
                format!("{:.1}", standing.cpu_us_per_call.median),
                ratio(standing.cpu_ratio),
                format!("{:.2} ms", standing.p50_us / 1e3),
                format!("{:.2} ms", standing.p99_us / 1e3),
                (standing.errors + standing.wrong).to_string(),
            ];
            table.row(standing.name, cells)
        })
    }
}

async fn slice(
    crew: &mut Crew<Endpoint>,
    contestant: &Contestant,
    length: Duration,
) -> Result<Sample, BenchError> {
    let report = crew.slice(WARMUP, length.saturating_sub(WARMUP), &contestant.pids).await?;
    Ok(Sample {
        calls_per_s: report.calls_per_s,
        cpu_us_per_call: report.cpu_us_per_call(),
        p50_us: report.latency.p50_us,
        p99_us: report.latency.p99_us,
        errors: report.errors,
        wrong: report.wrong,
        failure: report.failure,
    })
}

/// The samples of each contestant are those of the cycles, in their order.
fn standings(names: &[&'static str], samples: &[Vec<Sample>], baseline: &str) -> Vec<Standing> {
    let base = names.iter().position(|name| *name == baseline).map(|index| &samples[index]);
    let standing = |(name, samples): (&&'static str, &Vec<Sample>)| {
        let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
        let ratios = |of: fn(&Sample) -> f64| {
            let pairs = samples.iter().zip(base?);
            Some(pairs.map(|(ours, theirs)| of(ours) / of(theirs)).collect::<Vec<_>>())
        };
        let rates = ratios(|sample| sample.calls_per_s);
        Standing {
            name,
            calls_per_s: Quartiles::of(all(|sample| sample.calls_per_s)),
            cpu_us_per_call: Quartiles::of(all(|sample| sample.cpu_us_per_call)),
            p50_us: Quartiles::of(all(|sample| sample.p50_us)).median,
            p99_us: Quartiles::of(all(|sample| sample.p99_us)).median,
            rate_interval: rates.clone().and_then(Interval::of_median),
            rate_ratio: rates.map(Quartiles::of),
            cpu_ratio: ratios(|sample| sample.cpu_us_per_call).map(Quartiles::of),
            errors: samples.iter().map(|sample| sample.errors).sum(),
            wrong: samples.iter().map(|sample| sample.wrong).sum(),
            failure: samples.iter().find_map(|sample| sample.failure.clone()),
        }
    };
    names.iter().zip(samples).map(standing).collect()
}

/// The numbers below `count` in a random order.
fn shuffled(count: usize) -> Result<Vec<usize>, BenchError> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        let random = getrandom::u32()
            .map_err(|error| BenchError::SetUp(io::Error::other(error.to_string())))?;
        order.swap(last, random as usize % (last + 1));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(calls_per_s: f64, cpu_us_per_call: f64) -> Sample {
        Sample { calls_per_s, cpu_us_per_call, ..Sample::default() }
    }

    #[test]
    fn ratios_are_taken_within_a_cycle() {
        // The machine is half as fast in the second cycle; the ratio does not care.
        let fast = vec![sample(200.0, 10.0), sample(100.0, 20.0)];
        let slow = vec![sample(100.0, 30.0), sample(50.0, 60.0)];
        let standings = standings(&["base", "other"], &[fast, slow], "base");
        let same = |value| Some(Quartiles { q1: value, median: value, q3: value });
        assert_eq!((standings[0].rate_ratio, standings[0].cpu_ratio), (same(1.0), same(1.0)));
        assert_eq!((standings[1].rate_ratio, standings[1].cpu_ratio), (same(0.5), same(3.0)));
    }

    #[test]
    fn without_the_baseline_there_are_no_ratios() {
        let standings = standings(&["other"], &[vec![sample(1.0, 1.0)]], "base");
        assert_eq!(standings[0].rate_ratio, None);
    }

    #[test]
    fn a_shuffle_keeps_everybody() {
        let mut order = shuffled(9).unwrap();
        order.sort_unstable();
        assert_eq!(order, (0..9).collect::<Vec<_>>());
    }
}

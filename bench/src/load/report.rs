//! The figures, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::tally::Tally;
use crate::stats::Percentiles;

/// The result of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    calls: usize,
    seconds: f64,
    pub(crate) calls_per_s: f64,
    pub(crate) latency: Percentiles,
    pub(crate) errors: u64,
    pub(crate) wrong: u64,
    /// The first failure, as an example.
    pub(crate) failure: Option<String>,
    cpu: Vec<CpuReport>,
}

/// The CPU time of one process in the measured time.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuUse {
    pub(super) pid: u32,
    pub(super) time: Duration,
}

#[derive(Debug, Serialize)]
struct CpuReport {
    pid: u32,
    cpu_s: f64,
    us_per_call: f64,
}

impl Report {
    pub(super) fn new(tally: Tally, measured: Duration, cpu: Vec<CpuUse>) -> Self {
        let calls = tally.latencies.len();
        let seconds = measured.as_secs_f64();
        let cpu = cpu.into_iter().map(|used| {
            let cpu_s = used.time.as_secs_f64();
            CpuReport { pid: used.pid, cpu_s, us_per_call: ratio(cpu_s * 1e6, calls) }
        });
        Self {
            calls,
            seconds,
            calls_per_s: as_f64(calls) / seconds,
            latency: Percentiles::of(tally.latencies),
            errors: tally.errors,
            wrong: tally.wrong,
            failure: tally.failure,
            cpu: cpu.collect(),
        }
    }

    /// The CPU time of all measured processes for one call.
    pub(crate) fn cpu_us_per_call(&self) -> f64 {
        self.cpu.iter().map(|used| used.us_per_call).sum()
    }

    /// Whether there were answers, and right ones only.
    pub fn is_clean(&self) -> bool {
        self.calls > 0 && self.errors == 0 && self.wrong == 0
    }

    /// The report as lines for people or as one JSON object.
    #[expect(clippy::missing_panics_doc, reason = "figures and texts always serialize")]
    pub fn render(&self, json: bool) -> String {
        if json {
            return serde_json::to_string(self).expect("figures and texts serialize");
        }
        let Percentiles { p50_us, p90_us, p99_us, max_us } = self.latency;
        let mut text = format!(
            "calls    {} in {:.1} s ({:.0}/s)\n\
             latency  p50 {p50_us:.0} us, p90 {p90_us:.0} us, p99 {p99_us:.0} us, max {max_us:.0} us\n\
             errors   {}, wrong answers {}",
            self.calls, self.seconds, self.calls_per_s, self.errors, self.wrong,
        );
        // Writing to a string cannot fail.
        for CpuReport { pid, cpu_s, us_per_call } in &self.cpu {
            write!(text, "\ncpu      pid {pid}: {cpu_s:.2} s, {us_per_call:.1} us per call").ok();
        }
        if let Some(failure) = &self.failure {
            write!(text, "\nfailure  {failure}").ok();
        }
        text
    }
}

fn ratio(of: f64, to: usize) -> f64 {
    if to == 0 { 0.0 } else { of / as_f64(to) }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, far beyond any run")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_well_and_parses() {
        let latencies = vec![Duration::from_micros(20); 1000];
        let tally = Tally { latencies, errors: 1, wrong: 0, failure: Some("late".to_owned()) };
        let cpu = vec![CpuUse { pid: 7, time: Duration::from_millis(10) }];
        let report = Report::new(tally, Duration::from_secs(2), cpu);
        assert!(!report.is_clean());
        assert_eq!(
            report.render(false),
            "calls    1000 in 2.0 s (500/s)\n\
             latency  p50 20 us, p90 20 us, p99 20 us, max 20 us\n\
             errors   1, wrong answers 0\n\
             cpu      pid 7: 0.01 s, 10.0 us per call\n\
             failure  late"
        );
        let json: serde_json::Value = serde_json::from_str(&report.render(true)).unwrap();
        assert_eq!((&json["calls"], &json["latency"]["p99_us"]), (&1000.into(), &20.0.into()));
        assert_eq!(json["cpu"][0]["us_per_call"], 10.0);
    }

    #[test]
    fn a_run_without_calls_is_not_clean() {
        let report = Report::new(Tally::default(), Duration::from_secs(1), Vec::new());
        assert!(!report.is_clean());
    }
}

//! A verdict with the evidence behind it.

use std::fmt;
use std::time::Instant;

use super::{Input, OpenRequest, Probe, UnawaitedRequest, Verdict, WaitsFor, Watchdog};
use crate::human_duration;

/// What the last observation of a run showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    pub verdict: Verdict,
    /// The oldest request of a client that the run has not answered.
    pub oldest: Option<OpenRequest>,
    /// What the run may be inside, although nobody waits for it.
    pub unawaited: Option<UnawaitedRequest>,
    /// How many requests are overdue.
    pub overdue: usize,
    /// How much of its input is unread, if that can be counted.
    pub unread_bytes: Option<u64>,
    /// Since when no thread was seen to run, if threads can be observed and none runs.
    pub quiet_since: Option<Instant>,
    /// What it waits for in the kernel, if that is known.
    pub waits_for: Option<WaitsFor>,
    /// The probes that wait for an answer.
    pub unanswered: Vec<Probe>,
    /// When it is killed if it stays as it is.
    pub kill_at: Option<Instant>,
}

impl Watchdog {
    /// The present verdict, and the evidence behind it.
    pub fn findings(&self) -> Findings {
        let evidence = self.evidence.as_ref();
        let input = evidence.map_or(Input::Unknown, |evidence| evidence.input);
        let processes = evidence.and_then(|evidence| evidence.processes);
        // A run that is busy ran a moment ago, if it does not now.
        let is_busy = matches!(self.verdict, Verdict::Busy { .. });
        let is_quiet =
            !is_busy && processes.is_some_and(|it| !it.is_active && it.suspended.is_none());
        let observed = self.observed.as_ref().filter(|_| is_quiet);
        let sent = |probe| match probe {
            Probe::Ping => self.unanswered.ping,
            Probe::List => self.unanswered.list,
        };
        let unanswered = [Probe::Ping, Probe::List].into_iter().filter(|it| sent(*it).is_some());
        Findings {
            verdict: self.verdict.clone(),
            oldest: evidence.and_then(|evidence| evidence.oldest.clone()),
            unawaited: evidence.and_then(|evidence| {
                evidence.unawaited.clone().filter(|it| evidence.last_answer < Some(it.since))
            }),
            overdue: evidence.map_or(0, |evidence| evidence.overdue),
            unread_bytes: match input {
                Input::Unknown => None,
                Input::Read => Some(0),
                Input::Unread { bytes, .. } => Some(bytes),
            },
            quiet_since: observed.map(|observed| observed.quiet_since),
            waits_for: processes.filter(|_| is_quiet).and_then(|processes| processes.waits_for),
            unanswered: unanswered.collect(),
            kill_at: self.kill_at(),
        }
    }
}

impl Findings {
    /// The verdict with all evidence, as a sentence.
    pub fn describe(&self, now: Instant) -> DescribedFindings<'_> {
        DescribedFindings { findings: self, now }
    }

    /// The evidence that the verdict does not name itself.
    fn details(&self, now: Instant) -> Vec<String> {
        let mut details = Vec::new();
        match (self.unread_bytes, &self.verdict) {
            (Some(0), Verdict::Overdue { .. }) => details.push("it has read everything".to_owned()),
            (None | Some(0), _) => {}
            (Some(1), _) => details.push("1 byte unread".to_owned()),
            (Some(bytes), _) => details.push(format!("{bytes} bytes unread")),
        }
        let names_threads = match &self.verdict {
            Verdict::Overdue { .. } | Verdict::Blocked { .. } => false,
            Verdict::Responsive
            | Verdict::Busy { .. }
            | Verdict::Hung { .. }
            | Verdict::Suspended { .. }
            | Verdict::Unresponsive { .. } => true,
        };
        let quiet = self.quiet_since.filter(|_| !names_threads);
        let quiet = quiet.map(|at| now.saturating_duration_since(at));
        details.extend(
            quiet
                .filter(|quiet| quiet.as_secs() > 0)
                .map(|quiet| format!("none of its threads ran for {}", human_duration(quiet))),
        );
        details.extend(self.waits_for.map(|what| format!("it waits for {what}")));
        let unawaited = self.unawaited.as_ref().map(|UnawaitedRequest { what, since }| {
            let ago = human_duration(now.saturating_duration_since(*since));
            format!("`{what}` was given up by its client {ago} ago")
        });
        details.extend(unawaited);
        let names_request = self.verdict.request().is_some();
        let oldest = self.oldest.as_ref().filter(|_| !names_request);
        details.extend(oldest.map(|request| format!("oldest call: `{}`", request.what)));
        let unanswered: Vec<_> =
            self.unanswered.iter().map(|probe| format!("`{}`", probe.as_str())).collect();
        if !unanswered.is_empty() {
            details.push(format!("no answer to {}", unanswered.join(" and ")));
        }
        details
    }
}

/// See [`Findings::describe`].
#[derive(Debug)]
pub struct DescribedFindings<'a> {
    findings: &'a Findings,
    now: Instant,
}

impl fmt::Display for DescribedFindings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.verdict.describe(self.now).fmt(f)?;
        if self.findings.verdict == Verdict::Responsive {
            return Ok(());
        }
        match &self.findings.details(self.now)[..] {
            [] => Ok(()),
            details => write!(f, " ({})", details.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "virtual time needs some origin")]
    fn check(change: impl FnOnce(&mut Findings, Instant), expected: &str) {
        let start = Instant::now();
        let now = start + Duration::from_secs(40);
        let oldest = OpenRequest { what: "append".to_owned(), sent: start };
        let mut findings = Findings {
            verdict: Verdict::Hung { since: start },
            oldest: Some(oldest),
            unawaited: None,
            overdue: 1,
            unread_bytes: Some(90),
            quiet_since: Some(start + Duration::from_secs(10)),
            waits_for: Some(WaitsFor::Lock),
            unanswered: vec![Probe::Ping, Probe::List],
            kill_at: None,
        };
        change(&mut findings, start);
        assert_eq!(findings.describe(now).to_string(), expected);
    }

    #[test]
    fn every_verdict_names_its_evidence() {
        check(
            |_, _| {},
            "it has read nothing for 40 s, and none of its threads ran (90 bytes unread; it waits for a file lock; oldest call: `append`; no answer to `ping` and `tools/list`)",
        );
        check(
            |findings, since| {
                findings.unawaited = Some(UnawaitedRequest { what: "count".to_owned(), since });
                findings.waits_for = None;
                findings.unanswered.clear();
            },
            "it has read nothing for 40 s, and none of its threads ran (90 bytes unread; `count` was given up by its client 40 s ago; oldest call: `append`)",
        );
        check(
            |findings, since| {
                findings.verdict = Verdict::Busy { since };
                (findings.quiet_since, findings.waits_for) = (None, None);
                findings.unanswered = vec![Probe::Ping];
            },
            "it is working, and has read nothing for 40 s (90 bytes unread; oldest call: `append`; no answer to `ping`)",
        );
        check(
            |findings, sent| {
                let inside = OpenRequest { what: "wait".to_owned(), sent };
                findings.verdict = Verdict::Blocked { inside, since: sent };
                findings.waits_for = Some(WaitsFor::Child);
                findings.unanswered.clear();
            },
            "blocked in `wait` for 40 s; it reads nothing else (90 bytes unread; none of its threads ran for 30 s; it waits for a child process)",
        );
        check(
            |findings, sent| {
                let oldest = Some(OpenRequest { what: "slow".to_owned(), sent });
                findings.verdict = Verdict::Overdue { requests: 1, oldest, unread_since: None };
                findings.unread_bytes = Some(0);
                (findings.quiet_since, findings.waits_for) = (None, None);
                findings.unanswered.clear();
            },
            "1 call overdue: no answer to `slow` for 40 s (it has read everything)",
        );
        check(
            |findings, since| {
                findings.verdict = Verdict::Suspended { since, pid: 7 };
                (findings.quiet_since, findings.waits_for) = (None, None);
                findings.unanswered.clear();
            },
            "process 7 is stopped (SIGSTOP, a debugger or a frozen cgroup); a request waits for 40 s (90 bytes unread; oldest call: `append`)",
        );
        check(
            |findings, since| {
                findings.verdict = Verdict::Unresponsive { since };
                findings.unread_bytes = None;
                (findings.quiet_since, findings.waits_for) = (None, None);
            },
            "it accepts requests and has sent nothing for 40 s (oldest call: `append`; no answer to `ping` and `tools/list`)",
        );
        check(|findings, _| findings.verdict = Verdict::Responsive, "no request is overdue");
    }
}

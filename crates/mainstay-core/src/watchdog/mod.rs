//! Decides, by evidence, what a run that does not answer is doing, and whether it is killed. Pure.
//!
//! A missing answer proves nothing: a call may take hours, and some servers ignore `ping`. A [`Watchdog`] is given
//! [`Evidence`] when a request is overdue, and then again at each [`Watchdog::deadline`] until the run answers.
//!
//! Guarantees:
//! - a run is killed as hung only if, for `hang_after`, it has read nothing and sent nothing although a request
//!   and a probe wait; if none of its threads was scheduled and no client waited for a request that it has read, as long as
//!   that was observed, at least half of that time; and not before `hang_after` if a client was seen to wait;
//! - a suspended run, and one whose input or processes cannot be observed, is never killed; the connections to a run that
//!   is unresponsive are renewed instead;
//! - time in which Mainstay itself was not scheduled, such as a suspended host, does not count.

mod evidence;
mod findings;
#[cfg(test)]
mod tests;
mod waits_for;

use std::time::{Duration, Instant};

pub use evidence::{
    Described, Evidence, Input, Observation, OpenRequest, Processes, UnreadConnection, Verdict,
    WatchLimits,
};
pub use findings::{DescribedFindings, Findings};
pub use waits_for::WaitsFor;

use crate::human_duration;

/// The time between two observations, and while requests are held or unread.
const INTERVAL: Duration = Duration::from_secs(5);
const UNREAD_INTERVAL: Duration = Duration::from_secs(1);

/// A later observation than this means that Mainstay was not scheduled either.
const LATE: Duration = Duration::from_secs(3);

/// The time without a message after which an idle run is probed.
const IDLE_PROBE: Duration = Duration::from_secs(5 * 60);

/// A run that was scheduled within this time is busy.
const RECENTLY: Duration = Duration::from_secs(10);

/// Watches one run. See the [module](self).
#[derive(Debug)]
pub struct Watchdog {
    limits: WatchLimits,
    began: Instant,
    ignores_ping: bool,
    probes: Probes,
    /// Those of them that were sent before the last observation.
    unanswered: Probes,
    observed: Option<Observed>,
    verdict: Verdict,
    /// What the verdict is based on.
    evidence: Option<Evidence>,
    /// No silence before this moment counts.
    not_before: Instant,
    next: Instant,
    /// When the connections to a run that is unresponsive were last renewed.
    renewed: Option<Instant>,
    is_killed: bool,
}

/// The probes that wait for an answer.
#[derive(Debug, Clone, Copy, Default)]
struct Probes {
    ping: Option<Instant>,
    list: Option<Instant>,
}

impl Probes {
    fn last(self) -> Option<Instant> {
        self.ping.max(self.list)
    }
}

/// The last observation of a run that does not answer.
#[derive(Debug, Clone, Copy)]
struct Observed {
    switches: Option<u64>,
    /// Since when no thread was seen to be scheduled.
    quiet_since: Instant,
    /// When a thread was last seen to be scheduled.
    active_at: Option<Instant>,
    /// Whether a client waited for a request that the run has read, and since when none has, if one was seen to.
    is_awaited: bool,
    unawaited_since: Option<Instant>,
}

/// A request that shows whether a run answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// `ping`
    Ping,
    /// A list that every server has: `tools/list`, or `server/discover`.
    List,
}

impl Probe {
    /// Its method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::List => "tools/list",
        }
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchAction {
    /// Send a probe.
    Probe(Probe),
    /// The verdict is another one.
    Report(Verdict),
    /// Remember that this server does not answer pings.
    IgnoresPing,
    /// Use new connections to the run, and probe it again over these.
    Renew,
    /// Kill the run for this reason.
    Kill(String),
}

impl Watchdog {
    /// Watches a run that is ready. `ignores_ping`: it is known not to answer pings.
    pub fn new(now: Instant, limits: WatchLimits, ignores_ping: bool) -> Self {
        Self {
            limits,
            began: now,
            ignores_ping,
            probes: Probes::default(),
            unanswered: Probes::default(),
            observed: None,
            verdict: Verdict::Responsive,
            evidence: None,
            not_before: now,
            next: now + IDLE_PROBE,
            renewed: None,
            is_killed: false,
        }
    }

    /// When the next evidence is needed.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// The present verdict.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Whether it has decided to kill the run.
    pub fn is_killed(&self) -> bool {
        self.is_killed
    }

    /// Takes evidence, and decides.
    pub fn observe(&mut self, now: Instant, evidence: &Evidence) -> Vec<WatchAction> {
        let mut actions = Vec::new();
        self.note_probes(evidence, &mut actions);
        self.unanswered = self.probes;
        self.note_activity(now, evidence);
        let verdict = self.classify(now, evidence);
        self.evidence = Some(evidence.clone());
        self.probe(now, evidence, &mut actions);
        if std::mem::discriminant(&verdict) != std::mem::discriminant(&self.verdict) {
            actions.push(WatchAction::Report(verdict.clone()));
        }
        self.verdict = verdict;
        self.renew(now, &mut actions);
        if let Some(why) = self.reason_to_kill(now).filter(|_| !self.is_killed) {
            self.is_killed = true;
            actions.push(WatchAction::Kill(why));
        }
        self.next = self.next_observation(now, evidence);
        actions
    }

    /// Any message proves that the run is alive, whether it answers a probe or not.
    fn note_probes(&mut self, evidence: &Evidence, actions: &mut Vec<WatchAction>) {
        let is_answered = |probe: &mut Instant| evidence.last_message >= Some(*probe);
        if let Some(ping) = self.probes.ping.take_if(is_answered)
            && !evidence.answered_ping
            && ignores(ping, evidence)
            && !self.ignores_ping
        {
            self.ignores_ping = true;
            actions.push(WatchAction::IgnoresPing);
        }
        self.probes.list.take_if(is_answered);
    }

    fn note_activity(&mut self, now: Instant, evidence: &Evidence) {
        if self.observed.is_some() && now.saturating_duration_since(self.next) > LATE {
            self.not_before = now;
            self.observed = None;
        }
        if self.waiting_since(evidence).is_none_or(|since| now < since + self.limits.overdue()) {
            self.observed = None;
            return;
        }
        let switches = evidence.processes.map(|processes| processes.switches);
        let is_active = evidence.processes.is_some_and(|processes| processes.is_active);
        let (quiet_since, active_at) = match self.observed {
            Some(last) if last.switches == switches && !is_active => {
                (last.quiet_since, last.active_at)
            }
            Some(_) => (now, Some(now)),
            None => (now, is_active.then_some(now)),
        };
        let is_awaited = evidence.being_handled.is_some();
        let unawaited_since = match self.observed {
            Some(last) if !is_awaited && !last.is_awaited => last.unawaited_since,
            Some(_) => Some(now),
            None => is_awaited.then_some(now),
        };
        self.observed =
            Some(Observed { switches, quiet_since, active_at, is_awaited, unawaited_since });
    }

    /// Since when an answer has been expected, to a request or a probe.
    fn waiting_since(&self, evidence: &Evidence) -> Option<Instant> {
        let requests = evidence.oldest.as_ref().map(|request| request.sent);
        [requests, self.probes.ping, self.probes.list].into_iter().flatten().min()
    }

    fn classify(&self, now: Instant, evidence: &Evidence) -> Verdict {
        let (Some(waiting_since), Some(observed)) = (self.waiting_since(evidence), self.observed)
        else {
            return Verdict::Responsive;
        };
        let Some(processes) = evidence.processes else {
            return self.classify_unobserved(now, evidence);
        };
        // A stopped child says nothing about a server that reads.
        if processes.is_suspended && evidence.input != Input::Read {
            return Verdict::Suspended { since: waiting_since };
        }
        let unread_since = match evidence.input {
            Input::Unknown => return self.classify_unobserved(now, evidence),
            Input::Read => return overdue(evidence, None),
            // What it sends shows that it is alive, even if it does not read.
            Input::Unread { since, .. } => {
                since.max(evidence.last_message.unwrap_or(self.began)).max(self.not_before)
            }
        };
        if now < unread_since + self.limits.overdue() {
            return overdue(evidence, None);
        }
        let recently = self.limits.hang_after.map_or(RECENTLY, |limit| RECENTLY.min(limit / 4));
        if observed.active_at.is_some_and(|at| now < at + recently) {
            return Verdict::Busy { since: unread_since };
        }
        if let Some(inside) = &evidence.being_handled {
            let since = unread_since.max(inside.sent);
            return Verdict::Blocked { inside: inside.clone(), since };
        }
        match self.limits.hang_after {
            Some(limit)
                if now >= unread_since + limit
                    && now
                        >= observed.quiet_since + limit.saturating_sub(self.limits.overdue())
                    && observed.unawaited_since.is_none_or(|since| now >= since + limit)
                    && self.probes.last().is_some() =>
            {
                Verdict::Hung { since: unread_since }
            }
            Some(_) | None => overdue(evidence, Some(unread_since)),
        }
    }

    /// Without a view of its input and its processes, a run that answers no probe is unresponsive.
    fn classify_unobserved(&self, now: Instant, evidence: &Evidence) -> Verdict {
        let is_overdue = |probe: Option<Instant>| {
            probe.is_some_and(|sent| now >= sent.max(self.not_before) + self.limits.overdue())
        };
        let answers_nothing =
            is_overdue(self.probes.list) && (self.ignores_ping || is_overdue(self.probes.ping));
        match self.waiting_since(evidence).filter(|_| answers_nothing) {
            Some(since) => {
                Verdict::Unresponsive { since: since.max(evidence.last_message.unwrap_or(since)) }
            }
            None => overdue(evidence, None),
        }
    }

    /// Probes an overdue run once by `ping` and once by a list, and an idle one by what it answers.
    fn probe(&mut self, now: Instant, evidence: &Evidence, actions: &mut Vec<WatchAction>) {
        let is_suspended = evidence.processes.is_some_and(|processes| processes.is_suspended)
            && evidence.input != Input::Read;
        let is_idle = evidence.oldest.is_none() && self.probes.last().is_none();
        let idle_since = evidence.last_message.unwrap_or(self.began);
        let is_due = if is_idle {
            now >= idle_since + IDLE_PROBE
        } else {
            self.observed.is_some() && !is_suspended
        };
        if !is_due {
            return;
        }
        if self.probes.ping.is_none() && !self.ignores_ping {
            self.probes.ping = Some(now);
            actions.push(WatchAction::Probe(Probe::Ping));
        } else if self.probes.list.is_none() {
            self.probes.list = Some(now);
            actions.push(WatchAction::Probe(Probe::List));
        }
    }

    /// A connection may be dead although the server is not. They are renewed until the run answers.
    fn renew(&mut self, now: Instant, actions: &mut Vec<WatchAction>) {
        if !matches!(self.verdict, Verdict::Unresponsive { .. }) {
            self.renewed = None;
            return;
        }
        let interval = self.limits.overdue().max(INTERVAL);
        if self.renewed.is_none_or(|renewed| now >= renewed + interval) {
            self.renewed = Some(now);
            actions.push(WatchAction::Renew);
        }
    }

    fn reason_to_kill(&self, now: Instant) -> Option<String> {
        let exceeds = |since: Instant, limit: Option<Duration>| {
            limit.filter(|limit| now >= since + *limit).map(human_duration)
        };
        match &self.verdict {
            Verdict::Hung { .. } => Some(self.findings().describe(now).to_string()),
            Verdict::Busy { since } => exceeds(*since, self.limits.busy_limit).map(|limit| {
                format!("it worked without reading anything for more than {limit} (--busy-limit)")
            }),
            Verdict::Blocked { inside: OpenRequest { what, .. }, since } => {
                exceeds(*since, self.limits.block_limit)
                    .map(|limit| format!("blocked in {what} for more than {limit} (--block-limit)"))
            }
            Verdict::Responsive
            | Verdict::Overdue { .. }
            | Verdict::Suspended { .. }
            | Verdict::Unresponsive { .. } => None,
        }
    }

    fn next_observation(&self, now: Instant, evidence: &Evidence) -> Instant {
        let overdue = self.limits.overdue();
        let Some(waiting_since) = self.waiting_since(evidence) else {
            return (evidence.last_message.unwrap_or(self.began) + IDLE_PROBE).max(now + INTERVAL);
        };
        let Some(observed) = self.observed else { return waiting_since + overdue };
        let is_unread = matches!(evidence.input, Input::Unread { .. });
        let interval =
            if is_unread || self.verdict.holds_requests() { UNREAD_INTERVAL } else { INTERVAL };
        let proof = match (evidence.input, self.limits.hang_after) {
            (Input::Unread { since, .. }, Some(limit)) => {
                let quiet = observed.quiet_since + limit.saturating_sub(overdue);
                let since = since.max(self.not_before);
                let since = observed.unawaited_since.map_or(since, |at| at.max(since));
                Some((since + limit).max(quiet)).filter(|at| *at > now)
            }
            _ => None,
        };
        proof.map_or(now + interval, |at| at.min(now + interval))
    }
}

/// Whether a run that has sent something after this ping will not answer the ping.
fn ignores(ping: Instant, evidence: &Evidence) -> bool {
    match evidence.input {
        Input::Read => true,
        Input::Unread { .. } => false,
        // Whether it has read the ping is not known, but it had the time.
        Input::Unknown => evidence.last_message >= Some(ping + INTERVAL),
    }
}

/// The verdict on a run about which nothing is proven.
fn overdue(evidence: &Evidence, unread_since: Option<Instant>) -> Verdict {
    match &evidence.oldest {
        Some(oldest) if evidence.overdue > 0 => {
            Verdict::Overdue { requests: evidence.overdue, oldest: oldest.clone(), unread_since }
        }
        Some(_) | None => Verdict::Responsive,
    }
}

//! Decides, by evidence, what a run that does not answer is doing, and whether it is killed. Pure.
//!
//! A missing answer proves nothing: a call may take hours, and some servers ignore `ping`. A [`Watchdog`] is given
//! [`Evidence`] when a request is overdue, and then again at each [`Watchdog::deadline`] until the run answers.
//!
//! Guarantees:
//! - a run is killed as hung only if, for `hang_after`, it has read nothing and sent nothing although a request
//!   waits, no client waited for a request that it has read, and none of its threads was seen to be scheduled (but for the first
//!   [`BASELINE`], in which it is observed for the first time); and if it has not answered the probes that it was sent meanwhile;
//! - only time in which a run was busy, since it last read anything, or blocked, since it last read or sent anything, counts toward
//!   the limit for that;
//! - a suspended run, and one whose input or processes cannot be observed, is never killed; the connections to a run that
//!   is unresponsive are renewed instead;
//! - time in which it was suspended does not count, nor does time in which Mainstay itself was not scheduled
//!   ([`Watchdog::discard_before`]), such as a suspended host.

mod evidence;
mod findings;
mod probes;
#[cfg(test)]
mod tests;
mod waits_for;

use std::time::{Duration, Instant};

pub use evidence::{
    Described, Evidence, Input, Observation, OpenRequest, Processes, ReadPosition,
    UnawaitedRequest, UnreadConnection, Verdict, WatchLimits,
};
pub use findings::{DescribedFindings, Findings};
pub use probes::Probe;
use probes::{IDLE_PROBE, Probes};
pub use waits_for::WaitsFor;

use crate::human_duration;

/// A run that has a slow request is observed within this time, so that it is known later whether anything has run since.
pub(crate) const BASELINE: Duration = Duration::from_secs(2);

/// The time between two observations, and while requests are held or, being overdue, unread. It is so short that a run which stops
/// to do anything between two of them is killed in time.
const INTERVAL: Duration = Duration::from_secs(3);
const UNREAD_INTERVAL: Duration = Duration::from_secs(1);

/// A run that was scheduled within this time is busy.
const RECENTLY: Duration = Duration::from_secs(10);

/// How many observations in a row may fail, of a run that was observed before. They count as if they had not been made.
const MAX_MISSED: u8 = 3;

/// Watches one run. See the [module](self).
#[derive(Debug)]
pub struct Watchdog {
    limits: WatchLimits,
    began: Instant,
    ignores_ping: bool,
    /// Whether it has ever answered a ping.
    answers_ping: bool,
    /// Since when it is known to have read the ping that waits for an answer.
    ping_read: Option<Instant>,
    probes: Probes,
    /// Those of them that were sent before the last observation.
    unanswered: Probes,
    observed: Option<LastObservation>,
    /// How many observations have failed since.
    missed: u8,
    spent: Option<Spent>,
    verdict: Verdict,
    /// What the verdict is based on.
    evidence: Option<Evidence>,
    /// No silence before this moment counts.
    not_before: Instant,
    next: Instant,
    /// While a run answers probes, and no input is unread, the next probe waits until then.
    next_probe: Instant,
    /// When the connections to a run that is unresponsive were last renewed.
    renewed: Option<Instant>,
    is_killed: bool,
}

/// The last observation of a run that does not answer.
#[derive(Debug, Clone, Copy)]
struct LastObservation {
    at: Instant,
    switches: Option<u64>,
    /// Since when no thread was seen to be scheduled.
    quiet_since: Instant,
    /// When a thread was last seen to be scheduled.
    active_at: Option<Instant>,
}

/// For how long a run was busy, and blocked, while it read nothing.
#[derive(Debug, Clone, Copy)]
struct Spent {
    busy: TimeSince,
    blocked: TimeSince,
    counted_until: Instant,
}

/// Time that counts from then on.
#[derive(Debug, Clone, Copy, Default)]
struct TimeSince {
    since: Option<Instant>,
    time: Duration,
}

impl Spent {
    fn from(counted_until: Instant) -> Self {
        Self { busy: TimeSince::default(), blocked: TimeSince::default(), counted_until }
    }
}

impl TimeSince {
    /// Adds some time, after what was added with the same beginning.
    fn add(&mut self, since: Instant, time: Duration) {
        let before = if self.since == Some(since) { self.time } else { Duration::ZERO };
        *self = Self { since: Some(since), time: before + time };
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
            answers_ping: false,
            ping_read: None,
            probes: Probes::default(),
            unanswered: Probes::default(),
            observed: None,
            missed: 0,
            spent: None,
            verdict: Verdict::Responsive,
            evidence: None,
            not_before: now,
            next: now + IDLE_PROBE,
            next_probe: now,
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

    /// Whether the last evidence was passed over, because the observation had failed.
    pub fn has_missed(&self) -> bool {
        self.missed > 0
    }

    /// Whether it has decided to kill the run.
    pub fn is_killed(&self) -> bool {
        self.is_killed
    }

    /// Mainstay was not scheduled before this moment, so that no silence before it counts.
    pub fn discard_before(&mut self, now: Instant) {
        self.not_before = now;
        self.observed = None;
    }

    /// Takes evidence, and decides.
    pub fn observe(&mut self, now: Instant, evidence: &Evidence) -> Vec<WatchAction> {
        let mut actions = Vec::new();
        if self.has_failed(evidence) {
            self.missed += 1;
            self.next = now + UNREAD_INTERVAL;
            return actions;
        }
        self.missed = 0;
        self.note_probes(now, evidence, &mut actions);
        self.unanswered = self.probes;
        self.note_activity(now, evidence);
        let verdict = self.classify(now, evidence);
        self.evidence = Some(evidence.clone());
        self.count(now, evidence, &verdict);
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

    /// Whether the processes of a run that is waited for could not be observed this time.
    fn has_failed(&self, evidence: &Evidence) -> bool {
        let was_observed = self.evidence.as_ref().is_some_and(|it| it.processes.is_some());
        was_observed
            && evidence.processes.is_none()
            && self.waiting_since(evidence).is_some()
            && self.missed < MAX_MISSED
    }

    fn note_activity(&mut self, now: Instant, evidence: &Evidence) {
        if suspended(evidence).is_some() {
            self.not_before = now;
        }
        let switches = evidence.processes.map(|processes| processes.switches);
        let is_active = evidence.processes.is_some_and(|processes| processes.is_active);
        let (quiet_since, active_at) = match self.observed {
            Some(last) if last.switches == switches && !is_active => {
                (last.quiet_since, last.active_at)
            }
            Some(_) if is_active => (now, Some(now)),
            // When it has run between two observations that are far apart is not known.
            Some(last) if last.switches.and(switches).is_some() && now < last.at + 2 * INTERVAL => {
                (now, Some(now))
            }
            Some(_) | None => (now, is_active.then_some(now)),
        };
        self.observed = Some(LastObservation { at: now, switches, quiet_since, active_at });
    }

    /// Since when something has been unread, or an answer to a request or a probe has been expected.
    fn waiting_since(&self, evidence: &Evidence) -> Option<Instant> {
        let requests = evidence.oldest.as_ref().map(|request| request.sent);
        let unread = match evidence.input {
            Input::Unread { since, .. } => Some(since),
            Input::Unknown | Input::Read => None,
        };
        let all = [requests, unread, evidence.unanswered_since, self.probes.ping, self.probes.list];
        all.into_iter().flatten().min()
    }

    fn is_overdue(&self, now: Instant, evidence: &Evidence) -> bool {
        let waiting_since = self.waiting_since(evidence);
        waiting_since.is_some_and(|since| now >= since + self.limits.overdue())
    }

    fn classify(&self, now: Instant, evidence: &Evidence) -> Verdict {
        let is_overdue = self.is_overdue(now, evidence);
        let is_unread = match evidence.input {
            Input::Unread { since, .. } => now >= since + UNREAD_INTERVAL,
            Input::Unknown | Input::Read => false,
        };
        if let Some(pid) = suspended(evidence).filter(|_| is_overdue || is_unread) {
            return Verdict::Suspended { since: self.waiting_since(evidence).unwrap_or(now), pid };
        }
        let Some(observed) = self.observed.filter(|_| is_overdue) else {
            return Verdict::Responsive;
        };
        if evidence.processes.is_none() {
            return self.classify_unobserved(now, evidence);
        }
        let unread_since = match evidence.input {
            Input::Unknown => return self.classify_unobserved(now, evidence),
            Input::Read => return overdue(evidence, None),
            // A run that has answered reads next.
            Input::Unread { since, .. } => {
                since.max(evidence.last_answer.unwrap_or(self.began)).max(self.not_before)
            }
        };
        if now < unread_since + self.limits.overdue() {
            return overdue(evidence, None);
        }
        let recently = self.limits.hang_after.map_or(RECENTLY, |limit| RECENTLY.min(limit / 4));
        let is_active = observed.active_at.is_some_and(|at| now < at + recently);
        // What it sends shows that it is alive, even if it does not read.
        let silent_since = evidence.last_message.map_or(unread_since, |at| at.max(unread_since));
        let is_sending = silent_since > unread_since && now < silent_since + self.limits.overdue();
        if is_active || is_sending {
            return Verdict::Busy { since: unread_since };
        }
        if let Some(inside) = &evidence.being_handled {
            let since = silent_since.max(inside.sent);
            return Verdict::Blocked { inside: inside.clone(), since };
        }
        let is_proven = self.proven_at(evidence, silent_since).is_some_and(|at| now >= at);
        if is_proven && self.probes.last().is_some() {
            return Verdict::Hung { since: silent_since };
        }
        // Even if no client waits, the run does not read the probes.
        overdue(evidence, Some(silent_since))
    }

    /// When a hang of a run that has read nothing since then is proven, if it stays as it is.
    fn proven_at(&self, evidence: &Evidence, unread_since: Instant) -> Option<Instant> {
        let limit = self.limits.hang_after?;
        let quiet_since = self.observed?.quiet_since;
        let quiet_until = quiet_since + limit.saturating_sub(BASELINE.min(limit / 2));
        let unawaited = evidence.unawaited.as_ref();
        let unawaited_since = unawaited.map_or(unread_since, |request| request.since);
        Some(quiet_until.max(unread_since.max(unawaited_since) + limit))
    }

    /// Adds the time since the last observation to what the run does.
    fn count(&mut self, now: Instant, evidence: &Evidence, verdict: &Verdict) {
        let since = match verdict {
            // What it does meanwhile is not known.
            _ if evidence.processes.is_none() => {
                self.spent = Some(Spent::from(now));
                return;
            }
            Verdict::Busy { since }
            | Verdict::Blocked { since, .. }
            | Verdict::Hung { since }
            | Verdict::Overdue { unread_since: Some(since), .. } => *since,
            Verdict::Suspended { .. } => {
                self.spent = Some(Spent::from(now));
                return;
            }
            Verdict::Responsive
            | Verdict::Overdue { unread_since: None, .. }
            | Verdict::Unresponsive { .. } => {
                self.spent = None;
                return;
            }
        };
        // What it did before the first verdict counts as that, if the verdict came when it was due.
        let due = self.limits.overdue() + INTERVAL;
        let first = || Spent::from(now.checked_sub(due).map_or(since, |first| first.max(since)));
        let spent = self.spent.get_or_insert_with(first);
        let time = now.saturating_duration_since(spent.counted_until.max(since));
        match verdict {
            Verdict::Busy { .. } => spent.busy.add(since, time),
            Verdict::Blocked { .. } => spent.blocked.add(since, time),
            _ => {}
        }
        spent.counted_until = now;
    }

    /// When the run is killed if it stays as it is.
    fn kill_at(&self) -> Option<Instant> {
        let spent = self.spent?;
        let (limit, time) = match &self.verdict {
            Verdict::Busy { .. } => (self.limits.busy_limit?, spent.busy.time),
            Verdict::Blocked { .. } => (self.limits.block_limit?, spent.blocked.time),
            Verdict::Overdue { unread_since: Some(since), .. } | Verdict::Hung { since } => {
                return self.proven_at(self.evidence.as_ref()?, *since);
            }
            Verdict::Responsive
            | Verdict::Overdue { unread_since: None, .. }
            | Verdict::Suspended { .. }
            | Verdict::Unresponsive { .. } => return None,
        };
        Some(spent.counted_until + limit.saturating_sub(time))
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
        let is_due = self.kill_at().is_some_and(|at| now >= at);
        let text = |limit: Option<Duration>| limit.map(human_duration).filter(|_| is_due);
        match &self.verdict {
            Verdict::Hung { .. } => Some(self.findings().describe(now).to_string()),
            Verdict::Busy { .. } => text(self.limits.busy_limit).map(|limit| {
                format!("it worked without reading anything for more than {limit} (--busy-limit)")
            }),
            Verdict::Blocked { inside: OpenRequest { what, .. }, .. } => {
                text(self.limits.block_limit).map(|limit| {
                    format!("blocked in `{what}` for more than {limit} (--block-limit)")
                })
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
        if !self.is_overdue(now, evidence) {
            return (waiting_since + overdue).min(now + INTERVAL);
        }
        let is_unread = matches!(evidence.input, Input::Unread { .. });
        let interval =
            if is_unread || self.verdict.holds_requests() { UNREAD_INTERVAL } else { INTERVAL };
        let proof = match evidence.input {
            Input::Unread { since, .. } => {
                self.proven_at(evidence, since.max(self.not_before)).filter(|at| *at > now)
            }
            Input::Unknown | Input::Read => None,
        };
        proof.map_or(now + interval, |at| at.min(now + interval))
    }
}

/// The process of a run that is stopped. A stopped child says nothing about a server that reads.
fn suspended(evidence: &Evidence) -> Option<u32> {
    evidence.processes?.suspended.filter(|_| evidence.input != Input::Read)
}

/// The verdict on a run about which nothing is proven.
fn overdue(evidence: &Evidence, unread_since: Option<Instant>) -> Verdict {
    let requests = evidence.overdue;
    let oldest = evidence.oldest.clone().filter(|_| requests > 0);
    if oldest.is_none() && unread_since.is_none() {
        return Verdict::Responsive;
    }
    Verdict::Overdue { requests, oldest, unread_since }
}

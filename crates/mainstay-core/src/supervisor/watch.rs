//! The observation of a run that may not answer.
//!
//! The [`Watchdog`] decides. It exists while the session with a run is open. One observation is in progress at a time, and none
//! while the run is paused or its engine is away: its silence then has another cause.

use std::time::{Duration, Instant};

use super::silence_end::Answers;
use super::{Action, Connection, Session, Supervisor};
use crate::watchdog::{BASELINE, Evidence, Findings, Verdict, WatchAction, Watchdog};
use crate::{LoggedEvent, unit};

/// An observation that begins later than this shows that Mainstay was not scheduled.
const LATE: Duration = Duration::from_secs(3);

/// How long an observation may take. One that takes longer by [`LATE`] shows the same.
pub const OBSERVATION: Duration = Duration::from_secs(10);

/// A run is observed at most this often, however much it sends.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Watch {
    connection: Connection,
    watchdog: Watchdog,
    /// When the observation in progress began.
    observing_since: Option<Instant>,
    /// When the last one ended.
    observed: Option<Instant>,
    /// When an observation is due that the watchdog does not know about.
    requested: Option<Instant>,
    /// What the last observation showed of its answers.
    answers: Answers,
}

impl Watch {
    /// When the run is observed next; none while that is in progress.
    fn deadline(&self) -> Option<Instant> {
        let next = self.watchdog.deadline();
        let next = self.requested.map_or(next, |requested| requested.min(next));
        self.observing_since.is_none().then_some(next)
    }

    /// Whether the evidence about the run was a reason to kill it.
    pub(super) fn is_killed(&self) -> bool {
        self.watchdog.is_killed()
    }
}

impl Supervisor {
    /// What the evidence about the present run proves.
    pub fn verdict(&self) -> Option<&Verdict> {
        let watch = self.watch.as_ref().filter(|_| !self.unit.is_frozen());
        watch.map(|watch| watch.watchdog.verdict())
    }

    /// When the run is observed next.
    pub(super) fn watch_deadline(&self) -> Option<Instant> {
        self.watch.as_ref().filter(|_| !self.unit.is_frozen()).and_then(Watch::deadline)
    }

    /// The verdict on a run that does not answer, and the evidence behind it.
    pub fn findings(&self) -> Option<Findings> {
        let watch = self.watch.as_ref().filter(|_| !self.unit.is_frozen());
        let watch = watch.filter(|watch| *watch.watchdog.verdict() != Verdict::Responsive);
        watch.map(|watch| watch.watchdog.findings())
    }

    /// A request without an answer for this long is overdue.
    pub fn overdue_after(&self) -> Duration {
        self.spec.restart.watch_limits().overdue()
    }

    pub(super) fn begin_watch(&mut self, now: Instant, connection: Connection) {
        if matches!(self.session, Session::Open { is_closed: false, .. }) {
            let limits = self.spec.restart.watch_limits();
            self.watch = Some(Watch {
                connection,
                observing_since: None,
                observed: None,
                // Requests of an earlier daemon may wait, or be unread.
                requested: Some(now + limits.overdue().min(BASELINE) / 2),
                answers: Answers::default(),
                watchdog: Watchdog::new(now, limits, self.ignores_ping),
            });
        }
    }

    /// A request is slow: the run is observed soon, and again when it is overdue. A run that has sent something while requests
    /// are held is observed at once.
    pub(super) fn is_slow(&mut self, now: Instant, generation: u64) {
        let overdue = self.overdue_after();
        let Some(watch) = &mut self.watch else { return };
        if watch.connection.run.generation() == generation {
            let is_held = watch.watchdog.verdict().holds_requests();
            let at = match watch.observed {
                Some(observed) if is_held => now.max(observed + MIN_INTERVAL),
                _ => now + overdue.min(BASELINE) / 2,
            };
            watch.requested = Some(watch.requested.map_or(at, |requested| requested.min(at)));
            self.watch_tick(now);
        }
    }

    pub(super) fn watch_tick(&mut self, now: Instant) {
        if let Some(due) = self.watch_deadline().filter(|due| *due <= now)
            && let Some(watch) = &mut self.watch
        {
            if now.saturating_duration_since(due) > LATE {
                watch.watchdog.discard_before(now);
            }
            watch.observing_since = Some(now);
            watch.requested = None;
            self.actions.push(Action::Observe(watch.connection));
        }
    }

    pub(super) fn observed(
        &mut self,
        now: Instant,
        connection: Connection,
        evidence: Option<Box<Evidence>>,
    ) {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.connection == connection) else {
            return;
        };
        let Some(evidence) = evidence else {
            self.watch = None;
            return;
        };
        let begun = watch.observing_since.take().unwrap_or(now);
        if now.saturating_duration_since(begun) > OBSERVATION + LATE {
            watch.watchdog.discard_before(now);
        }
        watch.observed = Some(now);
        // What was requested meanwhile is not late.
        watch.requested = watch.requested.map(|requested| requested.max(now + MIN_INTERVAL));
        if self.unit.is_frozen() {
            return;
        }
        let (before, shown) = (watch.watchdog.verdict().clone(), watch.watchdog.findings());
        let decided = watch.watchdog.observe(now, &evidence);
        let answers = watch.answers;
        if !watch.watchdog.has_missed() {
            watch.answers = Answers::of(&evidence);
        }
        let verdict = watch.watchdog.verdict();
        let holds = verdict.holds_requests();
        let is_responsive = *verdict == Verdict::Responsive && before == Verdict::Responsive;
        let has_changed = !is_responsive && watch.watchdog.findings() != shown;
        if before.holds_requests() != holds {
            let change = if holds { Action::HoldRequests } else { Action::SendHeldRequests };
            self.actions.push(change(connection));
        }
        let end = answers.describe_end(now, &before, &evidence);
        for action in decided {
            self.act_on(now, connection, action, &end);
        }
        if has_changed {
            self.actions.push(Action::Publish);
        }
        self.watch_tick(now);
    }

    /// `end` says why the run is no longer silent, if it is not.
    fn act_on(&mut self, now: Instant, connection: Connection, action: WatchAction, end: &str) {
        let run = connection.run;
        match action {
            WatchAction::Probe(probe) => self.actions.push(Action::Probe(connection, probe)),
            WatchAction::IgnoresPing => self.ignores_ping = true,
            WatchAction::Renew => self.actions.push(Action::RenewConnections(connection)),
            // A hang is recorded with the kill that follows.
            WatchAction::Report(Verdict::Hung { .. }) => {}
            WatchAction::Report(verdict) => {
                let findings = self.findings().filter(|findings| findings.verdict == verdict);
                let what = match findings {
                    _ if verdict == Verdict::Responsive => end.to_owned(),
                    Some(findings) => findings.describe(now).to_string(),
                    None => verdict.describe(now).to_string(),
                };
                let event = LoggedEvent::Verdict { run, verdict: verdict.as_str(), what };
                let detail = self.describe(&event);
                self.actions.push(Action::Record { event, detail });
            }
            WatchAction::Kill(what) => {
                let since = self.verdict().and_then(Verdict::since);
                if let Some(since) = since {
                    self.feed(now, unit::Event::Silent { run, since });
                }
                self.feed(now, unit::Event::Hung { run, what });
            }
        }
    }
}

//! The observation of a run that takes long to become ready.
//!
//! Nothing is observed of a run that is ready within [`FIRST`]. What the run does is shown after the second observation,
//! because one alone does not show whether anything runs.

use std::time::{Duration, Instant};

use super::{Action, Session, Supervisor};
use crate::start_activity::{StartEvidence, StartInput, StartWatch};
use crate::{LoggedEvent, RunId, Transport, Workload, WorkloadKind, unit};

/// When a run that is not ready is observed for the first and the second time, since its session is being opened.
const FIRST: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(5);

/// The time between two later observations. It grows with the duration of the start.
const SHORTEST: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(15);

/// How many changes of what a start does are recorded as events.
const MAX_EVENTS: u32 = 10;

#[derive(Debug)]
pub(super) struct WatchedStart {
    run: RunId,
    began: Instant,
    watch: StartWatch,
    observations: u32,
    is_observing: bool,
    next: Instant,
    recorded: u32,
}

impl WatchedStart {
    /// When the run is observed next; none while that is in progress.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.is_observing).then_some(self.next)
    }
}

impl Supervisor {
    /// Begins to watch a run whose session is being opened, and stops when it is ready or ends.
    pub(super) fn update_start_watch(&mut self, now: Instant) {
        let is_opening =
            matches!(self.session, Session::Opening { .. } | Session::Scheduled { .. });
        let run = self.unit.run().filter(|run| !self.is_ending(*run));
        let is_here = self.engine != WorkloadKind::Remote && self.exited.is_none();
        let run = run.filter(|_| is_opening && is_here && self.unit.is_starting());
        let Some(run) = run else {
            self.start_watch = None;
            return;
        };
        if self.start_watch.as_ref().is_none_or(|start| start.run != run) {
            self.start_watch = Some(WatchedStart {
                run,
                began: now,
                watch: StartWatch::new(now),
                observations: 0,
                is_observing: false,
                next: now + FIRST,
                recorded: 0,
            });
        }
    }

    pub(super) fn start_watch_tick(&mut self, now: Instant) {
        if let Some(start) = &mut self.start_watch
            && start.deadline().is_some_and(|deadline| deadline <= now)
        {
            start.is_observing = true;
            self.actions.push(Action::ObserveStart(start.run));
        }
    }

    pub(super) fn start_observed(&mut self, now: Instant, run: RunId, mut evidence: StartEvidence) {
        let speaks_stdio = self.speaks_stdio();
        let Some(start) = self.start_watch.as_mut().filter(|start| start.run == run) else {
            return;
        };
        if !speaks_stdio {
            evidence.input = StartInput::Unknown;
        }
        start.is_observing = false;
        start.observations += 1;
        let activity = start.watch.observe(now, &evidence);
        if start.observations == 1 {
            start.next = (start.began + SECOND).max(now + Duration::from_secs(1));
            return;
        }
        let age = now.saturating_duration_since(start.began);
        start.next = now + (age / 4).clamp(SHORTEST, LONGEST);
        let before = self.unit.start_activity();
        let has_changed = before != activity.as_ref();
        let kind = activity.as_ref().map(|activity| (activity.kind, activity.child.clone()));
        let is_other = before.map(|activity| (activity.kind, activity.child.clone())) != kind;
        if let Some(activity) =
            activity.as_ref().filter(|_| is_other && start.recorded < MAX_EVENTS)
        {
            start.recorded += 1;
            let what = activity.describe(now).to_string();
            let event = LoggedEvent::SlowStart { run, activity: activity.kind.as_str(), what };
            let detail = event.to_string();
            self.actions.push(Action::Record { event, detail });
        }
        if has_changed {
            self.feed(now, unit::Event::Doing { run, activity });
        }
    }

    fn speaks_stdio(&self) -> bool {
        match &self.spec.workload {
            Workload::Process(process) => process.transport == Transport::Stdio,
            Workload::Container(container) => container.transport == Transport::Stdio,
            Workload::Remote(_) => false,
        }
    }
}

//! Runs that belong to a single session (`--isolate`): when they start and stop.
//!
//! A run is started by the first request. It stops a minute after its client has ended the session, when its client has
//! been idle for too long, or when too many clients are absent (see `run_retention`). In the latter two cases the
//! session continues, and its next request starts another run. When the user turns `--isolate` off, all of them stop.
//! A run is never used by another session.

use std::sync::Arc;
use std::time::Instant;

use mainstay_core::supervisor::SessionRunEnd;

use crate::action::Report;
use crate::availability::Availability;
use crate::run_retention::{RETENTION, RunUse, runs_to_end};
use crate::server::{Server, Settings};
use crate::session::SessionKey;
use crate::timers::Timer;

/// A run of a single session, by that session.
enum SessionRun {
    Open(SessionKey),
    /// It has ended, and had this id.
    Ended(Arc<str>),
}

impl Server {
    /// The user has changed the settings, and maybe the program.
    pub fn set_settings(&mut self, now: Instant, settings: Settings) {
        let was_isolated = std::mem::replace(&mut self.settings, settings).isolate;
        if !self.settings.late_results {
            self.drop_abandoned(now);
        }
        self.first_run_as_set = self.newest_run() + 1;
        match (was_isolated, self.settings.isolate) {
            (true, false) => self.share_run(now),
            (false, true) => self.separate_runs(now),
            (true, true) | (false, false) => {}
        }
    }

    /// The shared run that is the same program as a run of a session that starts now.
    pub(crate) fn shared_run(&self) -> u64 {
        self.newest_run().max(self.first_run_as_set)
    }

    fn newest_run(&self) -> u64 {
        self.last_run.map_or(0, |(generation, _)| generation)
    }

    /// Gives a session a run of its own, if that is how the server is run.
    pub(crate) fn isolate(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if !self.lacks_own_run(session) || session.is_over() {
            return;
        }
        let id = Arc::clone(&session.id);
        if let Some(session) = self.sessions.get_mut(key) {
            session.own_run = Some(Box::new(Availability::unknown()));
        }
        self.report(Report::StartSessionRun(id));
        // The next daemon decides by this time which runs stop first.
        self.touch(now, key);
        self.save(key);
        self.end_unneeded_runs(now);
    }

    /// The supervisor reports whether the own run of a session can be used.
    pub fn set_session_availability(&mut self, now: Instant, id: &str, availability: Availability) {
        if self.is_frozen {
            return;
        }
        if let Some((_, generation)) = self.retained_runs.get(id)
            && availability.run().map(|run| run.generation) != Some(*generation)
        {
            // It exited earlier.
            return self.release_retained(id);
        }
        let Some(key) = self.session(id) else { return };
        let shared_run = self.shared_run();
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(own_run) = &mut session.own_run else { return };
        let before = std::mem::replace(&mut **own_run, availability);
        if before.run().is_none() && own_run.run().is_some() {
            session.shared_run = shared_run;
        }
        self.availability_changed(now, Some(key));
        if let Some(run) = before.run() {
            self.drop_unneeded_link(run.link);
        }
    }

    /// A restored session has no run of its own.
    pub fn clear_own_run(&mut self, id: &str) {
        if let Some(session) = self.session(id).and_then(|key| self.sessions.get_mut(key)) {
            let own_run = session.own_run.take();
            self.drop_own_run(own_run.as_deref());
        }
    }

    /// Each session has a run of its own from now on. Those that wait for an answer need it now.
    pub(crate) fn separate_runs(&mut self, now: Instant) {
        let waits = |key: &SessionKey| {
            self.sessions.get(*key).is_some_and(|session| !session.open.is_empty())
        };
        for key in self.sessions.keys().into_iter().filter(waits).collect::<Vec<_>>() {
            self.isolate(now, key);
        }
    }

    /// All sessions share one run from now on. Their own runs are stopped, also while they execute calls: as after any
    /// change of the spec, what is lost is sent again if that is safe.
    pub(crate) fn share_run(&mut self, now: Instant) {
        for key in self.sessions.keys() {
            let Some(session) = self.sessions.get_mut(key) else { continue };
            let Some(own_run) = session.own_run.take() else { continue };
            let id = Arc::clone(&session.id);
            self.report(Report::StopSessionRun(id, SessionRunEnd::Shared));
            self.drop_own_run(Some(&own_run));
            self.availability_changed(now, Some(key));
        }
        for id in self.retained_runs.keys().cloned().collect::<Vec<_>>() {
            self.release_retained(&id);
        }
    }

    /// Keeps the run of a session that has ended for [`RETENTION`]. One that is not up is stopped now.
    pub(crate) fn retain_run(&mut self, now: Instant, id: &str, key: SessionKey) {
        let own_run = self.sessions.get(key).and_then(|session| session.own_run.as_deref());
        let Some(run) = own_run.and_then(Availability::run) else { return self.release_run(key) };
        let retained = (self.clock.at(now), run.generation);
        self.retained_runs.insert(Arc::from(id), retained);
        self.timers.set(now + RETENTION, Timer::RetainedRuns);
        self.end_unneeded_runs(now);
    }

    /// Stops the run of a session that has ended, if it has one.
    pub(crate) fn release_run(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if session.has_own_run() || self.settings.isolate {
            let id = Arc::clone(&session.id);
            self.report(Report::StopSessionRun(id, SessionRunEnd::SessionEnded));
        }
    }

    /// A session has lost this run.
    pub(crate) fn drop_own_run(&mut self, own_run: Option<&Availability>) {
        if let Some(run) = own_run.and_then(Availability::run) {
            self.drop_unneeded_link(run.link);
        }
    }

    fn release_retained(&mut self, id: &str) {
        if !self.is_frozen && self.retained_runs.remove(id).is_some() {
            self.report(Report::StopSessionRun(Arc::from(id), SessionRunEnd::SessionEnded));
        }
    }

    /// Stops the runs that have been kept for long enough, and those beyond the limit.
    pub(crate) fn end_unneeded_runs(&mut self, now: Instant) {
        if self.is_frozen {
            return;
        }
        let (time, idle) = (self.clock.at(now), self.settings.isolate_idle);
        let isolated =
            self.sessions.iter().filter(|(_, session)| session.has_own_run() && !session.is_over());
        let open = isolated.map(|(key, session)| (SessionRun::Open(key), self.run_use(session)));
        let ended = self.retained_runs.iter();
        let ended = ended.map(|(id, (at, _))| {
            (SessionRun::Ended(Arc::clone(id)), RunUse::SessionEnded { at: *at })
        });
        for run in runs_to_end(open.chain(ended).collect::<Vec<_>>(), time, idle) {
            match run {
                SessionRun::Open(key) => {
                    let Some(session) = self.sessions.get_mut(key) else { continue };
                    if session.open.is_empty() {
                        let own_run = session.own_run.take();
                        let id = Arc::clone(&session.id);
                        self.drop_own_run(own_run.as_deref());
                        tracing::info!(server = %self.name, session = %id, "stopping an idle run");
                        self.report(Report::StopSessionRun(id, SessionRunEnd::Idle));
                    }
                }
                SessionRun::Ended(id) => self.release_retained(&id),
            }
        }
    }
}

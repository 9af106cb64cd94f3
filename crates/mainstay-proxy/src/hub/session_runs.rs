//! Runs that belong to a single session (`--isolate`): when they start and stop.
//!
//! A run is started by the first request. It stops with its session, when its client has been absent for too
//! long, or when too many clients are absent (see `presence`). In the latter two cases the session continues,
//! and its next request starts another run.

use super::Hub;
use super::presence::runs_to_end;
use super::session::Session;
use crate::front::Session as _;

impl Hub {
    /// Gives a session a run of its own, if that is how the server is run.
    pub(super) fn isolate(&self, session: &Session) {
        if session.lacks_own_run() {
            session.set_own_run(self.ports.isolation.provide(&self.name, session.id()));
            // The next daemon decides by this time which runs stop first.
            session.touch_and_save();
            self.end_idle_runs();
        }
    }

    /// Resumes the run that an earlier daemon started for a session, if it is alive.
    pub(super) fn find_own_run(&self, session: &Session) {
        if session.lacks_own_run()
            && let Some(found) = self.ports.isolation.find(&self.name, session.id())
        {
            session.set_own_run(found);
        }
    }

    /// Stops the runs of clients that have been absent for too long, and those beyond the limit.
    pub(super) fn end_idle_runs(&self) {
        if !self.isolates() || self.is_frozen() {
            return;
        }
        let idle = self.settings().isolate_idle;
        let mut isolated = self.everyone();
        isolated.retain(Session::is_isolated);
        let runs = isolated.iter().map(|session| (session, session.facts()));
        for session in runs_to_end(runs, self.now(), idle) {
            tracing::info!(server = %self.name, session = session.id(), "stopping an idle run");
            session.clear_own_run();
            self.ports.isolation.stop(&self.name, session.id());
        }
    }
}

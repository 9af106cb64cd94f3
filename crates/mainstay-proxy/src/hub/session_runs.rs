//! Runs that belong to a single session (`--isolate`): when they start and stop.
//!
//! A run is started by the first request. It stops a minute after its client has ended the session, when its
//! client has been idle for too long, or when too many clients are absent (see `run_retention`). In the latter
//! two cases the session continues, and its next request starts another run. A run is never used by another
//! session.

use tokio::time::timeout;

use super::availability::Availability;
use super::run_retention::{RETENTION, RunUse, runs_to_end};
use super::session::Session;
use super::{Hub, lock};
use crate::catch_panic;
use crate::front::Session as _;

/// The session that a run belongs to.
enum Owner<'a> {
    Open(&'a Session),
    /// It has ended, and had this id.
    Ended(String),
}

impl Hub {
    /// Gives a session a run of its own, if that is how the server is run.
    pub(super) fn isolate(&self, session: &Session) {
        if session.lacks_own_run() && !session.is_over() {
            session.set_own_run(self.ports.isolation.provide(&self.name, session.id()));
            if session.is_over() && !self.has(session.id()) {
                // It ended meanwhile, and this run may have started too late to be stopped with it.
                return self.release_run(session);
            }
            // The next daemon decides by this time which runs stop first.
            session.touch_and_save();
            self.end_unneeded_runs();
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

    /// Keeps the run of a session that has ended for [`RETENTION`]. One that is not up is stopped now, and
    /// one that exits earlier is given up.
    pub(super) fn retain_run(&self, session: &Session) {
        let generation = |availability: &Availability| availability.run().map(|run| run.generation);
        let availability = session.own_outlook();
        let run = availability.as_ref().and_then(|availability| generation(&availability.borrow()));
        let (Some(mut availability), Some(run)) = (availability, run) else {
            return self.release_run(session);
        };
        let id = session.id().to_owned();
        lock(&self.retained_runs).insert(id.clone(), self.now());
        self.end_unneeded_runs();
        let hub = self.me.clone();
        // It ends with the run.
        catch_panic::spawn(async move {
            let exited =
                availability.wait_for(|availability| generation(availability) != Some(run));
            let is_due = timeout(RETENTION, exited).await.is_err();
            let Some(hub) = hub.upgrade() else { return };
            if is_due {
                hub.end_unneeded_runs();
            } else {
                hub.release_retained(&id);
            }
        });
    }

    /// Stops the run of a session that has ended, if it has one.
    pub(super) fn release_run(&self, session: &Session) {
        if session.is_isolated() || self.isolates() {
            self.ports.isolation.release(&self.name, session.id());
        }
    }

    fn release_retained(&self, id: &str) {
        if !self.is_frozen() && lock(&self.retained_runs).remove(id).is_some() {
            self.ports.isolation.release(&self.name, id);
        }
    }

    /// Stops the runs that have been kept for long enough, and those beyond the limit.
    pub(super) fn end_unneeded_runs(&self) {
        if self.is_frozen() {
            return;
        }
        let idle = self.settings().isolate_idle;
        let mut isolated = self.everyone();
        isolated.retain(Session::is_isolated);
        let ended = lock(&self.retained_runs).clone();
        let ended =
            ended.into_iter().map(|(id, at)| (Owner::Ended(id), RunUse::SessionEnded { at }));
        let open = isolated.iter().map(|session| (Owner::Open(session), session.run_use()));
        for owner in runs_to_end(open.chain(ended), self.now(), idle) {
            match owner {
                Owner::Open(session) => {
                    if session.clear_unused_own_run() {
                        tracing::info!(server = %self.name, session = session.id(), "stopping an idle run");
                        self.ports.isolation.stop(&self.name, session.id());
                    }
                }
                Owner::Ended(id) => self.release_retained(&id),
            }
        }
    }
}

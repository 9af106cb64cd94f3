//! Runs of single sessions: what [`SessionRuns`](mainstay_core::SessionRuns) decides is executed as in the daemon.

use std::collections::HashMap;
use std::sync::Arc;

use mainstay_core::session_runs::{Action, Event as SessionRunEvent};
use mainstay_core::supervisor::{Event as SupervisorEvent, SessionRunEnd};
use mainstay_core::{RunId, ServerName, SessionRunKey, UnitHistory, Wanted};
use mainstay_session::Availability;

use crate::driver::{Scope, run_name};
use crate::event::Event;
use crate::world::World;

pub(crate) fn key_of(session: &Arc<str>) -> SessionRunKey {
    SessionRunKey { server: run_name(&None), session: Arc::clone(session) }
}

impl World {
    /// The last runs of sessions that an earlier daemon had, by name.
    pub(crate) fn last_session_runs(&self) -> HashMap<ServerName, RunId> {
        let own = self.last_runs.iter().filter(|(scope, _)| scope.is_some());
        own.map(|(scope, last)| (run_name(scope), *last)).collect()
    }

    /// A session asks for a run of its own, or does not need it.
    pub(crate) fn request_session_run(
        &mut self,
        daemon: usize,
        session: &Arc<str>,
        end: Option<SessionRunEnd>,
    ) {
        let requests = &mut self.daemons[daemon].requests;
        match end {
            Some(why) => requests.stop(key_of(session), why),
            None => requests.start(key_of(session)),
        }
        self.after(0, Event::SessionRunRequests { daemon });
    }

    pub(crate) fn handle_requests(&mut self) {
        let Some(daemon) = self.current else { return };
        while let Some(events) = self.daemons[daemon].requests.take_next() {
            events.for_each(|event| self.handle_session_run(event));
        }
    }

    pub(crate) fn handle_session_run(&mut self, event: SessionRunEvent) {
        let Some(daemon) = self.current else { return };
        for action in self.daemons[daemon].session_runs.handle(event) {
            match action {
                Action::Start { key, last } => self.start_session_run(&key, last),
                Action::Publish(name) => {
                    if let Some(scope) = self.scope_of(&name) {
                        self.publish(&scope);
                    }
                }
                Action::End(name, why) => {
                    self.tell_later(&name, SupervisorEvent::EndSessionRun(why));
                }
                Action::Remove(name) => {
                    self.tell_later(&name, SupervisorEvent::Want(Wanted::Gone));
                }
                Action::ReportGone(key) => {
                    if let Some(server) = self.server() {
                        server.clear_own_run(&key.session);
                    }
                    self.settle();
                }
            }
        }
    }

    fn start_session_run(&mut self, key: &SessionRunKey, last: RunId) {
        let scope = Some(Arc::clone(&key.session));
        if self.driver(&None).is_some() {
            return self.add_driver(&scope, UnitHistory { last, ..UnitHistory::default() });
        }
        // A server that has just been removed has no more runs.
        self.set_availability(&scope, Availability::Removed);
        self.handle_session_run(SessionRunEvent::Ended { name: key.run_name(), last: None });
    }

    fn scope_of(&self, name: &ServerName) -> Option<Scope> {
        self.scopes().into_iter().find(|scope| run_name(scope) == *name)
    }

    fn tell_later(&mut self, name: &ServerName, event: SupervisorEvent) {
        if let (Some(scope), Some(daemon)) = (self.scope_of(name), self.current) {
            self.after(0, Event::Driver { daemon, scope, event });
        }
    }

    /// The runs that the user's commands are for: all but those that are being ended.
    pub(crate) fn commanded(&self) -> Vec<Scope> {
        let Some(current) = self.current else { return Vec::new() };
        let kept: Vec<_> = self.daemons[current].session_runs.of(&run_name(&None)).collect();
        let is_kept = |scope: &Scope| scope.is_none() || kept.contains(&&run_name(scope));
        self.scopes().into_iter().filter(is_kept).collect()
    }
}

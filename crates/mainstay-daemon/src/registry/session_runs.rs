//! Runs that belong to a single session. Each has a name and a driver of its own.

use std::time::Duration;

use mainstay_core::supervisor::{Event, SessionRunEnd};
use mainstay_core::{ServerName, ServerSpec};
use mainstay_proxy::Availability;

use super::{Isolated, Registry};
use crate::clock;
use crate::driver::{self, Driver, Scope};
use crate::startup::inherited::Inherited;
use crate::state::store::Stored;

/// How often to check whether the previous run of a session has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Registry {
    /// Starts a run of a server for one session. Its availability is reported to the server.
    pub(super) fn isolate(&self, server: &ServerName, session: &str) {
        let name = isolated_name(server, session);
        let present = self.isolated().get(&name).map(|it| (it.is_ending, it.handle.clone()));
        match present {
            None => return self.start_session_run(server, session),
            // It reports its availability again.
            Some((false, handle)) => {
                let wanted = handle.view.borrow().wanted;
                handle.try_send(Event::Want(wanted));
                return;
            }
            Some((true, _)) => {}
        }
        // The previous run is still being stopped, and only one run may follow it.
        if !self.next_runs().insert(name.clone()) {
            return;
        }
        let (registry, server, session) = (self.downgrade(), server.clone(), session.to_owned());
        self.drivers().spawn(async move {
            while let Some(registry) = registry.upgrade() {
                if !registry.next_runs().contains(&name) {
                    // The session needs no run any more, or has ended.
                    return;
                }
                if !registry.isolated().contains_key(&name) {
                    registry.next_runs().remove(&name);
                    let shown = registry.shared.gateway.servers.get(server.as_str());
                    if shown.is_some_and(|shown| shown.has(&session)) {
                        registry.start_session_run(&server, &session);
                    }
                    return;
                }
                drop(registry);
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
    }

    /// Resumes the run of a session that an earlier daemon left. Returns whether it is alive.
    pub(crate) fn resume_session_run(&self, server: &ServerName, session: &str) -> bool {
        let name = isolated_name(server, session);
        let is_alive =
            self.orphans().get(&name).is_some_and(|inherited| inherited.adopted.is_some());
        if is_alive {
            self.start_session_run(server, session);
        }
        is_alive
    }

    /// Stops the run of a session that continues without one.
    pub(super) fn stop_session_run(&self, server: &ServerName, session: &str) {
        let name = isolated_name(server, session);
        self.next_runs().remove(&name);
        if let Some(isolated) = self.isolated().get_mut(&name) {
            isolated.session_continues = true;
            isolated.end(SessionRunEnd::Idle);
        }
    }

    /// Ends the run of a session that has ended.
    pub(super) fn release(&self, server: &ServerName, session: &str) {
        let name = isolated_name(server, session);
        self.forgotten().remove(&name);
        self.next_runs().remove(&name);
        if let Some(isolated) = self.isolated().get_mut(&name) {
            isolated.session_continues = false;
            isolated.end(SessionRunEnd::SessionEnded);
        }
    }

    fn start_session_run(&self, server: &ServerName, session: &str) {
        let Some(shown) = self.shared.gateway.servers.get(server.as_str()) else { return };
        let snapshot = self.servers().get(server).map(|handle| handle.view.borrow().clone());
        let Some(snapshot) = snapshot else {
            // A server that has just been removed has no more runs.
            return shown.set_session_availability(session, Availability::Removed);
        };
        let name = isolated_name(server, session);
        let scope = Scope::OneSession { server: shown, id: session.to_owned() };
        let stored = Stored {
            spec: ServerSpec { name: name.clone(), ..ServerSpec::clone(&snapshot.spec) },
            wanted: snapshot.wanted,
            created_at: clock::wall(),
        };
        let last = self.forgotten().remove(&name).unwrap_or_default();
        let left = self.orphans().remove(&name);
        let inherited = left.unwrap_or_else(|| Inherited { last, ..Inherited::default() });
        let (context, inbox) = (self.shared.context.clone(), driver::inbox());
        let (driver, handle) = Driver::new(context, scope, inbox, stored, &inherited);
        let (of, session_continues, is_ending) = (server.clone(), false, false);
        let isolated = Isolated { of, handle, session_continues, is_ending };
        self.isolated().insert(name.clone(), isolated);
        self.drive(name, driver);
    }
}

impl Isolated {
    fn end(&mut self, why: SessionRunEnd) {
        if std::mem::replace(&mut self.is_ending, true) {
            return;
        }
        let handle = self.handle.clone();
        // It ends with the driver, at the latest.
        drop(tokio::spawn(async move { handle.send(Event::EndSessionRun(why)).await }));
    }
}

/// The name under which the engine knows the run of a server that belongs to one session.
pub(super) fn isolated_name(server: &ServerName, session: &str) -> ServerName {
    let server = &server.as_str()[..server.as_str().len().min(40)];
    let session = session.get(..16).unwrap_or(session);
    format!("{server}-{session}").parse().expect("a name, a hyphen and hexadecimal digits")
}

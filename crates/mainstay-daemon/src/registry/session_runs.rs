//! Runs that belong to a single session. Each has a name and a driver of its own.

use mainstay_core::supervisor::{Event, SessionRunEnd};
use mainstay_core::{ServerName, ServerSpec};
use mainstay_proxy::Availability;

use super::{AfterEnd, Registry, SessionRun};
use crate::clock;
use crate::driver::{self, Driver, Ending, Handle, Message, Scope};
use crate::startup::inherited::Inherited;
use crate::state::store::Stored;

impl Registry {
    /// Starts a run of a server for one session. Its availability is reported to the server.
    pub(super) fn isolate(&self, server: &ServerName, session: &str) {
        let name = session_run_name(server, session);
        let mut state = self.state();
        match state.session_runs.get_mut(&name) {
            // Only one run may follow the one that is being stopped.
            Some(SessionRun { ending: Some(after), .. }) => *after = AfterEnd::StartNext,
            Some(run) => send_later(&run.handle, Message::Publish),
            None => {
                drop(state);
                self.start_session_run(server, session);
            }
        }
    }

    /// Resumes the run of a session that an earlier daemon left. Returns whether it is alive.
    pub(crate) fn resume_session_run(&self, server: &ServerName, session: &str) -> bool {
        let name = session_run_name(server, session);
        let is_alive = self.state().inherited.get(&name).is_some_and(|it| it.adopted.is_some());
        if is_alive {
            self.start_session_run(server, session);
        }
        is_alive
    }

    /// Stops the run of a session that continues without one.
    pub(super) fn stop_session_run(&self, server: &ServerName, session: &str) {
        let name = session_run_name(server, session);
        if let Some(run) = self.state().session_runs.get_mut(&name) {
            run.end(SessionRunEnd::Idle, AfterEnd::KeepNumber);
        }
    }

    /// Stops the run of a session that has ended.
    pub(super) fn release(&self, server: &ServerName, session: &str) {
        let name = session_run_name(server, session);
        let mut state = self.state();
        state.last_runs.remove(&name);
        if let Some(run) = state.session_runs.get_mut(&name) {
            run.end(SessionRunEnd::SessionEnded, AfterEnd::Nothing);
        }
    }

    pub(super) fn session_run_ended(&self, run: &SessionRun, name: ServerName, ending: Ending) {
        let server = self.shared.gateway.servers.get(run.server.as_str());
        let Some(after) = run.ending else {
            // Someone removed its container. The next request of the session starts another run.
            if let (Ending::Forgotten(last), Some(server)) = (ending, server) {
                self.state().last_runs.insert(name, last);
                server.clear_own_run(&run.session);
            }
            return;
        };
        if let (Ending::Forgotten(last), AfterEnd::KeepNumber | AfterEnd::StartNext) =
            (ending, after)
        {
            self.state().last_runs.insert(name, last);
        }
        if after == AfterEnd::StartNext && server.is_some_and(|server| server.has(&run.session)) {
            self.start_session_run(&run.server, &run.session);
        }
    }

    fn start_session_run(&self, server: &ServerName, session: &str) {
        let Some(shown) = self.shared.gateway.servers.get(server.as_str()) else { return };
        let snapshot = self.state().servers.get(server).map(|handle| handle.view.borrow().clone());
        let Some(snapshot) = snapshot else {
            // A server that has just been removed has no more runs.
            return shown.set_session_availability(session, Availability::Removed);
        };
        let name = session_run_name(server, session);
        let scope = Scope::OneSession { server: shown, id: session.to_owned() };
        let stored = Stored {
            spec: ServerSpec { name: name.clone(), ..ServerSpec::clone(&snapshot.spec) },
            wanted: snapshot.wanted,
            created_at: clock::wall(),
        };
        let (last, inherited) = {
            let mut state = self.state();
            let last = state.last_runs.remove(&name).unwrap_or_default();
            (last, state.inherited.remove(&name))
        };
        let inherited = inherited.unwrap_or_else(|| Inherited { last, ..Inherited::default() });
        let (context, inbox) = (self.shared.context.clone(), driver::inbox());
        let (driver, handle) = Driver::new(context, scope, inbox, stored, &inherited);
        let (server, session) = (server.clone(), session.to_owned());
        let run = SessionRun { server, session, handle, ending: None };
        self.state().session_runs.insert(name.clone(), run);
        self.drive(name, driver);
    }
}

impl SessionRun {
    fn end(&mut self, why: SessionRunEnd, after: AfterEnd) {
        if self.ending.replace(after).is_none() {
            send_later(&self.handle, Event::EndSessionRun(why));
        }
    }
}

/// Sends a message that must not be lost, from a task that ends with the driver at the latest.
pub(super) fn send_later(driver: &Handle, message: impl Into<Message> + Send + 'static) {
    let driver = driver.clone();
    drop(tokio::spawn(async move { driver.send(message).await }));
}

/// The name under which the engine knows the run of a server that belongs to one session.
pub(super) fn session_run_name(server: &ServerName, session: &str) -> ServerName {
    let server = &server.as_str()[..server.as_str().len().min(40)];
    let session = session.get(..16).unwrap_or(session);
    format!("{server}-{session}").parse().expect("a name, a hyphen and hexadecimal digits")
}

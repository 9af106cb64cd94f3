//! Executes what is decided about runs of single sessions. Each has a driver of its own.

use mainstay_core::session_runs::{Action, Event};
use mainstay_core::{RunId, ServerName, ServerSpec, SessionRunKey, Wanted, supervisor};
use mainstay_proxy::Availability;

use super::Registry;
use crate::clock;
use crate::driver::{self, Driver, Message, Scope};
use crate::startup::inherited::Inherited;
use crate::state::store::Stored;

impl Registry {
    /// Resumes the run of a session that an earlier daemon left. Returns whether it is alive.
    pub(crate) fn resume_session_run(&self, server: &ServerName, session: &str) -> bool {
        let key = SessionRunKey { server: server.clone(), session: session.into() };
        let name = key.run_name();
        let is_alive = self.state().inherited.get(&name).is_some_and(|it| it.alive.is_some());
        if is_alive {
            self.handle_session_run(Event::Start(key));
        }
        is_alive
    }

    pub(super) fn handle_session_run(&self, event: Event) {
        let actions = self.state().session_runs.handle(event);
        for action in actions {
            match action {
                Action::Start { key, last } => self.start_session_run(&key, last),
                Action::Publish(name) => self.send_later(&name, Message::Publish),
                Action::End(name, why) => {
                    self.send_later(&name, supervisor::Event::EndSessionRun(why));
                }
                Action::Remove(name) => {
                    self.send_later(&name, supervisor::Event::Want(Wanted::Gone));
                }
                Action::ReportGone(SessionRunKey { server, session }) => {
                    if let Some(server) = self.shared.context.servers.get(server.as_str()) {
                        server.clear_own_run(&session);
                    }
                }
            }
        }
    }

    /// Sends a message that may be lost while the driver is busy.
    pub(super) fn send_to_session_run(&self, key: &SessionRunKey, message: Message) {
        if let Some(driver) = self.state().session_drivers.get(&key.run_name()) {
            driver.inbox.try_send(message).ok();
        }
    }

    fn start_session_run(&self, key: &SessionRunKey, last: RunId) {
        let name = key.run_name();
        let server = self.shared.context.servers.get(key.server.as_str());
        let handle = self.state().servers.get(&key.server).cloned();
        let (Some(server), Some(handle)) = (server.clone(), handle) else {
            // A server that has just been removed has no more runs.
            if let Some(server) = server {
                server.set_session_availability(&key.session, Availability::Removed);
            }
            return self.handle_session_run(Event::Ended { name, last: None });
        };
        let snapshot = handle.view.borrow().clone();
        let scope = Scope::OneSession { server, id: key.session.to_string() };
        let stored = Stored {
            spec: ServerSpec { name: name.clone(), ..ServerSpec::clone(&snapshot.spec) },
            wanted: snapshot.wanted,
            created_at: clock::wall(),
        };
        let inherited = self.state().inherited.remove(&name);
        let inherited = inherited.unwrap_or_else(|| Inherited { last, ..Inherited::default() });
        let (context, inbox) = (self.shared.context.clone(), driver::inbox());
        let (driver, handle) = Driver::new(context, scope, inbox, stored, &inherited);
        self.state().session_drivers.insert(name.clone(), handle);
        self.drive(name, driver);
    }

    /// Sends a message that must not be lost, from a task that ends with the driver at the latest.
    fn send_later(&self, name: &ServerName, message: impl Into<Message> + Send + 'static) {
        let driver = self.state().session_drivers.get(name).cloned();
        if let Some(driver) = driver {
            self.drivers().spawn(async move { driver.send(message).await });
        }
    }
}

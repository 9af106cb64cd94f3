//! Runs that belong to a single session. Each has a name and a driver of its own.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{ServerName, ServerSpec};
use mainstay_proxy::{Availability, Reason};
use tokio::sync::watch;

use super::{Isolated, Registry};
use crate::clock;
use crate::driver::{Audience, Driver, Message, SessionRunEnd};
use crate::startup::inherited::Inherited;
use crate::state::store::Stored;

/// How often to check whether the previous run of a session has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Registry {
    /// Starts a run of a server for one session, and returns its availability.
    pub(crate) fn isolate(
        &self,
        server: &ServerName,
        session: &str,
    ) -> Option<watch::Receiver<Availability>> {
        let name = isolated_name(server, session);
        let why = Arc::new(Reason { text: "starting".to_owned(), ..Reason::default() });
        let (availability, told) = watch::channel(Availability::Coming { due: None, why });
        let present = self.isolated().get(&name).map(|it| (it.is_ending, it.availability.clone()));
        match present {
            None => {
                self.start_session_run(server, session, availability)?;
                return Some(told);
            }
            Some((false, its)) => return Some(its),
            Some((true, _)) => {}
        }
        // The previous run is still being stopped, and only one run may follow it.
        if let Some(told) = self.next_runs().get(&name) {
            return Some(told.clone());
        }
        self.next_runs().insert(name.clone(), told.clone());
        let own = told.clone();
        let (registry, server, session) = (self.downgrade(), server.clone(), session.to_owned());
        self.drivers().spawn(async move {
            while let Some(registry) = registry.upgrade() {
                let is_wanted = |told: &watch::Receiver<Availability>| told.same_channel(&own);
                if !registry.next_runs().get(&name).is_some_and(is_wanted) {
                    // The session needs no run any more, or has ended.
                    return;
                }
                if !registry.isolated().contains_key(&name) {
                    registry.next_runs().remove(&name);
                    let hub = registry.shared.gateway.hubs.get(server.as_str());
                    if hub.is_some_and(|hub| hub.has(&session)) {
                        // If this fails, the session notices that the sender of the availability is gone.
                        registry.start_session_run(&server, &session, availability);
                    }
                    return;
                }
                drop(registry);
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        Some(told)
    }

    /// Resumes the run of a session that an earlier daemon left, if it is alive.
    pub(crate) fn resume_session_run(
        &self,
        server: &ServerName,
        session: &str,
    ) -> Option<watch::Receiver<Availability>> {
        let name = isolated_name(server, session);
        let lives = self.orphans().get(&name).is_some_and(|inherited| inherited.adopted.is_some());
        if lives { self.isolate(server, session) } else { None }
    }

    /// Stops the run of a session that continues without one.
    pub(crate) fn stop_session_run(&self, server: &ServerName, session: &str) {
        let name = isolated_name(server, session);
        self.next_runs().remove(&name);
        if let Some(isolated) = self.isolated().get_mut(&name) {
            isolated.session_continues = true;
            isolated.end(SessionRunEnd::Idle);
        }
    }

    /// Ends the run of a session that has ended.
    pub(crate) fn release(&self, server: &ServerName, session: &str) {
        let name = isolated_name(server, session);
        self.forgotten().remove(&name);
        self.next_runs().remove(&name);
        if let Some(isolated) = self.isolated().get_mut(&name) {
            isolated.session_continues = false;
            isolated.end(SessionRunEnd::SessionEnded);
        }
    }

    fn start_session_run(
        &self,
        server: &ServerName,
        session: &str,
        availability: watch::Sender<Availability>,
    ) -> Option<()> {
        let (spec, wanted) = {
            let shown = self.servers().get(server)?.view.borrow().clone();
            (ServerSpec::clone(&shown.spec), shown.wanted)
        };
        let name = isolated_name(server, session);
        let hub = self.shared.gateway.hubs.get(server.as_str())?;
        let told = availability.subscribe();
        let audience = Audience::Session { hub, id: session.to_owned(), availability };
        let stored = Stored {
            spec: ServerSpec { name: name.clone(), ..spec },
            wanted,
            created_at: clock::wall(),
        };
        let last = self.forgotten().remove(&name).unwrap_or_default();
        let left = self.orphans().remove(&name);
        let inherited = left.unwrap_or_else(|| Inherited { last, ..Inherited::default() });
        let (driver, handle) =
            Driver::new(self.shared.context.clone(), audience, stored, &inherited);
        let (of, session_continues, is_ending) = (server.clone(), false, false);
        let isolated = Isolated { of, handle, session_continues, is_ending, availability: told };
        self.isolated().insert(name.clone(), isolated);
        self.drive(name, driver);
        Some(())
    }
}

impl Isolated {
    fn end(&mut self, why: SessionRunEnd) {
        if std::mem::replace(&mut self.is_ending, true) {
            return;
        }
        let inbox = self.handle.inbox.clone();
        // It ends with the driver, at the latest: one that has ended needs no word.
        drop(tokio::spawn(async move { inbox.send(Message::EndSessionRun(why)).await.ok() }));
    }
}

/// The name under which the engine knows the run of a server that belongs to one session.
pub(super) fn isolated_name(server: &ServerName, session: &str) -> ServerName {
    let server = &server.as_str()[..server.as_str().len().min(40)];
    let session = session.get(..16).unwrap_or(session);
    format!("{server}-{session}").parse().expect("a name, a hyphen and hexadecimal digits")
}

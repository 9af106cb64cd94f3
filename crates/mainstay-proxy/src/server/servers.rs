//! All servers, as fronts and the daemon see them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use mainstay_mcp::version::ProtocolVersion;
use mainstay_session::{StreamKey, StreamRecord, is_id};
use tokio::time::{Duration, Instant, sleep};

use super::relay::{RelayedCall, Relays};
use super::{Reader, ServerHandle, Session};
use crate::intake_gate::IntakeGate;
use crate::store::Unreadable;

/// During a hand-over clients wait, so this is short.
const SETTLED_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Requests are served meanwhile.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub struct Servers {
    all: Mutex<HashMap<String, ServerHandle>>,
    intake_gate: Arc<IntakeGate>,
    relays: Relays,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("no such server")]
    NoSuchServer,
    #[error("too many sessions")]
    TooManySessions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lookup {
    #[error("no such server")]
    NoSuchServer,
    #[error("no such session")]
    NoSuchSession,
    /// The session may be on disk, but the disk cannot be read.
    #[error("the session cannot be read from disk now; try again")]
    Unreadable,
}

impl Servers {
    pub fn insert(&self, server: ServerHandle) {
        self.lock().insert(server.name().to_owned(), server);
    }

    pub fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    pub fn get(&self, name: &str) -> Option<ServerHandle> {
        self.lock().get(name).cloned()
    }

    pub fn all(&self) -> Vec<ServerHandle> {
        self.lock().values().cloned().collect()
    }

    /// Where requests come in. A front takes none while it is closed, but for those that are in it.
    pub fn intake_gate(&self) -> &Arc<IntakeGate> {
        &self.intake_gate
    }

    /// Begins a session for a client that sent `initialize`. Its id is known at once, so that the head of the response
    /// can carry it before the answer is known.
    pub fn open(&self, server: &str) -> Result<Session, OpenError> {
        self.open_with(server, mainstay_session::Server::open)
    }

    /// Begins a session under an id that an earlier daemon gave to a client, whose `initialize` it did not answer.
    pub fn open_as(&self, server: &str, id: &str) -> Result<Session, OpenError> {
        self.open_with(server, |machine, now| machine.open_as(now, id))
    }

    fn open_with(
        &self,
        server: &str,
        open: impl FnOnce(
            &mut mainstay_session::Server,
            std::time::Instant,
        ) -> Option<mainstay_session::SessionKey>,
    ) -> Result<Session, OpenError> {
        let server = self.get(server).ok_or(OpenError::NoSuchServer)?;
        let key = server.enter(open).ok_or(OpenError::TooManySessions)?;
        Session::new(server, key).ok_or(OpenError::TooManySessions)
    }

    /// Finds a session in memory or on disk. One whose record was lost is created again for a client of the version
    /// `if_lost`; without a version it is not found.
    pub async fn find(
        &self,
        server: &str,
        id: &str,
        if_lost: Option<ProtocolVersion>,
    ) -> Result<Session, Lookup> {
        match self.session(server, id) {
            // Boxed to keep the futures of other requests small.
            Err(Lookup::NoSuchSession) if is_id(id) => {
                Box::pin(self.load_from_disk(server, id, if_lost)).await
            }
            found => found,
        }
    }

    /// Finds a session in memory.
    pub fn session(&self, server: &str, id: &str) -> Result<Session, Lookup> {
        let server = self.get(server).ok_or(Lookup::NoSuchServer)?;
        let key = server.lock().machine.session(id).ok_or(Lookup::NoSuchSession)?;
        Session::new(server, key).ok_or(Lookup::NoSuchSession)
    }

    async fn load_from_disk(
        &self,
        server: &str,
        id: &str,
        if_lost: Option<ProtocolVersion>,
    ) -> Result<Session, Lookup> {
        let server = self.get(server).ok_or(Lookup::NoSuchServer)?;
        let _load = Load::begin(&server, id);
        let found = server.inner.ports.store.find(id).await;
        let found = found.map_err(|Unreadable| Lookup::Unreadable)?;
        let key = server.enter(|machine, now| machine.loaded(now, id, found, if_lost));
        key.and_then(|key| Session::new(server.clone(), key)).ok_or(Lookup::NoSuchSession)
    }

    /// Ends a session for its client.
    pub fn close(&self, server: &str, id: &str) -> Result<(), Lookup> {
        let server = self.get(server).ok_or(Lookup::NoSuchServer)?;
        if server.close(id) { Ok(()) } else { Err(Lookup::NoSuchSession) }
    }

    /// The requests of a session that an earlier daemon had, and whose answers their client does not have: their ids as
    /// JSON, and the events from which their streams are read.
    pub fn pending(&self, server: &str, session: &str) -> Vec<(String, String)> {
        let Ok(session) = self.session(server, session) else { return Vec::new() };
        session.server.lock().machine.pending_requests(session.key)
    }

    /// The calls that other daemons finish for this one.
    pub fn relays(&self) -> &Relays {
        &self.relays
    }

    /// Recovers a stream that an earlier daemon had with a session of this server: after the session was
    /// [restored](ServerHandle::restore), and before any run is attached. If `is_relayed`, daemons before this one may
    /// still finish the request. False if the session is unknown.
    pub fn recover(&self, server: &ServerHandle, record: StreamRecord, is_relayed: bool) -> bool {
        if is_relayed && mainstay_session::Server::can_be_relayed(&record) {
            self.relays.expect(record.key.clone(), server);
        }
        server.enter(|machine, now| machine.recover(now, record, is_relayed))
    }

    /// Waits for a moment when another daemon could take over without a loss. What is part of a batch or was asked by a
    /// command is not journaled, so it has to be waited for if it takes long. Meanwhile all continues.
    pub async fn unbound(&self) {
        while self.all().iter().any(ServerHandle::is_bound) {
            sleep(IDLE_POLL_INTERVAL).await;
        }
    }

    /// Waits until every request is answered. More may come meanwhile.
    pub async fn answered(&self) {
        while !self.all().iter().all(ServerHandle::is_idle) {
            sleep(IDLE_POLL_INTERVAL).await;
        }
    }

    /// Prepares for another daemon to take over: accepts no more requests, waits for at most `settle` until every one is
    /// answered or journaled, then [freezes](Self::freeze). If this daemon stays after that, returns the calls that only it
    /// can finish.
    pub async fn hand_over(&self, stays: bool, settle: Duration) -> Vec<RelayedCall> {
        if stays {
            self.intake_gate.close_for_successor();
        } else {
            self.intake_gate.close();
        }
        let until = Instant::now() + settle;
        while Instant::now() < until && !self.is_settled() {
            sleep(SETTLED_POLL_INTERVAL).await;
        }
        let servers = if stays { self.all() } else { Vec::new() };
        let relayed = servers.iter().flat_map(|server| {
            let calls = server.enter(|machine, _| machine.relayed_calls());
            calls.into_iter().map(|(session, call)| {
                let key = StreamKey { session, number: call.number };
                let reader = Reader::new(server.clone(), call.stream, call.turn, call.position);
                RelayedCall::new(key, reader)
            })
        });
        let relayed = relayed.collect();
        self.freeze();
        relayed
    }

    fn is_settled(&self) -> bool {
        self.intake_gate.is_clear() && self.all().iter().all(ServerHandle::is_settled)
    }

    /// Another daemon takes over now. From here on nothing is stored, sent or cancelled for any client; streams that
    /// the other one continues end; what else is dropped has no effect. To be called before anything of a daemon is
    /// dropped whose sessions continue.
    pub fn freeze(&self) {
        for server in self.all() {
            server.freeze();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, ServerHandle>> {
        mainstay_core::lock(&self.all)
    }
}

/// A session that is being loaded from disk, until this is dropped.
struct Load<'a> {
    server: &'a ServerHandle,
    id: &'a str,
}

impl<'a> Load<'a> {
    fn begin(server: &'a ServerHandle, id: &'a str) -> Self {
        server.lock().machine.begin_load(id);
        Self { server, id }
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.server.lock().machine.end_load(self.id);
    }
}

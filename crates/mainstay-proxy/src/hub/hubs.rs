//! All servers, as fronts see them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Hub, RelayedCall, Relays, Session, lock};
use crate::front::{Core, Lookup, OpenError, ProtocolVersion};
use crate::intake_gate::IntakeGate;
use crate::record::StreamRecord;
use crate::session_id::is_id;

/// How often to look whether they are.
const LOOK: Duration = Duration::from_millis(5);

/// The same, when all goes on meanwhile.
const LOOK_UNHURRIED: Duration = Duration::from_millis(50);

/// The hubs by the names of their servers.
#[derive(Debug, Default)]
pub struct Hubs {
    all: Mutex<HashMap<String, Arc<Hub>>>,
    intake_gate: Arc<IntakeGate>,
    relays: Relays,
}

impl Hubs {
    /// Adds a server.
    pub fn insert(&self, hub: Arc<Hub>) {
        lock(&self.all).insert(hub.name().to_owned(), hub);
    }

    /// Takes a server away.
    pub fn remove(&self, server: &str) {
        lock(&self.all).remove(server);
    }

    /// One server.
    pub fn get(&self, server: &str) -> Option<Arc<Hub>> {
        lock(&self.all).get(server).cloned()
    }

    /// The requests of a session that an earlier daemon had, and whose answers their client does not have: their ids as
    /// JSON, and the events from which their streams are read.
    pub fn pending(&self, server: &str, session: &str) -> Vec<(String, String)> {
        let session = self.get(server).and_then(|hub| hub.session(session));
        session.map(|session| session.pending()).unwrap_or_default()
    }

    /// The calls that other daemons finish for this one.
    pub fn relays(&self) -> &Relays {
        &self.relays
    }

    /// Takes up a stream that an earlier daemon had with a session of this server: after the session was
    /// [restored](Hub::restore), and before any run is entered. If `is_relayed`, daemons before this one may still
    /// finish the request. False if there is no such session.
    pub fn recover(&self, server: &Hub, record: StreamRecord, is_relayed: bool) -> bool {
        let news = if is_relayed { self.relays.expect(&record) } else { None };
        server.recover(record, news)
    }

    /// Waits for a moment when another daemon could take over without a loss. What is part of a batch or
    /// was asked by a command is not written down, so it has to be waited for if it takes long. Meanwhile all goes on.
    pub async fn unbound(&self) {
        while self.all().iter().any(|hub| hub.is_bound()) {
            sleep(LOOK_UNHURRIED).await;
        }
    }

    /// Waits until every request is answered. More may come meanwhile.
    pub async fn answered(&self) {
        while !self.all().iter().all(|hub| hub.is_idle()) {
            sleep(LOOK_UNHURRIED).await;
        }
    }

    /// Prepares for another daemon to take over: lets no more requests in, waits for at most `settle` until every one
    /// is answered or written down, then [freezes](Self::freeze). If it takes over right now, gives the calls that only
    /// this daemon can finish, and stays for.
    pub async fn hand_over(&self, stays: bool, settle: Duration) -> Vec<RelayedCall> {
        if stays {
            self.intake_gate.close_for_successor();
        } else {
            self.intake_gate.close();
        }
        let until = Instant::now() + settle;
        while Instant::now() < until && !self.is_settled() {
            sleep(LOOK).await;
        }
        let hubs = if stays { self.all() } else { Vec::new() };
        let relayed = hubs.iter().flat_map(|hub| hub.relayed_calls()).collect();
        self.freeze();
        relayed
    }

    fn is_settled(&self) -> bool {
        self.intake_gate.is_clear() && self.all().iter().all(|hub| hub.is_settled())
    }

    /// Another daemon takes over now. From here on nothing is noted, saved, sent or cancelled for any
    /// client; streams that the other one goes on with end; what else is dropped has no effect. To be called
    /// before anything of a daemon is dropped whose sessions go on.
    pub fn freeze(&self) {
        for hub in self.all() {
            hub.freeze();
        }
    }

    /// All servers.
    pub fn all(&self) -> Vec<Arc<Hub>> {
        lock(&self.all).values().cloned().collect()
    }
}

impl Core for Hubs {
    type Session = Session;

    fn intake_gate(&self) -> &Arc<IntakeGate> {
        &self.intake_gate
    }

    fn open(&self, server: &str) -> Result<Session, OpenError> {
        let hub = self.get(server).ok_or(OpenError::NoSuchServer)?;
        hub.open().ok_or(OpenError::TooManySessions)
    }

    fn open_as(&self, server: &str, id: &str) -> Result<Session, OpenError> {
        let hub = self.get(server).ok_or(OpenError::NoSuchServer)?;
        hub.open_as(id.to_owned()).ok_or(OpenError::TooManySessions)
    }

    fn session(&self, server: &str, id: &str) -> Result<Session, Lookup> {
        let hub = self.get(server).ok_or(Lookup::NoSuchServer)?;
        hub.session(id).ok_or(Lookup::NoSuchSession)
    }

    async fn load_from_disk(
        &self,
        server: &str,
        id: &str,
        if_lost: Option<ProtocolVersion>,
    ) -> Result<Session, Lookup> {
        let hub = self.get(server).ok_or(Lookup::NoSuchServer)?;
        if is_id(id) { hub.load_from_disk(id, if_lost).await } else { Err(Lookup::NoSuchSession) }
    }

    fn close(&self, server: &str, id: &str) -> Result<(), Lookup> {
        let hub = self.get(server).ok_or(Lookup::NoSuchServer)?;
        if hub.close(id) { Ok(()) } else { Err(Lookup::NoSuchSession) }
    }
}

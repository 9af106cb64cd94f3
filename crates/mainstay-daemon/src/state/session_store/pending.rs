//! Changes that are not on disk yet. Pure.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use mainstay_proxy::SessionRecord;

/// The limit of changed sessions.
const LIMIT: usize = 100_000;

/// The newest change to each session and server.
///
/// They are written in this order: removed servers, sessions, copies.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) removed_servers: HashSet<String>,
    pub(super) sessions: HashMap<String, Change>,
    pub(super) copies: HashMap<String, Vec<u8>>,
    /// The value of the session clock.
    pub(super) clock: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Save(Box<SessionRecord>),
    /// It was used at this time.
    Touch(Duration),
    Remove,
}

/// Too many sessions wait for the disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.removed_servers.is_empty()
            && self.sessions.is_empty()
            && self.copies.is_empty()
            && self.clock.is_none()
    }

    pub(super) fn change(&mut self, id: String, change: Change) -> Result<(), Full> {
        if self.sessions.len() >= LIMIT && !self.sessions.contains_key(&id) {
            return Err(Full);
        }
        self.put(id, change);
        Ok(())
    }

    pub(super) fn save_copy(&mut self, server: String, copy: Vec<u8>) {
        self.copies.insert(server, copy);
    }

    pub(super) fn remove_server(&mut self, server: String) {
        self.sessions.retain(|_, change| match change {
            Change::Save(record) => record.server != server,
            Change::Touch(_) | Change::Remove => true,
        });
        self.copies.remove(&server);
        self.removed_servers.insert(server);
    }

    /// Puts back older changes that could not be written. Newer changes take precedence.
    pub(super) fn put_back(&mut self, older: Self) {
        let newer = std::mem::replace(self, older);
        for server in newer.removed_servers {
            self.remove_server(server);
        }
        for (id, change) in newer.sessions {
            // Together they may be more than the limit, but never more than twice.
            self.put(id, change);
        }
        self.copies.extend(newer.copies);
        self.clock = self.clock.max(newer.clock);
    }

    fn put(&mut self, id: String, change: Change) {
        match (self.sessions.get_mut(&id), change) {
            (Some(Change::Save(record)), Change::Touch(at)) => record.used_at = at,
            (Some(Change::Remove), Change::Touch(_)) => {}
            (Some(old), new) => *old = new,
            (None, new) => drop(self.sessions.insert(id, new)),
        }
    }
}

//! All servers, as fronts see them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{Hub, Session, lock};
use crate::front::{Core, Lookup, OpenError};

/// The hubs by the names of their servers.
#[derive(Debug, Default)]
pub struct Hubs {
    all: Mutex<HashMap<String, Arc<Hub>>>,
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

    /// All servers.
    pub fn all(&self) -> Vec<Arc<Hub>> {
        lock(&self.all).values().cloned().collect()
    }
}

impl Core for Hubs {
    type Session = Session;

    fn open(&self, server: &str) -> Result<Session, OpenError> {
        let hub = self.get(server).ok_or(OpenError::NoSuchServer)?;
        hub.open(new_id()).ok_or(OpenError::TooManySessions)
    }

    fn session(&self, server: &str, id: &str) -> Result<Session, Lookup> {
        let hub = self.get(server).ok_or(Lookup::NoSuchServer)?;
        hub.session(id).ok_or(Lookup::NoSuchSession)
    }

    fn close(&self, server: &str, id: &str) -> Result<(), Lookup> {
        let hub = self.get(server).ok_or(Lookup::NoSuchServer)?;
        if hub.close(id) { Ok(()) } else { Err(Lookup::NoSuchSession) }
    }
}

/// 128 random bits, as 32 hexadecimal digits.
fn new_id() -> String {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).expect("the system has random numbers");
    format!("{:032x}", u128::from_be_bytes(bits))
}

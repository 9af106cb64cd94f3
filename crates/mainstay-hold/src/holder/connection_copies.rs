//! The holder's copies of connections, for the daemon after one that was killed.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::{Errno, pread, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Resource, getrlimit};

use super::ListenAddr;
use super::connection_store::{CLOSE, Header, IDLE, MAX_DATA, SLOTS, WORDS};
use super::message::Unfinished;
use super::plan::Id;

/// The connections of one daemon.
pub(super) struct ConnectionCopies {
    /// The daemon that they belong to.
    pub(super) daemon: Id,
    /// Where it records their states.
    memory: OwnedFd,
    connections: HashMap<u32, (ListenAddr, Rc<OwnedFd>)>,
    /// How many may be stored. The holder needs some descriptors for other things.
    limit: usize,
}

impl ConnectionCopies {
    pub(super) fn new(daemon: Id, memory: OwnedFd) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = usize::try_from(descriptors - descriptors / 4).unwrap_or(usize::MAX);
        Self { daemon, memory, connections: HashMap::new(), limit }
    }

    pub(super) fn add(&mut self, slot: u32, listen_addr: ListenAddr, socket: OwnedFd) {
        if slot < SLOTS && self.connections.len() < self.limit {
            self.connections.insert(slot, (listen_addr, Rc::new(socket)));
        }
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.connections.remove(&slot);
    }

    /// Called when the daemon has died: closes the connections that no other daemon can continue.
    pub(super) fn close_others(&mut self) {
        let memory = &self.memory;
        self.connections.retain(|slot, _| state(memory, *slot).is_some());
    }

    /// Closes the connections that are not idle.
    pub(super) fn close_busy(&mut self) {
        let memory = &self.memory;
        let is_idle = |slot| state(memory, slot).is_some_and(|state| state[0] == IDLE);
        self.connections.retain(|slot, _| is_idle(*slot));
    }

    /// Whether a client waits for the answer to a request.
    pub(super) fn client_waits(&self) -> bool {
        let waits = |slot| state(&self.memory, slot).is_some_and(|state| state[0] != IDLE);
        self.connections.keys().any(|slot| waits(*slot))
    }

    /// Closes the connections whose client has closed them. Returns whether another client has sent something.
    pub(super) fn has_request(&mut self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peek = |socket: &OwnedFd| recv(socket, &mut [0; 1], flags).map(|(read, _)| read);
        let mut has_request = false;
        self.connections.retain(|_, (_, socket)| match peek(socket) {
            Ok(0) => false,
            Ok(_) => {
                has_request = true;
                true
            }
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        });
        has_request
    }

    /// All sockets.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        self.connections.values().map(|(_, socket)| &**socket)
    }

    /// All of them, with their states.
    pub(super) fn all(&self) -> Vec<(Unfinished, Rc<OwnedFd>)> {
        let all = self.connections.iter().filter_map(|(slot, (listen_addr, socket))| {
            let state = state(&self.memory, *slot)?;
            Some((Unfinished { listen_addr: listen_addr.clone(), state }, Rc::clone(socket)))
        });
        all.collect()
    }
}

/// The state of a connection: its kind and its data. `None` if it is to be closed.
fn state(memory: &OwnedFd, slot: u32) -> Option<Vec<u8>> {
    let offset = u64::from(slot) * (WORDS * 8) as u64;
    let mut header = [0; 8];
    read(memory, &mut header, offset)?;
    let Header { kind, data, is_appended_to } = Header::unpack(header);
    let end = if is_appended_to { MAX_DATA } else { data.end };
    let mut state = vec![0; 1 + end - data.start];
    state[0] = kind;
    read(memory, &mut state[1..], offset + 8 + data.start as u64)?;
    let certain = 1 + data.len();
    let appended = state[certain..].iter().position(|byte| *byte == 0);
    state.truncate(appended.map_or(state.len(), |appended| certain + appended));
    (kind != CLOSE).then_some(state)
}

fn read(memory: &OwnedFd, bytes: &mut [u8], offset: u64) -> Option<()> {
    let len = bytes.len();
    let read = retry_on_intr(|| pread(memory, &mut *bytes, offset));
    (read == Ok(len)).then_some(())
}

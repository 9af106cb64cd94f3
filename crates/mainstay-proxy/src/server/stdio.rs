//! The channels to and from a stdio server.

use std::collections::VecDeque;

use bytes::Bytes;
use mainstay_core::Interruption;
use mainstay_mcp::frame::{self, Parsed};
use mainstay_session::LinkKey;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::watch;

use super::{ServerHandle, State, Transport};
use crate::catch_panic::{self, CatchPanic};

/// Lines that are taken at a time.
const BATCH: usize = 64;

/// The side of the server's input.
pub(super) struct StdioIo {
    to_server: mpsc::Sender<Bytes>,
    /// Lines for which there was no room.
    overflow: VecDeque<Bytes>,
    /// Whether a task waits for room.
    is_awaited: bool,
    log: mpsc::Sender<Bytes>,
    confirmed: watch::Sender<u64>,
}

/// The side of the server's output.
pub(super) struct Lines {
    from_server: mpsc::Receiver<Bytes>,
    written: watch::Receiver<u64>,
    interruptions: Option<watch::Receiver<Interruption>>,
}

pub(super) fn split(
    to_server: mpsc::Sender<Bytes>,
    from_server: mpsc::Receiver<Bytes>,
    log: mpsc::Sender<Bytes>,
    (written, confirmed): (watch::Receiver<u64>, watch::Sender<u64>),
    interruptions: Option<watch::Receiver<Interruption>>,
) -> (StdioIo, Lines) {
    let io = StdioIo { to_server, overflow: VecDeque::new(), is_awaited: false, log, confirmed };
    (io, Lines { from_server, written, interruptions })
}

impl StdioIo {
    /// Sends a line, or keeps it. Returns whether it is the first for which there is no room.
    pub(super) fn send(&mut self, line: Bytes) -> bool {
        if !self.overflow.is_empty() {
            self.overflow.push_back(line);
            return false;
        }
        match self.to_server.try_send(line) {
            Err(TrySendError::Full(line)) => {
                self.overflow.push_back(line);
                true
            }
            // If it is closed, the end of its lines follows.
            Ok(()) | Err(TrySendError::Closed(_)) => false,
        }
    }

    pub(super) fn confirm(&self, count: u64) {
        self.confirmed.send_if_modified(|confirmed| std::mem::replace(confirmed, count) != count);
    }

    /// The log of a server that floods it may be full.
    pub(super) fn log(&self, line: Bytes) {
        self.log.try_send(line).ok();
    }
}

impl ServerHandle {
    /// Sends the lines for which there is no room when the server reads again.
    pub(super) fn await_room(&self, link: LinkKey, state: &mut State) {
        let Some(io) = stdio(state, link).filter(|io| !io.is_awaited) else { return };
        io.is_awaited = true;
        let (to_server, server) = (io.to_server.clone(), self.downgrade());
        // It ends with the link: a closed channel has no room to wait for.
        catch_panic::spawn(async move {
            while let Ok(room) = to_server.reserve().await {
                let Some(inner) = server.upgrade() else { return };
                let server = Self { inner };
                let has_more = server.enter_with(|state, now| {
                    let Some(io) = stdio(state, link) else { return false };
                    if let Some(line) = io.overflow.pop_front() {
                        room.send(line);
                    }
                    !io.overflow.is_empty() || state.machine.link_writable(now, link)
                });
                // Lines of the actions that were executed just now may have found no room.
                let mut state = server.lock();
                let Some(io) = stdio(&mut state, link) else { return };
                if !has_more && io.overflow.is_empty() {
                    io.is_awaited = false;
                    return;
                }
            }
        });
    }
}

fn stdio(state: &mut State, link: LinkKey) -> Option<&mut StdioIo> {
    match state.links.get_mut(&link).map(|io| &mut io.transport) {
        Some(Transport::Stdio(io)) => Some(io),
        Some(Transport::Http(_)) | None => None,
    }
}

/// Reads what the server writes.
pub(super) fn spawn(server: &ServerHandle, link: LinkKey, lines: Lines) {
    let Lines { mut from_server, written, interruptions } = lines;
    let server = server.downgrade();
    if let Some(mut interruptions) = interruptions {
        let server = server.clone();
        catch_panic::spawn(async move {
            while interruptions.changed().await.is_ok() {
                let interruption = *interruptions.borrow_and_update();
                let Some(inner) = server.upgrade() else { return };
                ServerHandle { inner }
                    .enter(|machine, now| machine.link_interrupted(now, link, interruption));
            }
        });
    }
    drop(tokio::spawn(async move {
        let read = async {
            let mut lines = Vec::new();
            while from_server.recv_many(&mut lines, BATCH).await > 0 {
                let Some(inner) = server.upgrade() else { return };
                debug_assert!(!lines.iter().any(is_test_panic), "requested by a test");
                ServerHandle { inner }
                    .enter(|machine, now| machine.receive(now, link, lines.drain(..)));
            }
        };
        // After a panic, the run is treated as if it had closed its output, and is replaced.
        CatchPanic::new(read).await;
        if let Some(inner) = server.upgrade() {
            let written = *written.borrow();
            ServerHandle { inner }.enter(|machine, now| machine.close_stdio(now, link, written));
        }
    }));
}

fn is_test_panic(line: &Bytes) -> bool {
    Parsed::read(line.clone()).is_ok_and(|message| frame::is_test_panic(&message))
}

//! A daemon as its holder sees it: a process, a socket and its last lines.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::message::{self, ToDaemon, ToHolder};
use super::packet::{self, Buffer};
use super::plan::{End, Id};
use super::process::{Process, Spawned};
use crate::shim::ring::Tail;

/// How much of a daemon's standard error is kept.
const LAST_OUTPUT: usize = 8 * 1024;

/// More than a pipe holds: what a dead daemon left in it is read to the end, but not the further output of a descendant.
const DRAINED: usize = 1024 * 1024;

/// How many messages may wait for a daemon to read them. One that sends this many requests and reads no answer
/// is broken. A new daemon may be sent half as many, with the connections of one that was killed.
const UNREAD: usize = 4096;

pub(super) struct Daemon {
    pub(super) id: Id,
    pub(super) process: Process,
    /// `None` when the daemon has closed it.
    socket: Option<OwnedFd>,
    outbox: VecDeque<Outgoing>,
    stderr: Option<OwnedFd>,
    last_output: Tail,
}

struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<Rc<OwnedFd>>,
}

/// What came from a daemon.
pub(super) enum Received {
    Nothing,
    Message(ToHolder, Vec<OwnedFd>),
    /// A packet that was discarded: of an optional type that is not known, or sent by another process.
    Skipped,
    /// It has closed its socket, or sent an invalid message and has had it closed.
    Closed,
}

impl Daemon {
    pub(super) fn new(id: Id, Spawned { process, socket, stderr, last_output }: Spawned) -> Self {
        let mut tail = Tail::new(LAST_OUTPUT);
        tail.push(&last_output);
        let outbox = VecDeque::new();
        Self { id, process, socket: Some(socket), outbox, stderr, last_output: tail }
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn stderr(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.as_ref().map(AsFd::as_fd)
    }

    /// The end of what it wrote to standard error so far.
    pub(super) fn last_output(&self) -> Vec<u8> {
        self.last_output.to_vec()
    }

    /// Whether messages wait until the daemon reads.
    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends a message, or keeps it until there is room.
    pub(super) fn send(&mut self, message: &ToDaemon, descriptors: Vec<Rc<OwnedFd>>) {
        self.outbox.push_back(Outgoing { bytes: message::encode(message), descriptors });
        self.flush();
        if self.outbox.len() > UNREAD {
            self.shut_down();
        }
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn flush(&mut self) {
        let Some(socket) = &self.socket else { return self.outbox.clear() };
        while let Some(Outgoing { bytes, descriptors }) = self.outbox.front() {
            let descriptors: Vec<_> = descriptors.iter().map(|shared| shared.as_fd()).collect();
            match packet::send(socket.as_fd(), bytes, &descriptors, SendFlags::DONTWAIT) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.shut_down(),
            }
        }
    }

    /// The next message, without blocking. Packets are accepted only from the daemon's own process, even if
    /// other processes have a copy of its socket.
    pub(super) fn receive(&mut self, buffer: &mut Buffer) -> Received {
        let Some(socket) = &self.socket else { return Received::Nothing };
        let packet = match buffer.receive(socket.as_fd(), RecvFlags::DONTWAIT) {
            Ok(Some(packet)) => packet,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
            // The packet is too long or has too many descriptors. Its sender is unknown.
            Err(error) if error.kind() == ErrorKind::InvalidData => return Received::Skipped,
            Ok(None) | Err(_) => return self.close(),
        };
        if packet.sender.is_none() || packet.sender != self.process.pid() {
            return Received::Skipped;
        }
        match message::decode(packet.bytes) {
            Ok(Some(message)) => Received::Message(message, packet.descriptors),
            Ok(None) => Received::Skipped,
            Err(_) => self.close(),
        }
    }

    /// Reads some of what it wrote to standard error, and returns how much.
    pub(super) fn read_stderr(&mut self) -> usize {
        let Some(pipe) = &self.stderr else { return 0 };
        let mut bytes = [0; 4096];
        match rustix::io::read(pipe, &mut bytes) {
            Ok(count @ 1..) => {
                self.last_output.push(&bytes[..count]);
                count
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Ok(0) | Err(_) => {
                self.stderr = None;
                0
            }
        }
    }

    /// How it has ended, and its last lines. Call it when the process has exited.
    pub(super) fn ended(mut self) -> (Id, End) {
        let mut drained = 0;
        while drained < DRAINED {
            match self.read_stderr() {
                0 => break,
                count => drained += count,
            }
        }
        let how = self.process.reap();
        (self.id, End { how, last_output: clean(&self.last_output.to_vec()) })
    }

    /// Shuts the socket down, which is then received as [`Received::Closed`].
    fn shut_down(&mut self) {
        self.outbox.clear();
        if let Some(socket) = &self.socket {
            let _is_closed = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    fn close(&mut self) -> Received {
        self.socket = None;
        self.outbox.clear();
        Received::Closed
    }
}

/// The bytes as text, cut to [`LAST_OUTPUT`].
fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    let start = text.len().saturating_sub(LAST_OUTPUT);
    let whole = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    text[whole.expect("the end is a boundary")..].to_owned()
}

/// The end of a daemon that could not be started.
pub(super) fn not_started(error: &io::Error, exe: &Path) -> End {
    End {
        how: format!("`{}` cannot be started: {error}", exe.display()),
        last_output: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_output_is_text_of_bounded_length() {
        assert_eq!(clean(b"\nthread panicked\n"), "thread panicked");
        let noise = clean(&[0xff; LAST_OUTPUT]);
        assert!(noise.len() <= LAST_OUTPUT && noise.chars().all(|c| c == '\u{fffd}'));
    }
}

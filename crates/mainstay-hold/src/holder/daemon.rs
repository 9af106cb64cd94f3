//! A daemon as its holder sees it: a process, a socket and last words.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::message::{ToDaemon, ToHolder};
use super::packet::{self, Buffer};
use super::plan::{End, Id};
use super::process::{Process, Spawned};
use crate::shim::ring::Tail;

/// How much of a daemon's standard error is kept.
const WORDS: usize = 8 * 1024;

/// More than a pipe holds: what a dead daemon left in it is read to the end, but a descendant that goes
/// on writing keeps nobody busy.
const DRAINED: usize = 1024 * 1024;

/// How many messages may wait for a daemon to read them. One that asks this often and reads no answer
/// is broken. A new daemon may be sent half as many, with the connections of one that was killed.
const UNREAD: usize = 4096;

pub(super) struct Daemon {
    pub(super) id: Id,
    pub(super) process: Process,
    /// `None` when the daemon has closed it.
    socket: Option<OwnedFd>,
    outbox: VecDeque<Outgoing>,
    stderr: Option<OwnedFd>,
    words: Tail,
}

struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<Rc<OwnedFd>>,
}

/// What came from a daemon.
pub(super) enum Heard {
    Nothing,
    Word(ToHolder, Vec<OwnedFd>),
    /// A packet that was discarded: of an optional type that is not known, or sent by another process.
    Skipped,
    /// It has closed its socket, or talks nonsense and has had it closed.
    Closed,
}

impl Daemon {
    pub(super) fn new(id: Id, Spawned { process, socket, stderr, last_output }: Spawned) -> Self {
        let (outbox, mut words) = (VecDeque::new(), Tail::new(WORDS));
        words.push(&last_output);
        Self { id, process, socket: Some(socket), outbox, stderr, words }
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn stderr(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.as_ref().map(AsFd::as_fd)
    }

    /// The end of what it wrote to standard error so far.
    pub(super) fn last_output(&self) -> Vec<u8> {
        self.words.to_vec()
    }

    /// Whether messages wait until it reads.
    pub(super) fn owes(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends a message, or keeps it until there is room.
    pub(super) fn tell(&mut self, message: &ToDaemon, descriptors: Vec<Rc<OwnedFd>>) {
        self.outbox.push_back(Outgoing { bytes: message.encode(), descriptors });
        self.flush();
        if self.outbox.len() > UNREAD {
            self.break_off();
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
                Err(_) => return self.break_off(),
            }
        }
    }

    /// The next message, without blocking. Packets are accepted only from the daemon's own process, even if
    /// other processes have a copy of its socket.
    pub(super) fn hear(&mut self, buffer: &mut Buffer) -> Heard {
        let Some(socket) = &self.socket else { return Heard::Nothing };
        let packet = match buffer.receive(socket.as_fd(), RecvFlags::DONTWAIT) {
            Ok(Some(packet)) => packet,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
            // The packet is too long or has too many descriptors. Its sender is unknown.
            Err(error) if error.kind() == ErrorKind::InvalidData => return Heard::Skipped,
            Ok(None) | Err(_) => return self.close(),
        };
        if packet.sender.is_none() || packet.sender != self.process.pid() {
            return Heard::Skipped;
        }
        match ToHolder::decode(packet.bytes) {
            Ok(Some(word)) => Heard::Word(word, packet.descriptors),
            Ok(None) => Heard::Skipped,
            Err(_) => self.close(),
        }
    }

    /// Takes in some of what it wrote to standard error, and says how much.
    pub(super) fn read_stderr(&mut self) -> usize {
        let Some(pipe) = &self.stderr else { return 0 };
        let mut bytes = [0; 4096];
        match rustix::io::read(pipe, &mut bytes) {
            Ok(count @ 1..) => {
                self.words.push(&bytes[..count]);
                count
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Ok(0) | Err(_) => {
                self.stderr = None;
                0
            }
        }
    }

    /// How it has ended, and its last lines. To be asked when it has.
    pub(super) fn bury(mut self) -> (Id, End) {
        let mut drained = 0;
        while drained < DRAINED {
            match self.read_stderr() {
                0 => break,
                count => drained += count,
            }
        }
        let how = self.process.reap();
        (self.id, End { how, last_output: clean(&self.words.to_vec()) })
    }

    /// Ends the conversation, which is then heard as [`Heard::Closed`].
    fn break_off(&mut self) {
        self.outbox.clear();
        if let Some(socket) = &self.socket {
            let _is_closed = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    fn close(&mut self) -> Heard {
        self.socket = None;
        self.outbox.clear();
        Heard::Closed
    }
}

/// As text that is no longer than the bytes may be.
fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    let start = text.len().saturating_sub(WORDS);
    let whole = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    text[whole.expect("the end is a boundary")..].to_owned()
}

/// The end of a daemon that has never been.
pub(super) fn no_start(error: &io::Error, exe: &Path) -> End {
    End {
        how: format!("`{}` cannot be started: {error}", exe.display()),
        last_output: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_text_of_bounded_length() {
        assert_eq!(clean(b"\nthread panicked\n"), "thread panicked");
        let noise = clean(&[0xff; WORDS]);
        assert!(noise.len() <= WORDS && noise.chars().all(|c| c == '\u{fffd}'));
    }
}

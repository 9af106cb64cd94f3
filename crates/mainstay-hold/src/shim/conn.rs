//! One connection, and what it is owed.
//!
//! Frames to send are not queued: what a connection is owed follows from the state of the run and
//! from what it has been told, so a peer that does not read costs one bounded buffer and nothing more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::ring::{Ring, Tail};
use super::server::Scratch;
use crate::record::ExitRecord;
use crate::wire::{Decoder, FromShim, ToShim, put_output};

/// The buffer is filled up to here, and beyond it by one frame at most.
const OUT_FULL: usize = 128 * 1024;

/// The longest piece of output in one frame.
const CHUNK: usize = 64 * 1024;

/// A drained buffer that is larger than this is given back.
const KEPT_CAPACITY: usize = 64 * 1024;

pub(super) struct Conn {
    socket: OwnedFd,
    pub(super) decoder: Decoder<ToShim>,
    /// The number of the daemon, once it has said it.
    pub(super) daemon: Option<u64>,
    out: Vec<u8>,
    flushed: usize,
    /// The data connection: where the output of the server goes.
    pub(super) attached: Option<Attached>,
    interest: Interest,
    /// How many answers to [`ToShim::Tail`] are due.
    pub(super) tails_due: u32,
    told_written: u64,
    told: Told,
    closed: bool,
}

pub(super) struct Attached {
    /// The offset of the next output byte to send.
    pub(super) sent: u64,
    /// Whether it knows that there will be no more.
    pub(super) told_closed: bool,
}

/// What a connection wants to know of the end of the run. A greater interest includes the smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Interest {
    None,
    Watching,
    /// Needs nothing more once it has been told that the run is over.
    Dismissing,
}

/// What a connection knows of the end of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Exited,
    Gone,
}

/// What connections are told about.
pub(super) struct View<'a> {
    pub(super) output: &'a Ring,
    pub(super) closed: bool,
    pub(super) written: u64,
    pub(super) tail: &'a Tail,
    pub(super) exit: Option<&'a ExitRecord>,
    pub(super) gone: bool,
}

impl Conn {
    /// A connection that is greeted. The socket never blocks.
    pub(super) fn new(socket: OwnedFd, hello: &FromShim, written: u64) -> Self {
        let mut out = Vec::new();
        hello.encode(&mut out);
        Self {
            socket,
            decoder: Decoder::default(),
            daemon: None,
            out,
            flushed: 0,
            attached: None,
            interest: Interest::None,
            tails_due: 0,
            told_written: written,
            told: Told::Nothing,
            closed: false,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn closed(&self) -> bool {
        self.closed
    }

    /// Whether bytes wait for the peer to read.
    pub(super) fn blocked(&self) -> bool {
        self.flushed < self.out.len()
    }

    /// Whether this connection lets the shim end.
    pub(super) fn dismisses(&self) -> bool {
        self.interest == Interest::Dismissing && self.knows_all()
    }

    /// Whether this is the data connection and still misses something. The news that the run is over
    /// comes after all output.
    pub(super) fn is_owed(&self) -> bool {
        self.attached.is_some() && !self.knows_all()
    }

    fn knows_all(&self) -> bool {
        self.told == Told::Gone && !self.blocked()
    }

    pub(super) fn raise(&mut self, interest: Interest) {
        self.interest = self.interest.max(interest);
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Says why and closes, unless it is closed already. A peer that does not read misses the reason
    /// only.
    pub(super) fn refuse(&mut self, why: impl Into<String>) {
        if self.closed {
            return;
        }
        FromShim::Refused { why: why.into() }.encode(&mut self.out);
        self.flush();
        self.close();
    }

    /// Reads once, for the decoder.
    pub(super) fn read(&mut self, scratch: &mut Scratch) {
        match rustix::io::read(&self.socket, scratch) {
            Ok((bytes, _)) if !bytes.is_empty() => self.decoder.push(bytes),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => self.close(),
        }
    }

    /// Sends what is owed, as far as the peer takes it now.
    pub(super) fn pump(&mut self, view: &View<'_>) {
        while !self.closed && self.fill(view) {
            self.flush();
            if self.blocked() {
                break;
            }
        }
    }

    /// Fills the buffer and says whether there is something in it.
    fn fill(&mut self, view: &View<'_>) -> bool {
        while self.out.len() - self.flushed < OUT_FULL && self.add_next(view) {}
        self.blocked()
    }

    /// Adds the next frame, if one is owed. All output comes before the news of the end.
    fn add_next(&mut self, view: &View<'_>) -> bool {
        if let Some(attached) = &mut self.attached {
            if self.told_written < view.written {
                self.told_written = view.written;
                FromShim::Written { through: view.written }.encode(&mut self.out);
                return true;
            }
            if attached.sent < view.output.end() {
                let bytes = view.output.slices(attached.sent, CHUNK);
                put_output(&mut self.out, attached.sent, bytes);
                attached.sent += (bytes.0.len() + bytes.1.len()) as u64;
                return true;
            }
            if view.closed && !attached.told_closed {
                attached.told_closed = true;
                FromShim::Closed.encode(&mut self.out);
                return true;
            }
        }
        if self.tails_due > 0 {
            self.tails_due -= 1;
            FromShim::Tail { stderr: view.tail.to_vec() }.encode(&mut self.out);
            return true;
        }
        let Some(exit) = view.exit.filter(|_| self.interest != Interest::None) else {
            return false;
        };
        match self.told {
            Told::Nothing => {
                self.told = Told::Exited;
                exited(exit).encode(&mut self.out);
            }
            Told::Exited if view.gone => {
                self.told = Told::Gone;
                FromShim::Gone { survivors: exit.survivors }.encode(&mut self.out);
            }
            Told::Exited | Told::Gone => return false,
        }
        true
    }

    fn flush(&mut self) {
        while self.blocked() {
            match rustix::net::send(&self.socket, &self.out[self.flushed..], SendFlags::NOSIGNAL) {
                Ok(count) => self.flushed += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.close();
                    return;
                }
            }
        }
        if self.blocked() {
            self.out.drain(..self.flushed);
        } else {
            self.out.clear();
            self.out.shrink_to(KEPT_CAPACITY);
        }
        self.flushed = 0;
    }
}

fn exited(record: &ExitRecord) -> FromShim {
    FromShim::Exited {
        code: record.code,
        signal: record.signal,
        oom: record.oom,
        at_unix_ms: record.at_unix_ms,
        stderr_tail: record.stderr_tail.clone(),
    }
}

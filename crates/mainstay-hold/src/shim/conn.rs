//! One connection of a daemon.
//!
//! Frames are not queued: what is to be sent follows from the state of the run and from what was sent before, so a peer
//! that does not read costs one bounded buffer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::ring::{Ring, Tail};
use super::server::Scratch;
use super::stdin::{Stdin, Unread};
use crate::record::ExitRecord;
use crate::wire::{Decoder, Frame, FromShim, ToShim, put_output};

/// The buffer is filled up to here, and beyond it by one frame at most.
const OUT_FULL: usize = 128 * 1024;

/// The longest piece of output in one frame.
const CHUNK: usize = 64 * 1024;

/// A drained buffer that is larger than this is freed.
const KEPT_CAPACITY: usize = 64 * 1024;

pub(super) struct Conn {
    socket: OwnedFd,
    pub(super) decoder: Decoder<ToShim>,
    /// The number of the daemon, once it has sent it.
    pub(super) daemon: Option<u64>,
    out: Vec<u8>,
    flushed: usize,
    /// The data connection: where the output of the server goes.
    pub(super) attached: Option<Attached>,
    interest: Interest,
    /// How many answers to [`ToShim::Tail`] are due.
    pub(super) tails_due: u32,
    /// How many answers to [`ToShim::CountUnread`] are due.
    pub(super) counts_due: u32,
    sent_written: u64,
    end_sent: EndSent,
    closed: bool,
}

pub(super) struct Attached {
    /// The offset of the next output byte to send.
    pub(super) sent: u64,
    /// Whether it was sent that there is no more.
    pub(super) sent_closed: bool,
}

/// What a connection wants to know of the end of the run. A greater interest includes the smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Interest {
    None,
    Watching,
    /// Needs nothing more when it has received the end of the run.
    Dismissing,
}

/// What was sent about the end of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndSent {
    Nothing,
    Exited,
    Gone,
}

/// The state of the run that connections are sent.
pub(super) struct View<'a> {
    pub(super) output: &'a Ring,
    pub(super) closed: bool,
    pub(super) stdin: &'a Stdin,
    pub(super) tail: &'a Tail,
    pub(super) exit: Option<&'a ExitRecord>,
    pub(super) gone: bool,
}

impl Conn {
    /// Sends the hello. The socket never blocks.
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
            counts_due: 0,
            sent_written: written,
            end_sent: EndSent::Nothing,
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

    /// Whether this is the data connection and has not received everything. The end of the run comes after all output.
    pub(super) fn has_unsent(&self) -> bool {
        self.attached.is_some() && !self.knows_all()
    }

    fn knows_all(&self) -> bool {
        self.end_sent == EndSent::Gone && !self.blocked()
    }

    pub(super) fn raise(&mut self, interest: Interest) {
        self.interest = self.interest.max(interest);
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Sends the reason and closes, unless it is closed already. A peer that does not read misses only the reason.
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

    /// Sends what is new, as far as the peer accepts it now.
    pub(super) fn pump(&mut self, view: &View<'_>) {
        while !self.closed && self.fill(view) {
            self.flush();
            if self.blocked() {
                break;
            }
        }
    }

    /// Fills the buffer. Returns whether there is something in it.
    fn fill(&mut self, view: &View<'_>) -> bool {
        while self.out.len() - self.flushed < OUT_FULL && self.add_next(view) {}
        self.blocked()
    }

    /// Adds the next frame, if there is one. All output comes before the end.
    fn add_next(&mut self, view: &View<'_>) -> bool {
        if let Some(attached) = &mut self.attached {
            let through = view.stdin.written();
            if self.sent_written < through {
                self.sent_written = through;
                FromShim::Written { through }.encode(&mut self.out);
                return true;
            }
            if attached.sent < view.output.end() {
                let bytes = view.output.slices(attached.sent, CHUNK);
                put_output(&mut self.out, attached.sent, bytes);
                attached.sent += (bytes.0.len() + bytes.1.len()) as u64;
                return true;
            }
            if view.closed && !attached.sent_closed {
                attached.sent_closed = true;
                FromShim::Closed.encode(&mut self.out);
                return true;
            }
        }
        // Before an answer to `Tail`, which confirms that all requests were processed.
        if self.counts_due > 0 {
            self.counts_due -= 1;
            unread(view.stdin).encode(&mut self.out);
            return true;
        }
        if self.tails_due > 0 {
            self.tails_due -= 1;
            FromShim::Tail { stderr: view.tail.to_vec() }.encode(&mut self.out);
            return true;
        }
        let Some(exit) = view.exit.filter(|_| self.interest != Interest::None) else {
            return false;
        };
        match self.end_sent {
            EndSent::Nothing => {
                self.end_sent = EndSent::Exited;
                exited(exit).encode(&mut self.out);
            }
            EndSent::Exited if view.gone => {
                self.end_sent = EndSent::Gone;
                // A process that could not be killed may still read.
                if self.attached.is_some() && exit.survivors == 0 {
                    unread(view.stdin).encode(&mut self.out);
                }
                FromShim::Gone { survivors: exit.survivors }.encode(&mut self.out);
            }
            EndSent::Exited | EndSent::Gone => return false,
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

fn unread(stdin: &Stdin) -> FromShim {
    let Unread { read_through, bytes } =
        stdin.unread().unwrap_or(Unread { read_through: u64::MAX, bytes: 0 });
    FromShim::Unread { read_through, bytes }
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

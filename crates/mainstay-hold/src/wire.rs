//! The protocol between a shim and its daemons.
//!
//! A frame is a `u32` length (little-endian, of what follows), a `u8` type and a payload. The shim
//! speaks first: a [`FromShim::Hello`] with its version. The daemon answers with its number,
//! [`ToShim::Daemon`], before it asks for anything: daemons replace each other, and a shim obeys none
//! that was replaced.
//!
//! Output bytes are numbered by their offset since the start of the run, lines of input by
//! consecutive ids. Both numberings belong to the run and go on from one daemon to the next.
//!
//! # How it grows
//!
//! Shims outlive the daemon that started them, so the two sides often differ in age. A daemon talks
//! to shims of the versions [`OLDEST`] to [`VERSION`]. A shim does not ask for the version of a daemon;
//! it relies on these rules:
//!
//! - A field may be appended to a payload without a new version. Older readers ignore it; newer ones
//!   do without it when an older peer sends none. [`ToShim::Write`], [`ToShim::Log`] and
//!   [`FromShim::Output`] cannot grow, because their last field takes the rest of the frame.
//! - A frame that a peer may miss gets a type of 128 or more, and needs no new version either: a
//!   reader skips such a frame when it does not know the type, as if it had never been sent.
//! - A frame that must not be missed gets a type below 128, and a new version. An unknown one is an
//!   error that ends the connection. So a daemon sends it only to a shim whose version has it, and a
//!   shim only to a daemon that has sent such a frame itself.

mod decoder;

use crate::codec::{DecodeError, Put, Reader, length};

pub use decoder::{Decoder, Frame, Raw, WireError};

/// The version of the protocol that this build speaks.
pub const VERSION: u32 = 1;

/// The oldest version of a shim that a daemon of this build can talk to. It may rise only when no
/// older shim can be running any more.
pub const OLDEST: u32 = 1;

/// The longest frame: a line of 16 MiB and room for what surrounds it.
pub const MAX_FRAME: usize = 17 * 1024 * 1024;

/// What a daemon says to a shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToShim {
    /// Says who speaks. The first frame of each connection, and only the first. A daemon with a lower
    /// number than any before is refused; a higher one has all connections of lower ones refused.
    Daemon {
        /// The number of the daemon.
        number: u64,
    },
    /// Makes this the data connection, instead of any other of the same daemon.
    Attach {
        /// The first output byte it wants. What was consumed already is not sent again.
        from: u64,
    },
    /// Asks for [`FromShim::Exited`] and [`FromShim::Gone`] without attaching.
    Watch,
    /// One whole line for the server, with its newline. Data connection only.
    ///
    /// A daemon should keep at most 1 MiB of lines unacknowledged. Beyond that the shim may stop to
    /// read this connection until the server reads on, so that an [`ToShim::End`] for a stuck server
    /// has to come over another one.
    Write {
        /// One more than that of the line before.
        id: u64,
        /// Written as it is.
        line: Vec<u8>,
    },
    /// Output before this offset will never be asked for again. Data connection only.
    Consumed {
        /// The first byte to keep.
        offset: u64,
    },
    /// Ends the run: end of input and TERM for the whole tree, KILL after the grace.
    End {
        /// The grace in milliseconds. A second request can only shorten it.
        grace_ms: u32,
    },
    /// Ends the run without grace.
    Kill,
    /// Adds lines to the server's log.
    Log {
        /// The lines.
        text: Vec<u8>,
    },
    /// Asks for [`FromShim::Tail`].
    Tail,
    /// The shim may end as soon as it has said [`FromShim::Gone`] here and the data connection, if
    /// there is one, has been sent all it is owed. Implies [`ToShim::Watch`].
    Dismiss,
    /// Makes the run directory again, with the socket in it, if it was removed. Older shims miss it.
    Restore,
}

/// What a shim says to a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromShim {
    /// The first frame of each connection.
    Hello {
        /// The protocol version of the shim.
        version: u32,
        /// The shim's own process.
        shim_pid: u32,
        /// The server's process.
        server_pid: u32,
        /// When the server was started.
        started_unix_ms: u64,
        /// The first output byte that is still kept.
        out_start: u64,
        /// The offset after the last output byte so far.
        out_end: u64,
        /// The last line that the shim has taken: written, or queued to be written before any other.
        written: u64,
        /// Whether the server has exited.
        exited: bool,
        /// The highest number of a daemon so far; 0 if there was none, or from a shim that does not say it.
        newest_daemon: u64,
    },
    /// Output of the server, without gaps or repetitions on one connection.
    Output {
        /// The offset of the first byte.
        offset: u64,
        /// As read: neither aligned to lines nor to characters.
        bytes: Vec<u8>,
    },
    /// The server has closed its output, and all of it was sent before. Data connection only.
    Closed,
    /// All lines up to this one are in the server's pipe.
    Written {
        /// The id of the last of them.
        through: u64,
    },
    /// The server has exited. All that it wrote was sent before on the data connection.
    Exited {
        /// The exit code, if it exited.
        code: Option<i32>,
        /// The signal that ended it, if one did.
        signal: Option<i32>,
        /// Whether the kernel killed it for lack of memory.
        oom: bool,
        /// When it was noticed.
        at_unix_ms: u64,
        /// The last words for people.
        stderr_tail: Vec<u8>,
    },
    /// The run is over and its record written. Follows [`FromShim::Exited`] and all output.
    Gone {
        /// How many processes could not be ended. Nearly always 0.
        survivors: u32,
    },
    /// The last words for people so far.
    Tail {
        /// At most 16 KiB.
        stderr: Vec<u8>,
    },
    /// The last frame of a connection whose request cannot be granted.
    Refused {
        /// The reason, for people.
        why: String,
    },
}

mod kind {
    pub(super) const DAEMON: u8 = 1;
    pub(super) const ATTACH: u8 = 2;
    pub(super) const WATCH: u8 = 3;
    pub(super) const WRITE: u8 = 4;
    pub(super) const CONSUMED: u8 = 5;
    // 6 was the end of input; no version has ever sent it.
    pub(super) const END: u8 = 7;
    pub(super) const KILL: u8 = 8;
    pub(super) const LOG: u8 = 9;
    pub(super) const TAIL: u8 = 10;
    pub(super) const DISMISS: u8 = 11;

    pub(super) const HELLO: u8 = 65;
    pub(super) const OUTPUT: u8 = 66;
    pub(super) const WRITTEN: u8 = 67;
    pub(super) const EXITED: u8 = 68;
    pub(super) const GONE: u8 = 69;
    pub(super) const TAIL_IS: u8 = 70;
    pub(super) const REFUSED: u8 = 71;
    pub(super) const CLOSED: u8 = 72;

    /// From here on, a type that is unknown is skipped.
    pub(super) const SKIPPED: u8 = 128;

    pub(super) const RESTORE: u8 = 128;
}

impl<'a> Raw<'a> {
    /// Id and line of a [`ToShim::Write`], without a copy.
    pub fn as_write(&self) -> Option<(u64, &'a [u8])> {
        let (id, line) = self.payload.split_first_chunk()?;
        (self.kind == kind::WRITE).then(|| (u64::from_le_bytes(*id), line))
    }
}

/// Appends a [`ToShim::Write`] without building one.
pub fn put_write(into: &mut Vec<u8>, id: u64, line: &[u8]) {
    framed(into, kind::WRITE, |out| {
        out.put_u64(id);
        out.extend_from_slice(line);
    });
}

/// Appends a [`FromShim::Output`] whose bytes come in two pieces, without building one.
pub fn put_output(into: &mut Vec<u8>, offset: u64, (first, second): (&[u8], &[u8])) {
    framed(into, kind::OUTPUT, |out| {
        out.put_u64(offset);
        out.extend_from_slice(first);
        out.extend_from_slice(second);
    });
}

impl ToShim {
    /// Appends the frame.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Daemon { number } => framed(into, kind::DAEMON, |out| out.put_u64(*number)),
            Self::Attach { from } => framed(into, kind::ATTACH, |out| out.put_u64(*from)),
            Self::Watch => framed(into, kind::WATCH, |_| ()),
            Self::Write { id, line } => put_write(into, *id, line),
            Self::Consumed { offset } => framed(into, kind::CONSUMED, |out| out.put_u64(*offset)),
            Self::End { grace_ms } => framed(into, kind::END, |out| out.put_u32(*grace_ms)),
            Self::Kill => framed(into, kind::KILL, |_| ()),
            Self::Log { text } => framed(into, kind::LOG, |out| out.extend_from_slice(text)),
            Self::Tail => framed(into, kind::TAIL, |_| ()),
            Self::Dismiss => framed(into, kind::DISMISS, |_| ()),
            Self::Restore => framed(into, kind::RESTORE, |_| ()),
        }
    }
}

impl Frame for ToShim {
    fn decode(raw: Raw<'_>) -> Result<Option<Self>, WireError> {
        let mut payload = Reader::new(raw.payload);
        let mut fields = || {
            Ok(Some(match raw.kind {
                kind::DAEMON => Self::Daemon { number: payload.u64()? },
                kind::ATTACH => Self::Attach { from: payload.u64()? },
                kind::WATCH => Self::Watch,
                kind::WRITE => Self::Write { id: payload.u64()?, line: payload.take_rest() },
                kind::CONSUMED => Self::Consumed { offset: payload.u64()? },
                kind::END => Self::End { grace_ms: payload.u32()? },
                kind::KILL => Self::Kill,
                kind::LOG => Self::Log { text: payload.take_rest() },
                kind::TAIL => Self::Tail,
                kind::DISMISS => Self::Dismiss,
                kind::RESTORE => Self::Restore,
                _ => return Ok(None),
            }))
        };
        known(raw.kind, fields())
    }
}

impl FromShim {
    /// Appends the frame.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Hello {
                version,
                shim_pid,
                server_pid,
                started_unix_ms,
                out_start,
                out_end,
                written,
                exited,
                newest_daemon,
            } => framed(into, kind::HELLO, |out| {
                out.put_u32(*version);
                out.put_u32(*shim_pid);
                out.put_u32(*server_pid);
                out.put_u64(*started_unix_ms);
                out.put_u64(*out_start);
                out.put_u64(*out_end);
                out.put_u64(*written);
                out.put_u8(u8::from(*exited));
                out.put_u64(*newest_daemon);
            }),
            Self::Output { offset, bytes } => put_output(into, *offset, (bytes, &[])),
            Self::Closed => framed(into, kind::CLOSED, |_| {}),
            Self::Written { through } => framed(into, kind::WRITTEN, |out| out.put_u64(*through)),
            Self::Exited { code, signal, oom, at_unix_ms, stderr_tail } => {
                framed(into, kind::EXITED, |out| {
                    out.put_maybe_i32(*code);
                    out.put_maybe_i32(*signal);
                    out.put_u8(u8::from(*oom));
                    out.put_u64(*at_unix_ms);
                    out.put_bytes(stderr_tail);
                });
            }
            Self::Gone { survivors } => framed(into, kind::GONE, |out| out.put_u32(*survivors)),
            Self::Tail { stderr } => framed(into, kind::TAIL_IS, |out| out.put_bytes(stderr)),
            Self::Refused { why } => {
                framed(into, kind::REFUSED, |out| out.put_bytes(why.as_bytes()));
            }
        }
    }
}

impl Frame for FromShim {
    fn decode(raw: Raw<'_>) -> Result<Option<Self>, WireError> {
        let mut payload = Reader::new(raw.payload);
        let mut fields = || {
            Ok(Some(match raw.kind {
                kind::HELLO => Self::Hello {
                    version: payload.u32()?,
                    shim_pid: payload.u32()?,
                    server_pid: payload.u32()?,
                    started_unix_ms: payload.u64()?,
                    out_start: payload.u64()?,
                    out_end: payload.u64()?,
                    written: payload.u64()?,
                    exited: payload.bool("exited")?,
                    newest_daemon: payload.appended_u64()?,
                },
                kind::OUTPUT => Self::Output { offset: payload.u64()?, bytes: payload.take_rest() },
                kind::CLOSED => Self::Closed,
                kind::WRITTEN => Self::Written { through: payload.u64()? },
                kind::EXITED => Self::Exited {
                    code: payload.maybe_i32("code")?,
                    signal: payload.maybe_i32("signal")?,
                    oom: payload.bool("oom")?,
                    at_unix_ms: payload.u64()?,
                    stderr_tail: payload.bytes()?.to_vec(),
                },
                kind::GONE => Self::Gone { survivors: payload.u32()? },
                kind::TAIL_IS => Self::Tail { stderr: payload.bytes()?.to_vec() },
                kind::REFUSED => Self::Refused { why: payload.text("why")? },
                _ => return Ok(None),
            }))
        };
        known(raw.kind, fields())
    }
}

fn known<F>(kind: u8, decoded: Result<Option<F>, DecodeError>) -> Result<Option<F>, WireError> {
    match decoded {
        Ok(None) if kind < kind::SKIPPED => Err(WireError::UnknownType(kind)),
        Ok(frame) => Ok(frame),
        Err(source) => Err(WireError::Payload { kind, source }),
    }
}

/// Appends a frame whose length is known only when its payload is there.
fn framed(into: &mut Vec<u8>, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.put_u32(0);
    into.put_u8(kind);
    payload(into);
    let len = length(into.len() - start - 4);
    into[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests;

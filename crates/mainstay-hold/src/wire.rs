//! The protocol between a shim and its daemons.
//!
//! A frame is a `u32` length (little-endian, of what follows), a `u8` type and a payload. The shim
//! sends the first frame: a [`FromShim::Hello`] with its version. The daemon answers with its number,
//! [`ToShim::Daemon`], before it asks for anything: daemons replace each other, and a shim refuses those
//! that were replaced.
//!
//! Output bytes are numbered by their offset since the start of the run, lines of input by
//! consecutive ids. Both numberings belong to the run and continue from one daemon to the next.
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

use crate::codec::{Field, Message, Reader, encoded, length};

pub use decoder::{Decoder, Frame, Raw, WireError};

/// The protocol version of this build.
pub const VERSION: u32 = 1;

/// The oldest version of a shim that a daemon of this build can talk to. It may rise only when no
/// older shim can be running any more.
pub const OLDEST: u32 = 1;

/// The longest frame: a line of 16 MiB and room for what surrounds it.
pub const MAX_FRAME: usize = 17 * 1024 * 1024;

encoded! {
    /// Messages of a daemon to a shim.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ToShim {
        /// Identifies the daemon. The first frame of each connection, and only the first. A daemon with a lower
        /// number than any before is refused; a higher one has all connections of lower ones refused.
        Daemon = 1 {
            /// The number of the daemon.
            number: u64,
        },
        /// Makes this the data connection, instead of any other of the same daemon.
        Attach = 2 {
            /// The first output byte it wants. What was consumed already is not sent again.
            from: u64,
        },
        /// Asks for [`FromShim::Exited`] and [`FromShim::Gone`] without attaching.
        Watch = 3,
        /// One whole line for the server, with its newline. Data connection only.
        ///
        /// A daemon should keep at most 1 MiB of lines unacknowledged. Beyond that the shim may stop to
        /// read this connection until the server reads on, so that an [`ToShim::End`] for a stuck server
        /// has to come over another one.
        Write = WRITE {
            /// One more than that of the line before.
            id: u64,
            /// Written as it is.
            line: Vec<u8> as rest,
        },
        /// Output before this offset will never be asked for again. Data connection only.
        Consumed = 5 {
            /// The first byte to keep.
            offset: u64,
        },
        /// Ends the run: end of input and TERM for the whole tree, KILL after the grace.
        End = 7 {
            /// The grace in milliseconds. A second request can only shorten it.
            grace_ms: u32,
        },
        /// Ends the run without grace.
        Kill = 8,
        /// Adds lines to the server's log.
        Log = 9 {
            /// The lines.
            text: Vec<u8> as rest,
        },
        /// Asks for [`FromShim::Tail`].
        Tail = 10,
        /// The shim may end as soon as it has sent [`FromShim::Gone`] here and the data connection, if
        /// there is one, has received everything. Implies [`ToShim::Watch`].
        Dismiss = 11,
        /// Recreates the run directory, with the socket in it, if it was removed. Older shims skip it.
        Restore = 128,
        /// Asks for [`FromShim::Unread`]. Older shims skip it.
        CountUnread = 129,
    }
}

encoded! {
    /// Messages of a shim to a daemon.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum FromShim {
        /// The first frame of each connection.
        Hello = 65 {
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
            /// The highest number of a daemon so far; 0 if there was none, or from a shim that does not send it.
            newest_daemon: u64 = 0,
        },
        /// Output of the server, without gaps or repetitions on one connection.
        Output = OUTPUT {
            /// The offset of the first byte.
            offset: u64,
            /// As read: neither aligned to lines nor to characters.
            bytes: Vec<u8> as rest,
        },
        /// The server has closed its output, and all of it was sent before. Data connection only.
        Closed = 72,
        /// All lines up to this one are in the server's pipe.
        Written = 67 {
            /// The id of the last of them.
            through: u64,
        },
        /// The server has exited. All that it wrote was sent before on the data connection.
        Exited = 68 {
            /// The exit code, if it exited.
            code: Option<i32>,
            /// The signal that ended it, if one did.
            signal: Option<i32>,
            /// Whether the kernel killed it for lack of memory.
            oom: bool,
            /// When it was noticed.
            at_unix_ms: u64,
            /// The end of its standard error.
            stderr_tail: Vec<u8>,
        },
        /// The run is over and its record written. Follows [`FromShim::Exited`] and all output.
        Gone = 69 {
            /// How many processes could not be ended. Nearly always 0.
            survivors: u32,
        },
        /// The end of its standard error so far.
        Tail = 70 {
            /// At most 16 KiB.
            stderr: Vec<u8>,
        },
        /// What the server has not read of its input: the answer to [`ToShim::CountUnread`], and, before
        /// [`FromShim::Gone`] on the data connection, what it will never read.
        Unread = 130 {
            /// The last line of which it has read anything; `u64::MAX` if that cannot be counted.
            read_through: u64,
            /// How many bytes it has not read.
            bytes: u64,
        },
        /// The last frame of a connection whose request cannot be granted.
        Refused = 71 {
            /// The reason, for users.
            why: String,
        },
    }
}

/// The types of the frames that are written or read without a copy. Type 6 was never sent.
const WRITE: u8 = 4;
const OUTPUT: u8 = 66;

/// From here on, a type that is unknown is skipped.
const OPTIONAL: u8 = 128;

impl<'a> Raw<'a> {
    /// Id and line of a [`ToShim::Write`], without a copy.
    pub fn as_write(&self) -> Option<(u64, &'a [u8])> {
        let (id, line) = self.payload.split_first_chunk()?;
        (self.kind == WRITE).then(|| (u64::from_le_bytes(*id), line))
    }
}

/// Appends a [`FromShim::Output`] whose bytes come in two pieces, without building one.
pub fn put_output(into: &mut Vec<u8>, offset: u64, (first, second): (&[u8], &[u8])) {
    framed(into, OUTPUT, |out| {
        offset.put(out);
        out.extend_from_slice(first);
        out.extend_from_slice(second);
    });
}

impl<M: Message> Frame for M {
    fn encode(&self, into: &mut Vec<u8>) {
        framed(into, self.kind(), |out| self.put_fields(out));
    }

    fn decode(Raw { kind, payload }: Raw<'_>) -> Result<Option<Self>, WireError> {
        match Self::take_fields(kind, &mut Reader::new(payload)) {
            Ok(None) if kind < OPTIONAL => Err(WireError::UnknownType(kind)),
            Ok(frame) => Ok(frame),
            Err(source) => Err(WireError::Payload { kind, source }),
        }
    }
}

/// Appends a frame. Its length is set when its payload is written.
fn framed(into: &mut Vec<u8>, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.extend_from_slice(&[0, 0, 0, 0, kind]);
    payload(into);
    let len = length(into.len() - start - 4);
    into[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests;

//! The protocol between a holder and its daemons.
//!
//! A message is one packet: a `u8` type, a payload, and for some types descriptors beside it. A holder
//! sends the first message to a daemon that it has started, a [`ToDaemon::Welcome`]; a daemon sends the first one to
//! a holder that it has started, a [`ToHolder::Handover`]. Both carry a version and are followed
//! by as many [`ToDaemon::Listeners`] or [`ToHolder::Listeners`] as it takes.
//!
//! # How it grows
//!
//! A holder outlives its daemons, so the two are often of different versions. As in [`wire`](crate::wire):
//! a field may be appended to a payload; a message that may be missed gets a type of 128 or more and
//! is skipped by a reader that does not know it; one that must not be missed gets a new version.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::packet::{MAX_BYTES, MAX_DESCRIPTORS};
use crate::codec::{DecodeError, Field, Message, Reader, encoded};

/// The protocol version of this build.
///
/// 1. Mainstay 0.1.0.
/// 2. A holder accepts commands only from its daemon's process, and executes the program of a daemon that
///    supports this holder version ([`ToHolder::Ready`]).
pub(super) const VERSION: u32 = 2;

/// From this version on, a holder checks the sender of packets.
pub(super) const CHECKS_SENDER: u32 = 2;

/// From here on, a type that is unknown is skipped.
const OPTIONAL: u8 = 128;

encoded! {
    /// Messages of a daemon to a holder.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum ToHolder {
        /// With the lock, a descriptor of the process and, if `stderr` is set, the readable end of its standard
        /// error.
        Handover = 1 { version: u32, stderr: bool, listeners: u32, },
        /// Sent by a holder to the program that it executes next. Carries the instance lock, the holder lock, a
        /// pidfd of the daemon, the socket to it and, if `stderr` is set, the readable end of its standard error.
        /// Followed by listeners.
        Resume = 11 { version: u32, stderr: bool, listeners: u32, last_output: Vec<u8>, },
        /// With as many descriptors.
        Listeners = 64 { listen_addrs: Vec<ListenAddr>, },
        Bind = 2 { request: u64, listen_addr: ListenAddr, },
        Release = 3 { request: u64, listen_addr: ListenAddr, },
        Ready = 4 {
            request: u64,
            /// The holder version that the daemon's program supports.
            holder: u32 = 1,
        },
        Ending = 5 { request: u64, },
        Prepared = 6,
        Failed = 7 { error: Vec<u8>, },
        Replace = 8 { exe: PathBuf, fallback: Option<PathBuf>, },
        HandedOver = 9 { request: u64, },
        Pulse = 10,
        /// With as many descriptors: idle connections that were accepted at these addresses, for the successor.
        Connections = 128 { listen_addrs: Vec<ListenAddr>, },
        /// With as many descriptors: connections on which a response is not finished, for the successor.
        Responses = 130 { responses: Vec<Unfinished>, },
        /// With memory in which the daemon records the states of its connections. The holder forgets all other
        /// connections. It keeps none if it does not know the format of the memory.
        ShareMemory = 131 { format: u32, },
        /// With a connection, of which the holder keeps a copy.
        Store = 132 { slot: u32, listen_addr: ListenAddr, },
        /// The connection was closed or passed on.
        Forget = 133 { slot: u32, },
    }
}

encoded! {
    /// Messages of a holder to a daemon.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum ToDaemon {
        /// With the lock.
        Welcome = 65 {
            version: u32,
            holder_pid: u32,
            standby: bool,
            replacement_failed: Option<String>,
            last_output: Option<String>,
            /// 0 if there is none.
            watchdog_micros: u64,
            listeners: u32,
            /// The number of [`Interrupted`](Self::Interrupted) connections that follow.
            interrupted: u32 = 0,
        },
        /// With as many descriptors.
        Listeners = 64 { listen_addrs: Vec<ListenAddr>, },
        /// The answer to a handover ([`NotReplaced`](Self::NotReplaced) refuses it), and the first message of a
        /// holder after a re-exec.
        TakenOver = 66 { version: u32, holder_pid: u32, },
        /// The answer to a request, with the listener if that was asked for.
        Done = 67 { request: u64, result: Result<(), Refusal>, },
        Serve = 68,
        /// With a descriptor of the successor's process.
        HandOver = 69,
        NotReplaced = 70 { why: String, },
        /// With as many descriptors: idle connections of the daemon that hands over. They come before
        /// [`Serve`](Self::Serve).
        Connections = 128 { listen_addrs: Vec<ListenAddr>, },
        /// The holder could not execute the program of its daemon, and continues unchanged.
        ReexecFailed = 129 { why: String, },
        /// With as many descriptors: connections of the daemon that hands over, with unfinished responses. They
        /// come before [`Serve`](Self::Serve), too.
        Responses = 130 { responses: Vec<Unfinished>, },
        /// With as many descriptors: connections of a daemon that was killed. They follow the listeners or come
        /// before [`Serve`](Self::Serve).
        Interrupted = 134 { connections: Vec<Unfinished>, },
    }
}

encoded! {
    /// A connection that another daemon served.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Unfinished {
        /// The listener that accepted the connection.
        pub listen_addr: ListenAddr,
        /// What that daemon left to do, in the daemons' own format. At most a few KiB. If it was killed: the kind
        /// of state that it recorded, and its data.
        pub state: Vec<u8>,
    }
}

/// The address of a listener as the daemon asked for it. It names the listener: port 0 stays the port
/// that was found the first time, for every daemon that asks again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddr {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A unix socket that only our user may connect to.
    Unix {
        /// Its directory, of any length.
        dir: PathBuf,
        /// Its name there.
        name: String,
    },
}

encoded! {
    /// Why a request was refused.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Refusal {
        /// The error number of the system, or 0.
        errno: i32,
        text: String,
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { errno: error.raw_os_error().unwrap_or(0), text: error.to_string() }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal.errno {
            0 => Self::other(refusal.text),
            errno => Self::from_raw_os_error(errno),
        }
    }
}

pub(super) fn encode(message: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.put(&mut bytes);
    bytes
}

/// The message, or `None` if it is to be skipped.
pub(super) fn decode<M: Message>(bytes: &[u8]) -> Result<Option<M>, DecodeError> {
    let mut from = Reader::new(bytes);
    let kind = from.u8()?;
    match M::take_fields(kind, &mut from)? {
        None if kind < OPTIONAL => Err(DecodeError::Invalid("type")),
        message => Ok(message),
    }
}

/// Splits items that have a descriptor each into lists that fit one packet each.
pub(super) fn lists<T: Field, D>(held: &[(T, D)]) -> Vec<&[(T, D)]> {
    let mut lists = Vec::new();
    let mut rest = held;
    while !rest.is_empty() {
        let mut bytes = vec![0; 8];
        let fitting = rest.iter().take(MAX_DESCRIPTORS).take_while(|(listed, _)| {
            listed.put(&mut bytes);
            bytes.len() <= MAX_BYTES
        });
        // One address alone always fits: the kernel limits its path to less than that.
        let (list, more) = rest.split_at(fitting.count().max(1));
        lists.push(list);
        rest = more;
    }
    lists
}

const TCP: u8 = 0;
const UNIX: u8 = 1;

impl Field for ListenAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tcp(address) => {
                out.push(TCP);
                address.to_string().put(out);
            }
            Self::Unix { dir, name } => {
                out.push(UNIX);
                dir.put(out);
                name.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>, listen_addr: &'static str) -> Result<Self, DecodeError> {
        match from.u8()? {
            TCP => {
                let address = String::take(from, listen_addr)?.parse();
                Ok(Self::Tcp(address.map_err(|_| DecodeError::Invalid(listen_addr))?))
            }
            UNIX => Ok(Self::Unix {
                dir: Field::take(from, listen_addr)?,
                name: Field::take(from, listen_addr)?,
            }),
            _ => Err(DecodeError::Invalid(listen_addr)),
        }
    }
}

impl Field for Result<(), Refusal> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        if let Err(refusal) = self {
            refusal.put(out);
        }
    }

    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        Ok(if bool::take(from, name)? { Ok(()) } else { Err(Refusal::take(from, name)?) })
    }
}

#[cfg(test)]
mod tests;

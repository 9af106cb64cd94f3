//! The protocol between a holder and its daemons.
//!
//! A message is one packet: a `u8` type, a payload, and for some types descriptors beside it. A holder
//! speaks first to a daemon that it has started, with a [`ToDaemon::Welcome`]; a daemon speaks first to
//! a holder that it has started, with a [`ToHolder::Handover`]. Both carry a version and are followed
//! by as many [`ToDaemon::Listeners`] or [`ToHolder::Listeners`] as it takes.
//!
//! # How it grows
//!
//! A holder outlives its daemons, so the two are often of different age. As in [`wire`](crate::wire):
//! a field may be appended to a payload, a message that may be missed gets a type of 128 or more and
//! is skipped by whoever does not know it, and one that must not be missed gets a new version.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Place;
use super::packet::{MAX_BYTES, MAX_DESCRIPTORS};
use super::place::{place, put_place};
use crate::codec::{DecodeError, Put, Reader, length};

/// The version of the protocol that this build speaks.
///
/// 1. Mainstay 0.1.0.
/// 2. A holder accepts commands only from its daemon's process, and executes the program of a daemon that
///    supports this holder version ([`ToHolder::Ready`]).
pub(super) const VERSION: u32 = 2;

/// From this version on, a holder checks the sender of packets.
pub(super) const CHECKS_SENDER: u32 = 2;

/// What a daemon says to a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToHolder {
    /// With the lock, a descriptor of the process and, if so said, the readable end of its standard
    /// error.
    Handover {
        version: u32,
        stderr: bool,
        listeners: u32,
    },
    /// Sent by a holder to the program that it executes next. Carries the instance lock, the holder lock, a
    /// pidfd of the daemon, the socket to it and, if `stderr` is set, the readable end of its standard error.
    /// Followed by listeners.
    Resume {
        version: u32,
        stderr: bool,
        listeners: u32,
        last_output: Vec<u8>,
    },
    /// With as many descriptors.
    Listeners(Vec<Place>),
    Bind {
        request: u64,
        place: Place,
    },
    Release {
        request: u64,
        place: Place,
    },
    Ready {
        request: u64,
        /// The holder version that the daemon's program supports.
        holder: u32,
    },
    Ending {
        request: u64,
    },
    Prepared,
    Failed {
        word: Vec<u8>,
    },
    Replace {
        exe: PathBuf,
        fallback: Option<PathBuf>,
    },
    Yielded {
        request: u64,
    },
    Pulse,
    /// With as many descriptors: connections that came to these places and are at rest, for the
    /// successor. A holder that does not know them closes them.
    Connections(Vec<Place>),
    /// With as many descriptors: connections on which a response is not finished, for the successor. A holder
    /// that does not know them closes them.
    Responses(Vec<Unfinished>),
    /// With memory in which the daemon records the states of its connections. The holder forgets all other connections.
    /// It keeps none if it does not know the format of the memory.
    ShareMemory {
        format: u32,
    },
    /// With a connection, of which the holder keeps a copy.
    Store {
        slot: u32,
        place: Place,
    },
    /// The connection was closed or passed on.
    Forget {
        slot: u32,
    },
}

/// What a holder says to a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToDaemon {
    /// With the lock.
    Welcome {
        version: u32,
        holder_pid: u32,
        standby: bool,
        replacement_failed: Option<String>,
        last_output: Option<String>,
        watchdog: Option<Duration>,
        listeners: u32,
        /// The number of [`Interrupted`](Self::Interrupted) connections that follow.
        interrupted: u32,
    },
    /// With as many descriptors.
    Listeners(Vec<Place>),
    /// The answer to a handover ([`NotReplaced`](Self::NotReplaced) refuses it), and the first message of a
    /// holder after a re-exec.
    TakenOver {
        version: u32,
        holder_pid: u32,
    },
    /// The holder could not execute the program of its daemon, and continues unchanged.
    ReexecFailed {
        why: String,
    },
    /// The answer to a request, with the listener if that was asked for.
    Done {
        request: u64,
        result: Result<(), Refusal>,
    },
    Go,
    /// With a descriptor of the successor's process.
    GiveWay,
    NotReplaced {
        why: String,
    },
    /// With as many descriptors: connections of the daemon that gives way. They come before
    /// [`Go`](Self::Go).
    Connections(Vec<Place>),
    /// With as many descriptors: connections of the daemon that gives way, with unfinished responses. They come
    /// before [`Go`](Self::Go), too.
    Responses(Vec<Unfinished>),
    /// With as many descriptors: connections of a daemon that was killed. They follow the listeners or come before
    /// [`Go`](Self::Go).
    Interrupted(Vec<Unfinished>),
}

/// A connection that another daemon served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Where the connection came to.
    pub place: Place,
    /// What that daemon left to do, in the daemons' own terms. At most a few KiB. If it was killed: the kind of state
    /// that it recorded, and its data.
    pub state: Vec<u8>,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The error number of the system, or 0.
    errno: i32,
    text: String,
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

/// What is sent in lists, with a descriptor each.
pub(super) trait Listed: Clone {
    fn put(&self, out: &mut Vec<u8>);
}

impl Listed for Place {
    fn put(&self, out: &mut Vec<u8>) {
        put_place(out, self);
    }
}

impl Listed for Unfinished {
    fn put(&self, out: &mut Vec<u8>) {
        put_place(out, &self.place);
        out.put_bytes(&self.state);
    }
}

/// Cuts what is held into lists that fit one packet each.
pub(super) fn lists<T: Listed, D>(held: &[(T, D)]) -> Vec<&[(T, D)]> {
    let mut lists = Vec::new();
    let mut rest = held;
    while !rest.is_empty() {
        let mut bytes = 8;
        let fitting = rest.iter().take(MAX_DESCRIPTORS).take_while(|(listed, _)| {
            bytes += encoded_len(listed);
            bytes <= MAX_BYTES
        });
        // One place alone always fits: its path is no longer than the kernel takes.
        let (list, more) = rest.split_at(fitting.count().max(1));
        lists.push(list);
        rest = more;
    }
    lists
}

mod kind {
    pub(super) const HANDOVER: u8 = 1;
    pub(super) const BIND: u8 = 2;
    pub(super) const RELEASE: u8 = 3;
    pub(super) const READY: u8 = 4;
    pub(super) const ENDING: u8 = 5;
    pub(super) const PREPARED: u8 = 6;
    pub(super) const FAILED: u8 = 7;
    pub(super) const REPLACE: u8 = 8;
    pub(super) const YIELDED: u8 = 9;
    pub(super) const PULSE: u8 = 10;
    pub(super) const RESUME: u8 = 11;

    pub(super) const LISTENERS: u8 = 64;

    pub(super) const WELCOME: u8 = 65;
    pub(super) const TAKEN_OVER: u8 = 66;
    pub(super) const DONE: u8 = 67;
    pub(super) const GO: u8 = 68;
    pub(super) const GIVE_WAY: u8 = 69;
    pub(super) const NOT_REPLACED: u8 = 70;

    /// From here on, a type that is unknown is skipped.
    pub(super) const CONNECTIONS: u8 = 128;
    pub(super) const REEXEC_FAILED: u8 = 129;
    pub(super) const RESPONSES: u8 = 130;
    pub(super) const SHARE_MEMORY: u8 = 131;
    pub(super) const STORE: u8 = 132;
    pub(super) const FORGET: u8 = 133;
    pub(super) const INTERRUPTED: u8 = 134;
    /// The first of those that this build does not know.
    pub(super) const SKIPPED: u8 = 135;
}

impl ToHolder {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Handover { version, stderr, listeners } => message(kind::HANDOVER, |out| {
                out.put_u32(*version);
                out.put_u8(u8::from(*stderr));
                out.put_u32(*listeners);
            }),
            Self::Resume { version, stderr, listeners, last_output } => {
                message(kind::RESUME, |out| {
                    out.put_u32(*version);
                    out.put_u8(u8::from(*stderr));
                    out.put_u32(*listeners);
                    out.put_bytes(last_output);
                })
            }
            Self::Listeners(places) => list(kind::LISTENERS, places),
            Self::Connections(places) => list(kind::CONNECTIONS, places),
            Self::Responses(responses) => list(kind::RESPONSES, responses),
            Self::Bind { request, place } => message(kind::BIND, |out| {
                out.put_u64(*request);
                put_place(out, place);
            }),
            Self::Release { request, place } => message(kind::RELEASE, |out| {
                out.put_u64(*request);
                put_place(out, place);
            }),
            Self::Ready { request, holder } => message(kind::READY, |out| {
                out.put_u64(*request);
                out.put_u32(*holder);
            }),
            Self::Ending { request } => message(kind::ENDING, |out| out.put_u64(*request)),
            Self::Prepared => message(kind::PREPARED, |_| ()),
            Self::Failed { word } => message(kind::FAILED, |out| out.put_bytes(word)),
            Self::Replace { exe, fallback } => message(kind::REPLACE, |out| {
                out.put_bytes(exe.as_os_str().as_bytes());
                put_maybe(out, fallback.as_ref().map(|path| path.as_os_str().as_bytes()));
            }),
            Self::Yielded { request } => message(kind::YIELDED, |out| out.put_u64(*request)),
            Self::Pulse => message(kind::PULSE, |_| ()),
            Self::ShareMemory { format } => message(kind::SHARE_MEMORY, |out| out.put_u32(*format)),
            Self::Store { slot, place } => message(kind::STORE, |out| {
                out.put_u32(*slot);
                put_place(out, place);
            }),
            Self::Forget { slot } => message(kind::FORGET, |out| out.put_u32(*slot)),
        }
    }

    /// The message, or `None` if it is to be skipped.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        let mut from = Reader::new(bytes);
        Ok(Some(match from.u8()? {
            kind::HANDOVER => Self::Handover {
                version: from.u32()?,
                stderr: from.bool("stderr")?,
                listeners: from.u32()?,
            },
            kind::LISTENERS => Self::Listeners(places(&mut from)?),
            kind::CONNECTIONS => Self::Connections(places(&mut from)?),
            kind::RESPONSES => Self::Responses(responses(&mut from)?),
            kind::BIND => Self::Bind { request: from.u64()?, place: place(&mut from)? },
            kind::RELEASE => Self::Release { request: from.u64()?, place: place(&mut from)? },
            kind::READY => {
                let request = from.u64()?;
                // A daemon of version 1 does not say.
                let holder = if from.is_empty() { 1 } else { from.u32()? };
                Self::Ready { request, holder }
            }
            kind::RESUME => Self::Resume {
                version: from.u32()?,
                stderr: from.bool("stderr")?,
                listeners: from.u32()?,
                last_output: from.bytes()?.to_vec(),
            },
            kind::ENDING => Self::Ending { request: from.u64()? },
            kind::PREPARED => Self::Prepared,
            kind::FAILED => Self::Failed { word: from.bytes()?.to_vec() },
            kind::REPLACE => Self::Replace {
                exe: path(from.bytes()?),
                fallback: maybe(&mut from, "fallback")?.map(path),
            },
            kind::YIELDED => Self::Yielded { request: from.u64()? },
            kind::PULSE => Self::Pulse,
            kind::SHARE_MEMORY => Self::ShareMemory { format: from.u32()? },
            kind::STORE => Self::Store { slot: from.u32()?, place: place(&mut from)? },
            kind::FORGET => Self::Forget { slot: from.u32()? },
            kind::REEXEC_FAILED | kind::INTERRUPTED | kind::SKIPPED.. => return Ok(None),
            _ => return Err(DecodeError::Invalid("type")),
        }))
    }
}

impl ToDaemon {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome {
                version,
                holder_pid,
                standby,
                replacement_failed,
                last_output,
                watchdog,
                listeners,
                interrupted,
            } => message(kind::WELCOME, |out| {
                out.put_u32(*version);
                out.put_u32(*holder_pid);
                out.put_u8(u8::from(*standby));
                put_maybe(out, replacement_failed.as_ref().map(String::as_bytes));
                put_maybe(out, last_output.as_ref().map(String::as_bytes));
                let micros = watchdog.map_or(0, |every| every.as_micros());
                out.put_u64(u64::try_from(micros).unwrap_or(u64::MAX));
                out.put_u32(*listeners);
                out.put_u32(*interrupted);
            }),
            Self::Listeners(places) => list(kind::LISTENERS, places),
            Self::Connections(places) => list(kind::CONNECTIONS, places),
            Self::Responses(responses) => list(kind::RESPONSES, responses),
            Self::Interrupted(connections) => list(kind::INTERRUPTED, connections),
            Self::TakenOver { version, holder_pid } => message(kind::TAKEN_OVER, |out| {
                out.put_u32(*version);
                out.put_u32(*holder_pid);
            }),
            Self::Done { request, result } => message(kind::DONE, |out| {
                out.put_u64(*request);
                out.put_u8(u8::from(result.is_ok()));
                if let Err(refusal) = result {
                    out.put_i32(refusal.errno);
                    out.put_bytes(refusal.text.as_bytes());
                }
            }),
            Self::Go => message(kind::GO, |_| ()),
            Self::GiveWay => message(kind::GIVE_WAY, |_| ()),
            Self::NotReplaced { why } => {
                message(kind::NOT_REPLACED, |out| out.put_bytes(why.as_bytes()))
            }
            Self::ReexecFailed { why } => {
                message(kind::REEXEC_FAILED, |out| out.put_bytes(why.as_bytes()))
            }
        }
    }

    /// The message, or `None` if it is to be skipped.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        let mut from = Reader::new(bytes);
        Ok(Some(match from.u8()? {
            kind::WELCOME => Self::Welcome {
                version: from.u32()?,
                holder_pid: from.u32()?,
                standby: from.bool("standby")?,
                replacement_failed: maybe_text(&mut from, "replacement_failed")?,
                last_output: maybe_text(&mut from, "last_words")?,
                watchdog: Some(Duration::from_micros(from.u64()?)).filter(|every| !every.is_zero()),
                listeners: from.u32()?,
                // Older holders do not say.
                interrupted: if from.is_empty() { 0 } else { from.u32()? },
            },
            kind::LISTENERS => Self::Listeners(places(&mut from)?),
            kind::CONNECTIONS => Self::Connections(places(&mut from)?),
            kind::RESPONSES => Self::Responses(responses(&mut from)?),
            kind::INTERRUPTED => Self::Interrupted(responses(&mut from)?),
            kind::TAKEN_OVER => Self::TakenOver { version: from.u32()?, holder_pid: from.u32()? },
            kind::DONE => Self::Done { request: from.u64()?, result: result(&mut from)? },
            kind::GO => Self::Go,
            kind::GIVE_WAY => Self::GiveWay,
            kind::NOT_REPLACED => Self::NotReplaced { why: from.text("why")? },
            kind::REEXEC_FAILED => Self::ReexecFailed { why: from.text("why")? },
            kind::SHARE_MEMORY | kind::STORE | kind::FORGET | kind::SKIPPED.. => return Ok(None),
            _ => return Err(DecodeError::Invalid("type")),
        }))
    }
}

fn message(kind: u8, payload: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![kind];
    payload(&mut out);
    out
}

fn list(kind: u8, all: &[impl Listed]) -> Vec<u8> {
    message(kind, |out| {
        out.put_u32(length(all.len()));
        for listed in all {
            listed.put(out);
        }
    })
}

fn responses(from: &mut Reader<'_>) -> Result<Vec<Unfinished>, DecodeError> {
    let unfinished = |from: &mut Reader<'_>| {
        Ok(Unfinished { place: place(from)?, state: from.bytes()?.to_vec() })
    };
    (0..from.u32()?).map(|_| unfinished(from)).collect()
}

fn places(from: &mut Reader<'_>) -> Result<Vec<Place>, DecodeError> {
    (0..from.u32()?).map(|_| place(from)).collect()
}

fn encoded_len(listed: &impl Listed) -> usize {
    let mut bytes = Vec::new();
    listed.put(&mut bytes);
    bytes.len()
}

fn result(from: &mut Reader<'_>) -> Result<Result<(), Refusal>, DecodeError> {
    if from.bool("done")? {
        return Ok(Ok(()));
    }
    Ok(Err(Refusal { errno: from.i32()?, text: from.text("refusal")? }))
}

fn put_maybe(out: &mut Vec<u8>, field: Option<&[u8]>) {
    out.put_u8(u8::from(field.is_some()));
    if let Some(field) = field {
        out.put_bytes(field);
    }
}

fn maybe<'a>(from: &mut Reader<'a>, what: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
    from.bool(what)?.then(|| from.bytes()).transpose()
}

fn maybe_text(from: &mut Reader<'_>, what: &'static str) -> Result<Option<String>, DecodeError> {
    from.bool(what)?.then(|| from.text(what)).transpose()
}

pub(super) fn path(bytes: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(bytes)).to_path_buf()
}

#[cfg(test)]
mod tests;

//! The format of the journal. Pure.
//!
//! A file is [`HEADER`] and entries. An entry is a frame: the length of its body and the body's checksum
//! (`u32` each, little-endian), then the body. Reading stops at the first frame that is incomplete or garbled.
//!
//! A file with another header was written by another version of this program. It is not read, because a wrong guess about
//! requests in flight is worse than nothing.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use mainstay_proxy::{Abandoned, Sent, StreamKey};

pub(super) const HEADER: &[u8] = b"mainstay streams 1\n";

/// Messages are numbered from 1.
const NO_MESSAGE: u64 = 0;

/// The length and the checksum before each body.
const PREFIX: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Stream(StreamKey, Change),
    /// A session has ended, with all its streams.
    Ended(Arc<str>),
}

/// A change of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// It is the stream of this request.
    Begun(Bytes),
    /// The request was sent; the number of attempts so far.
    Sent(Sent, u32),
    /// A message was added.
    Message(u64, Bytes),
    /// The answer was added.
    Answered(u64, Bytes),
    /// The client has given the request up. Written as a message with the number 0, which earlier versions ignore.
    Abandoned(Abandoned),
    Over,
    /// It was discarded, but is not over.
    Lost,
}

mod kind {
    pub(super) const ENDED: u8 = 0;
    pub(super) const BEGUN: u8 = 1;
    pub(super) const SENT: u8 = 2;
    pub(super) const SENT_LINE: u8 = 3;
    pub(super) const MESSAGE: u8 = 4;
    pub(super) const ANSWERED: u8 = 5;
    pub(super) const OVER: u8 = 6;
    pub(super) const LOST: u8 = 7;
}

impl Entry {
    /// Appends the entry as a frame.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.put_bytes(0, PREFIX);
        match self {
            Self::Ended(session) => put_session(into, kind::ENDED, session),
            Self::Stream(StreamKey { session, number }, change) => {
                put_session(into, change.kind(), session);
                into.put_u64_le(*number);
                change.encode(into);
            }
        }
        let (prefix, body) = into[start..].split_at_mut(PREFIX);
        prefix[..4].copy_from_slice(&length(body.len()).to_le_bytes());
        prefix[4..].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    }

    fn decode(mut body: &[u8]) -> Option<Self> {
        let kind = body.try_get_u8().ok()?;
        let session = body.try_get_u32_le().ok()? as usize;
        let (session, mut body) = body.split_at_checked(session)?;
        let session = Arc::from(str::from_utf8(session).ok()?);
        if kind == kind::ENDED {
            return body.is_empty().then_some(Self::Ended(session));
        }
        let number = body.try_get_u64_le().ok()?;
        Some(Self::Stream(StreamKey { session, number }, Change::decode(kind, body)?))
    }
}

impl Change {
    fn kind(&self) -> u8 {
        match self {
            Self::Begun(_) => kind::BEGUN,
            Self::Sent(Sent { line: None, .. }, _) => kind::SENT,
            Self::Sent(Sent { line: Some(_), .. }, _) => kind::SENT_LINE,
            Self::Message(..) | Self::Abandoned(_) => kind::MESSAGE,
            Self::Answered(..) => kind::ANSWERED,
            Self::Over => kind::OVER,
            Self::Lost => kind::LOST,
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Begun(request) => into.put_slice(request),
            Self::Sent(Sent { generation, line }, attempts) => {
                into.put_u64_le(*generation);
                into.put_u32_le(*attempts);
                if let Some(line) = line {
                    into.put_u64_le(*line);
                }
            }
            Self::Message(number, text) | Self::Answered(number, text) => {
                into.put_u64_le(*number);
                into.put_slice(text);
            }
            Self::Abandoned(abandoned) => {
                into.put_u64_le(NO_MESSAGE);
                serde_json::to_writer(into, abandoned).expect("it can be written to memory");
            }
            Self::Over | Self::Lost => {}
        }
    }

    fn decode(kind: u8, mut body: &[u8]) -> Option<Self> {
        let change = match kind {
            kind::BEGUN => Self::Begun(take_rest(&mut body)),
            kind::SENT | kind::SENT_LINE => {
                let generation = body.try_get_u64_le().ok()?;
                let attempts = body.try_get_u32_le().ok()?;
                let line = match kind {
                    kind::SENT_LINE => Some(body.try_get_u64_le().ok()?),
                    _ => None,
                };
                Self::Sent(Sent { generation, line }, attempts)
            }
            kind::MESSAGE => match body.try_get_u64_le().ok()? {
                NO_MESSAGE => Self::Abandoned(serde_json::from_slice(&take_rest(&mut body)).ok()?),
                number => Self::Message(number, take_rest(&mut body)),
            },
            kind::ANSWERED => Self::Answered(body.try_get_u64_le().ok()?, take_rest(&mut body)),
            kind::OVER => Self::Over,
            kind::LOST => Self::Lost,
            _ => return None,
        };
        body.is_empty().then_some(change)
    }
}

/// The complete entries of a file. `None` if it is not a journal.
pub(super) fn read(file: &[u8]) -> Option<Entries<'_>> {
    match file.strip_prefix(HEADER) {
        Some(frames) => Some(Entries { frames }),
        // It was cut before its first entry.
        None if HEADER.starts_with(file) => Some(Entries { frames: &[] }),
        None => None,
    }
}

/// The entries of a file.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    frames: &'a [u8],
}

impl Entries<'_> {
    /// How many bytes are left. At the end, those that cannot be read.
    pub(super) fn left(&self) -> usize {
        self.frames.len()
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let mut frames = self.frames;
        let length = frames.try_get_u32_le().ok()? as usize;
        let sum = frames.try_get_u32_le().ok()?;
        let (body, rest) = frames.split_at_checked(length)?;
        let entry = Entry::decode(body).filter(|_| crc32fast::hash(body) == sum)?;
        self.frames = rest;
        Some(entry)
    }
}

fn put_session(into: &mut Vec<u8>, kind: u8, session: &str) {
    into.put_u8(kind);
    into.put_u32_le(length(session.len()));
    into.put_slice(session.as_bytes());
}

/// A copy, so that a part of a file does not keep all of it in memory.
fn take_rest(body: &mut &[u8]) -> Bytes {
    Bytes::copy_from_slice(std::mem::take(body))
}

fn length(length: usize) -> u32 {
    u32::try_from(length).expect("no message is as long as 4 GiB")
}

//! Connections that stay open when this daemon is killed, and what is recorded of each for the next daemon.

use std::fmt;
use std::os::fd::BorrowedFd;

use bytes::Bytes;
use mainstay_hold::holder::{self, ListenAddr};
pub use mainstay_hold::holder::{CLOSE as STREAMING, IDLE, MAX_DATA, RESPONSE};

/// Keeps copies of connections outside this process.
pub trait ConnectionStore: fmt::Debug + Send + Sync {
    /// Adds a connection. `None` if there is no room.
    fn add(&self, socket: BorrowedFd<'_>) -> Option<Box<dyn StoredConnection>>;
}

/// A connection of which there is a copy, until this is dropped.
pub trait StoredConnection: fmt::Debug + Send + Sync {
    /// Records a kind of state and its data for [`Pending::decode`](super::Pending::decode). The data is written at `offset` and ends at
    /// [`MAX_DATA`] at most. Until the new state is recorded, the former one keeps what is before `offset`.
    fn record(&self, kind: u8, offset: usize, data: &[u8]);

    /// Records a kind of state, and lets `read` append to the first `offset` bytes of its data: it fills the start of a
    /// slice of at most `len` bytes and returns how many bytes it filled, as this function does. The bytes are recorded
    /// at the moment they are in the slice, so a kill of this daemon loses none.
    fn read(
        &self,
        kind: u8,
        offset: usize,
        len: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> usize;

    /// Adds the connection again if the copy was lost.
    fn renew(&self, socket: BorrowedFd<'_>);
}

/// The holder, for connections that were accepted at an address.
impl ConnectionStore for (holder::ConnectionStore, ListenAddr) {
    fn add(&self, socket: BorrowedFd<'_>) -> Option<Box<dyn StoredConnection>> {
        let (store, listen_addr) = self;
        Some(Box::new(store.add(listen_addr, socket)?))
    }
}

impl StoredConnection for holder::StoredConnection {
    fn record(&self, kind: u8, offset: usize, data: &[u8]) {
        self.record(kind, offset, data);
    }

    fn read(
        &self,
        kind: u8,
        offset: usize,
        len: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> usize {
        self.read(kind, offset, len, read)
    }

    fn renew(&self, socket: BorrowedFd<'_>) {
        self.renew(socket);
    }
}

pub(super) const READING: u8 = 3;
pub(super) const READING_LONG: u8 = 4;
pub(super) const ANSWERING: u8 = 5;
pub(super) const ACCEPTED: u8 = 6;
pub(super) const WRITING: u8 = 7;

/// What a daemon that was killed was doing on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interrupted {
    /// All requests were answered.
    Idle,
    /// A request was being read, and this is what was read of it.
    Reading(Bytes),
    /// A request was being read that is too long to be recorded.
    ReadingLong,
    /// The request with this id, as JSON, was not answered. `None` for a batch, and if the id is too long.
    Answering(Option<Box<str>>),
    /// A message was taken that gets an empty response.
    Accepted,
    /// A complete response was being written. Most likely all of it was.
    Writing,
}

impl Interrupted {
    /// Reads what was recorded: the kind, and then the data. `None` if the connection cannot be continued. `written` is
    /// how many bytes were written to the connection: more than before the response if the daemon was killed before it
    /// could record that.
    pub fn decode(state: &[u8], written: u64) -> Option<Self> {
        let (kind, data) = state.split_first()?;
        if let ANSWERING | ACCEPTED = *kind
            && u64::from_le_bytes(*data.first_chunk()?) != written
        {
            return Some(Self::Writing);
        }
        Some(match *kind {
            IDLE => Self::Idle,
            READING => Self::Reading(Bytes::copy_from_slice(data)),
            READING_LONG => Self::ReadingLong,
            ANSWERING => {
                let id = std::str::from_utf8(&data[size_of::<u64>()..]).ok()?;
                Self::Answering((!id.is_empty()).then(|| id.into()))
            }
            ACCEPTED => Self::Accepted,
            WRITING => Self::Writing,
            _ => return None,
        })
    }

    /// As it is recorded, if so many bytes were written to the connection.
    pub(super) fn encode(&self, written: u64) -> (u8, Vec<u8>) {
        let after = |id: &[u8]| [&written.to_le_bytes(), id].concat();
        match self {
            Self::Idle => (IDLE, Vec::new()),
            Self::Reading(bytes) => (READING, bytes.to_vec()),
            Self::ReadingLong => (READING_LONG, Vec::new()),
            Self::Answering(id) => (ANSWERING, after(id.as_deref().map_or(b"", id_to_record))),
            Self::Accepted => (ACCEPTED, after(b"")),
            Self::Writing => (WRITING, Vec::new()),
        }
    }
}

/// What is recorded of the id of a request.
pub(super) fn id_to_record(id: &str) -> &[u8] {
    if id.len() <= MAX_ID { id.as_bytes() } else { b"" }
}

/// The longest id that is recorded, behind the number of bytes that were written.
pub(super) const MAX_ID: usize = 248;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state() -> impl Strategy<Value = Interrupted> {
        let read = prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        prop_oneof![
            Just(Interrupted::Idle),
            read.prop_map(Interrupted::Reading),
            Just(Interrupted::ReadingLong),
            prop::option::of(".{1,40}").prop_map(|id| Interrupted::Answering(id.map(Into::into))),
            Just(Interrupted::Accepted),
            Just(Interrupted::Writing),
        ]
    }

    proptest! {
        #[test]
        fn a_state_that_was_recorded_is_read(state in state()) {
            let (kind, data) = state.encode(7);
            let bytes = [&[kind], &data[..]].concat();
            prop_assert_eq!(Interrupted::decode(&bytes, 7), Some(state.clone()));
            let was_answering = matches!(state, Interrupted::Answering(_) | Interrupted::Accepted);
            let later = if was_answering { Interrupted::Writing } else { state };
            prop_assert_eq!(Interrupted::decode(&bytes, 8), Some(later));
        }

        #[test]
        fn any_bytes_can_be_read(state in prop::collection::vec(0..10_u8, 0..12), written in 0..2_u64) {
            drop(Interrupted::decode(&state, written));
        }
    }

    #[test]
    fn an_id_that_is_too_long_is_not_recorded() {
        assert_eq!(id_to_record(&"x".repeat(MAX_ID + 1)), b"");
    }
}

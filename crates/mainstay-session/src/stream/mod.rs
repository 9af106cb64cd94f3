//! One stream of messages toward a client, with the log from which a client resumes.
//!
//! - A reader gets each message once, in order, the answer last.
//! - There is one reader at a time: a new one replaces the older, whose stream then ends.
//! - A stream that can be resumed outlives its reader; the next one can go back to any message that is still in the
//!   log. Other streams close when their reader leaves.
//! - Memory is bounded: see [`Log::push`].
//! - What a journaled stream contains is written before a reader sees it. After a freeze nothing is written, so the
//!   stream closes instead.

mod event;
mod journal;
mod log;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tracing::warn;

pub use self::event::{EventId, NotOurs};
pub(crate) use self::journal::{Durable, Inherited, Journal, Recorded};
pub use self::log::Item;
use self::log::{Log, Next, Pushed};
use crate::calls::CallKey;
use crate::http::OperationKey;
use crate::record::Sent;
use crate::session::SessionKey;

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With what no earlier reader got.
    Unread,
    /// After the message with this number, as far as what follows is still there.
    After(u64),
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    Item(Item),
    /// Nothing yet; [`Action::Wake`](crate::Action::Wake) follows.
    Wait,
    /// The stream has ended, was closed or has a newer reader.
    End,
}

/// What a reader would get next.
#[derive(Debug, PartialEq, Eq)]
pub enum Peek {
    /// The answer, with no message before it.
    Answer(Bytes),
    Message,
    Wait,
    End,
}

/// What can be read after an event.
#[derive(Debug)]
pub enum Found<S> {
    General(Start),
    /// The stream of a request.
    Request(S, Start),
    /// Nothing: the event was the answer, or the client has cancelled the request.
    Over,
    /// Nothing: the stream of this request is unknown or was forgotten.
    Gone(Option<Arc<str>>),
}

/// The state of a stream, as far as the form of a response depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamState {
    pub has_answer: bool,
    /// Whether it has ended without an answer, and no other daemon has it.
    pub is_over: bool,
    /// Whether a later daemon would continue it.
    pub is_durable: bool,
}

#[derive(Debug)]
pub struct Stream {
    pub(crate) session: SessionKey,
    pub(crate) log: Log,
    pub(crate) durable: Durable,
    /// Where its request was sent last.
    pub(crate) sent: Option<Sent>,
    /// How often its request was sent.
    pub(crate) attempts: u32,
    /// How many readers there have been; the present one is the last of them.
    readers: u64,
    pub(crate) has_reader: bool,
    pub(crate) is_closed: bool,
    /// When the last reader left.
    pub(crate) left: Option<Instant>,
    pub(crate) purpose: Purpose,
    /// The HTTP operation that waits until the client has read some.
    pub(crate) awaits_room: Option<OperationKey>,
    /// A message that is not part of the log: its reader gets it unless another one comes first.
    shown: Option<Bytes>,
}

#[derive(Debug)]
pub(crate) enum Purpose {
    /// What a server sends to a session outside of requests.
    General,
    Request(Box<RequestStream>),
}

#[derive(Debug, Default)]
pub(crate) struct RequestStream {
    /// The call that it is for, until that is answered.
    pub(crate) call: Option<CallKey>,
    /// The calls of a batch instead.
    pub(crate) batch: Option<Vec<BatchMember>>,
    pub(crate) resumable: Option<Resumable>,
    /// When it is written to the journal.
    pub(crate) journal_at: Option<Instant>,
    /// What an earlier daemon did about the request.
    pub(crate) inherited: Option<Inherited>,
    /// Whether the session ends with it, unless its answer is a result.
    pub(crate) opens_session: bool,
}

/// One request of a batch, in the order of the batch.
#[derive(Debug)]
pub(crate) enum BatchMember {
    Open(CallKey),
    /// None if it was cancelled.
    Finished(Option<Bytes>),
}

/// A stream that a client can resume.
#[derive(Debug)]
pub(crate) struct Resumable {
    pub(crate) number: u64,
    /// The id of its request, as JSON.
    pub(crate) request: Option<Arc<str>>,
    /// Whether the client was given an id to resume with.
    pub(crate) has_id: bool,
    /// Whether its end is kept for a client that lost it.
    pub(crate) is_kept: bool,
    /// When it is forgotten.
    pub(crate) expires: Option<Instant>,
    /// The bytes that count against the limit of large finished streams.
    pub(crate) reserved: usize,
}

impl Stream {
    pub(crate) fn general(session: SessionKey) -> Self {
        Self::new(session, Log::new(&log::GENERAL), Purpose::General)
    }

    pub(crate) fn request(session: SessionKey) -> Self {
        Self::new(session, Log::new(&log::REQUEST), Purpose::Request(Box::default()))
    }

    fn new(session: SessionKey, log: Log, purpose: Purpose) -> Self {
        Self {
            session,
            log,
            durable: Durable::No,
            sent: None,
            attempts: 0,
            readers: 0,
            has_reader: false,
            is_closed: false,
            left: None,
            purpose,
            awaits_room: None,
            shown: None,
        }
    }

    pub(crate) fn as_request(&self) -> Option<&RequestStream> {
        match &self.purpose {
            Purpose::Request(request) => Some(request),
            Purpose::General => None,
        }
    }

    pub(crate) fn as_request_mut(&mut self) -> Option<&mut RequestStream> {
        match &mut self.purpose {
            Purpose::Request(request) => Some(request),
            Purpose::General => None,
        }
    }

    pub(crate) fn resumable(&self) -> Option<&Resumable> {
        self.as_request()?.resumable.as_ref()
    }

    pub(crate) fn resumable_mut(&mut self) -> Option<&mut Resumable> {
        self.as_request_mut()?.resumable.as_mut()
    }

    pub(crate) fn inherited(&self) -> Option<&Inherited> {
        self.as_request()?.inherited.as_ref()
    }

    pub(crate) fn is_general(&self) -> bool {
        matches!(self.purpose, Purpose::General)
    }

    /// Adds a notification, or a request of the server, before the answer. Returns false if it was not taken: the
    /// stream has ended, or unread requests of the server fill it.
    pub(crate) fn push(&mut self, journal: Journal<'_>, message: Bytes) -> bool {
        if self.is_closed {
            return false;
        }
        self.shown = None;
        let pushed = self.log.push(message.clone());
        if pushed == Pushed::Refused {
            return false;
        }
        if !self.durable.record_message(journal, self.log.last(), message) {
            self.is_closed = true;
            return false;
        }
        if pushed == Pushed::Overflowed {
            warn!("notifications dropped: the client does not read its stream");
        }
        true
    }

    /// Shows its reader a message that is not kept: one that is not read yet is replaced, and the next message or the answer
    /// takes its place.
    pub(crate) fn show(&mut self, message: Bytes) {
        if self.has_reader && !self.is_closed && !self.is_finished() {
            self.shown = Some(message);
        }
    }

    /// Ends the stream with the one answer, or without if none is due. Returns whether it had not ended before.
    pub(crate) fn finish(&mut self, journal: Journal<'_>, answer: Option<Bytes>) -> bool {
        if !self.log.finish(answer.clone()) {
            return false;
        }
        let last = self.log.last();
        if answer.is_some_and(|answer| !self.durable.record_answer(journal, last, answer)) {
            self.is_closed = true;
        }
        true
    }

    /// Begins to read: the number of the reader, and the number after which the next message comes.
    pub(crate) fn attach(&mut self, start: Start) -> (u64, u64) {
        self.readers += 1;
        self.shown = None;
        (self.has_reader, self.left) = (true, None);
        match start {
            Start::Unread => {}
            Start::After(number) => self.log.rewind(number),
        }
        (self.readers, self.log.position())
    }

    /// The present reader gets no more, and the stream goes on without one.
    pub(crate) fn detach_reader(&mut self, now: Instant) {
        self.readers += 1;
        (self.has_reader, self.left) = (false, Some(now));
    }

    pub(crate) fn read(&mut self, turn: u64) -> Read {
        if !self.may_read(turn) {
            return Read::End;
        }
        match self.log.next() {
            Next::Item(item) => Read::Item(item),
            Next::Wait => self.shown.take().map_or(Read::Wait, |message| {
                // Who resumes after it continues after the last message of the log.
                Read::Item(Item { number: self.log.last(), message, is_answer: false })
            }),
            Next::End => Read::End,
        }
    }

    pub(crate) fn peek(&self, turn: u64) -> Peek {
        if !self.may_read(turn) {
            return Peek::End;
        }
        match self.log.peek() {
            Next::Item(item) if item.is_answer => Peek::Answer(item.message),
            Next::Item(_) => Peek::Message,
            Next::Wait => Peek::Wait,
            Next::End => Peek::End,
        }
    }

    pub(crate) fn is_turn(&self, turn: u64) -> bool {
        self.readers == turn
    }

    fn may_read(&self, turn: u64) -> bool {
        self.is_turn(turn) && !self.is_closed
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.log.has_ended()
    }

    pub(crate) fn state(&self) -> StreamState {
        let has_answer = self.log.answer().is_some();
        let is_relayed = matches!(self.durable, Durable::Relayed);
        StreamState {
            has_answer,
            is_over: self.is_finished() && !has_answer && !is_relayed,
            is_durable: self.durable.outlives_daemon(),
        }
    }

    /// Where a client continues that got this message of a general stream. A number beyond all that is known belongs
    /// to a stream that was forgotten.
    pub(crate) fn start_after(&self, message: u64) -> Start {
        if message <= self.log.last() { Start::After(message) } else { Start::Unread }
    }

    pub(crate) fn has_nothing_after(&self, message: u64) -> bool {
        self.is_finished() && message >= self.log.last()
    }
}

#[cfg(test)]
mod tests;

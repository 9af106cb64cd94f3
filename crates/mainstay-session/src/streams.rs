//! The streams of all sessions: who reads them, how long they are kept, and the ids of their events.
//!
//! The ids stay valid across daemons. The upper half of a stream's number is derived from the id of its session, so
//! every daemon finds the same; the lower half counts, from a random place in each daemon, and skips the streams that
//! were recovered. So a number that a client shows is that of the stream it had, or of none.

mod retention;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::action::Action;
use crate::presence::GRACE;
use crate::record::StreamKey;
use crate::server::Server;
use crate::session::SessionKey;
use crate::stream::{
    BatchMember, Durable, EventId, Found, Journal, Peek, Purpose, Read, Resumable, Start, Stream,
    StreamState,
};
use crate::table::Key;
use crate::timers::Timer;

/// A stream of a server.
pub type StreamRef = Key<Stream>;

/// How long a client may be away before its request is given up.
const RESUME: Duration = Duration::from_secs(30);

/// How many finished streams of a session are kept.
const FINISHED: usize = 16;
/// The part of a stream's number that counts the streams of a session; 0 is the general one. The rest is the session's
/// own.
const COUNT: u64 = 0xffff_ffff;

/// How long a `mainstay connect` that is alive may take to listen again.
const LISTEN_AGAIN: Duration = Duration::from_secs(10);

/// How the response to a request continues when its head is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Whether the response is an event stream, which its client can resume.
    pub is_events: bool,
    /// Whether the next daemon repeats the request instead of continuing it. Only for `initialize`.
    pub is_repeated: bool,
    /// From when on it is worth a place in the journal.
    pub journal_at: Instant,
}

/// The streams of a session that can be resumed.
#[derive(Debug)]
pub(crate) struct NumberedStreams {
    /// The number of the general stream.
    first: u64,
    count: u64,
    all: Vec<(u64, StreamRef)>,
    /// The numbers of streams whose requests their client has cancelled, up to [`FINISHED`].
    cancelled: Vec<u64>,
}

impl NumberedStreams {
    pub(crate) fn of(session: &str) -> Self {
        let bits = if session.is_empty() { random() } else { fingerprint(session) };
        let (first, count) = (bits & !COUNT, random() & COUNT);
        Self { first, count, all: Vec::new(), cancelled: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn next_number(&mut self) -> u64 {
        loop {
            self.count = (self.count % COUNT) + 1;
            let number = self.first | self.count;
            if self.all.iter().all(|(used, _)| *used != number) {
                self.cancelled.retain(|cancelled| *cancelled != number);
                return number;
            }
        }
    }

    fn remove(&mut self, stream: StreamRef) {
        self.all.retain(|(_, other)| *other != stream);
        if self.all.is_empty() {
            self.all = Vec::new();
        }
    }

    fn record_cancelled(&mut self, stream: StreamRef) {
        if let Some((number, _)) = self.all.iter().find(|(_, other)| *other == stream) {
            let excess = (self.cancelled.len() + 1).saturating_sub(FINISHED);
            self.cancelled.drain(..excess);
            self.cancelled.push(*number);
        }
    }
}

impl Server {
    /// Begins to read a stream: the number of the reader, and the number after which the next message comes. An older
    /// reader gets no more.
    pub fn attach_reader(
        &mut self,
        now: Instant,
        key: StreamRef,
        start: Start,
    ) -> Option<(u64, u64)> {
        let stream = self.streams.get_mut(key)?;
        let attached = stream.attach(start);
        let (session, is_general) = (stream.session, stream.is_general());
        // The reader before this one learns that its turn is over.
        self.act(Action::Wake(key));
        if is_general {
            self.update_listener(now, session);
        }
        Some(attached)
    }

    pub fn read(&mut self, key: StreamRef, turn: u64) -> Read {
        let Some(stream) = self.streams.get_mut(key) else { return Read::End };
        let read = stream.read(turn);
        if let Some(operation) = stream.awaits_room
            && stream.log.has_room()
        {
            stream.awaits_room = None;
            self.act(Action::ResumeHttp(operation));
        }
        read
    }

    pub fn peek(&self, key: StreamRef, turn: u64) -> Peek {
        self.streams.get(key).map_or(Peek::End, |stream| stream.peek(turn))
    }

    pub fn stream_state(&self, key: StreamRef) -> Option<StreamState> {
        self.streams.get(key).map(Stream::state)
    }

    /// The reader of this number stops reading.
    pub fn reader_left(&mut self, now: Instant, key: StreamRef, turn: u64) {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.is_turn(turn)) else {
            return;
        };
        (stream.has_reader, stream.left) = (false, Some(now));
        let (session, is_finished) = (stream.session, stream.is_finished());
        if self.is_frozen {
            return;
        }
        let resumable = match &stream.purpose {
            Purpose::General => return self.general_reader_left(now, session),
            Purpose::Request(request) => request.resumable.as_ref(),
        };
        match resumable {
            Some(Resumable { is_kept: true, .. }) if is_finished => {}
            Some(Resumable { has_id: true, .. }) if !is_finished => {
                self.timers.set(now + RESUME, Timer::Stream(key));
            }
            Some(_) | None if is_finished => self.forget_stream(key),
            Some(_) | None => self.client_gone(now, key),
        }
    }

    fn general_reader_left(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if session.ends_with_listener {
            self.timers.set(now + LISTEN_AGAIN, Timer::Session(key));
        }
        if session.upstream.is_listening() {
            self.timers.set(now + GRACE, Timer::Listener(key));
        }
    }

    /// A timer of a session has fired: ends it if its `mainstay connect` was killed, and drops what could not be
    /// delivered.
    pub(crate) fn session_due(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.undelivered.retain(|message| now < message.until);
        let (id, ends_with_listener) = (Arc::clone(&session.id), session.ends_with_listener);
        let left = self.streams.get(session.general).and_then(|general| general.left);
        if ends_with_listener && left.is_some_and(|left| now >= left + LISTEN_AGAIN) {
            self.close(now, &id);
        }
    }

    /// The client listens to the general stream of its session. The session of a `mainstay connect`, which listens as
    /// long as it lives, ends when it stops.
    pub fn listen(
        &mut self,
        now: Instant,
        key: SessionKey,
        start: Start,
        is_connect: bool,
    ) -> Option<(StreamRef, u64, u64)> {
        let session = self.sessions.get_mut(key)?;
        session.ends_with_listener |= is_connect;
        session.has_listened = true;
        session.upstream.listener.request();
        let general = session.general;
        let (turn, position) = self.attach_reader(now, general, start)?;
        self.track(key);
        Some((general, turn, position))
    }

    /// The stream of what the server sends outside of requests.
    pub fn general_stream(&self, key: SessionKey) -> Option<StreamRef> {
        Some(self.sessions.get(key)?.general)
    }

    /// The id of the event before the first of the general stream.
    pub fn general_event(&self, key: SessionKey) -> Option<EventId> {
        Some(EventId::first(self.sessions.get(key)?.streams.first, None))
    }

    /// The head of the response to a request is about to be sent: from now on its stream can be resumed. Returns the
    /// event before its first message.
    pub fn commit(&mut self, now: Instant, key: StreamRef, commit: Commit) -> Option<EventId> {
        let stream = self.streams.get_mut(key)?;
        let session = self.sessions.get_mut(stream.session)?;
        let number = session.streams.next_number();
        session.streams.all.push((number, key));
        let request = stream.as_request_mut()?;
        let call = request.call;
        let id = call.and_then(|call| self.calls.get(call)?.message.id());
        let id: Option<Arc<str>> = id.map(|id| id.get().into());
        let is_batch = request.batch.is_some();
        request.resumable = Some(Resumable {
            number,
            request: id.clone(),
            has_id: false,
            is_kept: commit.is_events,
            expires: None,
            reserved: 0,
        });
        if commit.is_repeated {
            stream.durable = Durable::Repeated;
        } else if is_batch || request.opens_session || session.is_local {
            stream.durable = Durable::Never;
        } else {
            request.journal_at = Some(commit.journal_at);
        }
        if stream.is_finished() {
            self.keep_finished(now, key);
        } else if commit.journal_at <= now {
            self.begin_journal(now, key);
        } else {
            self.timers.set(commit.journal_at, Timer::Stream(key));
        }
        for call in self.open_calls_of(key) {
            self.watch_slow(call);
        }
        self.limit_waiting(key);
        if commit.is_events {
            self.begin_progress(now, key);
        }
        Some(EventId::first(number, id))
    }

    /// The client was given the id of an event of this stream.
    pub fn event_id_sent(&mut self, key: StreamRef) {
        if let Some(resumable) = self.streams.get_mut(key).and_then(Stream::resumable_mut) {
            resumable.has_id = true;
        }
    }

    /// The client cannot resume this stream. When its reader leaves, its request is given up.
    pub fn end_resumption(&mut self, key: StreamRef) {
        if let Some(resumable) = self.streams.get_mut(key).and_then(Stream::resumable_mut) {
            (resumable.has_id, resumable.is_kept) = (false, false);
        }
    }

    /// Finds what a client that got this event may still read.
    pub fn find(&self, key: SessionKey, id: &EventId) -> Found<StreamRef> {
        let Some(session) = self.sessions.get(key) else { return Found::Over };
        let streams = &session.streams;
        if id.stream == streams.first {
            let general = self.streams.get(session.general);
            let start = general.map_or(Start::Unread, |general| general.start_after(id.message));
            return Found::General(start);
        }
        if id.stream & COUNT == 0 {
            return Found::General(Start::Unread);
        }
        if streams.cancelled.contains(&id.stream) {
            return Found::Over;
        }
        let found = streams.all.iter().find(|(number, _)| *number == id.stream);
        let found = found.and_then(|(_, key)| Some((*key, self.streams.get(*key)?)));
        match found {
            None => Found::Gone(id.request.clone()),
            // The client has given it up.
            Some((key, _)) if self.is_abandoned(key) => Found::Gone(id.request.clone()),
            Some((_, stream)) if stream.has_nothing_after(id.message) => Found::Over,
            Some((key, _)) => Found::Request(key, Start::After(id.message)),
        }
    }

    /// The requests whose streams were recovered and not read to the end: their ids as JSON, and the events before
    /// their first messages.
    pub fn pending_requests(&self, key: SessionKey) -> Vec<(String, String)> {
        let Some(session) = self.sessions.get(key) else { return Vec::new() };
        let pending = |(number, stream): &(u64, StreamRef)| {
            let stream = self.streams.get(*stream).filter(|_| !self.is_abandoned(*stream))?;
            let is_recovered = stream.inherited().is_some_and(|inherited| !inherited.is_repeated);
            let is_over = stream.is_closed || stream.log.is_read();
            let request =
                stream.resumable()?.request.clone().filter(|_| is_recovered && !is_over)?;
            let event = EventId::first(*number, Some(Arc::clone(&request)));
            Some((request.to_string(), event.to_string()))
        };
        session.streams.all.iter().filter_map(pending).collect()
    }

    /// Makes a recovered stream resumable under the number that it had.
    pub(crate) fn keep_recovered(
        &mut self,
        now: Instant,
        key: StreamRef,
        number: u64,
        request: Option<Arc<str>>,
    ) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.left = Some(now);
        let session = stream.session;
        if let Some(it) = stream.as_request_mut() {
            let (has_id, is_kept, expires, reserved) = (true, true, None, 0);
            it.resumable = Some(Resumable { number, request, has_id, is_kept, expires, reserved });
        }
        if let Some(session) = self.sessions.get_mut(session) {
            session.streams.all.push((number, key));
        }
        self.timers.set(now + RESUME, Timer::Stream(key));
    }

    pub(crate) fn stream_of_number(&self, session: SessionKey, number: u64) -> Option<StreamRef> {
        let streams = &self.sessions.get(session)?.streams;
        streams.all.iter().find(|(other, _)| *other == number).map(|(_, stream)| *stream)
    }

    /// Restores or starts the journal of a session's general stream.
    pub(crate) fn journal_general(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get(key)
            && let Some(general) = self.streams.get_mut(session.general)
        {
            general.journal_general(&session.id, session.streams.first);
        }
    }

    pub(crate) fn stream_due(&mut self, now: Instant, key: StreamRef) {
        let Some(stream) = self.streams.get(key) else { return };
        let Some(request) = stream.as_request() else { return };
        let is_gone = !stream.has_reader
            && !stream.is_finished()
            && request.resumable.is_some()
            && !matches!(stream.durable, Durable::Relayed)
            && stream.left.is_some_and(|left| now >= left + RESUME);
        let has_expired = stream.resumable().and_then(|it| it.expires).is_some_and(|at| now >= at);
        if has_expired {
            self.forget_stream(key);
        } else if is_gone && !self.is_frozen {
            self.client_gone(now, key);
        } else if request.journal_at.is_some_and(|at| now >= at) {
            self.begin_journal(now, key);
        }
    }

    pub(crate) fn begin_journal(&mut self, now: Instant, key: StreamRef) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(session) = self.sessions.get(stream.session) else { return };
        let is_new = matches!(stream.durable, Durable::No);
        let Some(request) = stream.as_request_mut().filter(|_| is_new) else { return };
        request.journal_at = None;
        let (Some(call), Some(resumable)) = (request.call, &request.resumable) else { return };
        let Some(text) = self.calls.get(call).map(|call| call.message.text().clone()) else {
            return;
        };
        let stream_key = StreamKey { session: Arc::clone(&session.id), number: resumable.number };
        let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
        stream.begin_journal(journal, stream_key, text);
        if stream.is_closed {
            self.close_stream(now, key);
        }
    }

    /// Adds a message to a stream. Returns false if it was not taken.
    pub(crate) fn push(&mut self, key: StreamRef, message: Bytes) -> bool {
        let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
        if !self.abandoned.is_empty() && self.is_abandoned(key) {
            return false;
        }
        let Some(stream) = self.streams.get_mut(key) else { return false };
        let is_taken = stream.push(journal, message);
        self.act(Action::Wake(key));
        is_taken
    }

    /// Adds a message to the general stream of a session: it came before the answer of a client that cannot get it there.
    pub fn push_general(&mut self, key: SessionKey, message: Bytes) {
        if let Some(general) = self.sessions.get(key).map(|session| session.general) {
            self.push(general, message);
        }
    }

    /// Ends the stream of a call with its answer, or without if none is due.
    pub(crate) fn finish_stream(&mut self, now: Instant, key: StreamRef, answer: Option<Bytes>) {
        let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
        let Some(stream) = self.streams.get_mut(key) else { return };
        if !stream.finish(journal, answer) {
            return;
        }
        if let Some(request) = stream.as_request_mut() {
            (request.call, request.batch) = (None, None);
        }
        let (has_reader, is_resumable) = (stream.has_reader, stream.resumable().is_some());
        self.act(Action::Wake(key));
        if !self.abandoned.is_empty() && self.abandoned_finished(now, key) {
            return;
        }
        if is_resumable {
            self.keep_finished(now, key);
        } else if !has_reader {
            self.remove_stream(key);
        }
    }

    /// One call of a stream is over.
    pub(crate) fn finish_call(
        &mut self,
        now: Instant,
        call: crate::calls::CallKey,
        key: StreamRef,
        answer: Option<Bytes>,
    ) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(batch) = stream.as_request_mut().and_then(|request| request.batch.as_mut()) else {
            return self.finish_stream(now, key, answer);
        };
        let is_call =
            |member: &&mut BatchMember| matches!(member, BatchMember::Open(open) if *open == call);
        if let Some(member) = batch.iter_mut().find(is_call) {
            *member = BatchMember::Finished(answer);
        }
        let mut answers = Vec::new();
        for member in batch {
            match member {
                BatchMember::Open(_) => return,
                BatchMember::Finished(answer) => answers.extend(answer.clone()),
            }
        }
        self.finish_stream(now, key, (!answers.is_empty()).then(|| crate::calls::join(&answers)));
    }
}

/// Not a secret: it only has to differ from one daemon to the next.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The same in every version of Mainstay: FNV-1a.
fn fingerprint(text: &str) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    text.bytes().fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests;

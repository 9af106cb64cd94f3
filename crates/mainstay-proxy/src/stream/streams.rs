//! All streams of one session, and the ids of their events.
//!
//! The ids stay good across daemons. The upper half of a stream's number is derived from the id of its
//! session, so every daemon finds the same; the lower half counts, from a random place in each daemon, and
//! passes over the streams that were taken up. So a number that a client shows is that of the stream it
//! had, or of none.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::{EventId, Reader, Start, Stream};
use crate::hub::relay::News;
use crate::record::{StreamKey, StreamRecord};
use crate::write_fence::{StreamJournal, WriteFence};

/// How many finished streams are kept, for clients that lost the end of one.
const FINISHED: usize = 16;
/// How many bytes they may take up, beside the newest.
const FINISHED_BYTES: usize = 4 << 20;
/// The part of a stream's number that counts the streams of a session; 0 is the general one. The
/// rest is the session's own.
const COUNT: u64 = 0xffff_ffff;
/// The general stream of a session, and the streams of requests that may be resumed, by number.
///
/// Small while there is nothing to resume: the table then takes no memory.
#[derive(Debug)]
pub struct Streams {
    /// The number of the general stream.
    first: u64,
    general: Arc<Stream>,
    table: Mutex<Table>,
    journal: Option<JournalHandle>,
}

/// Where the streams of a session are written down.
#[derive(Debug)]
struct JournalHandle {
    write_fence: WriteFence,
    session: Arc<str>,
}

#[derive(Debug)]
struct Table {
    count: u64,
    kept: Vec<Kept>,
    /// The numbers of streams whose requests their client has cancelled, up to [`FINISHED`].
    cancelled: Vec<u64>,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    stream: Arc<Stream>,
    /// The id of its request, as JSON.
    request: Option<Arc<str>>,
}

/// What can be read after an event.
#[derive(Debug)]
pub enum Found {
    /// The general stream.
    General(Start),
    /// The stream of a request.
    Request(Arc<Stream>, Start),
    /// Nothing: the request was answered, and that event was the answer; or its client has cancelled it.
    Over,
    /// Nothing: the stream of this request is not known (any more).
    Gone(Option<Arc<str>>),
}

impl Streams {
    /// The streams of a session that ends with its daemon.
    pub fn new() -> Self {
        Self::with(random(), None)
    }

    /// The streams of a session that outlives its daemon.
    pub(crate) fn kept(session: &str, write_fence: WriteFence) -> Self {
        Self::with(
            fingerprint(session),
            Some(JournalHandle { write_fence, session: session.into() }),
        )
    }

    fn with(bits: u64, journal: Option<JournalHandle>) -> Self {
        let table = Table { count: random() & COUNT, kept: Vec::new(), cancelled: Vec::new() };
        let general = Stream::general();
        Self { first: bits & !COUNT, general, table: Mutex::new(table), journal }
    }

    /// The stream for what the server says unasked.
    pub fn general(&self) -> &Arc<Stream> {
        &self.general
    }

    /// The session has ended: so do its streams, and none can be resumed. An answer that is there
    /// may still be read by the present reader.
    pub fn close(&self) {
        self.general.cancel();
        for kept in std::mem::take(&mut self.lock().kept) {
            kept.stream.discard();
            kept.stream.release();
        }
    }

    /// The id of the event before the first of the general stream.
    pub fn general_event(&self) -> EventId {
        EventId::first(self.first, None)
    }

    /// Keeps the stream of a request for clients that come back; gives the id of the event before
    /// its first message. [`Streams::forget`] must follow some day.
    pub fn keep(&self, stream: &Arc<Stream>, request: Option<&str>) -> EventId {
        stream.keep();
        let mut table = self.lock();
        let number = table.next(self.first);
        table.insert(number, stream, request.map(Arc::from))
    }

    /// From now on the stream of this request, which [`Streams::keep`] took in, is written down.
    pub(crate) fn write_down(&self, id: &EventId, stream: &Stream, request: Bytes) {
        if let Some(journal) = self.journal(id.stream) {
            stream.write_down(journal, request);
        }
    }

    /// From now on the general stream is written down.
    pub(crate) fn write_down_general(&self) {
        if let Some(journal) = self.journal(self.first) {
            self.general.write_down_general(journal);
        }
    }

    /// Takes up a stream that an earlier daemon had; gives that of a request.
    pub(crate) fn recover(
        &self,
        record: StreamRecord,
        request: Option<&str>,
        news: Option<News>,
    ) -> Option<(EventId, Arc<Stream>)> {
        if record.request.is_none() {
            self.general.restore(record.said);
            return None;
        }
        let number = record.key.number;
        let stream = Stream::recovered(record, self.journal(number)?, news);
        let id = self.lock().insert(number, &stream, request.map(Arc::from));
        Some((id, stream))
    }

    /// The requests whose streams were taken up and not told to the end: their ids as JSON, and the events before their
    /// first messages.
    pub(crate) fn pending(&self) -> Vec<(String, String)> {
        let pending = |kept: &Kept| {
            let request = kept.request.as_deref()?;
            let event = EventId::first(kept.number, kept.request.clone());
            Some((request.to_owned(), event.to_string()))
        };
        self.lock().waiting().filter_map(pending).collect()
    }

    /// The requests that only this daemon can finish, by the numbers of their streams. Another one takes over; from here
    /// on these readers get what is said in them, and nothing of it is written down.
    pub(crate) fn relayed(&self) -> Vec<(u64, Reader)> {
        let table = self.lock();
        let relay = |kept: &Kept| Some((kept.number, kept.stream.relay()?));
        table.kept.iter().filter_map(relay).collect()
    }

    /// Another daemon takes over: all that it will go on with ends here. An answer that is there is still
    /// read here, because it may not be written down.
    pub(crate) fn hand_over(&self) {
        self.general.cancel();
        for kept in self.lock().kept.iter().filter(|kept| !kept.stream.is_done_here()) {
            kept.stream.cancel();
        }
    }

    /// A stream has finished: if there are now too many of them, those go of which nobody needs
    /// anything, and then the oldest that nobody reads.
    pub fn settle(&self) {
        self.lock().prune();
    }

    /// Drops a stream that [`Streams::keep`] took in, and what is written down of it.
    pub fn forget(&self, id: &EventId) {
        let mut table = self.lock();
        for gone in table.kept.extract_if(.., |kept| kept.number == id.stream) {
            gone.stream.discard();
        }
        if table.kept.is_empty() {
            table.kept = Vec::new();
        }
    }

    /// Ends the stream of a request that its client has cancelled. Some clients resume it nevertheless.
    pub(crate) fn cancel(&self, stream: &Arc<Stream>) {
        let mut table = self.lock();
        let number = table.kept.iter().find(|kept| Arc::ptr_eq(&kept.stream, stream));
        if let Some(number) = number.map(|kept| kept.number) {
            let excess = (table.cancelled.len() + 1).saturating_sub(FINISHED);
            table.cancelled.drain(..excess);
            table.cancelled.push(number);
        }
        drop(table);
        stream.cancel();
    }

    /// Whether any stream of a request is kept for resumption.
    pub(crate) fn has_kept(&self) -> bool {
        !self.lock().kept.is_empty()
    }

    /// Finds what a client that got this event may still read.
    pub fn find(&self, id: &EventId) -> Found {
        if id.stream == self.first {
            return Found::General(self.general.after(id.message));
        }
        if id.stream & COUNT == 0 {
            return Found::General(Start::Unread);
        }
        let table = self.lock();
        if table.cancelled.contains(&id.stream) {
            return Found::Over;
        }
        let Some(kept) = table.kept.iter().find(|kept| kept.number == id.stream) else {
            return Found::Gone(id.request.clone());
        };
        if kept.stream.has_nothing_after(id.message) {
            return Found::Over;
        }
        Found::Request(Arc::clone(&kept.stream), Start::After(id.message))
    }

    fn journal(&self, number: u64) -> Option<StreamJournal> {
        let JournalHandle { write_fence, session } = self.journal.as_ref()?;
        let key = StreamKey { session: Arc::clone(session), number };
        Some(StreamJournal::new(write_fence.clone(), key))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        mainstay_core::lock(&self.table)
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// A number that no stream has.
    fn next(&mut self, first: u64) -> u64 {
        loop {
            self.count = (self.count % COUNT) + 1;
            let number = first | self.count;
            if self.kept.iter().all(|kept| kept.number != number) {
                self.cancelled.retain(|cancelled| *cancelled != number);
                return number;
            }
        }
    }

    fn insert(&mut self, number: u64, stream: &Arc<Stream>, request: Option<Arc<str>>) -> EventId {
        let id = EventId::first(number, request.clone());
        self.kept.push(Kept { number, stream: Arc::clone(stream), request });
        id
    }

    /// What was taken up and not read to its end.
    fn waiting(&self) -> impl Iterator<Item = &Kept> {
        let is_inherited =
            |kept: &&Kept| kept.stream.inherited().is_some_and(|inherited| !inherited.is_repeated);
        self.kept.iter().filter(is_inherited).filter(|kept| !kept.stream.is_over())
    }

    fn prune(&mut self) {
        while let Some(victim) = self.victim() {
            let Kept { stream, .. } = self.kept.remove(victim);
            stream.discard();
            stream.cancel();
        }
    }

    fn victim(&self) -> Option<usize> {
        let finished =
            || self.kept.iter().enumerate().filter(|(_, kept)| kept.stream.is_finished());
        let bytes: usize = finished().map(|(_, kept)| kept.stream.bytes()).sum();
        let count = finished().count();
        if count <= FINISHED && (bytes <= FINISHED_BYTES || count <= 1) {
            return None;
        }
        let read = finished().find(|(_, kept)| kept.stream.is_read());
        let abandoned_for = || finished().find(|(_, kept)| !kept.stream.has_reader());
        read.or_else(abandoned_for).map(|(place, _)| place)
    }
}

impl Stream {
    /// Where a client goes on that got this message of a general stream. One that is beyond all that is
    /// known of the stream is of a time that was forgotten.
    fn after(&self, message: u64) -> Start {
        let is_known = message <= self.lock().log.last();
        if is_known { Start::After(message) } else { Start::Unread }
    }

    /// Whether nobody will read it any more.
    fn is_over(&self) -> bool {
        let shared = self.lock();
        shared.is_closed || shared.log.is_read()
    }

    fn has_nothing_after(&self, message: u64) -> bool {
        let shared = self.lock();
        shared.log.has_ended() && message >= shared.log.last()
    }

    /// Undoes [`Stream::keep`].
    fn release(&self) {
        let mut shared = self.lock();
        shared.is_resumable = false;
        let is_being_answered = shared.is_attached() && shared.log.has_ended();
        drop(shared);
        if !is_being_answered {
            self.cancel();
        }
    }

    fn is_read(&self) -> bool {
        self.lock().log.is_read()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lock().log.bytes()
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
mod tests {
    use super::*;

    #[test]
    fn of_a_request_that_its_client_has_cancelled_nothing_more_is_told() {
        let streams = Streams::new();
        let requests: Vec<_> = (0..=FINISHED)
            .map(|_| {
                let stream = Stream::new();
                let id = streams.keep(&stream, Some("7"));
                streams.cancel(&stream);
                assert_eq!(told(&streams.find(&id)), "over");
                streams.forget(&id);
                id
            })
            .collect();
        assert_eq!(told(&streams.find(&requests[1])), "over");
        assert!(told(&streams.find(&requests[0])).starts_with("gone"), "only some are remembered");
        let given_up = Stream::new();
        let id = streams.keep(&given_up, Some("8"));
        given_up.cancel();
        streams.forget(&id);
        assert!(told(&streams.find(&id)).starts_with("gone"), "its client did not cancel it");
    }

    fn told(found: &Found) -> String {
        match found {
            Found::General(start) => format!("general {start:?}"),
            Found::Request(_, start) => format!("request {start:?}"),
            Found::Over => "over".to_owned(),
            Found::Gone(request) => format!("gone {request:?}"),
        }
    }

    #[test]
    fn streams_are_found_by_their_events() {
        let streams = Streams::new();
        let check = |id: &EventId, expected: &str| {
            assert_eq!(told(&streams.find(id)), expected, "{id}");
        };
        check(&streams.general_event(), "general After(0)");
        check(&streams.general_event().at(3), "general Unread");
        for _ in 0..3 {
            streams.general().push(Bytes::from_static(b"{}"));
        }
        check(&streams.general_event().at(3), "general After(3)");
        let stream = Stream::new();
        let id = streams.keep(&stream, Some("7"));
        check(&id, "request After(0)");
        stream.finish(Some(Bytes::from_static(b"{}")));
        check(&id, "request After(0)");
        check(&id.at(1), "over");
        check(&EventId { stream: id.stream ^ (1 << 40), ..id.clone() }, r#"gone Some("7")"#);
        check(
            &EventId { stream: (id.stream ^ (1 << 40)) & !COUNT, ..id.clone() },
            "general Unread",
        );
        streams.forget(&id);
        check(&id, r#"gone Some("7")"#);
        assert_eq!(streams.lock().kept.capacity(), 0);
    }

    #[test]
    fn finished_streams_are_bounded_and_unread_ones_go_last() {
        let streams = Streams::new();
        let mut kept = Vec::new();
        for number in 0..40 {
            let stream = Stream::new();
            let id = streams.keep(&stream, None);
            if number == 0 {
                // Its client is gone, but may come back for the answer.
                drop(stream.reader(Start::Unread));
            } else {
                let _reader = stream.reader(Start::After(1));
            }
            stream.finish(Some(Bytes::from_static(b"{}")));
            if number > 0 {
                let mut reader = stream.reader(Start::After(1));
                assert!(at_once(reader.next()).is_none());
            }
            streams.settle();
            kept.push((id, stream));
        }
        assert_eq!(streams.lock().kept.len(), FINISHED);
        assert!(!kept[0].1.is_closed(), "unread");
        assert!(kept[1].1.is_closed(), "read long ago");
        assert!(!kept[39].1.is_closed());
    }

    #[test]
    fn the_end_of_a_session_cuts_no_answer() {
        let streams = Streams::new();
        let (open, answered, left) = (Stream::new(), Stream::new(), Stream::new());
        for stream in [&open, &answered, &left] {
            streams.keep(stream, None);
        }
        let (_open_reader, mut reader) =
            (open.reader(Start::Unread), answered.reader(Start::Unread));
        answered.finish(Some(Bytes::from_static(b"{}")));
        left.finish(Some(Bytes::from_static(b"{}")));
        streams.close();
        assert!(streams.general().is_closed() && open.is_closed() && left.is_closed());
        assert!(at_once(reader.next()).is_some_and(|item| item.is_answer));
        drop(reader);
        assert!(answered.is_closed());
    }

    /// Clients have numbers of earlier versions of Mainstay.
    #[test]
    fn the_number_of_a_session_never_changes() {
        assert_eq!(fingerprint("0123456789abcdef0123456789abcdef"), 0x0152_7c97_31f0_ff55);
    }

    #[test]
    fn an_idle_session_has_small_streams() {
        assert!(size_of::<Stream>() + size_of::<Streams>() < 512);
    }

    #[test]
    fn large_finished_streams_go_first_come_first_served() {
        let streams = Streams::new();
        for _ in 0..3 {
            let stream = Stream::new();
            streams.keep(&stream, None);
            stream.finish(Some(vec![b' '; 3 << 20].into()));
            streams.settle();
            assert_eq!(streams.lock().kept.len(), 1);
        }
    }

    /// What the future gives at once.
    fn at_once<T>(future: impl Future<Output = T>) -> T {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut cx) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => panic!("it should be ready"),
        }
    }
}

//! All streams of one session, and the ids of their events.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Start, Stream};

/// How many finished streams are kept, for clients that lost the end of one.
const FINISHED: usize = 16;
/// How many bytes they may take up, beside the newest.
const FINISHED_BYTES: usize = 4 << 20;
/// The part of a stream's number that counts the streams of a session; 0 is the general one. The
/// rest tells these streams from those that the session had in an earlier daemon.
const COUNT: u64 = 0xffff_ffff;
/// The id of a request is told to the client only up to this length.
const REQUEST_ID: usize = 64;

/// The general stream of a session, and the streams of requests that may be resumed, by number.
///
/// Small while there is nothing to resume: the table then takes no memory.
#[derive(Debug)]
pub struct Streams {
    /// The number of the general stream.
    first: u64,
    general: Arc<Stream>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    count: u64,
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    stream: Arc<Stream>,
}

/// What an event is called toward the client: its stream, its number there, and the request that the
/// stream belongs to. A client shows the id of the last event it got when it wants to go on.
///
/// The request is part of the id so that a client can be told the end of a request whose stream is
/// no longer known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    stream: u64,
    message: u64,
    request: Option<Arc<str>>,
}

/// What can be read after an event.
#[derive(Debug)]
pub enum Found {
    /// The general stream.
    General(Start),
    /// The stream of a request.
    Request(Arc<Stream>, Start),
    /// Nothing: the request was answered, and that event was the answer.
    Over,
    /// Nothing: the stream of this request is not known (any more).
    Gone(Option<Arc<str>>),
}

impl Streams {
    /// The streams of a new session.
    pub fn new() -> Self {
        Self { first: random() & !COUNT, general: Stream::general(), table: Mutex::default() }
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
            kept.stream.release();
        }
    }

    /// The id of the event before the first of the general stream.
    pub fn general_event(&self) -> EventId {
        EventId { stream: self.first, message: 0, request: None }
    }

    /// Keeps the stream of a request for clients that come back; gives the id of the event before
    /// its first message. [`Streams::forget`] must follow some day.
    pub fn keep(&self, stream: &Arc<Stream>, request: Option<&str>) -> EventId {
        stream.keep();
        let mut table = self.lock();
        table.count = (table.count % COUNT) + 1;
        let number = self.first | table.count;
        table.kept.push(Kept { number, stream: Arc::clone(stream) });
        let request = request.filter(|id| id.len() <= REQUEST_ID).map(Arc::from);
        EventId { stream: number, message: 0, request }
    }

    /// A stream has finished: if there are now too many of them, those go of which nobody needs
    /// anything, and then the oldest that nobody reads.
    pub fn settle(&self) {
        self.lock().prune();
    }

    /// Drops a stream that [`Streams::keep`] took in.
    pub fn forget(&self, id: &EventId) {
        let mut table = self.lock();
        table.kept.retain(|kept| kept.number != id.stream);
        if table.kept.is_empty() {
            table.kept = Vec::new();
        }
    }

    /// How many kept streams are waiting for their answer.
    pub fn waiting(&self) -> usize {
        self.lock().kept.iter().filter(|kept| !kept.stream.is_finished()).count()
    }

    /// Finds what a client that got this event may still read.
    pub fn find(&self, id: &EventId) -> Found {
        if id.stream == self.first {
            return Found::General(Start::After(id.message));
        }
        if id.stream & COUNT == 0 {
            return Found::General(Start::Unread);
        }
        let table = self.lock();
        let Some(kept) = table.kept.iter().find(|kept| kept.number == id.stream) else {
            return Found::Gone(id.request.clone());
        };
        if kept.stream.has_nothing_after(id.message) {
            return Found::Over;
        }
        Found::Request(Arc::clone(&kept.stream), Start::After(id.message))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    fn prune(&mut self) {
        while let Some(victim) = self.victim() {
            self.kept.remove(victim).stream.cancel();
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
        let forsaken = || finished().find(|(_, kept)| !kept.stream.is_attached());
        read.or_else(forsaken).map(|(place, _)| place)
    }
}

impl Stream {
    fn has_nothing_after(&self, message: u64) -> bool {
        let shared = self.lock();
        shared.log.has_ended() && message >= shared.log.last()
    }

    /// Undoes [`Stream::keep`].
    fn release(&self) {
        let mut shared = self.lock();
        shared.is_resumable = false;
        let is_being_answered = shared.is_attached && shared.log.has_ended();
        drop(shared);
        if !is_being_answered {
            self.cancel();
        }
    }

    fn is_read(&self) -> bool {
        self.lock().log.is_read()
    }

    fn is_attached(&self) -> bool {
        self.lock().is_attached
    }

    fn bytes(&self) -> usize {
        self.lock().log.bytes()
    }
}

impl EventId {
    /// The id of a message in the same stream.
    #[must_use]
    pub fn at(&self, message: u64) -> Self {
        Self { message, ..self.clone() }
    }
}

/// `STREAM-MESSAGE` or `STREAM-MESSAGE-REQUEST`: 16 hexadecimal digits, a number, and the JSON text
/// of the request's id in hexadecimal digits, so that any id is fit for a header.
impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.stream, self.message)?;
        let Some(request) = &self.request else { return Ok(()) };
        f.write_str("-")?;
        request.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text is not the id of an event of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the id of an event of ours")]
pub struct NotOurs;

impl FromStr for EventId {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Self, NotOurs> {
        let mut parts = text.splitn(3, '-');
        let stream = parts.next().filter(|text| text.len() == 16).ok_or(NotOurs)?;
        let stream = u64::from_str_radix(stream, 16).map_err(|_| NotOurs)?;
        let message = parts.next().ok_or(NotOurs)?.parse().map_err(|_| NotOurs)?;
        let request = parts.next().map(unhex).transpose()?;
        Ok(Self { stream, message, request })
    }
}

fn unhex(text: &str) -> Result<Arc<str>, NotOurs> {
    if text.len() > 2 * REQUEST_ID {
        return Err(NotOurs);
    }
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    let request = String::from_utf8(bytes.ok_or(NotOurs)?).map_err(|_| NotOurs)?;
    Ok(request.into())
}

/// Not a secret: it only has to differ from one daemon to the next.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        #[test]
        fn ids_are_read_as_written(
            stream: u64, message: u64, request in prop::option::of("\\PC{0,16}"),
        ) {
            let request = request.map(Arc::from);
            let id = EventId { stream, message, request };
            let text = id.to_string();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(text.parse(), Ok(id));
        }

        #[test]
        fn other_ids_never_panic(text in "[0-9a-f]{14,18}-?[0-9é]{0,3}-?[0-9a-fé]{0,5}|\\PC*") {
            text.parse::<EventId>().ok();
        }
    }
}

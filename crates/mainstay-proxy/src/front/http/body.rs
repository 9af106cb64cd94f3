//! The bodies of responses: a text, a stream of events, or JSON kept alive by white space.

use std::array;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Drain;
use super::way_in::WayIn;
use crate::frame;
use crate::stream::{EventId, Item, Reader, Stream};

/// Something is sent at least this often, so that no client or proxy takes a stream for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// What a client is told to wait before it comes back, in milliseconds. The official clients give up after
/// twice this time if they are refused, which they are not while the holder lives; and whoever's call was
/// cut by our death should not wait long for its answer.
const RETRY: &str = "retry: 1000\n";
/// A comment without the empty line that ends an event: `httpx-sse` takes such a line for an event
/// without data once an event had an id, and Python clients of before 2025-11-25 fail to parse it.
const COMMENT: Bytes = Bytes::from_static(b":\n");
/// What a client is told besides when a stream ends because another daemon takes over, which is there in a
/// moment. It has no empty line either.
const SOON: Bytes = Bytes::from_static(b"retry: 250\n");
const SPACE: Bytes = Bytes::from_static(b" ");
/// Events up to this size are copied together; the parts of larger ones are sent one by one.
const SMALL: usize = 4096;

/// The body of a response.
pub(super) enum Body {
    Full(Bytes),
    Events(Box<Events>),
    Spaced(Box<Spaced>),
}

impl Body {
    pub(super) fn full(text: Bytes) -> Self {
        Self::Full(text)
    }

    /// A stream of events; `id` is that of an event of it.
    pub(super) fn events(reader: Reader, id: EventId, opening: Opening, ending: Ending) -> Self {
        Self::Events(Box::new(Events::new(reader, id, opening, ending)))
    }

    /// Like [`Body::events`], but it also tells whether the client was given an id to come back with.
    pub(super) fn events_telling(
        reader: Reader,
        id: EventId,
        opening: Opening,
        ending: Ending,
        has_id: Arc<AtomicBool>,
    ) -> Self {
        let events = Events::new(reader, id, opening, ending);
        Self::Events(Box::new(Events { has_id, ..events }))
    }

    /// Like [`Body::events`], but it also ends when `end` does.
    pub(super) fn events_until(
        reader: Reader,
        id: EventId,
        opening: Opening,
        ending: Ending,
        end: impl Future<Output = Drain> + Send + 'static,
    ) -> Self {
        let end: Option<End> = Some(Box::pin(end));
        Self::Events(Box::new(Events { end, ..Events::new(reader, id, opening, ending) }))
    }

    /// The answer alone; messages before it go to `others`.
    pub(super) fn spaced(reader: Reader, others: Arc<Stream>) -> Self {
        Self::Spaced(Box::new(Spaced { reader, others, tick: tick(), guard: None }))
    }

    /// Returns whether the body is a stream. If so, the connection is notified when the stream ends.
    pub(super) fn track_stream(&mut self, way: &Arc<WayIn>) -> bool {
        let guard = match self {
            Self::Full(_) => return false,
            Self::Events(events) => &mut events.guard,
            Self::Spaced(spaced) => &mut spaced.guard,
        };
        *guard = Some(StreamGuard(Arc::clone(way)));
        true
    }
}

/// How an event stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// At once, with an event that has an id and no data, from which the client can resume.
    Priming,
    /// With the first message, because older clients take an event without data for a broken one.
    FirstMessage,
    /// It has begun.
    Over,
}

type Parts = array::IntoIter<Bytes, 3>;
type End = Pin<Box<dyn Future<Output = Drain> + Send>>;
/// How the end of the listener has begun, if it has.
pub(super) type Ending = watch::Receiver<Option<Drain>>;

/// Notifies the connection when the stream ends.
struct StreamGuard(Arc<WayIn>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.answered();
    }
}

pub(super) struct Events {
    reader: Reader,
    id: EventId,
    opening: Opening,
    end: Option<End>,
    ending: Ending,
    has_ended: bool,
    /// The rest of the present event.
    parts: Parts,
    tick: Interval,
    /// Whether the client was given the id of an event.
    has_id: Arc<AtomicBool>,
    guard: Option<StreamGuard>,
}

impl Events {
    fn new(reader: Reader, id: EventId, opening: Opening, ending: Ending) -> Self {
        Self {
            reader,
            id,
            opening,
            end: None,
            ending,
            has_ended: false,
            parts: nothing(),
            tick: tick(),
            has_id: Arc::default(),
            guard: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(part) = self.parts.find(|part| !part.is_empty()) {
            return Poll::Ready(Some(part));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.opening == Opening::Priming {
            self.opening = Opening::Over;
            self.has_id.store(true, Ordering::Relaxed);
            return Poll::Ready(Some(priming(&self.id.at(self.reader.position()))));
        }
        if let Poll::Ready(item) = self.reader.poll_next(cx) {
            return Poll::Ready(match item {
                Some(item) => self.begin(&item),
                None => self.finish(),
            });
        }
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(self.finish());
        }
        ready!(self.tick.poll_tick(cx));
        Poll::Ready(Some(COMMENT))
    }

    /// What a stream ends with.
    fn finish(&mut self) -> Option<Bytes> {
        self.has_ended = true;
        let goes_on =
            *self.ending.borrow() == Some(Drain::HandOver) && !self.reader.stream().is_finished();
        goes_on.then_some(SOON)
    }

    fn begin(&mut self, item: &Item) -> Option<Bytes> {
        let retry = if self.opening == Opening::Over { "" } else { RETRY };
        self.opening = Opening::Over;
        self.has_id.store(true, Ordering::Relaxed);
        self.parts = encode(item, &self.id, retry);
        self.tick.reset();
        self.parts.next()
    }
}

pub(super) struct Spaced {
    reader: Reader,
    others: Arc<Stream>,
    tick: Interval,
    guard: Option<StreamGuard>,
}

impl Spaced {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        while let Poll::Ready(item) = self.reader.poll_next(cx) {
            match item {
                Some(item) if item.is_answer => return Poll::Ready(Some(item.message)),
                Some(item) => drop(self.others.push(item.message)),
                None => return Poll::Ready(None),
            }
        }
        ready!(self.tick.poll_tick(cx));
        Poll::Ready(Some(SPACE))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut *self {
            Self::Full(text) if text.is_empty() => None,
            Self::Full(text) => Some(std::mem::take(text)),
            Self::Events(events) => ready!(events.poll(cx)),
            Self::Spaced(spaced) => ready!(spaced.poll(cx)),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(text) => text.is_empty(),
            Self::Events(_) | Self::Spaced(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(text) => SizeHint::with_exact(text.len() as u64),
            Self::Events(_) | Self::Spaced(_) => SizeHint::default(),
        }
    }
}

fn priming(id: &EventId) -> Bytes {
    format!("id: {id}\n{RETRY}data: \n\n").into()
}

/// An event. The answers to a batch become one event each, since clients expect no array here; the
/// id comes with the last of them.
fn encode(item: &Item, id: &EventId, retry: &str) -> Parts {
    let messages =
        if item.is_answer { frame::split(&item.message) } else { vec![&item.message[..]] };
    let (last, before) = messages.split_last().expect("a text has at least itself as a part");
    let mut head = BytesMut::new();
    for message in before {
        head.extend_from_slice(b"event: message\ndata: ");
        head.extend_from_slice(&frame::in_one_line(item.message.slice_ref(message)));
        head.extend_from_slice(b"\n\n");
    }
    let fields = format!("event: message\nid: {}\n{retry}data: ", id.at(item.number));
    head.extend_from_slice(fields.as_bytes());
    let last = frame::in_one_line(item.message.slice_ref(last));
    let tail = Bytes::from_static(b"\n\n");
    if last.len() > SMALL {
        return [head.freeze(), last, tail].into_iter();
    }
    head.extend_from_slice(&last);
    head.extend_from_slice(&tail);
    [head.freeze(), Bytes::new(), Bytes::new()].into_iter()
}

fn nothing() -> Parts {
    [const { Bytes::new() }; 3].into_iter()
}

fn tick() -> Interval {
    let mut tick = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

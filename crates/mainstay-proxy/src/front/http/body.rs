//! The bodies of responses: a text, a stream of events, or JSON kept alive by white space.

use std::array;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use mainstay_session::{EventId, Item};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Drain;
use super::connection_state::ConnectionState;
use super::unfinished::{Form, UnfinishedResponse};
use crate::frame;
use crate::server::{Reader, Session};

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
/// moment and does not know the stream. It has no empty line either.
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

/// What a body is read from.
pub(super) struct Source {
    reader: Reader,
    /// An event of the stream.
    event: EventId,
    session: Session,
    /// The request, if the next daemon repeats it.
    repeated: Option<Bytes>,
    /// The position from which the next daemon would go on after a kill of this one.
    recorded_at: Option<u64>,
}

impl Source {
    /// A stream of this session; `event` is an event of it.
    pub(super) fn new(session: &Session, reader: Reader, event: EventId) -> Self {
        Self { reader, event, session: session.clone(), repeated: None, recorded_at: None }
    }

    /// The same, of a request that the next daemon repeats.
    pub(super) fn repeating(self, request: Option<Bytes>) -> Self {
        Self { repeated: request, ..self }
    }

    /// Whether the stream ends here only because another daemon takes over.
    fn goes_on(&self, guard: Option<&StreamGuard>) -> bool {
        let takes_over = guard.is_some_and(|StreamGuard(conn)| conn.is_ending());
        // A request without an answer was cancelled, or its answer is lost and the next daemon decides what to do.
        let is_over = self.reader.state().is_some_and(|state| state.is_over);
        takes_over && !self.reader.has_answer() && !is_over
    }

    /// Leaves the rest of the response to the next daemon, if that knows the stream.
    fn leave(&self, guard: Option<&StreamGuard>, form: Form) -> bool {
        let Some(StreamGuard(conn)) = guard else { return false };
        let is_known = conn.is_passed_on() && self.goes_on(guard) && self.is_durable();
        if is_known {
            conn.leave_response(self.unfinished(conn, form));
        }
        is_known
    }

    /// Nothing more can be written now. If this daemon is killed meanwhile, the next one writes the rest.
    fn record_resume_point(&mut self, guard: Option<&StreamGuard>, form: Form) {
        let Some(StreamGuard(conn)) = guard else { return };
        let position = self.reader.position();
        if self.recorded_at != Some(position) && self.is_durable() {
            self.recorded_at = Some(position);
            conn.set_resume_point(&self.unfinished(conn, form));
        }
    }

    /// Something is about to be written.
    fn clear_resume_point(&mut self, guard: Option<&StreamGuard>) {
        if self.recorded_at.take().is_some()
            && let Some(StreamGuard(conn)) = guard
        {
            conn.clear_resume_point();
        }
    }

    /// Whether the next daemon knows the stream.
    fn is_durable(&self) -> bool {
        self.reader.state().is_some_and(|state| state.is_durable)
    }

    fn unfinished(&self, conn: &ConnectionState, form: Form) -> UnfinishedResponse {
        let text = |request: &Bytes| String::from_utf8_lossy(request).into_owned();
        UnfinishedResponse {
            server: self.session.server().to_owned(),
            session: self.session.id().to_owned(),
            event: self.event.at(self.reader.position()).to_string(),
            form,
            framing: conn.framing(),
            repeated: self.repeated.as_ref().map(text),
        }
    }
}

impl Body {
    pub(super) fn full(text: Bytes) -> Self {
        Self::Full(text)
    }

    /// The stream of a request, as events.
    pub(super) fn events(source: Source, opening: Opening) -> Self {
        Self::Events(Box::new(Events::new(source, opening)))
    }

    /// A general stream, which also ends when `end` does.
    pub(super) fn general(
        source: Source,
        opening: Opening,
        end: impl Future<Output = Drain> + Send + 'static,
    ) -> Self {
        let end: Option<End> = Some(Box::pin(end));
        Self::Events(Box::new(Events { end, ..Events::new(source, opening) }))
    }

    /// The answer alone; messages before it go to the general stream.
    pub(super) fn spaced(source: Source) -> Self {
        let spaced = Spaced { source, tick: tick(), is_left: false, guard: None };
        Self::Spaced(Box::new(spaced))
    }

    /// Whether it is a general stream.
    pub(super) fn is_general(&self) -> bool {
        matches!(self, Self::Events(events) if events.end.is_some())
    }

    /// Returns whether the body is a stream. If so, the connection is notified when the stream ends.
    pub(super) fn track_stream(&mut self, conn: &Arc<ConnectionState>) -> bool {
        let guard = match self {
            Self::Full(_) => return false,
            Self::Events(events) => &mut events.guard,
            Self::Spaced(spaced) => &mut spaced.guard,
        };
        *guard = Some(StreamGuard(Arc::clone(conn)));
        true
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let (source, guard) = match self {
            Self::Full(_) => return,
            Self::Events(events) => (&events.source, &events.guard),
            Self::Spaced(spaced) => (&spaced.source, &spaced.guard),
        };
        if guard.as_ref().is_some_and(|StreamGuard(conn)| conn.ends_with_listener()) {
            source.reader.end_resumption();
        }
    }
}

/// How an event stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// Notifies the connection when the stream ends.
struct StreamGuard(Arc<ConnectionState>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.answered();
    }
}

pub(super) struct Events {
    source: Source,
    opening: Opening,
    end: Option<End>,
    has_ended: bool,
    /// Whether the rest is left to the next daemon.
    is_left: bool,
    /// The rest of the present event.
    parts: Parts,
    tick: Interval,
    guard: Option<StreamGuard>,
}

impl Events {
    fn new(source: Source, opening: Opening) -> Self {
        Self {
            source,
            opening,
            end: None,
            has_ended: false,
            is_left: false,
            parts: nothing(),
            tick: tick(),
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
        if self.is_left {
            return Poll::Pending;
        }
        if self.opening == Opening::Priming {
            self.opening = Opening::Over;
            self.source.reader.event_id_sent();
            let id = self.source.event.at(self.source.reader.position());
            return Poll::Ready(Some(priming(&id)));
        }
        if let Poll::Ready(item) = self.source.reader.poll_next(cx) {
            return match item {
                Some(item) => Poll::Ready(self.begin(&item)),
                None => self.finish(),
            };
        }
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            return self.finish();
        }
        ready!(self.tick.poll_tick(cx));
        Poll::Ready(Some(COMMENT))
    }

    /// The same, and records for the next daemon what is left to write.
    fn poll_recorded(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let polled = self.poll(cx);
        match &polled {
            Poll::Pending => {
                self.source.record_resume_point(self.guard.as_ref(), Form::Events(self.opening));
            }
            Poll::Ready(_) => self.source.clear_resume_point(self.guard.as_ref()),
        }
        polled
    }

    /// What a stream ends with. Nothing comes any more if the rest is left to the next daemon.
    fn finish(&mut self) -> Poll<Option<Bytes>> {
        self.is_left = self.source.leave(self.guard.as_ref(), Form::Events(self.opening));
        if self.is_left {
            return Poll::Pending;
        }
        self.has_ended = true;
        Poll::Ready(self.source.goes_on(self.guard.as_ref()).then_some(SOON))
    }

    fn begin(&mut self, item: &Item) -> Option<Bytes> {
        let retry = if self.opening == Opening::Over { "" } else { RETRY };
        self.opening = Opening::Over;
        self.source.reader.event_id_sent();
        self.parts = encode(item, &self.source.event, retry);
        self.tick.reset();
        self.parts.next()
    }
}

pub(super) struct Spaced {
    source: Source,
    tick: Interval,
    /// Whether the rest is left to the next daemon.
    is_left: bool,
    guard: Option<StreamGuard>,
}

impl Spaced {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.is_left {
            return Poll::Pending;
        }
        while let Poll::Ready(item) = self.source.reader.poll_next(cx) {
            match item {
                Some(item) if item.is_answer => return Poll::Ready(Some(item.message)),
                Some(item) => self.source.session.push_general(item.message),
                None => {
                    self.is_left = self.source.leave(self.guard.as_ref(), Form::Json);
                    return if self.is_left { Poll::Pending } else { Poll::Ready(None) };
                }
            }
        }
        ready!(self.tick.poll_tick(cx));
        Poll::Ready(Some(SPACE))
    }
}

impl Spaced {
    /// The same, and records for the next daemon what is left to write.
    fn poll_recorded(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let polled = self.poll(cx);
        match &polled {
            Poll::Pending => self.source.record_resume_point(self.guard.as_ref(), Form::Json),
            Poll::Ready(_) => self.source.clear_resume_point(self.guard.as_ref()),
        }
        polled
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
            Self::Events(events) => ready!(events.poll_recorded(cx)),
            Self::Spaced(spaced) => ready!(spaced.poll_recorded(cx)),
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

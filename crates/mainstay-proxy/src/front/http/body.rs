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

/// Something is sent at least this often, so that no client or proxy considers a stream dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long clients wait before they reconnect, in milliseconds. The official clients give up after twice this time if
/// connections are refused, which does not happen while the holder lives.
const RETRY: &str = "retry: 1000\n";
/// A comment without the empty line that ends an event: `httpx-sse` takes such a line for an event
/// without data once an event had an id, and Python clients of before 2025-11-25 fail to parse it.
const COMMENT: Bytes = Bytes::from_static(b":\n");
/// Sent when a stream ends because of a hand-over, and the next daemon does not know the stream. It has no empty line
/// either.
const SOON: Bytes = Bytes::from_static(b"retry: 250\n");
const SPACE: Bytes = Bytes::from_static(b" ");
/// Events up to this size are copied together; the parts of larger ones are sent one by one.
const SMALL: usize = 4096;

pub(super) enum Body {
    Full(Bytes),
    Streamed(Box<Streamed>),
}

/// A body that is read from a stream of a session.
pub(super) struct Streamed {
    reader: Reader,
    /// An event of the stream.
    event: EventId,
    session: Session,
    form: Form,
    /// The request, if the next daemon repeats it.
    repeated: Option<Bytes>,
    /// A general stream also ends then.
    end: Option<End>,
    /// The position from which the next daemon would continue after a kill of this one.
    recorded_at: Option<u64>,
    has_ended: bool,
    /// Whether the rest is left to the next daemon.
    is_left: bool,
    /// The rest of the present event.
    parts: Parts,
    tick: Interval,
    guard: Option<StreamGuard>,
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

impl Streamed {
    /// A stream of this session; `event` is an event of it.
    pub(super) fn new(session: &Session, reader: Reader, event: EventId, form: Form) -> Self {
        let mut tick = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            reader,
            event,
            session: session.clone(),
            form,
            repeated: None,
            end: None,
            recorded_at: None,
            has_ended: false,
            is_left: false,
            parts: [const { Bytes::new() }; 3].into_iter(),
            tick,
            guard: None,
        }
    }

    /// The same, of a request that the next daemon repeats.
    pub(super) fn repeating(mut self, request: Option<Bytes>) -> Self {
        self.repeated = request;
        self
    }

    /// The same, of a general stream, which also ends when `end` does.
    pub(super) fn until(mut self, end: impl Future<Output = Drain> + Send + 'static) -> Self {
        self.end = Some(Box::pin(end));
        self
    }

    pub(super) fn is_json(&self) -> bool {
        self.form == Form::Json
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
        if self.form == Form::Events(Opening::Priming) {
            self.form = Form::Events(Opening::Over);
            self.reader.event_id_sent();
            return Poll::Ready(Some(priming(&self.event.at(self.reader.position()))));
        }
        while let Poll::Ready(item) = self.reader.poll_next(cx) {
            match (item, self.form) {
                (None, _) => return self.finish(),
                (Some(item), Form::Events(opening)) => {
                    return Poll::Ready(self.begin(&item, opening));
                }
                (Some(item), Form::Json) if item.is_answer => {
                    return Poll::Ready(Some(item.message));
                }
                // Only the answer is JSON.
                (Some(item), Form::Json) => self.session.push_general(item.message),
            }
        }
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            return self.finish();
        }
        ready!(self.tick.poll_tick(cx));
        Poll::Ready(Some(if self.is_json() { SPACE } else { COMMENT }))
    }

    /// The same, and records for the next daemon what is left to write.
    fn poll_recorded(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let polled = self.poll(cx);
        let Some(StreamGuard(conn)) = &self.guard else { return polled };
        let position = self.reader.position();
        if polled.is_ready() {
            // Something is about to be written.
            if self.recorded_at.take().is_some() {
                conn.clear_resume_point();
            }
        } else if self.recorded_at != Some(position) && self.is_durable() {
            conn.set_resume_point(&self.unfinished(conn));
            self.recorded_at = Some(position);
        }
        polled
    }

    /// The end of the body, unless the rest is left to the next daemon.
    fn finish(&mut self) -> Poll<Option<Bytes>> {
        let continues = self.continues_elsewhere();
        if let Some(StreamGuard(conn)) = &self.guard
            && continues
            && conn.is_passed_on()
            && self.is_durable()
        {
            conn.leave_response(self.unfinished(conn));
            self.is_left = true;
            return Poll::Pending;
        }
        self.has_ended = true;
        Poll::Ready((continues && !self.is_json()).then_some(SOON))
    }

    fn begin(&mut self, item: &Item, opening: Opening) -> Option<Bytes> {
        let retry = if opening == Opening::Over { "" } else { RETRY };
        self.form = Form::Events(Opening::Over);
        self.reader.event_id_sent();
        self.parts = encode(item, &self.event, retry);
        self.tick.reset();
        self.parts.next()
    }

    /// Whether the stream ends here only because another daemon takes over.
    fn continues_elsewhere(&self) -> bool {
        let takes_over = self.guard.as_ref().is_some_and(|StreamGuard(conn)| conn.is_ending());
        // A request without an answer was cancelled, or its answer is lost and the next daemon decides what to do.
        let is_over = self.reader.state().is_some_and(|state| state.is_over);
        takes_over && !self.reader.has_answer() && !is_over
    }

    /// Whether the next daemon knows the stream.
    fn is_durable(&self) -> bool {
        self.reader.state().is_some_and(|state| state.is_durable)
    }

    fn unfinished(&self, conn: &ConnectionState) -> UnfinishedResponse {
        let text = |request: &Bytes| String::from_utf8_lossy(request).into_owned();
        UnfinishedResponse {
            server: self.session.server().to_owned(),
            session: self.session.id().to_owned(),
            event: self.event.at(self.reader.position()).to_string(),
            form: self.form,
            framing: conn.framing(),
            repeated: self.repeated.as_ref().map(text),
        }
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        if self.guard.as_ref().is_some_and(|StreamGuard(conn)| conn.ends_with_listener()) {
            self.reader.end_resumption();
        }
    }
}

impl From<Streamed> for Body {
    fn from(streamed: Streamed) -> Self {
        Self::Streamed(Box::new(streamed))
    }
}

impl Body {
    pub(super) fn is_general(&self) -> bool {
        matches!(self, Self::Streamed(streamed) if streamed.end.is_some())
    }

    /// Returns whether the body is a stream. If so, the connection is notified when the stream ends.
    pub(super) fn track_stream(&mut self, conn: &Arc<ConnectionState>) -> bool {
        let Self::Streamed(streamed) = self else { return false };
        streamed.guard = Some(StreamGuard(Arc::clone(conn)));
        true
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
            Self::Streamed(streamed) => ready!(streamed.poll_recorded(cx)),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(text) if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(text) => SizeHint::with_exact(text.len() as u64),
            Self::Streamed(_) => SizeHint::default(),
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

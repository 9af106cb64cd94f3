//! A request on its way through the core, together with the reader of its stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::runtime::Handle;
use tracing::error;

use super::{Answering, ProtocolVersion, Session};
use crate::catch_panic::CatchPanic;
use crate::frame::{self, Frame, INTERNAL_ERROR, Id, InitializeParams, Outcome, Parsed};
use crate::stream::{Item, Reader, Ready, Start, Stream};

/// The core's work on a request; `None` if it panicked, which fails only the request. If it is dropped while its
/// stream is relayed to another daemon, it goes on in a task of its own.
pub(crate) struct Work {
    /// Gone when this was dropped.
    answering: Option<CatchPanic<dyn Future<Output = ()> + Send>>,
    stream: Arc<Stream>,
}

impl Work {
    pub(crate) fn new(answering: Answering, stream: Arc<Stream>) -> Self {
        Self { answering: Some(answering.into()), stream }
    }
}

impl Future for Work {
    type Output = Option<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        match &mut self.answering {
            Some(answering) => Pin::new(answering).poll(cx),
            None => Poll::Pending,
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Some(answering) = self.answering.take() else { return };
        if !self.stream.is_relayed() || self.stream.is_finished() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let stream = Arc::clone(&self.stream);
            runtime.spawn(async move { settle(&stream, answering.await, None) });
        }
    }
}

/// The error for a request whose handler panicked.
const FAILED: &str = "Mainstay failed to answer this request; its effect is unknown. \
    The cause is in the daemon's log.";

/// A request that the core works on while somebody waits for its stream. Dropping it gives the
/// request up.
pub(super) struct Run {
    /// Boxed, because it moves to a task of its own when it takes long. Gone when it is done.
    work: Option<Work>,
    reader: Reader,
    request: Option<Bytes>,
}

impl Run {
    pub(super) fn new<S: Session>(session: &S, request: Parsed) -> Self {
        Self::with(session, request, Stream::new())
    }

    /// A request that its client sends again; see [`Stream::of_repeated`].
    pub(super) fn repeated<S: Session>(session: &S, request: Parsed, was_asked: bool) -> Self {
        Self::with(session, request, Stream::of_repeated(was_asked))
    }

    fn with<S: Session>(session: &S, request: Parsed, stream: Arc<Stream>) -> Self {
        let text = request.text().clone();
        let reader = stream.reader(Start::Unread);
        let work = Work::new(session.request(request, Arc::clone(&stream)), stream);
        Self { work: Some(work), reader, request: Some(text) }
    }

    /// Work that no other daemon could go on with.
    pub(super) fn of(work: impl FnOnce(Arc<Stream>) -> Answering) -> Self {
        let stream = Stream::new();
        let reader = stream.reader(Start::Unread);
        let work = Work::new(work(Arc::clone(&stream)), stream);
        Self { work: Some(work), reader, request: None }
    }

    /// The text of the request, if another daemon could go on with it.
    pub(super) fn request(&self) -> Option<&Bytes> {
        self.request.as_ref()
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        self.reader.stream()
    }

    /// Works until there is something to read.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Ready> {
        self.work_on(cx);
        self.reader.poll_ready(cx)
    }

    /// Works until the next message.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.work_on(cx);
        self.reader.poll_next(cx)
    }

    /// The two halves: what is left of the work, and the reader.
    pub(super) fn into_parts(self) -> (Option<Work>, Reader) {
        (self.work, self.reader)
    }

    fn work_on(&mut self, cx: &mut Context<'_>) {
        let Some(work) = &mut self.work else { return };
        if let Poll::Ready(done) = Pin::new(work).poll(cx) {
            self.work = None;
            settle(self.reader.stream(), done, self.request.as_ref());
        }
    }
}

/// Called when the core is done; `done` is `None` if it panicked. Finishes the stream if the core did not, so
/// that no client waits forever.
pub(crate) fn settle(stream: &Stream, done: Option<()>, request: Option<&Bytes>) {
    if stream.is_finished() {
        return;
    }
    if done.is_some() {
        error!("a request was left without an answer");
        return stream.finish(None);
    }
    let request = request.and_then(|text| Parsed::read(text.clone()).ok());
    let id = request.as_ref().and_then(Parsed::id);
    stream.finish(id.map(|id| frame::error(id, INTERNAL_ERROR, FAILED)));
}

/// A session that begins: it is abandoned unless its `initialize` succeeds.
pub(super) struct Opening<S: Session> {
    session: Option<S>,
}

impl<S: Session> Opening<S> {
    pub(super) fn new(session: S) -> Self {
        Self { session: Some(session) }
    }

    /// The answer to `initialize` is known; gives the session if it lives.
    pub(super) fn settle(mut self, answer: Option<&[u8]>) -> Option<S> {
        let is_result = |answer: &[u8]| {
            matches!(frame::scan(answer), Ok(Frame::Response { outcome: Outcome::Ok(_), .. }))
        };
        if answer.is_some_and(is_result) { self.session.take() } else { None }
    }
}

impl<S: Session> Drop for Opening<S> {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.abandon();
        }
    }
}

/// The version that a client asks for in `initialize`.
pub(super) fn wanted_version(initialize: &Parsed) -> Option<ProtocolVersion> {
    InitializeParams::read(initialize.params()?)?.protocol_version.parse().ok()
}

/// The id of a request, to be kept.
pub(super) fn id_of(request: &Parsed) -> Option<Box<str>> {
    request.id().map(Id::get).map(Box::from)
}

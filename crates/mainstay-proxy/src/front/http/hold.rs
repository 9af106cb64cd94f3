//! Requests that take long: the head of the response is sent, and the work goes on in a task of its
//! own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Response;
use tokio::sync::OwnedSemaphorePermit;

use super::Front;
use super::body::Body;
use super::get::opening;
use super::head::{SESSION_ID, header};
use super::post::Asked;
use super::reply;
use crate::front::run::{Opening, Run, Work, settle};
use crate::front::{Core, Session};
use crate::stream::{EventId, Stream};

/// A request without an answer after this time is committed.
pub(super) const COMMIT: Duration = Duration::from_millis(150);
/// How long a client may be away before its request is given up.
const RESUME: Duration = Duration::from_secs(30);
/// How long the end of a stream is kept for a client that may have lost it.
const KEPT: Duration = Duration::from_secs(60);

/// Sends the head and lets the work go on: as an event stream, or as JSON kept alive by white space
/// if the client takes nothing else.
pub(super) fn commit<C: Core>(
    front: &Front<C>,
    asked: Asked<C::Session>,
    run: Run,
) -> Response<Body> {
    let Asked { session, id, accept, version, opening: begun } = asked;
    let is_full = session.streams().waiting() >= front.config.limits.waiting_in_session;
    let permit = Arc::clone(&front.waiting).try_acquire_owned().ok().filter(|_| !is_full);
    let Some(permit) = permit else {
        return reply::failure(id.as_deref(), "too many requests are waiting for an answer");
    };
    let session_id = begun.as_ref().map(|_| header(session.id()));
    let (work, reader) = run.into_parts();
    let stream = Arc::clone(reader.stream());
    let has_id = Arc::<AtomicBool>::default();
    let (kept, mut response) = if accept.events {
        let kept = Kept { event: session.streams().keep(&stream, id.as_deref()), session };
        let (event, has_id) = (kept.event.clone(), Arc::clone(&has_id));
        let body = Body::events_telling(reader, event, opening(version), has_id);
        (Some(kept), reply::events(body))
    } else {
        (None, reply::spaced(Body::spaced(reader, Arc::clone(session.streams().general()))))
    };
    if let Some(id) = session_id {
        response.headers_mut().insert(SESSION_ID, id);
    }
    let ended = front.ended();
    front.spawn(async move {
        finish(work, &stream, &has_id, begun, permit).await;
        if let Some(kept) = kept {
            kept.linger(&stream, ended).await;
        }
    });
    response
}

/// Works until the answer, or until its client has gone for good.
async fn finish<S: Session>(
    work: Option<Work>,
    stream: &Stream,
    has_id: &AtomicBool,
    begun: Option<Opening<S>>,
    _waiting: OwnedSemaphorePermit,
) {
    if let Some(work) = work {
        tokio::select! {
            biased;
            () = work => settle(stream),
            () = forsaken(stream, has_id) => stream.cancel(),
        }
    }
    if let Some(begun) = begun {
        drop(begun.settle(stream.answer().as_deref()));
    }
}

/// Resolves when the client has gone for good: at once, if it has no id to come back with.
async fn forsaken(stream: &Stream, has_id: &AtomicBool) {
    stream.forsaken(Duration::ZERO).await;
    if has_id.load(Ordering::Relaxed) {
        stream.forsaken(RESUME).await;
    }
}

/// A stream that can be resumed, as long as this is there.
struct Kept<S: Session> {
    session: S,
    event: EventId,
}

impl<S: Session> Kept<S> {
    async fn linger(self, stream: &Stream, ended: impl Future<Output = ()>) {
        self.session.streams().settle();
        tokio::select! {
            () = tokio::time::sleep(KEPT) => {}
            () = stream.closed() => {}
            () = ended => {}
        }
    }
}

impl<S: Session> Drop for Kept<S> {
    fn drop(&mut self) {
        self.session.streams().forget(&self.event);
    }
}

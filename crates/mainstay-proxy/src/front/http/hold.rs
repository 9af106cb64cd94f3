//! Requests that take long: the head of the response is sent, and the work goes on in a task of its
//! own.
//!
//! A request that goes on for 150 ms, or of which something was said, is also written down, if its client has
//! an id to come back with, so that it outlives this daemon. One that is part of a batch, begins a session
//! or is answered as JSON is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Response, Version};
use tokio::time::{Instant, sleep_until};

use super::Front;
use super::body::{self, Body};
use super::get::opening;
use super::head::{EarlyHead, SESSION_ID, header};
use super::post::Asked;
use super::reply;
use crate::front::kept::{DURABLE, Kept, RESUME};
use crate::front::run::{Opening, Run, Work, settle};
use crate::front::{Core, Session};
use crate::stream::{Begin, Stream};

/// A request without an answer after this time is committed.
pub(super) const COMMIT: Duration = DURABLE;

/// Sends the head and lets the work go on: as an event stream, or as JSON kept alive by white space
/// if the client takes nothing else or would refuse large events. From `due` on the request is worth to be written down.
pub(super) fn commit<C: Core>(
    front: &Front<C>,
    asked: Asked<C::Session>,
    run: Run,
    due: Instant,
) -> Response<Body> {
    let Asked { session, id, accept, version, early_head, opening: begun } = asked;
    let until_close = early_head == EarlyHead::JsonUntilClose;
    let is_events = accept.events && !until_close;
    let session_id = begun.as_ref().map(|_| header(session.id()));
    let request = run.request().cloned();
    let text = request.clone().filter(|_| begun.is_none());
    let (work, reader) = run.into_parts();
    let stream = Arc::clone(reader.stream());
    if text.is_none() || !is_events {
        stream.is_for_this_daemon();
    }
    let has_id = Arc::<AtomicBool>::default();
    let (kept, mut response) = if is_events {
        let opening = opening(version);
        let kept = Durable::new(Kept::new(session, &stream, id.as_deref()), text, opening, due);
        let (event, has_id) = (kept.kept.event().clone(), Arc::clone(&has_id));
        let body = Body::events_telling(reader, event, opening, front.ending(), has_id);
        (Some(kept), reply::events(body))
    } else {
        (None, reply::spaced(Body::spaced(reader, Arc::clone(session.streams().general()))))
    };
    if until_close {
        // Such a response has no chunks: its end is the end of the connection.
        *response.version_mut() = Version::HTTP_10;
    }
    if let Some(id) = session_id {
        response.headers_mut().insert(SESSION_ID, id);
    }
    front.spawn(async move {
        let finished = finish((work, request), &stream, &has_id, begun);
        let Some(Durable { kept, later }) = kept else { return finished.await };
        let written_down = async {
            if let Some((request, begin)) = later {
                sleep_until(due).await;
                kept.write_down(request, begin);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = finished => {}
            () = written_down => {}
        }
        kept.linger().await;
    });
    response
}

/// A stream that outlives its connection, and what is still to be written down of it.
struct Durable<S: Session> {
    kept: Kept<S>,
    later: Option<(Bytes, Begin)>,
}

impl<S: Session> Durable<S> {
    fn new(kept: Kept<S>, request: Option<Bytes>, opening: body::Opening, due: Instant) -> Self {
        let begin = match opening {
            body::Opening::Priming => Begin::Now,
            body::Opening::FirstMessage | body::Opening::Over => Begin::WithMessage,
        };
        let mut later = request.map(|request| (request, begin));
        if Instant::now() >= due
            && let Some((request, begin)) = later.take()
        {
            kept.write_down(request, begin);
        }
        Self { kept, later }
    }
}

/// Works until the answer, or until its client has gone for good.
async fn finish<S: Session>(
    (work, request): (Option<Work>, Option<Bytes>),
    stream: &Stream,
    has_id: &AtomicBool,
    begun: Option<Opening<S>>,
) {
    if let Some(work) = work {
        tokio::select! {
            biased;
            done = work => settle(stream, done, request.as_ref()),
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

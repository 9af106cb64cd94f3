//! Requests that take long: the head of the response is sent, and the work goes on in a task of its
//! own.
//!
//! A request that goes on for 150 ms is also written down, so that it outlives this daemon: its client comes back
//! with the id of an event, or its connection is passed on to the next daemon ([`unfinished`](super::unfinished)). One
//! that is part of a batch is not, and `initialize` is repeated by the next daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Response, Version};
use tokio::time::{Instant, sleep_until};

use super::Front;
use super::body::{Body, Source};
use super::head::{SESSION_ID, header};
use super::post::Asked;
use super::reply;
use crate::front::resumable::{RESUME, ResumableStream};
use crate::front::run::{Opening, Run, Work, settle};
use crate::front::{Core, Session};
use crate::stream::Stream;

/// An `initialize` up to this length is passed on to the next daemon. It must fit a message to the holder.
const SHORT_ENOUGH: usize = 8 << 10;

/// Sends the head and lets the work go on: as an event stream, or as JSON kept alive by white space
/// if the client takes nothing else or would refuse large events. From `due` on the request is worth to be written down.
pub(super) fn commit<C: Core>(
    front: &Front<C>,
    asked: Asked<C::Session>,
    run: Run,
    due: Instant,
) -> Response<Body> {
    let Asked { session, id, accept, version, is_json_until_close: until_close, opening: begun } =
        asked;
    let is_events = accept.events && !until_close;
    let session_id = begun.as_ref().map(|_| header(session.id()));
    let request = run.request().cloned();
    let text = request.clone().filter(|_| begun.is_none());
    let (work, reader) = run.into_parts();
    let stream = Arc::clone(reader.stream());
    let initialize =
        request.clone().filter(|request| begun.is_some() && request.len() <= SHORT_ENOUGH);
    if initialize.is_some() {
        stream.is_repeated();
    } else if text.is_none() {
        stream.is_for_this_daemon();
    }
    let has_id = Arc::<AtomicBool>::default();
    let resumable = ResumableStream::new(session.clone(), &stream, id.as_deref());
    let source = Source::new(&session, reader, resumable.event().clone()).repeating(initialize);
    let mut response = if is_events {
        let body = Body::events_telling(source, front.opening(version), Arc::clone(&has_id));
        reply::events(body)
    } else {
        reply::spaced(Body::spaced(source, Arc::clone(session.streams().general())))
    };
    if until_close {
        // Such a response has no chunks: its end is the end of the connection.
        *response.version_mut() = Version::HTTP_10;
    }
    if let Some(id) = session_id {
        response.headers_mut().insert(SESSION_ID, id);
    }
    let mut later = text;
    if Instant::now() >= due
        && let Some(text) = later.take()
    {
        resumable.write_down(text);
    }
    front.spawn(async move {
        let finished = finish((work, request), &stream, &has_id, begun);
        let written_down = async {
            if let Some(text) = later {
                sleep_until(due).await;
                resumable.write_down(text);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = finished => {}
            () = written_down => {}
        }
        // A client without an id does not come back.
        if is_events {
            resumable.linger().await;
        }
    });
    response
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
            () = abandoned_for(stream, has_id) => stream.cancel(),
        }
    }
    if let Some(begun) = begun {
        drop(begun.settle(stream.answer().as_deref()));
    }
}

/// Resolves when the client has gone for good: at once, if it has no id to come back with.
async fn abandoned_for(stream: &Stream, has_id: &AtomicBool) {
    stream.abandoned_for(Duration::ZERO).await;
    if has_id.load(Ordering::Relaxed) {
        stream.abandoned_for(RESUME).await;
    }
}

//! GET: the general stream of a session, or the rest of a stream that was cut.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use serde_json::value::RawValue;

use super::body::{Body, Source};
use super::head::{self, Accept, LAST_EVENT_ID};
use super::reply::{self, Refusal};
use super::{Front, ResponseStart};
use crate::front::{Core, Session, find};
use crate::stream::{EventId, Found, Start};

/// How long a `mainstay connect` that lives may take to listen again.
const ABANDONED: Duration = Duration::from_secs(10);

pub(super) async fn get<C: Core>(
    front: &Front<C>,
    server: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    if !Accept::of(headers).events {
        return Err(Refusal::NoEventsAccepted);
    }
    head::check_version(headers)?;
    let id = head::session_id(headers)?;
    let if_lost = Some(head::version(headers));
    let session = find(&*front.core, server, id, if_lost).await.map_err(Refusal::Lookup)?;
    let (streams, opening) = (session.streams(), front.opening(session.version()));
    let general = |start| {
        let reader = streams.general().reader(start);
        session.listens();
        if front.config.start == ResponseStart::Early {
            close_when_abandoned(front, server, &session);
        }
        let source = Source::new(&session, reader, streams.general_event());
        Body::general(source, opening, front.ended())
    };
    let Some(last) = last_event(headers) else {
        return Ok(reply::events(general(Start::Unread)));
    };
    match streams.find(&last) {
        Found::General(start) => Ok(reply::events(general(start))),
        Found::Request(stream, start) => {
            let source = Source::new(&session, stream.reader(start), last);
            Ok(reply::events(Body::events(source, opening)))
        }
        Found::Gone(Some(request)) if is_id(&request) => Ok(reply::lost_stream(&request)),
        // Of all answers this one makes clients stop: an empty 200 they ask for again and again, on
        // a 404 some give up the session, and other errors they take for an outage that will pass.
        Found::Over | Found::Gone(_) => Err(Refusal::NoMoreEvents),
    }
}

/// Ends the session of a `mainstay connect` that was killed, and could not end it itself: it listens as long as it lives.
fn close_when_abandoned<C: Core>(front: &Front<C>, server: &str, session: &C::Session) {
    let general = Arc::clone(session.streams().general());
    let (core, ended) = (Arc::clone(&front.core), front.ended());
    let (server, id) = (server.to_owned(), session.id().to_owned());
    front.spawn(async move {
        tokio::select! {
            biased;
            _ = ended => {}
            () = general.abandoned_for(ABANDONED) => {
                // It may have ended meanwhile.
                core.close(&server, &id).ok();
            }
        }
    });
}

/// The rest of the response to a request that a client sends again, with the last event that it got. `None` if the
/// stream is not known any more.
pub(super) fn rest_of_request<C: Core>(
    front: &Front<C>,
    session: &C::Session,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    let last = last_event(headers)?;
    let (stream, start) = match session.streams().find(&last) {
        Found::Request(stream, start) => (stream, start),
        // It was cancelled, so it gets no answer.
        Found::Over => return Some(reply::empty(StatusCode::ACCEPTED)),
        Found::General(_) | Found::Gone(_) => return None,
    };
    let source = Source::new(session, stream.reader(start), last);
    Some(reply::events(Body::events(source, front.opening(session.version()))))
}

/// An id that is none of ours cannot tell which request it belonged to, so it counts as one of the
/// general stream.
fn last_event(headers: &HeaderMap) -> Option<EventId> {
    headers.get(LAST_EVENT_ID)?.to_str().ok()?.parse().ok()
}

/// The client may have written anything there.
fn is_id(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok() && crate::frame::Id::new(text).is_some()
}

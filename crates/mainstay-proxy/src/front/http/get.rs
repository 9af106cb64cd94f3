//! GET: the general stream of a session, or the rest of a stream that was cut.

use hyper::Response;
use hyper::header::HeaderMap;
use serde_json::value::RawValue;

use super::Front;
use super::body::{Body, Opening};
use super::head::{self, Accept, LAST_EVENT_ID};
use super::reply::{self, Refusal};
use crate::front::{Core, ProtocolVersion, Session, find};
use crate::stream::{EventId, Found, Start};

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
    let session = find(&*front.core, server, id).await.map_err(Refusal::Lookup)?;
    let (streams, opening) = (session.streams(), opening(session.version()));
    let general = |start| {
        let reader = streams.general().reader(start);
        session.listens();
        let event = streams.general_event();
        Body::events_until(reader, event, opening, front.ending(), front.ended())
    };
    let Some(last) = last_event(headers) else {
        return Ok(reply::events(general(Start::Unread)));
    };
    match streams.find(&last) {
        Found::General(start) => Ok(reply::events(general(start))),
        Found::Request(stream, start) => {
            let body = Body::events(stream.reader(start), last, opening, front.ending());
            Ok(reply::events(body))
        }
        Found::Gone(Some(request)) if is_id(&request) => Ok(reply::failed_stream(&request, LOST)),
        // Of all answers this one makes clients stop: an empty 200 they ask for again and again, on
        // a 404 some give up the session, and other errors they take for an outage that will pass.
        Found::Over | Found::Gone(_) => Err(Refusal::NoMoreEvents),
    }
}

/// How a stream begins for clients of this version.
pub(super) fn opening(version: Option<ProtocolVersion>) -> Opening {
    if head::has_priming(version) { Opening::Priming } else { Opening::FirstMessage }
}

/// What is told of a request whose stream is no longer known: its client waits for an answer and
/// would go on to do so.
const LOST: &str = "the connection was lost, and with it the answer to this request; \
                    its effect is unknown";

/// An id that is none of ours cannot tell which request it belonged to, so it counts as one of the
/// general stream.
fn last_event(headers: &HeaderMap) -> Option<EventId> {
    headers.get(LAST_EVENT_ID)?.to_str().ok()?.parse().ok()
}

/// The client may have written anything there.
fn is_id(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok() && crate::frame::Id::new(text).is_some()
}

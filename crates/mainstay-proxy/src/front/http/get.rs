//! GET: the general stream of a session, or the rest of a stream that was cut.

use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use mainstay_session::{EventId, Found, Start};
use serde_json::value::RawValue;

use super::body::{Body, Streamed};
use super::head::{self, Accept, LAST_EVENT_ID};
use super::reply::{self, Refusal};
use super::unfinished::Form;
use super::{Front, ListenerKind};
use crate::server::{Lookup, Session};

pub(super) async fn get(
    front: &Front,
    server: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    if !Accept::of(headers).events {
        return Err(Refusal::NoEventsAccepted);
    }
    let version = head::version(headers)?;
    let id = head::session_id(headers)?;
    let if_lost = Some(version);
    let session = front.servers.find(server, id, if_lost).await.map_err(Refusal::Lookup)?;
    let form = front.form(session.version());
    let general = |start| {
        let body = general(front, &session, start, None, form);
        body.map(reply::streamed).ok_or(Refusal::Lookup(Lookup::NoSuchSession))
    };
    let Some(last) = last_event(headers) else { return general(Start::Unread) };
    match session.find(&last) {
        Found::General(start) => general(start),
        Found::Request(stream, start) => {
            let reader = session.resume(stream, start).ok_or(Refusal::NoMoreEvents)?;
            Ok(reply::streamed(Streamed::new(&session, reader, last, form)))
        }
        Found::Gone(Some(request)) if is_id(&request) => Ok(reply::lost_stream(&request)),
        // Only this answer makes clients stop. They retry after an empty 200 and after other errors, and some end the
        // session on a 404.
        Found::Over | Found::Gone(_) => Err(Refusal::NoMoreEvents),
    }
}

/// The general stream of a session, of which `event` is an event. `None` if the session has ended.
pub(super) fn general(
    front: &Front,
    session: &Session,
    start: Start,
    event: Option<EventId>,
    form: Form,
) -> Option<Streamed> {
    let is_connect = front.config.kind == ListenerKind::Private;
    let reader = session.listen(start, is_connect)?;
    let event = event.or_else(|| session.general_event())?;
    Some(Streamed::new(session, reader, event, form).until(front.ended()))
}

/// The rest of the response to a request that a client sends again, with the last event that it got. `None` if the
/// stream is not known any more.
pub(super) fn rest_of_request(
    front: &Front,
    session: &Session,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    let last = last_event(headers)?;
    let (stream, start) = match session.find(&last) {
        Found::Request(stream, start) => (stream, start),
        // It was cancelled, so it gets no answer.
        Found::Over => return Some(reply::empty(StatusCode::ACCEPTED)),
        Found::General(_) | Found::Gone(_) => return None,
    };
    let (reader, form) = (session.resume(stream, start)?, front.form(session.version()));
    Some(reply::streamed(Streamed::new(session, reader, last, form)))
}

/// An id that Mainstay has not issued does not identify a request, so it counts as one of the
/// general stream.
fn last_event(headers: &HeaderMap) -> Option<EventId> {
    headers.get(LAST_EVENT_ID)?.to_str().ok()?.parse().ok()
}

/// The client may have written anything there.
fn is_id(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok() && crate::frame::Id::new(text).is_some()
}

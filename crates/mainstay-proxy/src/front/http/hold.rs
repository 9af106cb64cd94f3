//! Requests that take long: the head of the response is sent, and the body follows the stream.
//!
//! A request that takes 150 ms is also journaled, so that it outlives this daemon: its client resumes with the id of
//! an event, or its connection is passed on to the next daemon ([`unfinished`](super::unfinished)). One that is part of
//! a batch is not, and `initialize` is repeated by the next daemon.

use hyper::{Response, StatusCode, Version};
use mainstay_session::Commit;
use tokio::time::Instant;

use super::Front;
use super::body::{Body, Streamed};
use super::head::{SESSION_ID, header};
use super::post::Asked;
use super::reply;
use super::unfinished::Form;
use crate::server::Reader;

/// An `initialize` up to this length is passed on to the next daemon. It must fit a message to the holder.
const SHORT_ENOUGH: usize = 8 << 10;

/// Sends the head: as an event stream, or as JSON kept alive by white space if the client accepts nothing else or would
/// refuse large events. From `journal_at` on the request is worth a place in the journal.
pub(super) fn commit(
    front: &Front,
    asked: Asked,
    reader: Reader,
    journal_at: Instant,
) -> Response<Body> {
    let Asked { session, accept, version, is_json_until_close: until_close, initialize, .. } =
        asked;
    let is_events = accept.events && !until_close;
    let session_id = initialize.as_ref().map(|_| header(session.id()));
    let initialize = initialize.filter(|request| request.len() <= SHORT_ENOUGH);
    let is_repeated = initialize.is_some();
    let journal_at = journal_at.into_std();
    let event = reader.commit(Commit { is_events, is_repeated, journal_at });
    // Its session has ended.
    let Some(event) = event else { return reply::empty(StatusCode::ACCEPTED) };
    let form = if is_events { front.form(version) } else { Form::Json };
    let streamed = Streamed::new(&session, reader, event, form).repeating(initialize);
    let mut response = reply::streamed(streamed);
    if until_close {
        // Such a response has no chunks: its end is the end of the connection.
        *response.version_mut() = Version::HTTP_10;
    }
    if let Some(id) = session_id {
        response.headers_mut().insert(SESSION_ID, id);
    }
    response
}

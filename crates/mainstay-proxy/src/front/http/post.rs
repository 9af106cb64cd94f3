//! POST: one message, or a batch.
//!
//! A request that takes 150 ms is journaled, so that it outlives this daemon: its client resumes with the id of an event,
//! or its connection is passed on to the next daemon ([`unfinished`](super::unfinished)). One that is part of a batch is
//! not, and `initialize` is repeated by the next daemon.
//!
//! It is read together with its head, and answered without it.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode, Version};
use mainstay_core::panics;
use mainstay_hold::limits::JOURNAL_AFTER;
use mainstay_session::{Arrival, Commit, client_version};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::Front;
use super::body::{Body, Streamed};
use super::caller::token_id;
use super::connection_state::ConnectionState;
use super::connections::ConnectionBudget;
use super::eviction::SWEEP;
use super::get;
use super::head::{self, Accept, SESSION_ID, header};
use super::reply::{self, Refusal};
use super::sequence::{self, Turn};
use super::unfinished::Form;
use crate::frame::{self, Frame, FrameError, Id, Kind, Method, Outcome, Parsed};
use crate::front::ProtocolVersion;
use crate::front::batch::{Batch, is_batch};
use crate::server::{Lookup, OpenError, Reader, Ready, Session};

/// Bodies up to this length are copied.
const SHORT: usize = 4 << 10;

/// Larger bodies reserve memory while they are read, in steps: a slow body reserves little more than it has sent.
const LARGE: usize = 64 << 10;
const STEP: usize = 1 << 20;

/// How long a body waits for memory.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(30);

/// The minimum rate of a large body in bytes per second, after a grace period. Without it, a few slow bodies could keep
/// all memory reserved.
const MIN_RATE: usize = 64 << 10;
const RATE_GRACE: Duration = Duration::from_secs(30);

/// An `initialize` up to this length is passed on to the next daemon. It must fit a message to the holder.
const SHORT_ENOUGH: usize = 8 << 10;

/// Reads a POST. A body may take long, so the caller is checked again when it is complete.
pub(super) async fn take(
    front: &Front,
    server: &str,
    headers: &HeaderMap,
    body: Incoming,
    conn: &ConnectionState,
    is_admitted: impl Fn() -> bool,
) -> Result<Taken, Refusal> {
    let accept = Accept::of(headers);
    if accept.is_nothing() {
        return Err(Refusal::NotAcceptable);
    }
    if !head::is_json(headers) {
        return Err(Refusal::ContentType);
    }
    if head::is_encoded(headers) {
        return Err(Refusal::ContentEncoding);
    }
    let version = head::version(headers);
    let text = read(body, front.config.limits.body, &front.config.budget, conn).await?;
    if !is_admitted() {
        return Err(Refusal::BadToken);
    }
    let find = async |if_lost| {
        let id = head::session_id(headers)?;
        front.servers.find(server, id, if_lost).await.map_err(Refusal::Lookup)
    };
    let session = async |version| {
        let session = find(Some(version)).await?;
        Ok((session, sequence::turn(front, headers).await?))
    };
    if is_batch(&text) {
        let (session, turn) = session(version?).await?;
        return take_batch(session, turn, accept, &text);
    }
    let message = parse(text).await.map_err(Refusal::Frame)?;
    if message.method() == Some(&Method::Discover) && !headers.contains_key(SESSION_ID) {
        // Checked before the version, because a client that probes for a newer one sends that.
        return Err(Refusal::Discover { id: id_of(&message) });
    }
    let version = version?;
    match message.kind() {
        Kind::Request if message.method() == Some(&Method::Initialize) => {
            // An id that is not known is one of a session that has ended.
            let session =
                if headers.contains_key(SESSION_ID) { find(None).await.ok() } else { None };
            match session {
                Some(session) if session.version().is_some() => Err(Refusal::Initialized),
                Some(session) => Ok(Taken::initialize(session, accept, message)),
                None => initialize(front, server, headers, accept, message),
            }
        }
        Kind::Request => {
            let (session, turn) = session(version).await?;
            let is_json_until_close = head::is_json_until_close(headers, accept);
            let repeated = head::repeated(headers);
            if repeated.is_some()
                && let Some(rest) = get::rest_of_request(front, &session, headers)
            {
                return Ok(Taken::Done(rest));
            }
            let (id, version) = (id_of(&message), session.version());
            let asked =
                Asked { session, id, accept, version, is_json_until_close, initialize: None, turn };
            let arrival =
                repeated.map_or(Arrival::New, |was_asked| Arrival::Repeated { was_asked });
            Ok(Taken::Request(asked, Request::One(message, arrival)))
        }
        Kind::Notification | Kind::Result | Kind::Error => {
            let (session, _turn) = session(version).await?;
            session.post(&message);
            Ok(Taken::Done(reply::empty(StatusCode::ACCEPTED)))
        }
    }
}

/// A POST that was read.
pub(super) enum Taken {
    /// A request that was not sent to its session yet.
    Request(Asked, Request),
    /// All is done; this is the response.
    Done(Response<Body>),
}

/// What is sent to a session.
pub(super) enum Request {
    One(Parsed, Arrival),
    Batch(Vec<Parsed>),
}

impl Taken {
    fn initialize(session: Session, accept: Accept, message: Parsed) -> Self {
        let asked = Asked::initialize(session, accept, &message);
        Self::Request(asked, Request::One(message, Arrival::New))
    }
}

/// A request of a client, as far as the form of the answer depends on it.
pub(super) struct Asked {
    pub(super) session: Session,
    /// As JSON; none for a batch.
    pub(super) id: Option<Box<str>>,
    pub(super) accept: Accept,
    pub(super) version: Option<ProtocolVersion>,
    /// See [`head::is_json_until_close`].
    pub(super) is_json_until_close: bool,
    /// The text of an `initialize`.
    pub(super) initialize: Option<Bytes>,
    turn: Option<Turn>,
}

impl Asked {
    pub(super) fn initialize(session: Session, accept: Accept, message: &Parsed) -> Self {
        Self {
            session,
            id: id_of(message),
            accept,
            version: client_version(message),
            is_json_until_close: false,
            initialize: Some(message.text().clone()),
            turn: None,
        }
    }
}

fn initialize(
    front: &Front,
    server: &str,
    headers: &HeaderMap,
    accept: Accept,
    message: Parsed,
) -> Result<Taken, Refusal> {
    match front.servers.open(server) {
        Ok(session) => {
            if let Some(token) = token_id(&front.config.callers.tokens, headers, server) {
                session.set_token(token);
            }
            Ok(Taken::initialize(session, accept, message))
        }
        Err(OpenError::NoSuchServer) => Err(Refusal::Lookup(Lookup::NoSuchServer)),
        Err(error @ OpenError::TooManySessions) => {
            let failure = reply::failure(id_of(&message).as_deref(), &error.to_string());
            Ok(Taken::Done(failure))
        }
    }
}

fn take_batch(
    session: Session,
    turn: Option<Turn>,
    accept: Accept,
    text: &Bytes,
) -> Result<Taken, Refusal> {
    let version = session.version();
    let Batch { requests, others } = Batch::read(text, version).map_err(Refusal::Batch)?;
    for message in others {
        session.post(&message);
    }
    if requests.is_empty() {
        return Ok(Taken::Done(reply::empty(StatusCode::ACCEPTED)));
    }
    let (id, is_json_until_close) = (None, false);
    let asked = Asked { session, id, accept, version, is_json_until_close, initialize: None, turn };
    Ok(Taken::Request(asked, Request::Batch(requests)))
}

/// The error for a request whose handler panicked.
const FAILED: &str = "Mainstay failed to answer this request; its effect is unknown. \
    The cause is in the daemon's log.";

/// Sends a request to its session, and waits for the answer for a short while. `headers` is the cleared header map of the
/// request: the response reuses it, which saves an allocation.
///
/// Not an `async fn`, so that the request is not part of the future.
pub(super) fn ask(
    front: &Front,
    mut asked: Asked,
    request: Request,
    headers: HeaderMap,
) -> impl Future<Output = Response<Body>> {
    let now = Instant::now();
    let due = now + JOURNAL_AFTER;
    let sent = panics::catch(|| match request {
        Request::One(message, arrival) => {
            debug_assert!(!frame::is_test_panic(&message), "requested by a test");
            asked.session.request_when_polled(message, arrival)
        }
        Request::Batch(messages) => asked.session.batch(messages),
    });
    let delay = front.config.kind.response_delay(asked.turn.is_some());
    drop(asked.turn.take());
    async move {
        let Ok(mut reader) = sent else { return reply::failure(asked.id.as_deref(), FAILED) };
        match timeout_at(now + delay, poll_fn(|cx| reader.poll_ready(cx))).await {
            Ok(Ready::Answer(answer)) if asked.accept.json => plain(&asked, answer, headers),
            Ok(Ready::End) => reply::empty(StatusCode::ACCEPTED),
            Ok(Ready::Answer(_)) | Err(_) => commit(front, asked, reader, due),
            // A client that has received something can resume the stream, so it is journaled at once.
            Ok(Ready::Message) => commit(front, asked, reader, Instant::now()),
        }
    }
}

/// Sends the head: as an event stream, or as JSON kept alive by white space if the client accepts nothing else or would
/// refuse large events. From `journal_at` on the request is worth a place in the journal.
pub(super) fn commit(
    front: &Front,
    asked: Asked,
    mut reader: Reader,
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

fn plain(asked: &Asked, answer: Bytes, headers: HeaderMap) -> Response<Body> {
    let is_result = |answer: &[u8]| {
        matches!(frame::scan(answer), Ok(Frame::Response { outcome: Outcome::Ok(_), .. }))
    };
    let is_opened = asked.initialize.is_some() && is_result(&answer);
    let mut response = reply::plain(answer, headers);
    if is_opened {
        response.headers_mut().insert(SESSION_ID, header(asked.session.id()));
    }
    response
}

/// The id of a request, as JSON.
fn id_of(request: &Parsed) -> Option<Box<str>> {
    request.id().map(Id::get).map(Box::from)
}

/// Reads a body. A long one that came in one piece is not copied; a short one is, so that it does
/// not keep the connection's buffer, into which it was read.
async fn read(
    mut body: Incoming,
    limit: usize,
    budget: &ConnectionBudget,
    conn: &ConnectionState,
) -> Result<Bytes, Refusal> {
    let too_large = Refusal::TooLarge { limit };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large);
    }
    let mut large_since = None;
    let mut reserved = Vec::new();
    let mut first = Bytes::new();
    let mut text = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refusal::Cut)?.into_data() else { continue };
        if first.is_empty() && text.is_empty() {
            first = data;
            continue;
        }
        if text.is_empty() {
            text.extend_from_slice(&std::mem::take(&mut first));
        }
        if text.len() + data.len() > limit {
            return Err(too_large);
        }
        let length = text.len() + data.len();
        if length > LARGE {
            if length > reserved.len() * STEP {
                reserved.push(reserve_step(budget, conn).await?);
            }
            let since = *large_since.get_or_insert_with(Instant::now);
            let due = since + RATE_GRACE + Duration::from_secs((length / MIN_RATE) as u64);
            if Instant::now() > due {
                return Err(Refusal::TooSlow);
            }
        }
        text.extend_from_slice(&data);
    }
    Ok(match text.is_empty() {
        true if first.len() <= SHORT => Bytes::copy_from_slice(&first),
        true => first,
        false => text.freeze(),
    })
}

/// Reads a message. That of a large one takes long enough to hold up others, so it is done on a blocking thread.
async fn parse(text: Bytes) -> Result<Parsed, FrameError> {
    if text.len() <= STEP {
        return Parsed::read(text);
    }
    let parsed = tokio::task::spawn_blocking(move || Parsed::read(text)).await;
    parsed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Waits for memory for another part of a large body. Meanwhile the connection does not count as stalled.
async fn reserve_step<'a>(
    budget: &'a ConnectionBudget,
    conn: &ConnectionState,
) -> Result<SemaphorePermit<'a>, Refusal> {
    let mut memory = std::pin::pin!(budget.reserve_body(STEP));
    let until = Instant::now() + MEMORY_TIMEOUT;
    while Instant::now() < until {
        match timeout(SWEEP, &mut memory).await {
            Ok(memory) => return memory.ok_or(Refusal::TooManyLarge),
            Err(_) => conn.head_read(),
        }
    }
    Err(Refusal::TooManyLarge)
}

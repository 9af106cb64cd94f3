//! Requests of clients: from their arrival to their one answer.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::{self, Id, Method, Parsed};
use mainstay_mcp::lists::ListKind;
use mainstay_mcp::upstream::UpstreamError;
use mainstay_mcp::version::ProtocolVersion;
use serde::{Deserialize, Serialize};

use crate::availability::Availability;
use crate::http::OperationKey;
use crate::initialize::Initialize;
use crate::late_results;
use crate::links::LinkKey;
use crate::messages;
use crate::progress::Progress;
use crate::record::Sent;
use crate::replay::{InFlightOn, NoAnswer, Replay};
use crate::server::Server;
use crate::session::SessionKey;
use crate::stream::{BatchMember, Durable, Inherited, Start, Stream};
use crate::streams::StreamRef;
use crate::table::Key;

/// How many requests may be held for one server at a time.
pub(crate) const MAX_HELD: usize = 4096;

/// Limits of unanswered requests per server and per session. Further requests are refused before anything is sent to
/// the server.
const MAX_OPEN: usize = 8192;
const MAX_OPEN_IN_SESSION: usize = 1024;

/// The same for the bytes of large requests. Small requests are not counted, so that large ones cannot block them.
const MAX_OPEN_BYTES: usize = 256 << 20;
const MAX_OPEN_BYTES_IN_SESSION: usize = 64 << 20;
const LARGE: usize = 16 << 10;

/// The error for any other request than `initialize` and `ping` before a session is initialized.
pub const NOT_INITIALIZED: &str = "a session begins with `initialize`";

/// The error for `server/discover`, with the code for an unknown method. Clients that also speak versions with a
/// handshake then send `initialize`.
pub const NO_DISCOVER: &str =
    "`server/discover` is not supported; a session begins with `initialize`";

/// A call of a server. It is boxed, because it is large and taken out of its table several times.
pub type CallKey = Key<Box<Call>>;

/// A request of a client that is not answered yet.
#[derive(Debug)]
pub struct Call {
    pub(crate) session: SessionKey,
    pub(crate) stream: StreamRef,
    pub(crate) message: Parsed,
    /// When it came in. One that an earlier daemon took counts from its recovery.
    pub(crate) arrived: Instant,
    /// When it is answered without the server, if its time is limited.
    pub(crate) due: Option<Instant>,
    pub(crate) kind: CallKind,
    pub(crate) replay: Replay,
    pub(crate) hold: Duration,
    pub(crate) progress: Option<Box<Progress>>,
    pub(crate) stage: Stage,
    /// Whether it counts as held.
    pub(crate) is_held: bool,
    /// Its size as counted against the limit: 0 if it is small.
    bytes: usize,
    /// Whether the client has answered a request of the server on its account.
    pub(crate) is_interactive: bool,
}

/// What is special about the answer to a request.
#[derive(Debug)]
pub(crate) enum CallKind {
    Tool,
    List(ListKind),
    Initialize(Box<Initialize>),
    /// The subscription that was added for it.
    Subscribe(Option<String>),
    Other,
}

/// Where a request is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// It waits for a run, or for a time.
    Waiting,
    /// It waits until the server reads its input.
    Queued(LinkKey),
    /// It was sent to a stdio server under this id.
    AtStdio { link: LinkKey, id: u64 },
    /// The session of its client with an HTTP server is being opened.
    OpeningUpstream,
    /// It was sent to an HTTP server.
    AtHttp { link: LinkKey, operation: OperationKey },
    /// An earlier daemon waits for its answer.
    Relayed,
    /// It waits for the identical call of this stream, which the client had given up.
    Joined(StreamRef),
    /// The first page of its list came, and the copies are being read.
    AwaitingLists { generation: u64, until: Instant },
    /// The record of its session is being written.
    AwaitingRecord { until: Instant, answer: Bytes },
    /// The record is written, or the answer is known otherwise.
    Over,
}

impl Call {
    /// Whether the server may have executed it, now or before.
    pub(crate) fn may_have_run(&self) -> bool {
        match self.stage {
            Stage::AtStdio { .. } | Stage::AtHttp { .. } | Stage::Relayed | Stage::Joined(_) => {
                true
            }
            Stage::Waiting
            | Stage::Queued(_)
            | Stage::OpeningUpstream
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => self.replay.may_have_run(),
        }
    }
}

/// How a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    New,
    /// Its client lost the response, and sends it again. It may have been executed.
    Repeated {
        /// Whether the server asked the client something on its account.
        was_asked: bool,
    },
}

impl Server {
    /// Takes a request of a client. Returns its stream, which has this call's reader as its first.
    pub fn request(
        &mut self,
        now: Instant,
        session: SessionKey,
        message: Parsed,
        arrival: Arrival,
    ) -> (StreamRef, u64) {
        let mut stream = Stream::request(session);
        let (turn, _) = stream.attach(Start::Unread);
        if let (Arrival::Repeated { was_asked }, Some(request)) = (arrival, stream.as_request_mut())
        {
            request.inherited = Some(Inherited::repeated(was_asked));
        }
        if arrival != Arrival::New {
            // The attempt before counts, also for a later daemon. Which run had it is not known.
            stream.attempts = 1;
            stream.sent = Some(Sent { generation: 0, line: None });
        }
        if let Some(request) = stream.as_request_mut() {
            request.opens_session = message.method() == Some(&Method::Initialize);
        }
        if self.sessions.get(session).is_some_and(|session| session.is_local) {
            stream.durable = Durable::Never;
        }
        let is_local = matches!(stream.durable, Durable::Never);
        let stream = self.streams.insert(stream);
        self.begin_call(now, session, stream, message);
        if is_local {
            // Its response has no head.
            self.limit_waiting(stream);
        }
        (stream, turn)
    }

    /// Takes the requests of a batch, which are answered together in an array.
    pub fn batch(
        &mut self,
        now: Instant,
        session: SessionKey,
        messages: Vec<Parsed>,
    ) -> (StreamRef, u64) {
        let mut stream = Stream::request(session);
        let (turn, _) = stream.attach(Start::Unread);
        stream.durable = Durable::Never;
        let stream = self.streams.insert(stream);
        // All members are known before the first one can be answered.
        let calls: Vec<_> = messages
            .into_iter()
            .map(|message| self.new_call(now, session, stream, message))
            .collect();
        let members = calls.iter().map(|call| BatchMember::Open(*call)).collect();
        if let Some(request) = self.streams.get_mut(stream).and_then(Stream::as_request_mut) {
            request.batch = Some(members);
        }
        for call in calls {
            self.start_call(now, call);
        }
        (stream, turn)
    }

    pub(crate) fn begin_call(
        &mut self,
        now: Instant,
        session: SessionKey,
        stream: StreamRef,
        message: Parsed,
    ) {
        let call = self.new_call(now, session, stream, message);
        if let Some(request) = self.streams.get_mut(stream).and_then(Stream::as_request_mut) {
            request.call = Some(call);
        }
        self.start_call(now, call);
    }

    fn new_call(
        &mut self,
        arrived: Instant,
        session: SessionKey,
        stream: StreamRef,
        message: Parsed,
    ) -> CallKey {
        let hold = self.settings.hold;
        let inherited = self.streams.get(stream).and_then(Stream::inherited);
        let replay = match inherited {
            Some(inherited @ Inherited { sent: Some(Sent { generation, .. }), attempts, .. }) => {
                let can_answer = inherited.can_be_answered();
                let (generation, attempts) = (*generation, *attempts);
                Replay::recovered(hold, InFlightOn { generation, can_answer, attempts })
            }
            Some(Inherited { sent: None, .. }) | None => Replay::new(hold),
        };
        let bytes = Some(message.text().len()).filter(|bytes| *bytes > LARGE).unwrap_or(0);
        self.calls.insert(Box::new(Call {
            session,
            stream,
            message,
            arrived,
            due: None,
            kind: CallKind::Other,
            replay,
            hold,
            progress: None,
            stage: Stage::Waiting,
            is_held: false,
            bytes,
            is_interactive: false,
        }))
    }

    fn start_call(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        let (session_key, bytes) = (call.session, call.bytes);
        let (Some(id), Some(method)) = (call.message.id(), call.message.method().cloned()) else {
            return self.refuse_unopened(now, key, None);
        };
        let Some(session) = self.sessions.get_mut(session_key) else {
            let text = match &self.availability {
                removed @ Availability::Removed => {
                    let text =
                        messages::no_answer(&self.name, NoAnswer::Removed, removed, now, call.hold);
                    refusal(id, messages::cause(NoAnswer::Removed), &text)
                }
                _ => frame::error(id, frame::INTERNAL_ERROR, "the session has ended"),
            };
            return self.refuse_unopened(now, key, Some(text));
        };
        if let Some((code, why)) = refusal_of(&method, session.version) {
            let text = frame::error(id, code, why);
            return self.refuse_unopened(now, key, Some(text));
        }
        let inherited = self.streams.get(call.stream).and_then(Stream::inherited);
        let is_accepted = inherited.is_some_and(|inherited| !inherited.is_repeated);
        let in_session = (session.open.len(), session.open_bytes);
        if !is_accepted && !fits(in_session, (self.open, self.open_bytes), bytes) {
            let text = refusal(id, "too-many-requests", messages::TOO_MANY);
            return self.refuse_unopened(now, key, Some(text));
        }
        session.open.push(key);
        session.open_bytes += bytes;
        self.open += 1;
        self.open_bytes += bytes;
        if method == Method::Ping {
            let answer = frame::empty_result(id);
            self.mark_used(now, session_key);
            return self.answer(now, key, Some(answer));
        }
        if method == Method::Initialize {
            return self.begin_initialize(now, key);
        }
        self.mark_used(now, session_key);
        self.isolate(now, session_key);
        match method {
            Method::ToolsCall => self.begin_tool_call(now, key),
            Method::SetLevel => self.begin_set_level(now, key),
            Method::ResourcesSubscribe => self.begin_subscribe(now, key),
            Method::ResourcesUnsubscribe => self.begin_unsubscribe(now, key),
            method => match ListKind::of(&method) {
                Some(kind) => self.begin_list(now, key, kind),
                None => self.pass(now, key),
            },
        }
    }

    /// Answers a call that was not opened.
    fn refuse_unopened(&mut self, now: Instant, key: CallKey, answer: Option<Bytes>) {
        if let Some(call) = self.calls.remove(key) {
            self.finish_call(now, key, call.stream, answer);
        }
    }

    /// Answers a call, or ends it without an answer if its client does not wait for one.
    pub(crate) fn answer(&mut self, now: Instant, key: CallKey, answer: Option<Bytes>) {
        if let Some(call) = self.calls.take(key) {
            self.answer_taken(now, key, call, answer);
        }
    }

    /// The same, for a call that was taken out of the table.
    pub(crate) fn answer_taken(
        &mut self,
        now: Instant,
        key: CallKey,
        call: Box<Call>,
        answer: Option<Bytes>,
    ) {
        self.calls.free(key);
        self.release_call(now, key, &call);
        let is_result =
            |answer: &Bytes| Parsed::read(answer.clone()).is_ok_and(|it| it.result().is_some());
        let Call { session, stream, message, .. } = *call;
        let fails_session = message.method() == Some(&Method::Initialize)
            && !answer.as_ref().is_some_and(is_result);
        self.finish_call(now, key, stream, answer);
        if fails_session {
            self.end_unopened_session(now, session);
        } else {
            self.drop_ended_session(session);
        }
    }

    /// Ends a session whose `initialize` failed or was given up.
    fn end_unopened_session(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get(key).filter(|session| !session.is_over()) else {
            return self.drop_ended_session(key);
        };
        let id = std::sync::Arc::clone(&session.id);
        if session.is_local || !self.close(now, &id) {
            self.end_session(now, key);
            self.drop_ended_session(key);
        }
    }

    /// Removes a call from all counts, and from its session.
    fn release_call(&mut self, now: Instant, key: CallKey, call: &Call) {
        if call.is_held {
            self.held -= 1;
        }
        self.drop_call_timeout(key, call);
        self.open -= 1;
        self.open_bytes -= call.bytes;
        self.recovered.retain(|request| request.call != key);
        if let Some(session) = self.sessions.get_mut(call.session) {
            session.open.retain(|open| *open != key);
            session.open_bytes -= call.bytes;
            // Requests of the server that were part of it stay unanswered.
            session.server_requests.retain(|request| request.stream != Some(call.stream));
            if session.open.is_empty() && session.open.capacity() > 8 {
                session.open = Vec::new();
            }
        }
        self.touch(now, call.session);
    }

    /// The client has given up a call: it is cancelled at the server, and gets no answer.
    pub(crate) fn give_up(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.take(key) else { return };
        if let Stage::Joined(earlier) = call.stage {
            self.cancel_joined(now, key, earlier);
        }
        self.cancel_at_server(now, key, &call);
        if call.is_held && matches!(call.stage, Stage::Waiting) {
            let what = "the client gave it up while it was held";
            self.record_decision(&call, "gone", what, None);
        }
        self.answer_taken(now, key, call, None);
    }

    /// The client cancels a request, or gives it up by its own timeout.
    pub(crate) fn cancel(&mut self, now: Instant, key: SessionKey, notification: &Parsed) {
        let Some(place) = notification.cancelled_id() else { return };
        let id = notification.get(place);
        let Some(session) = self.sessions.get(key) else { return };
        let has_id = |call: &&CallKey| {
            let call = self.calls.get(**call);
            call.and_then(|call| call.message.id()).is_some_and(|other| other.get() == id)
        };
        // If an id is used twice, the newer request has it.
        let Some(call) = session.open.iter().rev().find(has_id).copied() else { return };
        let Some(stream) = self.calls.get(call).map(|call| call.stream) else { return };
        let request = self.streams.get(stream).and_then(Stream::as_request);
        if request.is_some_and(|request| request.batch.is_some()) {
            self.give_up(now, call);
        } else {
            let is_timeout = late_results::is_timeout(notification);
            self.cancel_stream(now, key, stream, is_timeout);
        }
    }
}

/// Why no server gets to see a request, if so: it may not be initialized for this client, or exit on a method that its
/// protocol version does not have.
fn refusal_of(method: &Method, version: Option<ProtocolVersion>) -> Option<(i64, &'static str)> {
    match (method, version) {
        (Method::Initialize | Method::Ping, _) => None,
        (Method::Discover, _) => Some((frame::METHOD_NOT_FOUND, NO_DISCOVER)),
        (_, None) => Some((frame::INVALID_REQUEST, NOT_INITIALIZED)),
        (_, Some(_)) => None,
    }
}

/// Whether another request fits the limits. `bytes` is 0 for a small request. Open requests are given as their number
/// and the bytes of the large ones.
fn fits(in_session: (usize, usize), of_server: (usize, usize), bytes: usize) -> bool {
    let count = in_session.0 < MAX_OPEN_IN_SESSION && of_server.0 < MAX_OPEN;
    let is_small = bytes == 0;
    let size =
        in_session.1 + bytes <= MAX_OPEN_BYTES_IN_SESSION && of_server.1 + bytes <= MAX_OPEN_BYTES;
    count && (is_small || size)
}

/// An error of Mainstay, not of a server; programs recognise it by its data.
pub(crate) fn refusal(id: Id<'_>, cause: &str, text: &str) -> Bytes {
    frame::error_with_data(id, frame::INTERNAL_ERROR, text, &Refusal { mainstay: cause })
}

/// The data of Mainstay's own errors.
#[derive(Serialize, Deserialize)]
struct Refusal<'a> {
    /// What was decided, in one word.
    mainstay: &'a str,
}

/// Distinguishes Mainstay's own refusals from errors of the server.
pub fn classify_refusal(error: UpstreamError) -> UpstreamError {
    let UpstreamError::Rpc { method, message, data: Some(data), .. } = &error else { return error };
    match serde_json::from_str(data.get()) {
        Ok(Refusal { mainstay: "effect-unknown" }) => {
            UpstreamError::Closed { method: method.clone(), sent: true }
        }
        Ok(Refusal { .. }) => UpstreamError::Unavailable(message.clone()),
        Err(_) => error,
    }
}

/// The answers to a batch, as an array.
pub(crate) fn join(answers: &[Bytes]) -> Bytes {
    let mut array = vec![b'['];
    for (place, answer) in answers.iter().enumerate() {
        if place > 0 {
            array.push(b',');
        }
        array.extend_from_slice(answer);
    }
    array.push(b']');
    array.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_and_servers_have_limits_and_small_requests_pass_large_ones() {
        let check = |in_session, of_server, bytes, expected| {
            let fits = fits(in_session, of_server, bytes);
            assert_eq!(fits, expected, "{in_session:?} {of_server:?} {bytes}");
        };
        check((1023, 0), (8191, 0), 0, true);
        check((1024, 0), (1024, 0), 0, false);
        check((0, 0), (8192, 0), 0, false);
        check((1, 48 << 20), (1, 48 << 20), 16 << 20, true);
        check((1, 48 << 20), (1, 48 << 20), (16 << 20) + 1, false);
        check((0, 0), (20, 250 << 20), 6 << 20, true);
        check((0, 0), (20, 250 << 20), 7 << 20, false);
        check((9, 64 << 20), (99, 256 << 20), 0, true);
    }
}

//! Exchanges with servers that speak streamable HTTP: one JSON message, or a stream of events that may break off and be
//! resumed.

use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use mainstay_mcp::client::{
    BodyError, Client, ContentType, Headers, Method, Request, Response, SendError,
};
use mainstay_mcp::frame::{self, Kind, Method as Rpc, Parsed};
use mainstay_mcp::loss::is_session_lost;
use mainstay_mcp::sse::Parser;
use mainstay_mcp::upstream::{self, Hello, MAX_LINE, UpstreamError};
use mainstay_session::{
    HttpFailure, HttpOperation, HttpOutcome, Level, OperationKey, UpstreamSession,
};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout};

use super::operation::Control;
use super::retries::{self, Resumes};
use super::{END_TIMEOUT, Inner, NOTIFY_TIMEOUT, ServerHandle};

/// How much of an error's body is read.
const ERROR_BODY: usize = 64 * 1024;

/// How long a server's events wait for a client that does not read them. A server with a single thread serves nobody meanwhile.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);

/// The headers of every POST.
static POST: LazyLock<Headers> = LazyLock::new(|| {
    let (kind, accept) = ("application/json", "application/json, text/event-stream");
    Headers::new(&[("Content-Type", kind), ("Accept", accept)]).expect("these are headers")
});

/// The outcome of an operation on a link that is gone.
pub(super) fn unsent() -> HttpOutcome {
    HttpOutcome::Failed(HttpFailure::Unsent)
}

pub(super) struct Exchange {
    pub(super) server: Weak<Inner>,
    pub(super) key: OperationKey,
    pub(super) client: Client,
    pub(super) control: Arc<Control>,
}

impl Exchange {
    pub(super) async fn perform_request(
        &self,
        session: &UpstreamSession,
        message: &Parsed,
    ) -> HttpOutcome {
        match self.request(session, message).await {
            Ok(answer) => HttpOutcome::Answered(answer),
            Err(failure) => HttpOutcome::Failed(failure),
        }
    }

    pub(super) async fn perform(&self, operation: HttpOperation) -> HttpOutcome {
        match operation {
            HttpOperation::Open { generation, params, level, subscriptions, is_starting } => loop {
                let level = level.map(Level::as_str);
                let subscriptions = subscriptions.iter().map(String::as_str);
                match self.open(generation, params.as_deref(), level, subscriptions).await {
                    Ok((session, hello)) => return HttpOutcome::Opened(Arc::new(session), hello),
                    Err(error) => match retries::open_again(&error, is_starting) {
                        Some(pause) => sleep(pause).await,
                        None => return unusable(error),
                    },
                }
            },
            HttpOperation::Request { session, message } => {
                Box::pin(self.perform_request(&session, &message)).await
            }
            HttpOperation::Ask { session, id, method, params } => {
                match self.ask(&session, id, method, params.as_deref()).await {
                    Ok(result) => HttpOutcome::Result(result),
                    Err(error) => unusable(error),
                }
            }
            HttpOperation::Notify { session, message } => {
                // Read to its end, so that the connection can be used again.
                let sent = async {
                    self.post(Some(&session), &message).await.ok()?.bytes(ERROR_BODY).await.ok()
                };
                drop(timeout(NOTIFY_TIMEOUT, sent).await);
                HttpOutcome::Done
            }
            HttpOperation::Listen { session, last_event } => {
                self.listen(&session, last_event).await
            }
            HttpOperation::Delete { session } => {
                // A server that does not know the session any more, or cannot be reached, needs no end.
                drop(timeout(END_TIMEOUT, self.send(&session, Method::Delete, &[])).await);
                HttpOutcome::Done
            }
        }
    }

    /// `initialize`, `notifications/initialized`, then the level and the subscriptions.
    async fn open(
        &self,
        generation: u64,
        params: Option<&RawValue>,
        level: Option<&str>,
        subscriptions: impl Iterator<Item = &str>,
    ) -> Result<(UpstreamSession, Hello), UpstreamError> {
        const METHOD: &str = "initialize";
        let request = frame::request(0, METHOD, params);
        let sent = self.post(None, &request).await;
        let mut response = sent.map_err(|error| upstream::not_sent(METHOD, error))?;
        let id = response.header("mcp-session-id").map(str::to_owned);
        if response.status() != 200 {
            let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
            // No session is lost: there was none.
            let body = upstream::excerpt(&body);
            let (method, status) = (METHOD.to_owned(), response.status());
            return Err(UpstreamError::Http { method, status, body });
        }
        let answer = only_answer(METHOD, &mut response).await?;
        let hello = Hello::read(upstream::result_of(METHOD, &answer)?, id)?;
        let session = UpstreamSession::known(generation, &hello)?;
        self.notify(&session, &frame::notification("notifications/initialized", None)).await;
        if let Some(level) = level {
            let params = upstream::string_param("level", level);
            self.notify(&session, &frame::request(1, "logging/setLevel", Some(&params))).await;
        }
        for (number, uri) in subscriptions.enumerate() {
            let params = upstream::string_param("uri", uri);
            let id = 2 + number as u64;
            self.notify(&session, &frame::request(id, "resources/subscribe", Some(&params))).await;
        }
        Ok((session, hello))
    }

    /// Sends something whose answer does not matter: a server that refuses it goes without.
    async fn notify(&self, session: &UpstreamSession, message: &[u8]) {
        if let Ok(mut response) = self.post(Some(session), message).await {
            response.bytes(MAX_LINE).await.ok();
        }
    }

    async fn ask(
        &self,
        session: &UpstreamSession,
        id: u64,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let request = frame::request(id, method, params);
        let sent = self.post(Some(session), &request).await;
        let mut response = sent.map_err(|error| upstream::not_sent(method, error))?;
        if response.status() != 200 {
            let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
            return Err(upstream::bad_status(method, response.status(), &body));
        }
        let answer = only_answer(method, &mut response).await?;
        upstream::result_of(method, &answer)
    }

    /// Sends a request of a client, and reads to the answer; what comes before it is reported.
    async fn request(
        &self,
        session: &UpstreamSession,
        message: &Parsed,
    ) -> Result<Parsed, HttpFailure> {
        let sent = self.post(Some(session), message.text()).await;
        let mut response = sent
            .map_err(|error| if error.sent() { HttpFailure::Lost } else { HttpFailure::Unsent })?;
        let method = message.method().map_or("", Rpc::as_str);
        if response.status() != 200 {
            return Box::pin(refused(method, &mut response)).await;
        }
        if response.content_type() == ContentType::EventStream {
            self.enter(|machine, now| machine.http_streaming(now, self.key));
            return Box::pin(self.follow(session, message, response)).await;
        }
        let body = match response.bytes(MAX_LINE).await {
            Ok(body) => body,
            Err(error @ BodyError::TooLong { .. }) => {
                return Err(HttpFailure::Unusable(upstream::protocol(method, error)));
            }
            Err(_) => return Err(HttpFailure::Lost),
        };
        let no_answer = || {
            let text = upstream::excerpt(&body);
            let what = format_args!("something that is not an answer: {text}");
            HttpFailure::Unusable(upstream::protocol(method, what))
        };
        let answer = Parsed::read(body.clone()).map_err(|_| no_answer())?;
        match answer.kind() {
            Kind::Error if is_session_lost(Some(200), &body) => Err(HttpFailure::SessionLost),
            Kind::Result | Kind::Error => Ok(answer),
            Kind::Request | Kind::Notification => Err(no_answer()),
        }
    }

    /// Follows a stream to the answer.
    async fn follow(
        &self,
        session: &UpstreamSession,
        message: &Parsed,
        mut response: Response,
    ) -> Result<Parsed, HttpFailure> {
        let mut parser = Parser::new(MAX_LINE);
        let mut events = Vec::new();
        let mut resumes = Resumes::new(Instant::now().into_std());
        let mut is_reader_awaited = true;
        loop {
            if let Ok(Some(chunk)) = response.chunk().await {
                let read = parser.feed(&chunk, &mut events);
                let mut has_room = true;
                for event in events.drain(..) {
                    resumes.record_event(Instant::now().into_std(), &event);
                    let Ok(received) = Parsed::read(event.data) else { continue };
                    if is_answer_to(message, &received) {
                        let is_lost = received.kind() == Kind::Error
                            && is_session_lost(None, received.text());
                        return if is_lost { Err(HttpFailure::SessionLost) } else { Ok(received) };
                    }
                    has_room &= self
                        .enter(|machine, now| machine.http_message(now, self.key, &received))
                        .unwrap_or(true);
                }
                if read.is_err() {
                    let what = format!("an event of more than {MAX_LINE} bytes");
                    let method = message.method().map_or("", Rpc::as_str);
                    return Err(HttpFailure::Unusable(upstream::protocol(method, what)));
                }
                // After that, notifications are dropped until the client reads.
                if !is_reader_awaited {
                    is_reader_awaited = self.control.has_read();
                } else if !has_room {
                    is_reader_awaited = timeout(ROOM_PATIENCE, self.control.room()).await.is_ok();
                }
                continue;
            }
            // It broke off. If it has event ids, it can be resumed.
            let pause = resumes.next(Instant::now().into_std(), parser.retry());
            let Some((last, pause)) = parser.last_event_id().zip(pause) else {
                return Err(HttpFailure::Lost);
            };
            let last = last.to_owned();
            sleep(pause).await;
            let headers = [("Accept", "text/event-stream"), ("Last-Event-ID", &*last)];
            response = match self.send(session, Method::Get, &headers).await {
                Ok(response) if response.status() == 200 => response,
                Ok(_) | Err(_) => return Err(HttpFailure::Lost),
            };
            parser = Parser::resumed(MAX_LINE, last);
        }
    }

    /// Listens to one stream to its end.
    async fn listen(&self, session: &UpstreamSession, last_event: Option<String>) -> HttpOutcome {
        let mut headers = vec![("Accept", "text/event-stream")];
        headers.extend(last_event.as_ref().map(|last| ("Last-Event-ID", last.as_str())));
        let Ok(mut response) = self.send(session, Method::Get, &headers).await else {
            return HttpOutcome::ListenFailed;
        };
        if response.status() != 200 || response.content_type() != ContentType::EventStream {
            let status = response.status();
            let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
            let is_session_lost = is_session_lost(Some(status), &body);
            return HttpOutcome::ListenRefused { status, is_session_lost };
        }
        let mut parser = match last_event {
            Some(last) => Parser::resumed(MAX_LINE, last),
            None => Parser::new(MAX_LINE),
        };
        let mut events = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            if parser.feed(&chunk, &mut events).is_err() {
                break;
            }
            // Recorded immediately, because this task may be aborted at any time.
            if let Some(last) = parser.last_event_id().filter(|_| !events.is_empty()) {
                self.enter(|machine, _| machine.http_event_id(self.key, last));
            }
            for event in events.drain(..) {
                if let Ok(message) = Parsed::read(event.data) {
                    self.enter(|machine, now| machine.http_message(now, self.key, &message));
                }
            }
        }
        HttpOutcome::ListenEnded { retry: parser.retry() }
    }

    async fn post(
        &self,
        session: Option<&UpstreamSession>,
        body: &[u8],
    ) -> Result<Response, SendError> {
        let request = Request { method: Method::Post, headers: &[], body };
        let trace = &self.control.trace;
        match session {
            Some(session) => {
                self.client.send_traced(&[&POST, &session.headers], request, trace).await
            }
            None => self.client.send_traced(&[&POST], request, trace).await,
        }
    }

    /// Sends a request without a body.
    async fn send(
        &self,
        session: &UpstreamSession,
        method: Method,
        headers: &[(&str, &str)],
    ) -> Result<Response, SendError> {
        let request = Request { method, headers, body: &[] };
        self.client.send_traced(&[&session.headers], request, &self.control.trace).await
    }

    fn enter<T>(
        &self,
        call: impl FnOnce(&mut mainstay_session::Server, std::time::Instant) -> T,
    ) -> Option<T> {
        self.server.upgrade().map(|inner| ServerHandle { inner }.enter(call))
    }
}

fn unusable(error: UpstreamError) -> HttpOutcome {
    HttpOutcome::Failed(HttpFailure::Unusable(error))
}

fn is_answer_to(request: &Parsed, message: &Parsed) -> bool {
    match message.kind() {
        Kind::Result => message.id() == request.id(),
        // A server that refuses a request may not have read its id.
        Kind::Error => message.id() == request.id() || message.id().is_none(),
        Kind::Request | Kind::Notification => false,
    }
}

async fn refused(method: &str, response: &mut Response) -> Result<Parsed, HttpFailure> {
    let status = response.status();
    let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
    if is_session_lost(Some(status), &body) {
        return Err(HttpFailure::SessionLost);
    }
    match Parsed::read(body.clone()) {
        // Some servers say with a status what they also say in the message.
        Ok(answer) if answer.kind() == Kind::Error => Ok(answer),
        Ok(_) | Err(_) => Err(HttpFailure::Unusable(upstream::bad_status(method, status, &body))),
    }
}

/// The answer in a response to a request of Mainstay itself; what comes before it is dropped.
async fn only_answer(method: &str, response: &mut Response) -> Result<Parsed, UpstreamError> {
    let closed = || UpstreamError::Closed { method: method.to_owned(), sent: true };
    if response.content_type() != ContentType::EventStream {
        let body: Bytes = response.bytes(MAX_LINE).await.map_err(|_| closed())?;
        return Parsed::read(body.clone()).map_err(|_| {
            let text = upstream::excerpt(&body);
            upstream::protocol(method, format_args!("something that is not an answer: {text}"))
        });
    }
    let mut parser = Parser::new(MAX_LINE);
    let mut events = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| closed())? {
        let read = parser.feed(&chunk, &mut events);
        for event in events.drain(..) {
            if let Ok(message) = Parsed::read(event.data)
                && matches!(message.kind(), Kind::Result | Kind::Error)
            {
                return Ok(message);
            }
        }
        if read.is_err() {
            break;
        }
    }
    Err(closed())
}

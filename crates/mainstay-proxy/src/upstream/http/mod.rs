//! A session over streamable HTTP.
//!
//! A request is one POST, answered by a JSON body or by an event stream; a stream that ends early is
//! taken up again with GET if the server gave event ids. What is sent without anybody waiting for it
//! (cancellations, answers to the server's own requests) is sent by one task, the errands, which
//! ends when the last handle is gone and its work is done.

mod endpoint;
mod errands;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tracing::debug;

use self::endpoint::{Endpoint, Exchange};
use super::error::excerpt;
use super::{Hello, HttpLink, IN_FLIGHT, UpstreamError, closed, protocol, reply, settled};
use crate::frame::{self, Frame};
use crate::sse;

/// How long to wait before a server that is still coming up is asked again.
const COMING_UP: Duration = Duration::from_millis(50);
/// How long to wait before a stream is resumed, unless the server says otherwise.
const RESUME: Duration = Duration::from_secs(1);
/// How long an answer may be.
const MAX_ANSWER: usize = 16 << 20;
/// How much of the body of an error is read: enough for an excerpt in any script.
const MAX_ERROR_BODY: usize = 2048;
/// How many answers to the server may wait to be sent.
const ANSWERS: usize = 64;

/// One session; shared by all handles.
#[derive(Debug)]
pub(super) struct Http {
    endpoint: Arc<Endpoint>,
    cancels: mpsc::Sender<u64>,
    answers: mpsc::Sender<Bytes>,
    lost: watch::Sender<bool>,
}

impl Http {
    pub(super) fn spawn(link: HttpLink) -> Arc<Self> {
        let endpoint = Arc::new(Endpoint::new(link));
        let (cancels, cancelled) = mpsc::channel(IN_FLIGHT);
        let (answers, answered) = mpsc::channel(ANSWERS);
        // It ends by itself: with the last handle its channels close.
        drop(tokio::spawn(errands::run(Arc::clone(&endpoint), cancelled, answered)));
        Arc::new(Self { endpoint, cancels, answers, lost: watch::Sender::new(false) })
    }

    /// Asks until the server is up; gives the result and the id of the session, if there is one.
    pub(super) async fn initialize(
        &self,
        id: u64,
        params: &RawValue,
    ) -> Result<(Box<RawValue>, Option<String>), UpstreamError> {
        loop {
            self.endpoint.leave();
            match self.ask(id, "initialize", Some(params)).await {
                Ok(result) => return Ok((result, self.endpoint.session())),
                Err(error) if coming_up(&error) => debug!(%error, "server not up yet"),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(COMING_UP).await;
        }
    }

    /// From now on, messages belong to this session.
    pub(super) fn enter(&self, hello: &Hello) {
        self.endpoint.enter(hello);
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask(
        &self,
        id: u64,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let asked = Asked { id, method };
        let sent = self.endpoint.post(method, frame::request(id, method, params)).await?;
        let mut progress = self.read(asked, sent).await?;
        loop {
            let (last_event_id, wait) = match progress {
                Progress::Answered(answer) => return answer,
                Progress::Cut { last_event_id: None, .. } => return Err(closed(method, true)),
                Progress::Cut { last_event_id: Some(id), retry } => (id, retry.unwrap_or(RESUME)),
            };
            debug!(method, last_event_id, "stream ended before the answer, resuming");
            tokio::time::sleep(wait).await;
            progress = match self.resume(asked, &last_event_id).await? {
                Progress::Cut { last_event_id: None, retry } => {
                    let retry = retry.or(Some(wait));
                    Progress::Cut { last_event_id: Some(last_event_id), retry }
                }
                progress @ (Progress::Answered(_) | Progress::Cut { .. }) => progress,
            };
        }
    }

    pub(super) async fn notify(&self, method: &str, body: Bytes) -> Result<(), UpstreamError> {
        let mut exchange = self.endpoint.post(method, body).await?;
        self.check_status(method, &mut exchange).await
    }

    /// Takes the ids of requests that nobody waits for any more.
    pub(super) fn cancels(&self) -> &mpsc::Sender<u64> {
        &self.cancels
    }

    pub(super) async fn closed(&self) {
        // An error would mean that `lost` itself is gone, but we hold it.
        self.lost.subscribe().wait_for(|lost| *lost).await.ok();
    }

    /// A stream that cannot be resumed leaves the fate of the request unknown, whatever became of
    /// the attempt: what was asked went out long ago.
    async fn resume(&self, asked: Asked<'_>, last_id: &str) -> Result<Progress, UpstreamError> {
        let outcome = match self.endpoint.get(asked.method, last_id).await {
            Ok(sent) => self.read(asked, sent).await,
            Err(error) => Err(error),
        };
        outcome.map_err(|error| match error {
            UpstreamError::Connect { .. }
            | UpstreamError::Http { .. }
            | UpstreamError::SessionLost { .. }
            | UpstreamError::Closed { .. } => {
                debug!(%error, "stream not resumed");
                closed(asked.method, true)
            }
            UpstreamError::Rpc { .. }
            | UpstreamError::Protocol(_)
            | UpstreamError::TooLarge { .. }
            | UpstreamError::BadPath { .. } => error,
        })
    }

    async fn read(&self, asked: Asked<'_>, mut sent: Exchange) -> Result<Progress, UpstreamError> {
        self.check_status(asked.method, &mut sent).await?;
        if asked.method == "initialize" {
            self.endpoint.keep_session(&sent);
        }
        match content_type(sent.response.headers()) {
            Some(kind) if kind.eq_ignore_ascii_case("application/json") => {
                self.read_json(asked, sent.response.body_mut()).await.map(Progress::Answered)
            }
            Some(kind) if kind.eq_ignore_ascii_case("text/event-stream") => {
                self.read_events(asked, sent.response.body_mut()).await
            }
            kind => {
                let status = sent.response.status().as_u16();
                let kind = kind.unwrap_or("no content type");
                let what =
                    format_args!("HTTP status {status} and {kind} instead of JSON or events");
                Err(protocol(asked.method, what))
            }
        }
    }

    async fn check_status(&self, method: &str, sent: &mut Exchange) -> Result<(), UpstreamError> {
        let status = sent.response.status();
        if status.is_success() {
            return Ok(());
        }
        if status == StatusCode::NOT_FOUND && sent.in_session {
            self.lost.send_replace(true);
            return Err(UpstreamError::SessionLost { method: method.to_owned() });
        }
        let body = gather(sent.response.body_mut(), MAX_ERROR_BODY).await.unwrap_or_default();
        let (method, status) = (method.to_owned(), status.as_u16());
        Err(UpstreamError::Http { method, status, body: excerpt(&body) })
    }

    async fn read_json(
        &self,
        asked: Asked<'_>,
        body: &mut Incoming,
    ) -> Result<Result<Box<RawValue>, UpstreamError>, UpstreamError> {
        let text = gather(body, MAX_ANSWER).await.map_err(|_| closed(asked.method, true))?;
        if text.len() > MAX_ANSWER {
            return Err(protocol(asked.method, format_args!("more than {MAX_ANSWER} bytes")));
        }
        self.hear(asked, &text).ok_or_else(|| {
            protocol(asked.method, format_args!("no answer to it: {}", excerpt(&text)))
        })
    }

    async fn read_events(
        &self,
        asked: Asked<'_>,
        body: &mut Incoming,
    ) -> Result<Progress, UpstreamError> {
        let mut parser = sse::Parser::new(MAX_ANSWER);
        let mut events = Vec::new();
        while let Some(Ok(piece)) = body.frame().await {
            let Some(bytes) = piece.data_ref() else { continue };
            let read = parser.feed(bytes, &mut events);
            for event in events.drain(..).filter(|event| !event.data.is_empty()) {
                if let Some(answer) = self.hear(asked, &event.data) {
                    return Ok(Progress::Answered(answer));
                }
            }
            read.map_err(|error| protocol(asked.method, error))?;
        }
        Ok(Progress::Cut {
            last_event_id: parser.last_event_id().map(str::to_owned),
            retry: parser.retry(),
        })
    }

    /// Takes in what the server says; gives the answer if it is among it.
    fn hear(&self, asked: Asked<'_>, text: &[u8]) -> Option<Result<Box<RawValue>, UpstreamError>> {
        let mut answer = None;
        for message in frame::split(text) {
            match frame::scan(message) {
                Ok(Frame::Response { id: Some(id), outcome }) if id.as_u64() == Some(asked.id) => {
                    answer = Some(settled(asked.method, outcome));
                }
                Ok(Frame::Response { id, .. }) => debug!(?id, "answer to another request dropped"),
                Ok(Frame::Request { id, method, .. }) => {
                    if self.answers.try_send(reply(id, &method)).is_err() {
                        debug!(%id, %method, "request of a server that does not read dropped");
                    }
                }
                Ok(Frame::Notification { method, .. }) => debug!(%method, "notification dropped"),
                Err(error) => debug!(%error, "message that is no JSON-RPC dropped"),
            }
        }
        answer
    }
}

/// The request that is waited for.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    id: u64,
    method: &'a str,
}

/// How far the reading of an answer came.
enum Progress {
    Answered(Result<Box<RawValue>, UpstreamError>),
    /// The stream ended before the answer.
    Cut {
        last_event_id: Option<String>,
        retry: Option<Duration>,
    },
}

/// Whether an answer to `initialize` is that of a server, or of a proxy before it, that is not up yet.
fn coming_up(error: &UpstreamError) -> bool {
    use std::io::ErrorKind as E;
    match error {
        UpstreamError::Closed { .. } => true,
        UpstreamError::Http { status, .. } => matches!(status, 404 | 502 | 503),
        UpstreamError::Connect { source, .. } => matches!(
            source.kind(),
            E::ConnectionRefused | E::ConnectionReset | E::ConnectionAborted
        ),
        UpstreamError::Rpc { .. }
        | UpstreamError::Protocol(_)
        | UpstreamError::TooLarge { .. }
        | UpstreamError::SessionLost { .. }
        | UpstreamError::BadPath { .. } => false,
    }
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(str::trim)
}

/// Reads a body to its end, or until it is longer than `limit`.
async fn gather(body: &mut Incoming, limit: usize) -> Result<Vec<u8>, hyper::Error> {
    let mut text = Vec::new();
    while let Some(piece) = body.frame().await {
        if let Some(bytes) = piece?.data_ref() {
            text.extend_from_slice(bytes);
        }
        if text.len() > limit {
            break;
        }
    }
    Ok(text)
}

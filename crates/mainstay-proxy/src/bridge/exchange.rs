//! One request of the client, from its arrival to its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout};

use super::messages::{ABSENT, LOST_REPEATEDLY, RequestInfo, STOPPED, UNKNOWN_EFFECT, refused};
use super::output::{EventReader, Memory};
use super::sequence::Position;
use super::shared::{Failed, OpenRequest, Shared};
use crate::client::{ContentType, Method, Request, Response};
use crate::frame::{Handshake, Kind, Parsed};
use crate::private_headers::{self, REPEATED};

/// How often in a row the response to a request may be lost: the request may be the cause.
const MAX_LOSSES: u8 = 8;

/// A response that is lost later than this after the last one begins another row.
const LOSSES_RESET: Duration = Duration::from_secs(1);

/// How long the end of a stream may take after its answer.
const STREAM_END: Duration = Duration::from_millis(100);

pub(super) struct Exchange {
    shared: Arc<Shared>,
    request: Arc<OpenRequest>,
    /// None for a request that an earlier bridge sent.
    message: Option<Parsed>,
    received: Instant,
    position: Option<Position>,
    /// How often the response was lost, and when that happened last.
    losses: u8,
    lost_at: Option<Instant>,
    last_event: Option<String>,
    /// Whether the server has asked the client something on account of the request.
    was_asked: bool,
    /// Whether messages before the answer are discarded.
    is_hidden: bool,
    /// The session that the response named.
    session: Option<String>,
    stream: Option<Response>,
    answer: Option<Bytes>,
    /// For the answer.
    memory: Memory,
}

pub(super) struct Opened {
    pub(super) answer: Bytes,
    /// Id and protocol version, if it succeeded.
    pub(super) session: Option<(String, String)>,
}

impl Exchange {
    pub(super) fn new(
        shared: &Arc<Shared>,
        message: Parsed,
        received: Instant,
        position: Option<Position>,
    ) -> Self {
        let request = shared.add(info_of(&message));
        Self::with(shared, request, Some(message), received).at(position)
    }

    /// A request that was sent before, and whose response was lost.
    pub(super) fn repeated(
        shared: &Arc<Shared>,
        request: Arc<OpenRequest>,
        message: Parsed,
        received: Instant,
    ) -> Self {
        let mut exchange = Self::with(shared, request, Some(message), received);
        exchange.lost();
        exchange
    }

    /// With a position in the order of messages.
    pub(super) fn at(mut self, position: Option<Position>) -> Self {
        self.position = position;
        self
    }

    /// A request that an earlier bridge sent, with the last event of its stream.
    pub(super) fn resumed(shared: &Arc<Shared>, id: &str, event: String) -> Self {
        let request = shared.add(RequestInfo::unknown(id));
        request.set_sent();
        let mut exchange = Self::with(shared, request, None, Instant::now());
        exchange.last_event = Some(event);
        exchange
    }

    /// An `initialize` of which the client does not know.
    pub(super) fn hidden(shared: &Arc<Shared>, message: Parsed) -> Self {
        let request = OpenRequest::new(info_of(&message));
        let mut exchange = Self::with(shared, request, Some(message), Instant::now());
        exchange.is_hidden = true;
        exchange
    }

    fn with(
        shared: &Arc<Shared>,
        request: Arc<OpenRequest>,
        message: Option<Parsed>,
        received: Instant,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            request,
            message,
            received,
            position: None,
            losses: 0,
            lost_at: None,
            last_event: None,
            was_asked: false,
            is_hidden: false,
            session: None,
            stream: None,
            answer: None,
            memory: None,
        }
    }

    /// Sends the request, and passes on the messages of its response.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            biased;
            () = self.send() => {}
            () = shared.left() => return,
        }
        if self.stream.is_some() {
            return self.follow().await;
        }
        self.write_answer().await;
    }

    /// Passes on the messages of the response, and then the answer.
    pub(super) async fn follow(mut self) {
        while self.answer.is_none() {
            if self.stream.is_some() && self.read_stream().await {
                break;
            }
            if self.shared.is_leaving() {
                return;
            }
            self.lost();
            self.send().await;
            if self.stream.is_none() {
                break;
            }
        }
        self.write_answer().await;
    }

    /// Sends an `initialize` and waits for its answer. None if it was cancelled.
    pub(super) async fn open(mut self) -> Option<Opened> {
        while self.answer.is_none() {
            self.send().await;
            if self.stream.is_none() || self.read_stream().await {
                break;
            }
            self.lost();
        }
        let answer = self.answer.take()?;
        let parsed = Parsed::read(answer.clone()).ok();
        let result = parsed.as_ref().and_then(Parsed::result).and_then(Handshake::read);
        let version = result.map(|result| result.protocol_version.into_owned());
        Some(Opened { answer, session: self.session.take().zip(version) })
    }

    /// Sends the request until there is a stream, an answer, or nothing more to expect.
    async fn send(&mut self) {
        loop {
            self.turn().await;
            if self.request.is_cancelled() {
                return;
            }
            if self.losses >= MAX_LOSSES {
                self.refuse(LOST_REPEATEDLY);
                return;
            }
            let failed = match self.attempt().await {
                Ok(response) => {
                    if let Some(position) = &self.position {
                        position.set_begun();
                    }
                    if self.receive(response).await {
                        return;
                    }
                    Failed::Lost
                }
                Err(failed) => failed,
            };
            if failed == Failed::Lost {
                self.lost();
            }
            if failed == Failed::Stopped || Instant::now() >= self.shared.deadline(self.received) {
                self.refuse(if failed == Failed::Stopped { STOPPED } else { ABSENT });
                return;
            }
            tokio::select! {
                () = self.shared.pause() => {}
                () = self.request.cancelled() => {}
            }
        }
    }

    /// Waits until the messages before it are sent, or the client cancels it.
    async fn turn(&self) {
        if let Some(position) = &self.position {
            tokio::select! {
                () = position.turn() => {}
                () = self.request.cancelled() => {}
                () = sleep_until(self.shared.deadline(self.received)) => {}
            }
        }
    }

    async fn attempt(&self) -> Result<Response, Failed> {
        let (position, deadline) = (self.position.as_ref(), self.shared.deadline(self.received));
        let mut headers = Vec::new();
        headers.extend(self.last_event.as_deref().map(|event| ("last-event-id", event)));
        let Some(message) = &self.message else {
            let get = Request { method: Method::Get, headers: &headers, body: b"" };
            return self.shared.attempt_in_session(position, get, deadline).await;
        };
        if self.lost_at.is_some() {
            headers.push((REPEATED.as_str(), private_headers::repeated(self.was_asked)));
        }
        let post = Request { method: Method::Post, headers: &headers, body: message.text() };
        if self.is_hidden {
            return self.shared.attempt(None, None, post, deadline).await;
        }
        self.shared.attempt_in_session(position, post, deadline).await
    }

    /// Takes a response. False if it broke off.
    async fn receive(&mut self, mut response: Response) -> bool {
        self.request.set_sent();
        self.session = response.header("mcp-session-id").map(str::to_owned);
        match (response.status(), response.content_type()) {
            (200, ContentType::EventStream) => self.stream = Some(response),
            // It was cancelled.
            (202, _) => {}
            (405, _) if self.message.is_none() => {}
            (status, _) => {
                let read = self.shared.output.read(&mut response, self.shared.max_answer()).await;
                let Some((body, memory)) = read else { return false };
                self.memory = memory;
                let is_answer = status == 200;
                self.answer =
                    if is_answer { Some(body) } else { refused(&self.request.info, body) };
            }
        }
        true
    }

    /// Passes on the messages of the stream. False if it ended without an answer.
    async fn read_stream(&mut self) -> bool {
        let Some(response) = self.stream.take() else { return false };
        let (output, limit) = (&self.shared.output, self.shared.max_answer());
        let mut events = EventReader::new(output, response, limit, self.last_event.clone());
        loop {
            let (event, memory) = match events.next().await {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(_) => {
                    self.answer = self.request.info.refusal("the server's message is too long");
                    return true;
                }
            };
            self.last_event.clone_from(&event.id);
            match Parsed::read(event.data.clone()) {
                Ok(message) if self.request.info.is_answered_by(&message) => {
                    self.answer = Some(event.data);
                    self.memory = memory;
                    // The connection is used again if all of the response was read.
                    let _closed = timeout(STREAM_END, events.into_response().finish(limit)).await;
                    return true;
                }
                Ok(message) if message.kind() == Kind::Request => self.was_asked = true,
                Ok(_) | Err(_) => {}
            }
            if !self.is_hidden {
                output.write(event.data, memory).await;
            }
        }
        self.last_event = events.last_event_id().map(str::to_owned);
        false
    }

    /// Answers in place of the server.
    fn refuse(&mut self, why: &str) {
        let info = &self.request.info;
        // A resumed request was sent before.
        let was_sent = self.lost_at.is_some() || self.message.is_none();
        self.answer = info.refusal(if info.may_have_run(was_sent) { UNKNOWN_EFFECT } else { why });
    }

    fn lost(&mut self) {
        self.request.set_sent();
        let now = Instant::now();
        if self.lost_at.is_some_and(|last| now - last > LOSSES_RESET) {
            self.losses = 0;
        }
        self.losses += 1;
        self.lost_at = Some(now);
        if let Some(position) = &self.position {
            position.set_lost();
        }
    }

    async fn write_answer(&mut self) {
        self.position = None;
        if let Some(answer) = self.answer.take()
            && self.request.may_answer()
        {
            self.shared.output.write(answer, self.memory.take()).await;
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.shared.remove(&self.request);
    }
}

fn info_of(request: &Parsed) -> RequestInfo {
    RequestInfo::of(request).unwrap_or_else(|| RequestInfo::unknown("null"))
}

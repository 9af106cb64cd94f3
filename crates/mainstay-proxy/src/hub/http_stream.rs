//! Reading what a streamable HTTP server answers: one JSON message, or a stream of events that may
//! break off and be taken up again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::availability::{Availability, RunLink};
use super::exchange::{DeliveryState, Failure};
use super::http::{HttpConn, HttpRun};
use super::http_session::{ERROR_BODY, UpSession};
use super::presence::GRACE;
use super::progress::Progress;
use super::session::{Session, WeakSession};
use crate::client::{BodyError, ContentType, Method, Response};
use crate::frame::{self, Kind, Method as Rpc, Parsed};
use crate::loss::is_session_lost;
use crate::sse::{Event, Parser};
use crate::stream::Stream;
use crate::upstream::{self, MAX_LINE, UpstreamError};

/// How often a stream that ends without an event is asked for again in a row.
const RESUMES: u32 = 5;

/// For how long a stream is asked for again that brings no message. A server may hang up and have its client ask again
/// and again, for as long as a call takes.
const POLLING: Duration = Duration::from_secs(600);

/// How long to wait before that, unless the server says otherwise.
const PAUSE: Duration = Duration::from_millis(500);

/// How often in a row a stream is asked for that somebody else reads: a daemon that gives way to us is about
/// to end.
const CONFLICTS: u32 = 20;

/// No server may make us wait longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The answer to one request, being read.
pub(super) struct Reading<'a> {
    pub(super) run: &'a HttpRun,
    pub(super) up: &'a UpSession,
    pub(super) session: &'a Session,
    pub(super) message: &'a Parsed,
    pub(super) out: &'a Arc<Stream>,
    pub(super) progress: Option<&'a Arc<Progress>>,
}

impl Reading<'_> {
    /// Reads to the answer; what comes before it is passed on.
    pub(super) async fn answer(&self, response: &mut Response) -> Result<Parsed, Failure> {
        if response.status() != 200 {
            return Box::pin(self.refused(response)).await;
        }
        match response.content_type() {
            ContentType::EventStream => Box::pin(self.follow(response)).await,
            ContentType::Json | ContentType::Other => {
                let body = response.bytes(MAX_LINE).await.map_err(|error| self.broken(&error))?;
                let answer = Parsed::read(body.clone()).map_err(|_| self.unusable(&body))?;
                match answer.kind() {
                    Kind::Error if is_session_lost(Some(200), &body) => {
                        Err(Failure::Lost(DeliveryState::Forgotten))
                    }
                    Kind::Result | Kind::Error => Ok(answer),
                    Kind::Request | Kind::Notification => Err(self.unusable(&body)),
                }
            }
        }
    }

    async fn refused(&self, response: &mut Response) -> Result<Parsed, Failure> {
        let status = response.status();
        let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
        if is_session_lost(Some(status), &body) {
            return Err(Failure::Lost(DeliveryState::Forgotten));
        }
        match Parsed::read(body.clone()) {
            // Some servers say with a status what they also say in the message.
            Ok(answer) if answer.kind() == Kind::Error => Ok(answer),
            Ok(_) | Err(_) => {
                Err(Failure::Unusable(upstream::bad_status(self.method(), status, &body)))
            }
        }
    }

    /// Follows a stream to the answer, for as long as its run is there: a stream of a run that has
    /// ended is not asked for at the next one, which knows nothing of it.
    async fn follow(&self, response: &mut Response) -> Result<Parsed, Failure> {
        tokio::select! {
            biased;
            answer = self.read_events(response) => answer,
            () = self.is_over() => Err(Failure::Lost(DeliveryState::Sent)),
        }
    }

    /// Resolves when the run has ended. A daemon that finishes calls for the next one is not told that, but the end of a run
    /// is that of its connections, too.
    async fn is_over(&self) {
        let mut availability = self.session.availability();
        let is_over = |availability: &Availability| {
            availability.run().is_none_or(|run| run.generation != self.run.generation)
        };
        drop(availability.wait_for(is_over).await);
        if self.out.is_relayed() {
            std::future::pending::<()>().await;
        }
    }

    async fn read_events(&self, response: &mut Response) -> Result<Parsed, Failure> {
        let mut parser = Parser::new(MAX_LINE);
        let mut events = Vec::new();
        let mut polls = Polls::begin(Instant::now());
        let mut pause = PAUSE;
        loop {
            if let Ok(Some(chunk)) = response.chunk().await {
                let read = parser.feed(&chunk, &mut events);
                for event in events.drain(..) {
                    polls.hear(Instant::now(), &event);
                    match self.take(&event) {
                        Some(answer) if is_lost(&answer) => {
                            return Err(Failure::Lost(DeliveryState::Forgotten));
                        }
                        Some(answer) => return Ok(answer),
                        None => {}
                    }
                }
                if read.is_err() {
                    let what = format!("an event of more than {MAX_LINE} bytes");
                    return Err(Failure::Unusable(upstream::protocol(self.method(), what)));
                }
                self.out.room().await;
                continue;
            }
            // It broke off. Where it says so, it can be taken up again.
            let Some(last) = parser.last_event_id().filter(|_| polls.may_resume(Instant::now()))
            else {
                return Err(Failure::Lost(DeliveryState::Sent));
            };
            let last = last.to_owned();
            pause = parser.retry().unwrap_or(pause).min(LONGEST_PAUSE);
            sleep(pause).await;
            *response = self.resume(&last).await?;
            parser = Parser::resumed(MAX_LINE, last);
        }
    }

    async fn resume(&self, last: &str) -> Result<Response, Failure> {
        let headers = [("Accept", "text/event-stream"), ("Last-Event-ID", last)];
        match self.up.send(&self.run.client, Method::Get, &headers).await {
            Ok(response) if response.status() == 200 => Ok(response),
            Ok(_) | Err(_) => Err(Failure::Lost(DeliveryState::Sent)),
        }
    }

    /// Takes in one event; the answer is handed back.
    fn take(&self, event: &Event) -> Option<Parsed> {
        let message = Parsed::read(event.data.clone()).ok()?;
        match message.kind() {
            Kind::Result | Kind::Error if message.id() == self.message.id() => Some(message),
            // Whoever refuses a request may not have read its id.
            Kind::Error if message.id().is_none() => Some(message),
            Kind::Result | Kind::Error => None,
            Kind::Request => {
                put_question(self.session, self.up.generation(), &message, Some(self.out));
                None
            }
            Kind::Notification => {
                let admitted = match (message.method(), message.progress(), self.progress) {
                    (Some(Rpc::Progress), Some(told), Some(progress))
                        if message.get(told.token) == progress.token() =>
                    {
                        progress.admits(told.value)
                    }
                    _ => true,
                };
                if admitted {
                    self.session.hear_own(self.up.generation(), &message, Some(self.out));
                }
                None
            }
        }
    }

    fn broken(&self, error: &BodyError) -> Failure {
        match error {
            BodyError::TooLong { .. } => {
                Failure::Unusable(upstream::protocol(self.method(), error))
            }
            _ => Failure::Lost(DeliveryState::Sent),
        }
    }

    fn unusable(&self, body: &Bytes) -> Failure {
        let text = upstream::excerpt(body);
        Failure::Unusable(upstream::protocol(
            self.method(),
            format_args!("something that is no answer: {text}"),
        ))
    }

    fn method(&self) -> &str {
        self.message.method().map_or("", Rpc::as_str)
    }
}

/// Whether a stream without an answer is asked for again. Without a limit, a server that hangs up again and again would
/// have its client wait for ever.
struct Polls {
    /// How often in a row it ended without an event.
    in_vain: u32,
    /// When the last message came, or the stream began.
    message: Instant,
}

impl Polls {
    fn begin(now: Instant) -> Self {
        Self { in_vain: 0, message: now }
    }

    fn hear(&mut self, now: Instant, event: &Event) {
        self.in_vain = 0;
        // Events without data only give the client an id to ask with.
        if !event.data.is_empty() {
            self.message = now;
        }
    }

    fn may_resume(&mut self, now: Instant) -> bool {
        self.in_vain += 1;
        self.in_vain <= RESUMES && now < self.message + POLLING
    }
}

/// Whether a message in a stream says that the server does not know the session.
fn is_lost(message: &Parsed) -> bool {
    message.kind() == Kind::Error && is_session_lost(None, message.text())
}

/// Puts a question of the server to the client, or refuses it.
fn put_question(session: &Session, generation: u64, request: &Parsed, out: Option<&Arc<Stream>>) {
    let Some(id) = request.id() else { return };
    let answer = if request.method() == Some(&Rpc::Ping) {
        Some(frame::empty_result(id))
    } else {
        let refusal = session.ask_client(generation, request, out);
        refusal.map(|why| frame::error(id, frame::METHOD_NOT_FOUND, why))
    };
    match answer {
        Some(answer) if out.is_some_and(|out| out.is_relayed()) => {
            HttpConn::tell_now(session, generation, answer);
        }
        Some(answer) => HttpConn::tell_later(session, generation, answer),
        None => {}
    }
}

/// The answer in a response to a request of our own; whatever comes before it is dropped.
pub(super) async fn only_answer(
    method: &str,
    response: &mut Response,
) -> Result<Parsed, UpstreamError> {
    let closed = |_: BodyError| UpstreamError::Closed { method: method.to_owned(), sent: true };
    if response.content_type() != ContentType::EventStream {
        let body = response.bytes(MAX_LINE).await.map_err(closed)?;
        return Parsed::read(body.clone()).map_err(|_| {
            let text = upstream::excerpt(&body);
            upstream::protocol(method, format_args!("something that is no answer: {text}"))
        });
    }
    let mut parser = Parser::new(MAX_LINE);
    let mut events = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(closed)? {
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
    Err(closed(BodyError::Cut(None)))
}

/// Listens for messages outside of requests while the client listens, and for [`GRACE`] longer in case it
/// reconnects.
pub(super) struct Listener {
    session: WeakSession,
    pause: Duration,
    conflicts: u32,
}

impl Listener {
    pub(super) fn new(session: &Session) -> Self {
        Self { session: session.downgrade(), pause: PAUSE, conflicts: 0 }
    }

    pub(super) async fn run(mut self) {
        while let Some(session) = self.session.upgrade() {
            let availability = session.availability();
            let general = Arc::clone(session.general());
            drop(session);
            tokio::select! {
                biased;
                () = general.abandoned_for(GRACE) => break,
                goes_on = self.hear_run(availability) => if !goes_on {
                    return;
                },
            }
        }
        if let Some(session) = self.session.upgrade() {
            session.http().stop_listening();
            // The client may have reconnected in the meantime.
            if session.general().has_reader() && !session.general().is_closed() {
                session.http().listen(&session);
            }
        }
    }

    /// Hears the present run until there is another. False if there will be none.
    async fn hear_run(&mut self, mut availability: watch::Receiver<Availability>) -> bool {
        let present = availability.borrow_and_update().run().cloned();
        let is_other = |availability: &Availability| {
            availability.run().map(Arc::as_ptr) != present.as_ref().map(Arc::as_ptr)
        };
        let heard = async {
            if let Some(RunLink::Http(run)) = present.as_ref().map(|run| &run.link) {
                while self.hear(run).await {
                    sleep(self.pause.min(LONGEST_PAUSE)).await;
                }
            }
        };
        let changed = async { availability.wait_for(is_other).await.is_ok() };
        tokio::pin!(changed);
        tokio::select! {
            changed = &mut changed => changed,
            // The server offers nothing to hear.
            () = heard => changed.await,
        }
    }

    /// Hears one stream to its end. False if the server offers none.
    async fn hear(&mut self, run: &HttpRun) -> bool {
        let Some(session) = self.session.upgrade() else { return false };
        let Ok(up) = session.http().ensure_in_background(run, &session).await else { return true };
        let last = session.http().last_event(run.generation);
        let mut headers = vec![("Accept", "text/event-stream")];
        headers.extend(last.as_ref().map(|last| ("Last-Event-ID", last.as_str())));
        let Ok(mut response) = up.send(&run.client, Method::Get, &headers).await else {
            return true;
        };
        if response.status() != 200 || response.content_type() != ContentType::EventStream {
            let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
            let forgotten = is_session_lost(Some(response.status()), &body);
            if forgotten {
                session.http().forget(&up);
            }
            if response.status() == 409 && self.conflicts < CONFLICTS {
                self.conflicts += 1;
                return true;
            }
            if response.status() >= 500 && last.is_some() {
                // It says nothing of the event: a gateway may not reach the server for a while.
                return true;
            }
            // What cannot be taken up can still be begun.
            session.http().set_last_event(run.generation, None);
            return forgotten || last.is_some();
        }
        drop(session);
        self.conflicts = 0;
        let mut parser = match last {
            Some(last) => Parser::resumed(MAX_LINE, last),
            None => Parser::new(MAX_LINE),
        };
        let mut events = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            let Some(session) = self.session.upgrade() else { return false };
            if parser.feed(&chunk, &mut events).is_err() {
                break;
            }
            // Recorded immediately, because this task may be dropped at any time.
            if let Some(last) = parser.last_event_id().filter(|_| !events.is_empty()) {
                session.http().set_last_event(run.generation, Some(last.to_owned()));
            }
            for event in events.drain(..) {
                let Ok(message) = Parsed::read(event.data) else { continue };
                match message.kind() {
                    Kind::Request => put_question(&session, run.generation, &message, None),
                    Kind::Notification => session.hear_own(run.generation, &message, None),
                    Kind::Result | Kind::Error => {}
                }
            }
        }
        self.pause = parser.retry().unwrap_or(PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: &'static str) -> Event {
        Event { name: None, data: Bytes::from_static(data.as_bytes()), id: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_brings_nothing_is_asked_for_a_few_times() {
        let now = Instant::now();
        let mut polls = Polls::begin(now);
        for _ in 0..RESUMES {
            assert!(polls.may_resume(now));
        }
        assert!(!polls.may_resume(now));
        polls.hear(now, &event(""));
        assert!(polls.may_resume(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_without_a_message_is_not_asked_for_for_ever() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut polls = Polls::begin(begun);
        polls.hear(begun + second, &event("{}"));
        polls.hear(begun + POLLING, &event(""));
        assert!(polls.may_resume(begun + POLLING));
        polls.hear(begun + POLLING + second, &event(""));
        assert!(!polls.may_resume(begun + POLLING + second));
    }
}

//! One request of a client, from its arrival to its one answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::availability::{Availability, Run, RunLink};
use super::call::{Call, Loss, Step, UpstreamState, Verdict, With};
use super::event_sink::Decision;
use super::http::GivenUp;
use super::lines::Unanswered;
use super::progress::Progress;
use super::session::Session;
use super::{initialize, lists, messages, relay};
use crate::frame::{self, Frame, Id, Method, Parsed};
use crate::front::{self, ProtocolVersion, Session as _};
use crate::intake_gate::IntakePass;
use crate::lists::ListKind;
use crate::record::Sent;
use crate::stream::{Inherited, Stream};
use crate::upstream::UpstreamError;

/// Answers a request into its stream, which is finished exactly once; the request arrives with the first
/// step. Dropping the future gives it up: it is cancelled at the server, and its stream stays without an
/// answer.
///
/// Every call needs memory for the whole future, so what is rare is boxed, here and below.
pub(super) async fn answer(
    session: Session,
    message: Parsed,
    out: Arc<Stream>,
    intake: IntakePass,
) {
    let (Some(id), Some(method)) = (message.id(), message.method()) else { return };
    debug_assert!(!frame::is_test_panic(&message), "asked for by a test");
    if let Some((code, why)) = refused(method, session.version()) {
        return out.finish(Some(frame::error(id, code, why)));
    }
    let Some(_open) = session.open(&message, id, method, &out) else {
        return out.finish(Some(refusal(id, "too-many-requests", messages::TOO_MANY)));
    };
    drop(intake);
    match method {
        // `ping` is answered here, and `initialize` only provides the parameters for the run.
        Method::Ping | Method::Initialize => {}
        _ => session.hub().isolate(&session),
    }
    let text = match method {
        Method::Ping => Some(frame::empty_result(id)),
        Method::Initialize => Box::pin(initialize::answer(&session, &message, &out)).await,
        Method::SetLevel => Box::pin(set_level(&session, &message, &out)).await,
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            Box::pin(subscribe(&session, &message, &out)).await
        }
        Method::ToolsCall => call_tool(&session, &message, &out).await,
        method => match ListKind::of(method) {
            Some(kind) => Box::pin(lists::answer(&session, &message, &out, kind)).await,
            None => pass(&session, &message, &out).await.map(|answered| answered.text),
        },
    };
    out.finish(text);
}

/// Why no server gets to see a request, if so: it may not be initialized for this client, or exit on a method that
/// its protocol version does not have.
fn refused(method: &Method, version: Option<ProtocolVersion>) -> Option<(i64, &'static str)> {
    match (method, version) {
        (Method::Initialize | Method::Ping, _) => None,
        (Method::Discover, _) => Some((frame::METHOD_NOT_FOUND, front::NO_DISCOVER)),
        (_, None) => Some((frame::INVALID_REQUEST, front::NOT_INITIALIZED)),
        (_, Some(_)) => None,
    }
}

/// An answer, and the run that gave it; none if it is ours.
pub(super) struct Answered {
    pub(super) text: Bytes,
    pub(super) run: Option<Arc<Run>>,
}

/// Has the server answer, by the replay contract. Nothing if the client gave the request up.
pub(super) async fn pass(
    session: &Session,
    message: &Parsed,
    out: &Arc<Stream>,
) -> Option<Answered> {
    let hold = session.hub().settings().hold;
    Exchange::new(session, message, out, hold).settle().await
}

/// As [`pass`], for a request that may be held only that long.
pub(super) async fn pass_within(
    session: &Session,
    message: &Parsed,
    out: &Arc<Stream>,
    hold: Duration,
) -> Option<Answered> {
    Exchange::new(session, message, out, hold).settle().await
}

/// Calls a tool, unless it has vanished, and tells of a restart in between.
async fn call_tool(session: &Session, message: &Parsed, out: &Arc<Stream>) -> Option<Bytes> {
    let hub = session.hub();
    let id = message.id()?;
    if let Some(tool) = hub.vanished(message) {
        hub.record_decision(Decision::about(session, message, "tool-vanished", &tool, None));
        return Some(frame::tool_error(id, &messages::vanished(hub.name(), &tool)));
    }
    let Answered { text, run } = pass(session, message, out).await?;
    let is_result = || Parsed::read(text.clone()).is_ok_and(|answer| answer.result().is_some());
    let Some(run) = run.filter(|run| session.meets(run.generation, is_result)) else {
        return Some(text);
    };
    if hub.settings().quiet_restart {
        return Some(text);
    }
    let note = messages::restart_note(hub.name(), run.after.as_deref());
    Some(Parsed::read(text.clone()).map_or(text, |answer| answer.with_note(&note)))
}

/// A shared server is told the level that serves all its sessions; each hears only what it wants.
async fn set_level(session: &Session, message: &Parsed, out: &Arc<Stream>) -> Option<Bytes> {
    if let Some(level) = message.level().and_then(|level| level.parse().ok()) {
        session.set_level(level);
        let least = session.hub().least_level(session);
        if least.is_some_and(|least| least < level) {
            return Some(frame::empty_result(message.id()?));
        }
    }
    pass(session, message, out).await.map(|answered| answered.text)
}

/// A shared server keeps a subscription as long as any of its sessions wants it.
async fn subscribe(session: &Session, message: &Parsed, out: &Arc<Stream>) -> Option<Bytes> {
    let uri = message.uri().map(std::borrow::Cow::into_owned);
    let leaving = message.method() == Some(&Method::ResourcesUnsubscribe);
    if let (Some(uri), true) = (&uri, leaving) {
        session.unsubscribe(uri);
        if session.hub().others_subscribe(session, uri) {
            return Some(frame::empty_result(message.id()?));
        }
    }
    // Noted before it is sent, so that no other session ends it meanwhile.
    let noted = uri.filter(|uri| !leaving && session.subscribe(uri));
    let Answered { text, run } = pass(session, message, out).await?;
    let accepted =
        run.is_some() && Parsed::read(text.clone()).is_ok_and(|answer| answer.result().is_some());
    if let (Some(uri), false) = (noted, accepted) {
        session.unsubscribe(&uri);
    }
    Some(text)
}

/// A request on its way through the runs of a server.
struct Exchange<'a> {
    session: &'a Session,
    message: &'a Parsed,
    out: &'a Arc<Stream>,
    call: Call,
    hold: Duration,
    progress: Option<Arc<Progress>>,
}

/// Why an attempt has no answer of the server's.
pub(super) enum Failure {
    /// The run went away, or forgot the session.
    Lost(DeliveryState),
    /// It answered in a way that cannot be passed on.
    Unusable(UpstreamError),
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Gone { sent: true } => Self::Lost(DeliveryState::Sent),
            Unanswered::Gone { sent: false } => Self::Lost(DeliveryState::Unsent),
            Unanswered::Interrupted => Self::Lost(DeliveryState::Interrupted),
            Unanswered::Protocol(error) => Self::Unusable(error),
        }
    }
}

/// How far a lost request had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryState {
    Unsent,
    Sent,
    /// It was lost with the connection, and the run goes on.
    Interrupted,
    Forgotten,
}

/// How the wait of a held request ended.
enum Waited {
    LookAgain,
    /// Nobody will tell of the server any more.
    NoNews,
    GivenUp,
}

impl<'a> Exchange<'a> {
    fn new(
        session: &'a Session,
        message: &'a Parsed,
        out: &'a Arc<Stream>,
        hold: Duration,
    ) -> Self {
        let call = match out.inherited() {
            Some(inherited @ &Inherited { sent: Some(Sent { generation, .. }), attempts, .. }) => {
                let can_answer = inherited.can_be_answered();
                let with = With { generation, can_answer, attempts };
                Call::recovered(hold, with)
            }
            Some(Inherited { sent: None, .. }) | None => Call::new(hold),
        };
        Self { session, message, out, call, hold, progress: None }
    }

    async fn settle(&mut self) -> Option<Answered> {
        match Progress::of(self.message, self.out) {
            Ok(progress) => self.progress = progress.map(Arc::new),
            Err(error) => return Some(self.refused("bad-params", &error.to_string())),
        }
        let mut changes: Option<watch::Receiver<Availability>> = None;
        let mut held = None;
        loop {
            if self.out.is_relayed() {
                // It is not with the server. Another daemon decides what becomes of it.
                return None;
            }
            let present = match &mut changes {
                Some(changes) => changes.borrow_and_update().clone(),
                None => self.session.present(),
            };
            match self.call.step(now(), upstream_state(&present)) {
                Step::Miss => self.missed(&present),
                step @ (Step::Send | Step::Rejoin) => {
                    drop(held.take());
                    let run = present.run().expect("only a run that is up is sent to");
                    // If the client gives the request up meanwhile, its front drops this future.
                    let tried = match step {
                        Step::Rejoin => Box::pin(self.rejoin(run)).await,
                        _ => self.attempt(run).await,
                    };
                    match tried {
                        Ok(answer) => return Some(self.answered(answer, run)),
                        Err(Failure::Lost(_)) if self.out.is_relayed() => {}
                        Err(Failure::Lost(delivery)) => self.lost(run, delivery),
                        Err(Failure::Unusable(error)) => return Some(self.unusable(&error, run)),
                    }
                }
                Step::Wait(until) => {
                    if held.is_none() {
                        held = self.session.hub().hold();
                        if held.is_none() {
                            return Some(self.ours(self.call.no_room(), &present));
                        }
                    }
                    let Some(changes) = &mut changes else {
                        // Looks once more before it waits, so that no change is missed.
                        changes = Some(self.session.availability());
                        continue;
                    };
                    match Box::pin(self.wait(changes, until)).await {
                        Waited::LookAgain => {}
                        Waited::NoNews => {
                            return Some(self.ours(self.call.no_news(), &present));
                        }
                        Waited::GivenUp => {
                            self.record_decision(
                                "gone",
                                "the client gave it up while it was held",
                                None,
                            );
                            return None;
                        }
                    }
                }
                Step::Answer(verdict) => return Some(self.ours(verdict, &present)),
            }
        }
    }

    async fn attempt(&self, run: &Arc<Run>) -> Result<Parsed, Failure> {
        let progress = self.progress.as_ref();
        match &run.link {
            RunLink::Lines(conn) => {
                let is_safe = || self.is_safe(run.generation);
                let asked = conn.ask(self.session, self.message, self.out, progress, is_safe);
                asked.await.map_err(Failure::from)
            }
            RunLink::Http(http) => {
                self.session.http().ask(http, self.session, self.message, self.out, progress).await
            }
        }
    }

    /// Waits for the answer to what an earlier daemon sent to this run.
    async fn rejoin(&self, run: &Arc<Run>) -> Result<Parsed, Failure> {
        let inherited = self.out.inherited();
        let id = inherited.and_then(|inherited| inherited.sent?.line);
        let news = inherited.and_then(Inherited::news);
        match (&run.link, id, news) {
            (RunLink::Lines(conn), Some(id), _) => {
                let is_safe = || self.is_safe(run.generation);
                conn.rejoin(self.message, id, is_safe).await.map_err(Failure::from)
            }
            (RunLink::Http(_), None, Some(mut news)) => {
                let push = |number, message: Bytes| {
                    if matches!(frame::scan(&message), Ok(Frame::Request { .. })) {
                        inherited.inspect(|inherited| inherited.set_asked());
                    }
                    // Some may have been relayed to another daemon before.
                    if number > self.out.last() {
                        self.out.push(message);
                    }
                };
                let given_up = GivenUp::new(self.session, run.generation, self.message);
                let answer = relay::answer(&mut news, push).await;
                given_up.disarm();
                let answer = answer.and_then(|text| Parsed::read(text).ok());
                answer.ok_or(Failure::Lost(DeliveryState::Sent))
            }
            (RunLink::Lines(_) | RunLink::Http(_), _, _) => Err(Failure::Lost(DeliveryState::Sent)),
        }
    }

    /// The run that an earlier daemon sent the request to is not there, or cannot answer.
    fn missed(&mut self, present: &Availability) {
        let inherited = self.out.inherited();
        let safe = match inherited.map(|inherited| (inherited.is_repeated, inherited.sent)) {
            // It was sent to the present run or to an earlier one.
            Some((true, _)) => present.run().is_some_and(|run| self.is_safe(run.generation)),
            Some((false, Some(sent))) => self.is_safe(sent.generation),
            Some((false, None)) | None => false,
        };
        self.call.missed(now(), upstream_state(present), safe);
    }

    /// Waits for a change or until then.
    async fn wait(
        &self,
        availability: &mut watch::Receiver<Availability>,
        until: std::time::Instant,
    ) -> Waited {
        tokio::select! {
            changed = availability.changed() => match changed {
                Ok(()) => Waited::LookAgain,
                Err(_) => Waited::NoNews,
            },
            () = sleep_until(Instant::from_std(until)) => Waited::LookAgain,
            () = self.out.relayed() => Waited::LookAgain,
            () = self.out.closed() => Waited::GivenUp,
        }
    }

    fn lost(&mut self, run: &Run, delivery: DeliveryState) {
        self.session.forget_asks_of(self.out);
        if self.out.inherited().is_some()
            && let Ok(progress) = Progress::of(self.message, self.out)
        {
            // What the lost run told of it was told on account of the daemon before this one.
            self.progress = progress.map(Arc::new);
        }
        match (&run.link, delivery) {
            (RunLink::Http(_), DeliveryState::Unsent) => {
                self.session.hub().unreachable(run.generation);
            }
            (
                RunLink::Http(_),
                DeliveryState::Sent | DeliveryState::Interrupted | DeliveryState::Forgotten,
            )
            | (RunLink::Lines(_), _) => {}
        }
        let loss = match delivery {
            DeliveryState::Unsent => Loss::Unsent,
            DeliveryState::Forgotten => Loss::Forgotten,
            DeliveryState::Sent => Loss::Sent { safe: self.is_safe(run.generation) },
            DeliveryState::Interrupted => Loss::Interrupted { safe: self.is_safe(run.generation) },
        };
        self.call.lost(now(), run.generation, loss);
    }

    /// Whether the request, which was sent to the run of that generation, may be executed twice.
    fn is_safe(&self, generation: u64) -> bool {
        let harmless = match self.message.method() {
            Some(
                Method::Initialize
                | Method::Ping
                | Method::ToolsList
                | Method::PromptsList
                | Method::PromptsGet
                | Method::ResourcesList
                | Method::ResourceTemplatesList
                | Method::ResourcesRead
                | Method::ResourcesSubscribe
                | Method::ResourcesUnsubscribe
                | Method::Complete
                | Method::SetLevel
                | Method::TasksGet
                | Method::TasksList
                | Method::TasksResult,
            ) => true,
            Some(Method::ToolsCall) => {
                self.session.hub().is_safe_tool(self.session, self.message, generation)
            }
            _ => false,
        };
        let was_asked = self.out.inherited().is_some_and(Inherited::was_asked);
        harmless && !was_asked && !self.session.was_interactive(self.out)
    }

    fn answered(&self, answer: Parsed, run: &Arc<Run>) -> Answered {
        if let Some(since) = self.call.held_since() {
            let cause = match (self.call.was_replayed(), self.out.inherited()) {
                (true, _) => "replayed",
                (false, Some(_)) => "taken-up",
                (false, None) => "held",
            };
            let waited = mainstay_core::human_duration(now().saturating_duration_since(since));
            let what = format!("{cause}, and answered by run {} after {waited}", run.generation);
            self.record_decision(cause, &what, Some(run.generation));
        }
        let id = self.message.id().expect("a request has an id");
        let text = match answer.id() {
            Some(theirs) if theirs.get() == id.get() => answer.into_text(),
            Some(_) => answer.with_id(id.get()),
            None => named(&answer, id),
        };
        Answered { text, run: Some(Arc::clone(run)) }
    }

    fn unusable(&self, error: &UpstreamError, run: &Run) -> Answered {
        let text = format!("the MCP server `{}` failed: {error}", self.session.hub().name());
        self.record_decision("bad-answer", &error.to_string(), Some(run.generation));
        self.refused("bad-answer", &text)
    }

    fn ours(&self, verdict: Verdict, availability: &Availability) -> Answered {
        let server = self.session.hub().name();
        let text = messages::verdict(server, verdict, availability, now(), self.hold);
        let run = match verdict {
            Verdict::Unknown { generation }
            | Verdict::Severed { generation }
            | Verdict::Interrupted { generation }
            | Verdict::DiedTwice { generation }
            | Verdict::BrokenOff { generation } => Some(generation),
            Verdict::Down | Verdict::Late | Verdict::Removed | Verdict::SessionLostRepeatedly => {
                None
            }
        };
        let first_line = text.lines().next().unwrap_or_default();
        self.record_decision(messages::cause(verdict), first_line, run);
        self.refused(messages::cause(verdict), &text)
    }

    /// An answer that the model, or at least the client, can read.
    fn refused(&self, cause: &str, text: &str) -> Answered {
        let id = self.message.id().expect("a request has an id");
        let text = match self.message.method() {
            Some(Method::ToolsCall) if !self.session.is_local() => frame::tool_error(id, text),
            _ => refusal(id, cause, text),
        };
        Answered { text, run: None }
    }

    fn record_decision(&self, cause: &'static str, what: &str, run: Option<u64>) {
        let decision = Decision::about(self.session, self.message, cause, what, run);
        self.session.hub().record_decision(decision);
    }
}

/// An error of a server that did not read which request it refused. Only errors can be without an id.
fn named(answer: &Parsed, id: Id<'_>) -> Bytes {
    let error = answer.error().expect("a result has an id");
    let begin = [r#"{"jsonrpc":"2.0","id":"#, id.get(), r#","error":"#].concat();
    [begin.as_bytes(), error, b"}"].concat().into()
}

/// An error that is ours and no server's, and says so to programs.
pub(super) fn refusal(id: Id<'_>, cause: &str, text: &str) -> Bytes {
    frame::error_with_data(id, frame::INTERNAL_ERROR, text, &Refusal { mainstay: cause })
}

/// What our own errors carry as data.
#[derive(Serialize, Deserialize)]
pub(super) struct Refusal<'a> {
    /// What was decided, in one word.
    pub(super) mainstay: &'a str,
}

/// The availability of the server, as the replay contract needs it.
fn upstream_state(availability: &Availability) -> UpstreamState {
    match availability {
        Availability::Up(run) => UpstreamState::Up(run.generation),
        Availability::Coming { due, .. } => UpstreamState::Coming(*due),
        Availability::Down { .. } => UpstreamState::Down,
        Availability::Removed => UpstreamState::Removed,
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

//! A request on its way through the runs of a server.

mod answer;

use std::time::Instant;

use mainstay_mcp::frame::{self, Method, Parsed};
use mainstay_mcp::upstream::UpstreamError;

use crate::action::Report;
use crate::availability::{Availability, Run};
use crate::calls::{Call, CallKey, CallKind, MAX_HELD, Stage};
use crate::level::Level;
use crate::messages;
use crate::progress::Progress;
use crate::record::Sent;
use crate::replay::{Loss, Step, UpstreamState};
use crate::server::Server;
use crate::session::{Session, SessionKey};
use crate::stream::{Durable, Journal, Recorded, Stream};
use crate::streams::StreamRef;
use crate::timers::Timer;

/// The reason in `notifications/cancelled`.
pub(crate) const CANCELLED: &str = "nobody waits for the answer any more";

/// How an attempt ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Unsent,
    /// It may have been executed.
    Sent,
    /// It was lost with the connection, and the run continues.
    Interrupted,
    /// The server did not know the session.
    SessionLost,
}

impl Server {
    /// Calls a tool, unless the newest list of the server is without it.
    pub(crate) fn begin_tool_call(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get_mut(key) else { return };
        call.kind = CallKind::Tool;
        if self.join_abandoned(now, key) {
            return;
        }
        let vanished = self.calls.get(key).and_then(|call| self.vanished_tool(&call.message));
        let Some(tool) = vanished else { return self.pass(now, key) };
        let Some(call) = self.calls.take(key) else { return };
        self.record_decision(&call, "tool-vanished", &tool, None);
        let text = messages::vanished(&self.name, &tool);
        let answer = call.message.id().map(|id| frame::tool_error(id, &text));
        self.answer_taken(now, key, call, answer);
    }

    /// The tool that a request calls, if the server had it and the newest list is without it.
    fn vanished_tool(&self, request: &Parsed) -> Option<String> {
        if !self.copies.lists.has_any_vanished() {
            return None;
        }
        let generation = self.availability.run()?.generation;
        // Whether another run has it is not known.
        if !self.copies.are_of(generation) {
            return None;
        }
        let tool = request.name()?;
        self.copies.lists.has_vanished(&tool).then(|| tool.into_owned())
    }

    /// A shared server gets the level that serves all its sessions; each receives only what it wants.
    pub(crate) fn begin_set_level(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        let session = call.session;
        let level = call.message.level().and_then(|level| Level::of(&level));
        let empty = call.message.id().map(frame::empty_result);
        if let Some(level) = level {
            self.set_level(session, level);
            if self.lowest_level_of_others(session).is_some_and(|lowest| lowest < level) {
                return self.answer(now, key, empty);
            }
        }
        self.pass(now, key);
    }

    pub(crate) fn begin_subscribe(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        let (session, uri) = (call.session, call.message.uri().map(std::borrow::Cow::into_owned));
        // Recorded before it is sent, so that no other session ends it meanwhile.
        let noted = uri.filter(|uri| self.subscribe(session, uri));
        if let Some(call) = self.calls.get_mut(key) {
            call.kind = CallKind::Subscribe(noted);
        }
        self.pass(now, key);
    }

    /// A shared server keeps a subscription as long as any of its sessions wants it.
    pub(crate) fn begin_unsubscribe(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        let (session, uri) = (call.session, call.message.uri().map(std::borrow::Cow::into_owned));
        let empty = call.message.id().map(frame::empty_result);
        if let Some(uri) = uri {
            self.unsubscribe(session, &uri);
            if self.do_others_subscribe(session, &uri) {
                return self.answer(now, key, empty);
            }
        }
        self.pass(now, key);
    }

    /// Has the server answer, by the replay contract.
    pub(crate) fn pass(&mut self, now: Instant, key: CallKey) {
        let Some(mut call) = self.calls.take(key) else { return };
        match self.progress_of(&call) {
            Ok(progress) => call.progress = progress,
            Err(error) => return self.refuse(now, key, call, "bad-params", &error.to_string()),
        }
        self.advance_taken(now, key, call);
    }

    pub(crate) fn progress_of(
        &self,
        call: &Call,
    ) -> Result<Option<Box<Progress>>, frame::BadParams> {
        let stream = self.streams.get(call.stream);
        let inherited = stream.filter(|stream| stream.inherited().is_some());
        let reported = inherited.into_iter().flat_map(|stream| stream.log.messages());
        Ok(Progress::of(&call.message, reported.map(|(_, message)| message))?.map(Box::new))
    }

    /// A timer of a call has fired.
    pub(crate) fn call_due(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        if matches!(call.kind, CallKind::Initialize(_)) {
            return self.initialize_due(now, key);
        }
        match &call.stage {
            Stage::Waiting => self.advance(now, key),
            Stage::AwaitingLists { until, .. } if now >= *until => self.lists_awaited(now, key),
            Stage::Queued(_)
            | Stage::AtStdio { .. }
            | Stage::OpeningUpstream
            | Stage::AtHttp { .. }
            | Stage::Relayed
            | Stage::Joined(_)
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => {}
        }
    }

    /// The availability has changed: of the shared run, or of this session's own.
    pub(crate) fn availability_changed(&mut self, now: Instant, own_run_of: Option<SessionKey>) {
        let sessions = match own_run_of {
            Some(session) => vec![session],
            None => self.sessions.keys(),
        };
        let is_concerned =
            |session: &Session| own_run_of.is_some() || !session.has_own_run() || self.is_removed();
        let concerned = sessions.iter().filter_map(|key| self.sessions.get(*key));
        // In the order in which the requests of a session arrived.
        let calls: Vec<_> = concerned
            .filter(|session| is_concerned(session))
            .flat_map(|session| session.open.iter().copied())
            .collect();
        for key in calls {
            let Some(call) = self.calls.get(key) else { continue };
            match &call.stage {
                Stage::Waiting if matches!(call.kind, CallKind::Initialize(_)) => {
                    self.advance_initialize(now, key);
                }
                Stage::Waiting => self.advance(now, key),
                Stage::AtHttp { link, operation } => {
                    let (link, operation) = (*link, *operation);
                    self.end_stream_of_ended_run(now, key, link, operation);
                }
                Stage::Queued(link) => {
                    let link = *link;
                    self.leave_ended_run(now, key, link);
                }
                Stage::AtStdio { .. }
                | Stage::OpeningUpstream
                | Stage::Relayed
                | Stage::Joined(_)
                | Stage::AwaitingLists { .. }
                | Stage::AwaitingRecord { .. }
                | Stage::Over => {}
            }
        }
        for session in sessions {
            self.send_undelivered(session);
            self.update_listener(now, session);
        }
    }

    /// Executes the next step of the replay contract.
    pub(crate) fn advance(&mut self, now: Instant, key: CallKey) {
        if let Some(call) = self.calls.take(key) {
            self.advance_taken(now, key, call);
        }
    }

    pub(crate) fn advance_taken(&mut self, now: Instant, key: CallKey, mut call: Box<Call>) {
        loop {
            if self.is_frozen {
                // It is not with the server. Another daemon decides what becomes of it.
                call.stage = Stage::Waiting;
                return self.calls.put_back(key, call);
            }
            let Some(session) = self.sessions.get(call.session) else {
                return self.answer_taken(now, key, call, None);
            };
            let present = self.availability_for(session).clone();
            match call.replay.step(now, upstream_state(&present)) {
                // It was sent before, and its client does not wait for it.
                Step::Send if call.replay.held_since().is_some() && self.is_unawaited(&call) => {
                    return self.answer_taken(now, key, call, None);
                }
                Step::Miss => self.missed(now, &mut call, &present),
                step @ (Step::Send | Step::Rejoin) => {
                    let run = present.run().expect("only a run that is up is sent to");
                    if std::mem::take(&mut call.is_held) {
                        self.held -= 1;
                    }
                    let failure = match step {
                        Step::Rejoin => self.rejoin(&mut call, key, run),
                        _ => self.attempt(now, &mut call, key, run),
                    };
                    match failure {
                        Ok(()) => {
                            self.calls.put_back(key, call);
                            return self.relayed_news(now, key);
                        }
                        Err(AttemptError::Lost(failure)) => {
                            self.record_loss(now, &mut call, run.generation, failure);
                        }
                        Err(AttemptError::Unusable(error)) => {
                            return self.unusable(now, key, call, &error, run.generation);
                        }
                    }
                }
                Step::Wait(until) => {
                    if !call.is_held {
                        if self.held >= MAX_HELD {
                            let no_answer = call.replay.no_room();
                            return self.answer_instead(now, key, call, no_answer, &present);
                        }
                        call.is_held = true;
                        self.held += 1;
                    }
                    call.stage = Stage::Waiting;
                    self.timers.set(until, Timer::Call(key));
                    return self.calls.put_back(key, call);
                }
                Step::Answer(no_answer) => {
                    return self.answer_instead(now, key, call, no_answer, &present);
                }
            }
        }
    }

    /// Sends a request to a run.
    fn attempt(
        &mut self,
        now: Instant,
        call: &mut Call,
        key: CallKey,
        run: &Run,
    ) -> Result<(), AttemptError> {
        let Some(link) = self.links.get(run.link) else { return Err(Failure::Unsent.into()) };
        if link.as_stdio().is_some() {
            self.send_to_stdio(now, call, key, run.link)
        } else {
            self.send_to_http(now, call, key, run.link)
        }
    }

    /// Waits for the answer to what an earlier daemon sent to this run.
    fn rejoin(&mut self, call: &mut Call, key: CallKey, run: &Run) -> Result<(), AttemptError> {
        let inherited = self.streams.get(call.stream).and_then(Stream::inherited);
        let (sent_as, is_relayed) = inherited.map_or((None, false), |inherited| {
            (inherited.sent.and_then(|sent| sent.line), inherited.relayed.is_some())
        });
        let Some(link) = self.links.get_mut(run.link) else { return Err(Failure::Sent.into()) };
        match (link.as_stdio_mut(), sent_as) {
            (Some(stdio), Some(id)) => match stdio.rejoin(id, key) {
                Ok(()) => call.stage = Stage::AtStdio { link: run.link, id },
                Err(failure) => return Err(failure.into()),
            },
            (None, None) if is_relayed => call.stage = Stage::Relayed,
            (Some(_) | None, _) => return Err(Failure::Sent.into()),
        }
        Ok(())
    }

    /// The run that an earlier daemon sent the request to is not there, or cannot answer.
    fn missed(&mut self, now: Instant, call: &mut Call, present: &Availability) {
        let inherited = self.streams.get(call.stream).and_then(Stream::inherited);
        let is_safe = match inherited.map(|inherited| (inherited.is_repeated, inherited.sent)) {
            // It was sent to the present run or to an earlier one.
            Some((true, _)) => present.run().is_some_and(|run| self.is_safe(call, run.generation)),
            Some((false, Some(sent))) => self.is_safe(call, sent.generation),
            Some((false, None)) | None => false,
        };
        call.replay.missed(now, upstream_state(present), is_safe);
    }

    /// An attempt at the run of that generation has failed.
    pub(crate) fn lost(&mut self, now: Instant, key: CallKey, generation: u64, failure: Failure) {
        let Some(mut call) = self.calls.take(key) else { return };
        if self.is_relayed(call.stream) {
            // Another daemon decides what becomes of it.
            return self.answer_taken(now, key, call, None);
        }
        self.record_loss(now, &mut call, generation, failure);
        self.advance_taken(now, key, call);
    }

    /// Whether another daemon has the stream, and this one relays what the server sends.
    pub(crate) fn is_relayed(&self, stream: StreamRef) -> bool {
        let stream = self.streams.get(stream);
        stream.is_some_and(|stream| matches!(stream.durable, Durable::Relayed))
    }

    fn record_loss(&mut self, now: Instant, call: &mut Call, generation: u64, failure: Failure) {
        self.withdraw_server_requests(call.session, |request| request.stream == Some(call.stream));
        let is_http = matches!(call.stage, Stage::OpeningUpstream | Stage::AtHttp { .. });
        if is_http && failure == Failure::Unsent {
            let owner = self.run_owner(call.session);
            self.report(Report::Unreachable(owner, generation));
        }
        let loss = match failure {
            Failure::Unsent => Loss::Unsent,
            Failure::SessionLost => Loss::Forgotten,
            Failure::Sent => Loss::Sent { safe: self.is_safe(call, generation) },
            Failure::Interrupted => Loss::Interrupted { safe: self.is_safe(call, generation) },
        };
        call.replay.lost(now, generation, loss);
    }

    /// Whether a request that was sent to the run of that generation may be executed twice.
    pub(crate) fn is_safe(&self, call: &Call, generation: u64) -> bool {
        let is_harmless = match call.message.method().map(Method::is_repeatable) {
            Some(Some(is_repeatable)) => is_repeatable,
            Some(None) => self.is_safe_tool(call, generation),
            None => false,
        };
        let inherited = self.streams.get(call.stream).and_then(Stream::inherited);
        is_harmless
            && !inherited.is_some_and(|inherited| inherited.was_asked)
            && !call.is_interactive
    }

    /// Annotations from an earlier run do not count, because this run may be another program.
    fn is_safe_tool(&self, call: &Call, generation: u64) -> bool {
        let Some(tool) = call.message.name() else { return false };
        if self.settings.replay.contains(&*tool) {
            return true;
        }
        // The lists of a session's own run are not read, but those of the shared run, which is the same program.
        let session = self.sessions.get(call.session).filter(|session| session.has_own_run());
        let generation = session.map_or(generation, |session| session.shared_run);
        self.copies.has_tools_of(generation) && self.copies.lists.is_read_only(&tool)
    }

    /// Cancels a request at the server.
    pub(crate) fn cancel_at_server(&mut self, now: Instant, key: CallKey, call: &Call) {
        self.remember_given_up(now, call);
        match &call.stage {
            Stage::AtStdio { link, id } => self.cancel_at_stdio(*link, *id),
            Stage::AtHttp { link, operation } => {
                self.cancel_operation(*operation);
                if let Some(id) = call.message.id() {
                    let text = frame::cancelled(id, CANCELLED);
                    self.notify_http(call.session, *link, text);
                }
            }
            Stage::Queued(link) => self.unqueue(*link, key),
            Stage::Relayed => {
                let run = self.run_for(call.session);
                if let (Some(id), Some(run)) = (call.message.id(), run) {
                    let text = frame::cancelled(id, CANCELLED);
                    self.notify_http(call.session, run.link, text);
                }
            }
            Stage::OpeningUpstream => self.leave_opening(call.session, key),
            Stage::Waiting
            | Stage::Joined(_)
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => {}
        }
    }

    /// The run will not answer the request, so a later daemon must not wait for that.
    pub(crate) fn record_unanswerable(&mut self, call: CallKey) {
        let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
        let stream = self.calls.get(call).map(|call| call.stream);
        if let Some(stream) = stream.and_then(|stream| self.streams.get_mut(stream)) {
            stream.record_unanswerable(journal);
        }
    }

    /// Records in the journal that a request is about to be sent, before it is: what is not known to be sent might be
    /// sent again. Returns false if another daemon decides what becomes of it.
    pub(crate) fn record_sent(
        &mut self,
        call: &mut Call,
        sent: Sent,
    ) -> Result<bool, AttemptError> {
        let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
        let stream = self.streams.get_mut(call.stream);
        match stream.map_or(Recorded::Never, |stream| stream.record_sent(journal, sent)) {
            Recorded::Yes => Ok(true),
            Recorded::NotYet => Err(Failure::Unsent.into()),
            Recorded::Never => {
                call.stage = Stage::Over;
                Ok(false)
            }
        }
    }
}

/// Why an attempt did not begin.
pub(crate) enum AttemptError {
    Lost(Failure),
    Unusable(UpstreamError),
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Lost(failure)
    }
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

//! Answers to requests: the server's, and those in its place.

use std::time::Instant;

use bytes::Bytes;
use mainstay_mcp::frame::{self, Id, Method, Parsed};
use mainstay_mcp::upstream::UpstreamError;

use crate::availability::Availability;
use crate::calls::{Call, CallKey, CallKind, refusal};
use crate::links::LinkKey;
use crate::messages;
use crate::replay::NoAnswer;
use crate::server::Server;
use crate::session::SessionKey;

impl Server {
    /// The server has answered.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        key: CallKey,
        (link, generation): (LinkKey, u64),
        answer: Parsed,
    ) {
        let Some(call) = self.calls.take(key) else { return };
        let after = self.links.get(link).and_then(|link| link.after.clone());
        if let Some(since) = call.replay.held_since() {
            let is_inherited =
                self.streams.get(call.stream).is_some_and(|stream| stream.inherited().is_some());
            let cause = match (call.replay.was_replayed(), is_inherited) {
                (true, _) => "replayed",
                (false, true) => "taken-up",
                (false, false) => "held",
            };
            let waited = mainstay_core::human_duration(now.saturating_duration_since(since));
            let what = format!("{cause}, and answered by run {generation} after {waited}");
            self.record_decision(&call, cause, &what, Some(generation));
        }
        let Some(id) = call.message.id() else { return self.answer_taken(now, key, call, None) };
        let text = match answer.id() {
            Some(theirs) if theirs.get() == id.get() => answer.into_text(),
            Some(_) => answer.with_id(id.get()),
            None => with_missing_id(&answer, id),
        };
        match &call.kind {
            CallKind::Tool => {
                let text = self.with_restart_note(call.session, generation, after.as_deref(), text);
                self.answer_taken(now, key, call, Some(text));
            }
            CallKind::List(kind) => {
                let kind = *kind;
                self.list_answered(now, key, call, kind, generation, text);
            }
            CallKind::Subscribe(noted) => {
                let is_accepted = Parsed::read(text.clone()).is_ok_and(|it| it.result().is_some());
                if let (Some(uri), false) = (noted.clone(), is_accepted) {
                    self.unsubscribe(call.session, &uri);
                }
                self.answer_taken(now, key, call, Some(text));
            }
            CallKind::Initialize(_) | CallKind::Other => {
                self.answer_taken(now, key, call, Some(text));
            }
        }
    }

    /// Adds to the first result after a restart that state was lost.
    fn with_restart_note(
        &mut self,
        session: SessionKey,
        generation: u64,
        after: Option<&crate::availability::Reason>,
        text: Bytes,
    ) -> Bytes {
        let is_result = || Parsed::read(text.clone()).is_ok_and(|answer| answer.result().is_some());
        if !self.must_mention_restart(session, generation, is_result) || self.settings.quiet_restart
        {
            return text;
        }
        let note = messages::restart_note(&self.name, after);
        Parsed::read(text.clone()).map_or(text, |answer| answer.with_note(&note))
    }

    pub(crate) fn unusable(
        &mut self,
        now: Instant,
        key: CallKey,
        call: Box<Call>,
        error: &UpstreamError,
        generation: u64,
    ) {
        let text = format!("the MCP server `{}` failed: {error}", self.name);
        self.record_decision(&call, "bad-answer", &error.to_string(), Some(generation));
        self.refuse(now, key, call, "bad-answer", &text);
    }

    pub(super) fn answer_instead(
        &mut self,
        now: Instant,
        key: CallKey,
        call: Box<Call>,
        no_answer: NoAnswer,
        availability: &Availability,
    ) {
        let text = messages::no_answer(&self.name, no_answer, availability, now, call.hold);
        let run = match no_answer {
            NoAnswer::Unknown { generation }
            | NoAnswer::Severed { generation }
            | NoAnswer::Interrupted { generation }
            | NoAnswer::DiedTwice { generation }
            | NoAnswer::BrokenOff { generation } => Some(generation),
            NoAnswer::Down
            | NoAnswer::Late
            | NoAnswer::Removed
            | NoAnswer::SessionLostRepeatedly => None,
        };
        if run.is_none() && self.is_unawaited(&call) {
            // It was not executed, so there is nothing to keep for its client.
            return self.answer_taken(now, key, call, None);
        }
        if no_answer == NoAnswer::Down {
            self.report_demand(call.session);
        }
        let cause = messages::cause(no_answer);
        self.record_decision(&call, cause, text.lines().next().unwrap_or_default(), run);
        self.refuse(now, key, call, cause, &text);
    }

    /// Answers in place of the server, so that the model, or at least the client, can read it.
    pub(crate) fn refuse(
        &mut self,
        now: Instant,
        key: CallKey,
        call: Box<Call>,
        cause: &str,
        text: &str,
    ) {
        let is_local = self.sessions.get(call.session).is_some_and(|session| session.is_local);
        let answer = call.message.id().map(|id| match call.message.method() {
            Some(Method::ToolsCall) if !is_local => frame::tool_error(id, text),
            _ => refusal(id, cause, text),
        });
        match &call.kind {
            CallKind::List(kind) => {
                // It was lost on the way.
                let copy = call.message.id().and_then(|id| self.list_copy(*kind, id, None));
                self.answer_taken(now, key, call, copy.or(answer));
            }
            CallKind::Subscribe(Some(uri)) => {
                let uri = uri.clone();
                self.unsubscribe(call.session, &uri);
                self.answer_taken(now, key, call, answer);
            }
            CallKind::Tool
            | CallKind::Subscribe(None)
            | CallKind::Initialize(_)
            | CallKind::Other => self.answer_taken(now, key, call, answer),
        }
    }
}

/// An error of a server that did not read which request it refused. Only errors can be without an id.
fn with_missing_id(answer: &Parsed, id: Id<'_>) -> Bytes {
    frame::error_text(id, answer.error().unwrap_or(b"{}"))
}

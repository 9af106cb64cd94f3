//! Calls that go on after their clients have stopped waiting, and results that come too late.
//!
//! A client that gives a call up by its own timeout, or vanishes, does not want the call to be undone. So the call is
//! *abandoned*, not cancelled: the server finishes it, and its result is kept for a while. If the client repeats the call,
//! with the same tool and arguments, it joins the one that runs, or gets the result that is kept, once.
//!
//! Only a tool call that the server may be executing is abandoned. Anything else can be sent again without harm.
//! Abandoned calls and their results are in the journal, so they outlive the daemon.

mod fingerprint;
mod reasons;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::Parsed;
use serde::{Deserialize, Serialize};

pub(crate) use self::fingerprint::Fingerprints;
pub(crate) use self::reasons::is_timeout;
use crate::action::Action;
use crate::calls::{Call, CallKey, CallKind, Stage};
use crate::messages;
use crate::presence::GRACE;
use crate::record::StreamChange;
use crate::server::Server;
use crate::session::{Session, SessionKey};
use crate::stream::{Durable, Journal, Stream};
use crate::streams::{Commit, StreamRef};
use crate::timers::Timer;

/// How many abandoned calls of a server there may be, running or finished.
pub(crate) const MAX_ABANDONED: usize = 32;

/// How long a result is kept.
pub(crate) const KEEP_RESULT: Duration = Duration::from_secs(10 * 60);

/// How many bytes the kept results of a server may have, beside the newest.
const MAX_RESULT_BYTES: usize = 32 << 20;

/// The member of `_meta` in a result that comes from an earlier call.
const META_KEY: &str = "mainstay/late-result";

/// What the journal has of an abandoned call, besides its stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Abandoned {
    /// Identifies the token of its client, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Box<str>>,
    /// Whether its client has listened for messages, so that it is known when it has left.
    #[serde(default)]
    pub has_listened: bool,
    /// Until when its result is kept, by the [session clock](crate::SessionClock); none while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_until: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct AbandonedCall {
    stream: StreamRef,
    session: SessionKey,
    token: Option<Box<str>>,
    tool: Box<str>,
    fingerprint: u128,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running {
        /// The repeated call that waits for its result.
        joined: Option<CallKey>,
    },
    Finished,
}

impl AbandonedCall {
    pub(crate) fn is_of(&self, stream: StreamRef) -> bool {
        self.stream == stream
    }
}

impl Server {
    /// The client of a stream has left for good: its request is abandoned, or else given up.
    pub(crate) fn client_gone(&mut self, now: Instant, key: StreamRef) {
        if !self.abandon(now, key, "the client is gone") {
            self.close_stream(now, key);
        }
    }

    /// The client has given up the request of a stream, and does not cancel it. Returns false if it cannot go on without
    /// its client.
    pub(crate) fn abandon(&mut self, now: Instant, key: StreamRef, why: &str) -> bool {
        if self.is_abandoned(key) {
            return true;
        }
        let Some(call_key) = self.call_of(key) else { return false };
        let Some(call) = self.calls.get(call_key) else { return false };
        if let Stage::Joined(earlier) = call.stage {
            // The earlier call goes on.
            self.set_joined(earlier, None);
            if let Some(earlier) = self.call_of(earlier) {
                self.remember_abandoned(now, earlier);
            }
            self.close_stream(now, key);
            return true;
        }
        if !self.can_be_abandoned(call) {
            return false;
        }
        let Some(entry) = self.entry_of(call) else { return false };
        if !self.make_room(now, entry.session) || !self.journal_now(now, key) {
            return false;
        }
        self.append_abandoned(key, self.abandoned_record(&entry, None));
        self.abandoned.push(entry);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.detach_reader(now);
            let paused = stream.awaits_room.take();
            self.act(Action::Wake(key));
            // Nobody reads what comes before the answer, so it needs no room.
            if let Some(operation) = paused {
                self.act(Action::ResumeHttp(operation));
            }
        }
        let Some(call) = self.calls.take(call_key) else { return true };
        self.remember_given_up(now, &call);
        self.withdraw_server_requests(call.session, |request| request.stream == Some(key));
        let what = format!("{why}; the server finishes the call, and its result is kept");
        self.record_decision(&call, "abandoned", &what, None);
        self.calls.put_back(call_key, call);
        true
    }

    /// Whether the client of a call may stop waiting for it without cancelling it: the server may be executing it.
    fn can_be_abandoned(&self, call: &Call) -> bool {
        let is_with_server =
            matches!(call.stage, Stage::AtStdio { .. } | Stage::AtHttp { .. } | Stage::Relayed);
        let session = self.sessions.get(call.session);
        let request = self.streams.get(call.stream).and_then(Stream::as_request);
        self.settings.late_results
            && matches!(call.kind, CallKind::Tool)
            && is_with_server
            && session.is_some_and(|session| !session.is_local && !session.is_over())
            && request.is_some_and(|request| request.batch.is_none())
            && !self.is_frozen
    }

    fn entry_of(&self, call: &Call) -> Option<AbandonedCall> {
        Some(AbandonedCall {
            stream: call.stream,
            session: call.session,
            token: self.sessions.get(call.session)?.token.clone(),
            tool: call.message.name()?.into(),
            fingerprint: self.fingerprints.of(&call.message)?,
            state: State::Running { joined: None },
        })
    }

    /// Has the stream of a request journaled from now on.
    fn journal_now(&mut self, now: Instant, key: StreamRef) -> bool {
        let Some(stream) = self.streams.get(key) else { return false };
        if stream.resumable().is_none() {
            let commit = Commit { is_events: false, is_repeated: false, journal_at: now };
            self.commit(now, key, commit);
        } else if matches!(stream.durable, Durable::No) {
            self.begin_journal(now, key);
        }
        let durable = self.streams.get(key).map(|stream| &stream.durable);
        matches!(durable, Some(Durable::Journaled(_)))
    }

    fn abandoned_record(&self, entry: &AbandonedCall, keep_until: Option<Duration>) -> Abandoned {
        let session = self.sessions.get(entry.session);
        let has_listened = session.is_some_and(|session| session.has_listened);
        Abandoned { token: entry.token.clone(), has_listened, keep_until }
    }

    fn append_abandoned(&self, key: StreamRef, abandoned: Abandoned) {
        let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
        if let Some(Durable::Journaled(key)) = self.streams.get(key).map(|stream| &stream.durable) {
            journal.append(key, StreamChange::Abandoned(abandoned));
        }
    }

    /// Makes room for one more abandoned call of a session. One that has at least as many loses a result; one that has more has
    /// a call cancelled. Returns false if there is none.
    fn make_room(&mut self, now: Instant, session: SessionKey) -> bool {
        if self.abandoned.len() < MAX_ABANDONED {
            return true;
        }
        let count = |of: SessionKey| self.abandoned.iter().filter(|it| it.session == of).count();
        let own = count(session);
        let victim = |state: State, least: usize| {
            let all = self.abandoned.iter().rev().filter(|it| it.state == state);
            // The oldest of those that count the same.
            let all = all.map(|it| ((count(it.session), it.session == session), it.stream));
            all.filter(|((count, _), _)| *count >= least).max_by_key(|(rank, _)| *rank)
        };
        if let Some((_, result)) = victim(State::Finished, own) {
            self.forget_stream(result);
        } else if let Some((_, call)) = victim(State::Running { joined: None }, own + 1) {
            self.close_stream(now, call);
        } else {
            return false;
        }
        true
    }

    /// Takes an abandoned call of an earlier daemon.
    pub(crate) fn recover_abandoned(
        &mut self,
        now: Instant,
        key: StreamRef,
        message: &Parsed,
        abandoned: Abandoned,
    ) {
        let Some(stream) = self.streams.get(key) else { return };
        let (session, is_finished) = (stream.session, stream.is_finished());
        let state = if is_finished { State::Finished } else { State::Running { joined: None } };
        let (Some(tool), Some(fingerprint)) = (message.name(), self.fingerprints.of(message))
        else {
            return self.forget_stream(key);
        };
        let Abandoned { token, has_listened, keep_until } = abandoned;
        if let Some(session) = self.sessions.get_mut(session) {
            session.has_listened |= has_listened;
        }
        let tool = tool.into();
        let time = self.clock.at(now);
        let left = keep_until.map_or(KEEP_RESULT, |until| until.saturating_sub(time));
        self.abandoned.push(AbandonedCall {
            stream: key,
            session,
            token,
            tool,
            fingerprint,
            state,
        });
        if is_finished {
            self.keep_result(now, key, left.min(KEEP_RESULT));
        }
    }

    /// Lets a repeated call wait for the abandoned one, or answers it with its result. Returns false if there is none.
    pub(crate) fn join_abandoned(&mut self, now: Instant, key: CallKey) -> bool {
        if self.abandoned.is_empty() {
            return false;
        }
        let Some(call) = self.calls.get(key) else { return false };
        let session = call.session;
        let inherited = self.streams.get(call.stream).and_then(Stream::inherited);
        if inherited.is_some_and(|inherited| inherited.sent.is_some()) {
            // An earlier daemon has sent it to the server.
            return false;
        }
        let Some(fingerprint) = self.fingerprints.of(&call.message) else { return false };
        let found = self.abandoned.iter().find(|it| {
            let is_free = !matches!(it.state, State::Running { joined: Some(_) });
            it.fingerprint == fingerprint && is_free && self.is_same_client(now, session, it)
        });
        let Some((earlier, state)) = found.map(|it| (it.stream, it.state)) else { return false };
        match state {
            State::Finished => self.deliver_kept(now, key, earlier),
            State::Running { .. } if self.is_overlong(now, earlier) => {
                self.end_overlong(now, key, earlier);
            }
            State::Running { .. } => self.join(now, key, earlier),
        }
        true
    }

    /// Whether an abandoned call runs for so long that its answer may be lost.
    fn is_overlong(&self, now: Instant, stream: StreamRef) -> bool {
        let call = self.call_of(stream).and_then(|call| self.calls.get(call));
        call.zip(self.settings.block_limit).is_some_and(|(call, limit)| now >= call.arrived + limit)
    }

    /// Cancels an abandoned call instead of letting a repeat wait for it, too.
    fn end_overlong(&mut self, now: Instant, key: CallKey, earlier: StreamRef) {
        self.close_stream(now, earlier);
        if let Some(call) = self.calls.take(key) {
            self.refuse(now, key, call, "effect-unknown", messages::OVERLONG_EARLIER);
        }
    }

    /// The client of a session has shown the token of this id.
    pub fn set_token(&mut self, session: SessionKey, token: Box<str>) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.token = Some(token);
        }
    }

    /// The client of another session is the same if it shows the same token, and has left the other session for good: several
    /// windows may share a token. A client that has never listened may only be between two calls.
    fn is_same_client(&self, now: Instant, session: SessionKey, earlier: &AbandonedCall) -> bool {
        let has_token = || {
            let session = self.sessions.get(session);
            let token = session.and_then(|session| session.token.as_ref());
            token.is_some() && token == earlier.token.as_ref()
        };
        let has_left = || {
            let session = self.sessions.get(earlier.session);
            let absence = |session: &Session| self.facts(session).absence(self.clock.at(now));
            let is_away = |session: &Session| {
                session.has_listened && absence(session).is_some_and(|it| it >= GRACE)
            };
            session.is_none_or(|session| session.is_over() || is_away(session))
        };
        earlier.session == session || (has_token() && has_left())
    }

    fn deliver_kept(&mut self, now: Instant, key: CallKey, earlier: StreamRef) {
        let answer = self.streams.get(earlier).and_then(|stream| stream.log.answer().cloned());
        // If Mainstay is killed in between, the result is delivered again, and the call is not executed again.
        self.answer_late(now, key, answer);
        self.forget_stream(earlier);
    }

    fn join(&mut self, now: Instant, key: CallKey, earlier: StreamRef) {
        let Some(mut call) = self.calls.take(key) else { return };
        match self.progress_of(&call) {
            Ok(progress) => call.progress = progress,
            Err(error) => return self.refuse(now, key, call, "bad-params", &error.to_string()),
        }
        call.stage = Stage::Joined(earlier);
        let what = "it waits for the identical call that the client had given up";
        self.record_decision(&call, "joined", what, None);
        self.calls.put_back(key, call);
        self.set_joined(earlier, Some(key));
        if let Some(earlier) = self.call_of(earlier) {
            self.forget_given_up(earlier);
            self.watch_slow(earlier);
        }
    }

    fn set_joined(&mut self, stream: StreamRef, call: Option<CallKey>) {
        if let Some(earlier) = self.abandoned.iter_mut().find(|it| it.stream == stream) {
            earlier.state = State::Running { joined: call };
        }
    }

    /// The client of the joined call has answered a request of the server on account of the abandoned one.
    pub(crate) fn set_interactive(&mut self, stream: StreamRef) {
        let call = self.call_of(stream);
        if let Some(call) = call.and_then(|call| self.calls.get_mut(call)) {
            call.is_interactive = true;
        }
    }

    /// A client cancels the call that has joined an abandoned one, which is cancelled too.
    pub(crate) fn cancel_joined(&mut self, now: Instant, key: CallKey, earlier: StreamRef) {
        if self.joined_to(earlier) == Some(key) {
            self.set_joined(earlier, None);
            self.close_stream(now, earlier);
        }
    }

    /// The stream of an abandoned call has ended. Returns false if the stream is another one.
    pub(crate) fn abandoned_finished(&mut self, now: Instant, key: StreamRef) -> bool {
        let found = self.abandoned.iter_mut().find(|it| it.stream == key);
        let Some(entry) = found.filter(|_| !self.is_frozen) else {
            return false;
        };
        let state = std::mem::replace(&mut entry.state, State::Finished);
        let answer = self.streams.get(key).and_then(|stream| stream.log.answer().cloned());
        if let State::Running { joined: Some(joined) } = state {
            self.answer_late(now, joined, answer);
            self.forget_stream(key);
        } else if answer.is_some_and(is_result) && self.is_worth_keeping(key) {
            self.keep_result(now, key, KEEP_RESULT);
        } else {
            self.forget_stream(key);
        }
        true
    }

    /// The results of tools that only read are not kept: to call them again does no harm, and returns newer data.
    fn is_worth_keeping(&self, key: StreamRef) -> bool {
        let Some(entry) = self.abandoned.iter().find(|it| it.stream == key) else { return false };
        let session = self.sessions.get(entry.session);
        let is_open = session.is_some_and(|session| !session.is_over());
        is_open && !self.copies.lists.is_read_only(&entry.tool)
    }

    /// A session has ended, and so no client can ask for its results.
    pub(crate) fn forget_results(&mut self, session: SessionKey) {
        let is_result = |it: &&AbandonedCall| it.session == session && it.state == State::Finished;
        let results: Vec<_> = self.abandoned.iter().filter(is_result).map(|it| it.stream).collect();
        for stream in results {
            self.forget_stream(stream);
        }
    }

    fn keep_result(&mut self, now: Instant, key: StreamRef, time: Duration) {
        let keep_until = Some(self.clock.at(now) + time);
        if let Some(entry) = self.abandoned.iter().find(|it| it.stream == key) {
            self.append_abandoned(key, self.abandoned_record(entry, keep_until));
        }
        if let Some(resumable) = self.streams.get_mut(key).and_then(Stream::resumable_mut) {
            resumable.expires = Some(now + time);
            self.timers.set(now + time, Timer::Stream(key));
        }
        while let Some(oldest) = self.beyond_limit(key) {
            self.forget_stream(oldest);
        }
    }

    /// The oldest result beside this one, if all of them are too large.
    fn beyond_limit(&self, newest: StreamRef) -> Option<StreamRef> {
        let finished = || self.abandoned.iter().filter(|it| it.state == State::Finished);
        let size = |it: &AbandonedCall| self.streams.get(it.stream).map_or(0, |it| it.log.bytes());
        let others = || finished().filter(|it| it.stream != newest);
        (others().map(size).sum::<usize>() > MAX_RESULT_BYTES)
            .then(|| others().next())?
            .map(|it| it.stream)
    }

    /// Answers a call with the result of the identical one that its client had given up.
    fn answer_late(&mut self, now: Instant, key: CallKey, answer: Option<Bytes>) {
        let Some(call) = self.calls.take(key) else { return };
        let answer = answer.and_then(|answer| Parsed::read(answer).ok());
        let Some((answer, id)) = answer.zip(call.message.id()) else {
            return self.refuse(now, key, call, "effect-unknown", messages::CANCELLED_EARLIER);
        };
        let noted = answer.with_first_note(messages::LATE_RESULT, META_KEY, "true");
        let text = Parsed::read(noted)
            .map_or_else(|_| answer.with_id(id.get()), |it| it.with_id(id.get()));
        let what = "answered with the result of the identical call that the client had given up";
        self.record_decision(&call, "late-result", what, None);
        self.answer_taken(now, key, call, Some(text));
    }

    /// Late results are turned off: abandoned calls are cancelled, and results forgotten. Calls that have joined one stay.
    pub(crate) fn drop_abandoned(&mut self, now: Instant) {
        let dropped: Vec<_> = self.abandoned.iter().map(|it| (it.stream, it.state)).collect();
        for (stream, state) in dropped {
            match state {
                State::Finished => self.forget_stream(stream),
                State::Running { joined: None } => self.close_stream(now, stream),
                State::Running { joined: Some(_) } => {}
            }
        }
    }

    /// Whether the client of a stream has given up its request for good.
    pub(crate) fn is_abandoned(&self, stream: StreamRef) -> bool {
        self.abandoned.iter().any(|it| it.stream == stream)
    }

    fn joined_to(&self, stream: StreamRef) -> Option<CallKey> {
        let joined = self.abandoned.iter().find(|it| it.stream == stream)?;
        match joined.state {
            State::Running { joined } => joined,
            State::Finished => None,
        }
    }

    /// The call that waits for the answer to this one: itself, or the one that has joined it. None if no client waits.
    pub(crate) fn awaiting_call(&self, key: CallKey) -> Option<CallKey> {
        if self.abandoned.is_empty() {
            return Some(key);
        }
        match self.calls.get(key) {
            Some(call) if self.is_abandoned(call.stream) => self.joined_to(call.stream),
            Some(_) | None => Some(key),
        }
    }

    /// Whether no client waits for the answer to a call.
    pub(crate) fn is_unawaited(&self, call: &Call) -> bool {
        self.is_abandoned(call.stream) && self.joined_to(call.stream).is_none()
    }

    fn call_of(&self, stream: StreamRef) -> Option<CallKey> {
        self.streams.get(stream)?.as_request()?.call
    }
}

/// Whether an answer is worth keeping. An error is not: it has no room for the note, and a repeat gets the same one.
fn is_result(answer: Bytes) -> bool {
    Parsed::read(answer).is_ok_and(|answer| answer.result().is_some())
}

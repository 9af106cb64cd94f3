//! What a daemon recovers of the one before it, and hands over to the one after it.
//!
//! A stream that was journaled is kept again under its number, with its messages. If it has its answer it waits for its
//! client. Otherwise its request continues like a new one, but for its beginning: a request that was sent is with its
//! run, and its answer is awaited from the first line on that is received of that run (see `replay` for what follows if
//! there is none).
//!
//! A server that speaks HTTP answers on the connection over which it was asked. When another daemon takes over, such a
//! connection stays with the old one, which waits for the answer and relays it, together with what the server sends
//! before. Everything else belongs to the new daemon.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use mainstay_mcp::frame::{self, Frame, Kind, Parsed};
use serde::{Deserialize, Serialize};

use crate::action::Relayed;
use crate::calls::{CallKey, Stage};
use crate::exchange::Failure;
use crate::links::{LinkKey, RunScope};
use crate::record::{Sent, StreamChange, StreamKey, StreamRecord};
use crate::server::Server;
use crate::session::SessionKey;
use crate::stdio::Stdio;
use crate::stream::{Durable, Start, Stream};

/// How many messages of a call may wait until this daemon has found its server.
const MAX_WAITING: usize = 64;

/// A request that an earlier daemon sent to a stdio run, and whose answer may still come.
#[derive(Debug)]
pub(crate) struct RecoveredRequest {
    generation: u64,
    /// Its id there.
    id: u64,
    pub(crate) call: CallKey,
    session: SessionKey,
}

/// What became of a call that the daemon before this one finishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayNews {
    /// The server sent this; the number is that of the message in the stream.
    #[serde(rename = "Said")]
    Message(u64, String),
    Answered(String),
    /// No answer will come.
    Lost,
}

impl Server {
    /// Recovers a stream of an earlier daemon: after its session was restored, and before any run is attached. If
    /// `is_relayed`, the daemon before this one may still finish the request. Returns false if its
    /// session is unknown.
    pub fn recover(&mut self, now: Instant, record: StreamRecord, is_relayed: bool) -> bool {
        let Some(session) = self.session(&record.key.session) else { return false };
        let Some(request) = record.request.clone() else {
            let general = self.sessions.get(session).map(|session| session.general);
            if let Some(general) = general.and_then(|general| self.streams.get_mut(general)) {
                general.restore(record.messages);
            }
            return true;
        };
        let Some(message) = Parsed::read(request).ok().filter(|it| it.kind() == Kind::Request)
        else {
            self.store.append_to_journal(&record.key, StreamChange::Over);
            return true;
        };
        let is_relayed = is_relayed && Self::can_be_relayed(&record);
        let (sent, number, abandoned) = (record.sent, record.key.number, record.abandoned.clone());
        let id = message.id().map(|id| Arc::from(id.get()));
        let stream = Stream::recovered(session, record, is_relayed);
        let is_finished = stream.is_finished();
        let stream = self.streams.insert(stream);
        self.keep_recovered(now, stream, number, id);
        if let Some(abandoned) = abandoned {
            self.recover_abandoned(now, stream, &message, abandoned);
            if is_finished || self.streams.get(stream).is_none() {
                return true;
            }
        } else if is_finished {
            self.keep_finished(now, stream);
            return true;
        }
        self.begin_call(now, session, stream, message);
        self.limit_waiting(stream);
        self.begin_progress(now, stream);
        let call = self.streams.get(stream).and_then(|stream| stream.as_request()?.call);
        if let (Some(Sent { generation, line: Some(id) }), Some(call)) = (sent, call) {
            self.recovered.push(RecoveredRequest { generation, id, call, session });
        }
        true
    }

    /// Whether only the daemon before this one can receive the answer to a request.
    pub fn can_be_relayed(record: &StreamRecord) -> bool {
        record.request.is_some()
            && record.answer.is_none()
            && matches!(record.sent, Some(Sent { line: None, generation: 1.. }))
    }

    /// The requests whose answers may come from a run, of all sessions or of the one that owns it.
    pub(crate) fn take_recovered(
        &mut self,
        generation: u64,
        scope: RunScope,
    ) -> Vec<(u64, CallKey)> {
        let sessions = &self.sessions;
        let isolate = self.settings.isolate;
        let is_theirs = |request: &mut RecoveredRequest| match scope {
            RunScope::Session(session) => request.session == session,
            RunScope::EndedSession => false,
            RunScope::Shared => {
                let session = sessions.get(request.session);
                session
                    .is_some_and(|session| !session.has_own_run() && (!isolate || session.is_local))
            }
        };
        let recovered: Vec<_> = self.recovered.extract_if(.., is_theirs).collect();
        // Those of earlier runs get no answer, which they learn from the availability.
        let of_run = recovered.into_iter().filter(|request| request.generation == generation);
        of_run.map(|request| (request.id, request.call)).collect()
    }

    /// The daemon before this one reports what became of a call.
    pub fn relay(&mut self, now: Instant, stream: &StreamKey, news: RelayNews) {
        // Requests of a session whose server was removed are still answered.
        let is_it = |key: &SessionKey| self.session_id(*key) == Some(&stream.session);
        let session = self.sessions.keys().into_iter().find(is_it);
        let stream = session.and_then(|session| self.stream_of_number(session, stream.number));
        let Some(stream) = stream else { return };
        let Some(it) = self.streams.get_mut(stream).and_then(Stream::as_request_mut) else {
            return;
        };
        let Some(call) = it.call else { return };
        let Some(waiting) = it.inherited.as_mut().and_then(|it| it.relayed.as_mut()) else {
            return;
        };
        let is_last = matches!(news, RelayNews::Answered(_) | RelayNews::Lost);
        if is_last || waiting.len() < MAX_WAITING {
            waiting.push_back(news);
        }
        self.relayed_news(now, call);
    }

    /// Takes what the daemon before this one has relayed, if the call waits for it.
    pub(crate) fn relayed_news(&mut self, now: Instant, key: CallKey) {
        loop {
            let Some(call) = self.calls.get(key) else { return };
            if !matches!(call.stage, Stage::Relayed) {
                return;
            }
            let (stream, session) = (call.stream, call.session);
            let request = self.streams.get_mut(stream).and_then(Stream::as_request_mut);
            let inherited = request.and_then(|request| request.inherited.as_mut());
            let Some(inherited) = inherited else { return };
            let Some(news) = inherited.relayed.as_mut().and_then(VecDeque::pop_front) else {
                return;
            };
            let generation = inherited.sent.map_or(0, |sent| sent.generation);
            match news {
                RelayNews::Message(number, text) => {
                    inherited.was_asked |=
                        matches!(frame::scan(text.as_bytes()), Ok(Frame::Request { .. }));
                    // Some may have been relayed to another daemon before.
                    let last = self.streams.get(stream).map_or(0, |stream| stream.log.last());
                    let Ok(message) = Parsed::read(text.into()) else { continue };
                    if number > last
                        && let Some(text) = self.with_rising_progress(now, key, &message)
                    {
                        self.push(stream, text);
                    }
                }
                RelayNews::Answered(text) => {
                    // The run may have ended after it.
                    let link = self.run_for(session).map_or_else(LinkKey::dangling, |it| it.link);
                    return match Parsed::read(text.into()) {
                        Ok(answer) => self.answered(now, key, (link, generation), answer),
                        Err(_) => self.lost(now, key, generation, Failure::Sent),
                    };
                }
                RelayNews::Lost => {
                    inherited.relayed = None;
                    return self.lost(now, key, generation, Failure::Sent);
                }
            }
        }
    }

    /// Whether every request is answered or journaled, and every line of a server is confirmed.
    pub fn is_settled(&self) -> bool {
        let is_settled = |stream: Option<&Stream>| {
            stream.is_none_or(|stream| stream.durable.outlives_daemon() || stream.is_finished())
        };
        self.calls.values().all(|call| is_settled(self.streams.get(call.stream)))
            && self.links.values().filter_map(|link| link.as_stdio()).all(Stdio::is_confirmed)
    }

    /// Whether a request takes long and would miss its answer if another daemon took over.
    pub fn is_bound(&self) -> bool {
        let is_bound =
            |stream: &Stream| matches!(stream.durable, Durable::Never) && !stream.is_finished();
        self.calls.values().any(|call| self.streams.get(call.stream).is_some_and(is_bound))
    }

    /// Whether no request waits for its answer.
    pub fn is_idle(&self) -> bool {
        self.calls.len() == 0
    }

    /// Another daemon takes over: the calls that only this one can finish. From now on the readers get their messages.
    pub fn relayed_calls(&mut self) -> Vec<(Arc<str>, Relayed)> {
        let mut relayed = Vec::new();
        for key in self.streams.keys() {
            let Some(stream) = self.streams.get_mut(key).filter(|it| it.can_be_relayed()) else {
                continue;
            };
            stream.durable = Durable::Relayed;
            // The other daemon decides what becomes of its answer.
            self.abandoned.retain(|it| !it.is_of(key));
            let Some(stream) = self.streams.get_mut(key) else { continue };
            let last = stream.log.last();
            let (turn, position) = stream.attach(Start::After(last));
            let (number, session) = (stream.resumable().map_or(0, |it| it.number), stream.session);
            if let Some(session) = self.sessions.get(session) {
                relayed.push((
                    Arc::clone(&session.id),
                    Relayed { number, stream: key, turn, position },
                ));
            }
            // The reader before learns that its turn is over.
            self.act(crate::action::Action::Wake(key));
        }
        relayed
    }

    /// Another daemon has taken over. From now on nothing is stored, sent or cancelled for any client; streams that the
    /// other one continues end here.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
        for key in self.streams.keys() {
            let Some(stream) = self.streams.get_mut(key) else { continue };
            let is_relayed = matches!(stream.durable, Durable::Relayed);
            // An answer that is there is still read here, because it may not be in the journal.
            let continues_elsewhere = stream.is_general()
                || (stream.resumable().is_some() && !stream.is_finished() && !is_relayed);
            if continues_elsewhere {
                stream.is_closed = true;
                self.act(crate::action::Action::Wake(key));
            }
        }
    }
}

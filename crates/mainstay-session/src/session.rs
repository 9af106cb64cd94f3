//! One client's session. It belongs to Mainstay: runs come and go behind it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::{Handshake, Method};
use mainstay_mcp::version::ProtocolVersion;
use serde_json::value::RawValue;

use crate::availability::Availability;
use crate::calls::CallKey;
use crate::http::Upstream;
use crate::level::Level;
use crate::presence::{Presence, SessionFacts};
use crate::record::SessionRecord;
use crate::run_retention::RunUse;
use crate::server::Server;
use crate::server_requests::ServerRequest;
use crate::streams::{NumberedStreams, StreamRef};
use crate::table::Key;

/// A session of a server.
pub type SessionKey = Key<Session>;

#[derive(Debug)]
pub struct Session {
    pub(crate) id: Arc<str>,
    /// Whether it belongs to a command of the user, and ends with it.
    pub(crate) is_local: bool,
    pub(crate) client: ClientState,
    pub(crate) version: Option<ProtocolVersion>,
    pub(crate) usage: Usage,
    pub(crate) life: Life,
    /// The newest run that the client has had a result from, or was initialized with.
    pub(crate) known_run: u64,
    /// When a request of the client was last answered, when it last sent another message, or when the session
    /// started, by the session clock.
    pub(crate) used: Duration,
    /// The last time of use that was stored.
    saved_use: Duration,
    /// Requests that are not answered yet.
    pub(crate) open: Vec<CallKey>,
    /// The bytes of the large ones among them.
    pub(crate) open_bytes: usize,
    pub(crate) server_requests: Vec<ServerRequest>,
    /// Messages for a run that an earlier daemon used, until it can be used again.
    pub(crate) undelivered: Vec<Undelivered>,
    pub(crate) general: StreamRef,
    pub(crate) streams: NumberedStreams,
    /// The availability of its own run, if it has one.
    pub(crate) own_run: Option<Box<Availability>>,
    /// The shared run that is the same program as its own run.
    pub(crate) shared_run: u64,
    /// Its session with a server that speaks HTTP.
    pub(crate) upstream: Upstream,
    /// Whether it ends when its client stops listening: the client is a `mainstay connect`.
    pub(crate) ends_with_listener: bool,
    /// Whether its client has listened outside of requests, so that it is known when it has left.
    pub(crate) has_listened: bool,
    /// Identifies the token that its client has shown, if it has.
    pub(crate) token: Option<Box<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Current,
    /// It has ended, and its requests are being given up.
    Ending,
    Over,
}

/// A message for the run of that generation, which may come up until then.
#[derive(Debug)]
pub(crate) struct Undelivered {
    pub(crate) generation: u64,
    pub(crate) message: Bytes,
    pub(crate) until: Instant,
}

/// What a new run must learn on behalf of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientState {
    /// The parameters of its `initialize`, as the client wrote them.
    pub(crate) params: Option<Arc<RawValue>>,
    pub(crate) level: Option<Level>,
    pub(crate) subscriptions: BTreeSet<String>,
}

/// Whether the client has used its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Usage {
    /// Nothing was sent after `initialize`.
    #[default]
    Unused,
    Used,
    /// Used recently, so the server tracks the session as possibly active.
    Tracked,
}

impl Usage {
    fn is_used(self) -> bool {
        self != Self::Unused
    }
}

impl ClientState {
    /// Whether the client declared that it handles this request of a server. Unknown methods are left to it.
    pub(crate) fn handles(&self, method: Option<&Method>) -> bool {
        let capability = match method {
            Some(Method::CreateMessage) => "sampling",
            Some(Method::Elicit) => "elicitation",
            Some(Method::RootsList) => "roots",
            _ => return true,
        };
        let params = self.params.as_ref().map(|params| params.get().as_bytes());
        params.and_then(Handshake::read).is_some_and(|params| params.has(capability))
    }
}

impl Session {
    pub(crate) fn new(id: Arc<str>, is_local: bool, general: StreamRef, now: Duration) -> Self {
        Self {
            streams: NumberedStreams::of(&id),
            id,
            is_local,
            client: ClientState::default(),
            version: None,
            usage: Usage::Unused,
            life: Life::Current,
            known_run: 0,
            used: now,
            saved_use: now,
            open: Vec::new(),
            open_bytes: 0,
            server_requests: Vec::new(),
            undelivered: Vec::new(),
            general,
            own_run: None,
            shared_run: 0,
            upstream: Upstream::default(),
            ends_with_listener: false,
            has_listened: false,
            token: None,
        }
    }

    /// Takes the stored state of the session.
    pub(crate) fn restore(&mut self, record: SessionRecord, now: Duration) {
        // The clock may have been saved before the last use of the session.
        self.used = record.used_at.min(now);
        self.saved_use = self.used;
        self.upstream = Upstream::restored(record.upstream);
        self.client = ClientState {
            params: serde_json::from_slice::<Box<RawValue>>(&record.params).ok().map(Arc::from),
            level: record.level.and_then(|level| Level::of(&level)),
            subscriptions: record.subscriptions.into_iter().collect(),
        };
        self.version = record.version.parse().ok();
        self.usage = if record.initialized { Usage::Used } else { Usage::Unused };
        self.known_run = record.run.unwrap_or_default();
    }

    /// Whether it has ended. Nothing of it is stored then.
    pub(crate) fn is_over(&self) -> bool {
        self.life != Life::Current
    }

    pub(crate) fn has_own_run(&self) -> bool {
        self.own_run.is_some()
    }

    pub(crate) fn is_used(&self) -> bool {
        self.usage.is_used()
    }
}

/// The first characters of the id, for messages.
pub(crate) fn short_id(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

impl Server {
    /// The protocol version agreed with the client; none until it is initialized.
    pub fn version(&self, session: SessionKey) -> Option<ProtocolVersion> {
        self.sessions.get(session)?.version
    }

    /// The id of a session, while it is in memory.
    pub fn session_id(&self, session: SessionKey) -> Option<&Arc<str>> {
        Some(&self.sessions.get(session)?.id)
    }

    /// Stores a session.
    pub(crate) fn save(&self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if session.is_local || session.is_over() || self.is_frozen {
            return;
        }
        if let Some(record) = self.record_of(session) {
            self.store.save(record);
        }
    }

    pub(crate) fn record_of(&self, session: &Session) -> Option<SessionRecord> {
        let client = &session.client;
        Some(SessionRecord {
            id: session.id.to_string(),
            server: self.name.to_string(),
            params: client.params.as_ref()?.get().to_owned().into(),
            version: session.version?.as_str().to_owned(),
            initialized: session.is_used(),
            level: client.level.map(|level| level.as_str().to_owned()),
            subscriptions: client.subscriptions.iter().cloned().collect(),
            run: (session.known_run != 0).then_some(session.known_run),
            upstream: session.upstream.record(),
            used_at: self.last_present(session),
        })
    }

    /// When the client was last present. Meaningful only while it is absent.
    fn last_present(&self, session: &Session) -> Duration {
        let left = self.streams.get(session.general).and_then(|general| general.left);
        left.map_or(session.used, |left| self.clock.at(left).max(session.used))
    }

    /// The facts for the decisions in [`presence`](crate::presence).
    pub(crate) fn facts(&self, session: &Session) -> SessionFacts {
        let presence = if self.waits(session) || self.is_listening(session) {
            Presence::Present
        } else {
            Presence::Absent { since: self.last_present(session) }
        };
        let is_recorded = session.version.is_some() && session.streams.is_empty();
        SessionFacts { presence, is_used: session.is_used(), is_recorded }
    }

    /// Whether the client waits for an answer.
    fn waits(&self, session: &Session) -> bool {
        session.open.iter().any(|call| self.awaiting_call(*call).is_some())
    }

    pub(crate) fn is_listening(&self, session: &Session) -> bool {
        self.streams.get(session.general).is_some_and(|general| general.has_reader)
    }

    /// Whether the client is present, or was within the grace period.
    pub(crate) fn is_active(&self, now: Instant, session: &Session) -> bool {
        self.facts(session).is_active(self.clock.at(now))
    }

    /// How the client uses the session's own run.
    pub(crate) fn run_use(&self, session: &Session) -> RunUse {
        let SessionFacts { presence, is_used, .. } = self.facts(session);
        let is_subscribed = !session.client.subscriptions.is_empty();
        if !session.open.is_empty() || (is_subscribed && presence == Presence::Present) {
            return RunUse::InUse;
        }
        RunUse::Idle { last_message: session.used, presence, is_used }
    }

    /// When the client was last present, if that is not stored yet.
    pub(crate) fn unsaved_use(
        &mut self,
        now: Instant,
        key: SessionKey,
    ) -> Option<(String, Duration)> {
        let session = self.sessions.get(key)?;
        let used = match self.facts(session).presence {
            Presence::Present => self.clock.at(now),
            Presence::Absent { since } => since,
        };
        let session = self.sessions.get_mut(key)?;
        let is_saved = std::mem::replace(&mut session.saved_use, used) == used;
        (!is_saved && !session.is_local).then(|| (session.id.to_string(), used))
    }

    /// The client is present now.
    pub(crate) fn touch(&mut self, now: Instant, key: SessionKey) {
        let now = self.clock.at(now);
        if let Some(session) = self.sessions.get_mut(key) {
            session.used = now;
        }
    }

    /// The client has sent more than `initialize`.
    pub(crate) fn mark_used(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key).filter(|session| !session.is_local) else {
            return;
        };
        match session.usage {
            Usage::Tracked => return,
            Usage::Used => {}
            Usage::Unused => {
                session.usage = Usage::Used;
                self.save(key);
            }
        }
        self.touch(now, key);
        self.track(key);
    }

    /// Tracks a used session as possibly active.
    pub(crate) fn track(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(key)
            && session.usage == Usage::Used
            && !session.is_local
        {
            session.usage = Usage::Tracked;
            self.active.push(key);
        }
    }

    /// Stops tracking the session if it is not active. Returns whether it is active.
    pub(crate) fn untrack_if_inactive(&mut self, now: Instant, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key).filter(|session| !session.is_over()) else {
            return false;
        };
        let is_active = self.is_active(now, session);
        if !is_active && let Some(session) = self.sessions.get_mut(key) {
            session.usage = Usage::Used;
        }
        is_active
    }

    /// The only active session. If none is active, the only session there is.
    pub(crate) fn only_session(&mut self, now: Instant) -> Option<SessionKey> {
        let mut only = None;
        let mut index = 0;
        while let Some(key) = self.active.get(index).copied() {
            if !self.untrack_if_inactive(now, key) {
                self.active.swap_remove(index);
            } else if only.is_some() {
                return None;
            } else {
                only = Some(key);
                index += 1;
            }
        }
        let sole = || self.by_id.values().next().copied().filter(|_| self.by_id.len() == 1);
        only.or_else(sole)
    }

    /// Whether the client has to be notified that its run was replaced: once per run, with an answer that can carry the
    /// note.
    pub(crate) fn must_mention_restart(
        &mut self,
        key: SessionKey,
        generation: u64,
        can_mention_it: impl FnOnce() -> bool,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let is_new = session.known_run != 0 && session.known_run < generation;
        if is_new && !can_mention_it() {
            return false;
        }
        // An older run may still answer after the newer one.
        if session.known_run < generation {
            session.known_run = generation;
            self.save(key);
        }
        is_new
    }

    pub(crate) fn set_level(&mut self, key: SessionKey, level: Level) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.client.level = Some(level);
            self.save(key);
        }
    }

    /// Returns false if the session has subscribed before.
    pub(crate) fn subscribe(&mut self, key: SessionKey, uri: &str) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let is_new = session.client.subscriptions.insert(uri.to_owned());
        self.save(key);
        is_new
    }

    pub(crate) fn unsubscribe(&mut self, key: SessionKey, uri: &str) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.client.subscriptions.remove(uri);
            self.save(key);
        }
    }
}

//! One client's session. It belongs to Mainstay: runs come and go behind it.

mod asks;
mod open;
mod own_run;
mod usage;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::timeout;

use self::asks::Asks;
use self::open::Open;
use self::own_run::OwnRun;
use self::usage::Usage;
use super::availability::{Run, RunLink};
use super::http::HttpConn;
use super::level::Level;
use super::{Hub, exchange};
use crate::frame::{self, Kind, Method, Parsed};
use crate::front::{self, Answering, ProtocolVersion};
use crate::record::SessionRecord;
use crate::stream::{Stream, Streams};

/// How long the answer to `initialize` waits for the session's record to be on disk.
const RECORD_WAIT: Duration = Duration::from_millis(100);

/// A handle on a session. Clones are the same session.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

/// A handle that does not keep its session. By default it is nobody's.
#[derive(Debug, Clone, Default)]
pub(super) struct WeakSession {
    inner: Weak<Inner>,
}

struct Inner {
    id: String,
    hub: Arc<Hub>,
    streams: Streams,
    /// Its own session with a server that speaks HTTP.
    http: HttpConn,
    own_run: OwnRun,
    /// When a request of the client was last answered, when it last sent another message, or when the session
    /// started, in milliseconds of the session clock.
    used: AtomicU64,
    /// The value of `used` that was last saved to disk.
    saved_use: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    terms: ClientState,
    version: Option<ProtocolVersion>,
    usage: Usage,
    /// Whether it is kept on disk.
    kept: bool,
    /// Whether it has ended, so that nothing of it is kept any more.
    over: bool,
    /// Requests of the client that are not answered yet, by their ids as the client wrote them.
    open: HashMap<Box<str>, Open>,
    /// The number of open requests, including those whose id the client has reused.
    open_count: usize,
    /// The bytes of the large ones among them.
    open_bytes: usize,
    asks: Asks,
    /// The newest run that the client has had a result from, or was initialized with.
    knows: u64,
}

/// What a new run must be told on behalf of the session.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientState {
    /// The parameters of its `initialize`, as the client wrote them.
    pub(super) params: Option<Arc<RawValue>>,
    pub(super) level: Option<Level>,
    pub(super) subscriptions: BTreeSet<String>,
}

impl Session {
    /// A session that is kept on disk from its beginning on, or never.
    pub(super) fn new(hub: Arc<Hub>, id: String, kept: bool) -> Self {
        Self { inner: Arc::new(Self::inner(hub, id, kept)) }
    }

    fn inner(hub: Arc<Hub>, id: String, kept: bool) -> Inner {
        let now = millis(hub.now());
        let streams =
            if kept { Streams::kept(&id, hub.write_fence().clone()) } else { Streams::new() };
        Inner {
            id,
            used: AtomicU64::new(now),
            saved_use: AtomicU64::new(now),
            hub,
            streams,
            http: HttpConn::default(),
            own_run: OwnRun::default(),
            state: Mutex::new(State { kept, ..State::default() }),
        }
    }

    /// A session as it was stored.
    pub(super) fn restored(hub: Arc<Hub>, record: SessionRecord) -> Self {
        let mut inner = Self::inner(hub, record.id, true);
        // The clock may have been saved before the last use of the session.
        let used = millis(record.used_at.min(inner.hub.now()));
        (inner.used, inner.saved_use) = (AtomicU64::new(used), AtomicU64::new(used));
        inner.http = record.upstream.as_ref().map(HttpConn::restored).unwrap_or_default();
        let session = Self { inner: Arc::new(inner) };
        {
            let mut state = session.state();
            state.terms = ClientState {
                params: serde_json::from_slice::<Box<RawValue>>(&record.params).ok().map(Arc::from),
                level: record.level.and_then(|level| level.parse().ok()),
                subscriptions: record.subscriptions.into_iter().collect(),
            };
            state.version = record.version.parse().ok();
            state.usage = if record.initialized { Usage::Used } else { Usage::Unused };
            state.knows = record.run.unwrap_or_default();
        }
        session.inner.streams.write_down_general();
        session
    }

    pub(super) fn downgrade(&self) -> WeakSession {
        WeakSession { inner: Arc::downgrade(&self.inner) }
    }

    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.inner.hub
    }

    pub(super) fn http(&self) -> &HttpConn {
        &self.inner.http
    }

    /// Whether it is our own user's, who needs no session that lasts.
    pub(super) fn is_local(&self) -> bool {
        !self.state().kept
    }

    pub(super) fn terms(&self) -> ClientState {
        self.state().terms.clone()
    }

    pub(super) fn level(&self) -> Option<Level> {
        self.state().terms.level
    }

    pub(super) fn subscribes_to(&self, uri: &str) -> bool {
        self.state().terms.subscriptions.contains(uri)
    }

    /// The client wants to be initialized with these parameters. A run of its own, if it is given
    /// one, is opened with them.
    pub(super) fn propose(&self, params: &Arc<RawValue>) {
        self.state().terms.params = Some(Arc::clone(params));
    }

    /// The client is initialized on these terms.
    pub(super) fn begin(&self, params: Arc<RawValue>, version: ProtocolVersion, generation: u64) {
        let mut state = self.state();
        state.terms.params = Some(params);
        state.version = Some(version);
        state.knows = generation;
        self.keep(&state);
        if state.kept {
            self.inner.streams.write_down_general();
        }
    }

    pub(super) fn set_level(&self, level: Level) {
        let mut state = self.state();
        state.terms.level = Some(level);
        self.keep(&state);
    }

    /// Notes a subscription; false if it was noted before.
    pub(super) fn subscribe(&self, uri: &str) -> bool {
        let mut state = self.state();
        let new = state.terms.subscriptions.insert(uri.to_owned());
        self.keep(&state);
        new
    }

    pub(super) fn unsubscribe(&self, uri: &str) {
        let mut state = self.state();
        state.terms.subscriptions.remove(uri);
        self.keep(&state);
    }

    /// Whether the client is to be told that it now speaks to another run than before. Once per run,
    /// with an answer that can carry the news.
    pub(super) fn meets(&self, generation: u64, can_tell: impl FnOnce() -> bool) -> bool {
        let mut state = self.state();
        let is_news = state.knows != 0 && state.knows < generation;
        if is_news && !can_tell() {
            return false;
        }
        // An older run may still answer after the newer one.
        if state.knows < generation {
            state.knows = generation;
            self.keep(&state);
        }
        is_news
    }

    /// There is a new run, or a new daemon. What changed of the resources in between cannot be known, but of
    /// a run that is known and that was listened to all the time.
    pub(super) fn meet(&self, run: &Run) {
        let subscriptions = self.terms().subscriptions;
        match &run.link {
            RunLink::Lines(conn)
                if conn.misses_nothing() && self.state().knows == run.generation => {}
            // Its session is opened by the next request; subscribers that are present need it now.
            RunLink::Http(_) if subscriptions.is_empty() || !self.is_active() => {}
            RunLink::Http(http) if !self.http().is_open_with(http) => {
                HttpConn::reopen(self, run.generation);
            }
            RunLink::Lines(_) | RunLink::Http(_) => {
                for uri in &subscriptions {
                    self.hear(frame::resource_updated(uri), None);
                }
            }
        }
    }

    /// Keeps its session with a server that speaks HTTP, for a later daemon to go on in.
    pub(super) fn keep_upstream(&self) {
        self.keep(&self.state());
    }

    pub(super) fn general(&self) -> &Arc<Stream> {
        self.inner.streams.general()
    }

    /// Something for the client, on the stream of a request or on the general one.
    pub(super) fn hear(&self, message: Bytes, stream: Option<&Arc<Stream>>) {
        // A stream that takes no more has dropped it, and said so.
        let _taken = self.put(message, stream);
    }

    fn put(&self, message: Bytes, stream: Option<&Arc<Stream>>) -> bool {
        stream.unwrap_or(self.general()).push(message)
    }

    /// A log message, if the client wants it.
    pub(super) fn hear_log(&self, message: &Parsed, stream: Option<&Arc<Stream>>) {
        let level = message.level().and_then(|level| level.parse::<Level>().ok());
        let wanted = self.level();
        if wanted.zip(level).is_none_or(|(wanted, level)| level >= wanted) {
            self.hear(message.text().clone(), stream);
        }
    }

    /// Something from a run that only this session has.
    pub(super) fn hear_own(&self, generation: u64, message: &Parsed, stream: Option<&Arc<Stream>>) {
        match message.method() {
            Some(Method::Cancelled) => self.ask_cancelled(generation, message),
            Some(Method::ToolsChanged | Method::PromptsChanged | Method::ResourcesChanged) => {
                self.hub().lists_may_have_changed();
                self.hear(message.text().clone(), None);
            }
            _ => self.hear(message.text().clone(), stream),
        }
    }

    /// Gives up all that is open: the session ends.
    pub(super) fn end(&self) {
        let open = std::mem::take(&mut self.state().open);
        for open in open.into_values() {
            open.stream.cancel();
        }
        self.inner.streams.close();
        self.retire();
    }

    /// The server is gone. What is open is still answered; nothing else is said.
    pub(super) fn retire(&self) {
        self.state().over = true;
        self.general().cancel();
        self.inner.http.close(self);
    }

    /// Ends this in-memory copy; the session continues when it is loaded again. Nothing of this copy is saved
    /// from here on.
    pub(super) fn leave_memory(&self) {
        self.state().over = true;
        self.general().cancel();
    }

    /// Whether it has ended, or has left memory.
    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// The record from which the session can be loaded again.
    pub(super) fn record(&self) -> Option<SessionRecord> {
        self.record_of(&self.state())
    }

    fn keep(&self, state: &State) {
        if state.kept
            && !state.over
            && let Some(record) = self.record_of(state)
        {
            self.hub().write_fence().pass(|state_store| state_store.save(record));
        }
    }

    /// Waits until the record is on disk, so that the client keeps its session if the daemon is killed now. A disk that
    /// is slow does not keep the client waiting.
    pub(super) async fn written(&self) {
        if self.is_local() {
            return;
        }
        let written = self.hub().write_fence().pass(|state_store| state_store.written());
        if let Some(written) = written {
            // The record is written later then.
            timeout(RECORD_WAIT, written).await.ok();
        }
    }

    fn record_of(&self, state: &State) -> Option<SessionRecord> {
        Some(SessionRecord {
            id: self.inner.id.clone(),
            server: self.hub().name().to_owned(),
            params: state.terms.params.as_ref()?.get().to_owned().into(),
            version: state.version?.as_str().to_owned(),
            initialized: state.usage.is_used(),
            level: state.terms.level.map(|level| level.as_str().to_owned()),
            subscriptions: state.terms.subscriptions.iter().cloned().collect(),
            run: (state.knows != 0).then_some(state.knows),
            upstream: self.http().record(),
            used_at: self.last_present(),
        })
    }

    /// The client gives a request up.
    fn cancelled(&self, notification: &Parsed) {
        let Some(place) = notification.cancelled_id() else { return };
        let open = self.state().open.remove(notification.get(place));
        if let Some(open) = open {
            self.inner.streams.cancel(&open.stream);
        }
    }

    /// Passes a notification on to the server, if it is up.
    fn pass_on(&self, message: &Parsed) {
        let availability = self.availability();
        let Some(run) = availability.borrow().run().cloned() else { return };
        match &run.link {
            RunLink::Lines(conn) => conn.tell_later(message.text().clone()),
            RunLink::Http(_) => {
                let text = message.text().clone();
                HttpConn::tell_later(self, run.generation, text);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.inner.state)
    }
}

impl front::Session for Session {
    fn server(&self) -> &str {
        self.inner.hub.name()
    }

    fn id(&self) -> &str {
        &self.inner.id
    }

    fn version(&self) -> Option<ProtocolVersion> {
        self.state().version
    }

    fn request(&self, message: Parsed, out: Arc<Stream>) -> Answering {
        let pass = self.hub().intake_gate.enter();
        // The memory is allocated first, so that the large future is made there and never copied.
        let memory = Box::new_uninit();
        let answer = Box::write(memory, exchange::answer(self.clone(), message, out, pass));
        Box::into_pin(answer)
    }

    fn post(&self, message: Parsed) {
        self.touch();
        match message.kind() {
            Kind::Result | Kind::Error => self.answered(&message),
            Kind::Request => {}
            Kind::Notification => match message.method() {
                Some(Method::Cancelled) => self.cancelled(&message),
                _ if self.version().is_none() => {}
                Some(Method::Initialized) => self.mark_used(),
                // Roots are never merged: a server that others use too would take them for theirs.
                Some(Method::RootsChanged) if !self.hub().is_alone(self) => {}
                _ => self.pass_on(&message),
            },
        }
    }

    fn streams(&self) -> &Streams {
        &self.inner.streams
    }

    fn listens(&self) {
        self.track_if_active();
        self.inner.http.listen(self);
    }

    fn abandon(&self) {
        self.hub().close(&self.inner.id);
    }
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}

impl WeakSession {
    pub(super) fn upgrade(&self) -> Option<Session> {
        self.inner.upgrade().map(|inner| Session { inner })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

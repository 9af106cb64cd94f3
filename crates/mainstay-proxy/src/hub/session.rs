//! One client's session. It belongs to Mainstay: runs come and go behind it.

mod asks;
mod open;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::watch;

use self::asks::Asks;
use self::open::Open;
use super::http::HttpLane;
use super::level::Level;
use super::outlook::{Outlook, Run, RunLink};
use super::{Hub, exchange};
use crate::frame::{self, Kind, Method, Parsed};
use crate::front::{self, Answering, ProtocolVersion};
use crate::record::SessionRecord;
use crate::stream::{Stream, Streams};

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
    http: HttpLane,
    /// The outlook of its own run, if the server is not shared.
    own_run: OnceLock<watch::Receiver<Outlook>>,
    created: SystemTime,
    /// When it was last used, in seconds since 1970.
    used: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    terms: Terms,
    version: Option<ProtocolVersion>,
    initialized: bool,
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
pub(super) struct Terms {
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
        let now = hub.wall();
        let streams = if kept { Streams::kept(&id, hub.gate().clone()) } else { Streams::new() };
        Inner {
            id,
            created: now,
            used: AtomicU64::new(seconds(now)),
            hub,
            streams,
            http: HttpLane::default(),
            own_run: OnceLock::new(),
            state: Mutex::new(State { kept, ..State::default() }),
        }
    }

    /// A session as it was stored.
    pub(super) fn restored(hub: Arc<Hub>, record: SessionRecord) -> Self {
        let used = AtomicU64::new(seconds(record.used_at));
        let mut inner = Self::inner(hub, record.id, true);
        (inner.created, inner.used) = (record.created_at, used);
        inner.http = record.upstream.as_ref().map(HttpLane::restored).unwrap_or_default();
        let session = Self { inner: Arc::new(inner) };
        {
            let mut state = session.state();
            state.terms = Terms {
                params: serde_json::from_slice::<Box<RawValue>>(&record.params).ok().map(Arc::from),
                level: record.level.and_then(|level| level.parse().ok()),
                subscriptions: record.subscriptions.into_iter().collect(),
            };
            state.version = record.version.parse().ok();
            state.initialized = record.initialized;
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

    pub(super) fn http(&self) -> &HttpLane {
        &self.inner.http
    }

    /// Whether it is our own user's, who needs no session that lasts.
    pub(super) fn is_local(&self) -> bool {
        !self.state().kept
    }

    pub(super) fn terms(&self) -> Terms {
        self.state().terms.clone()
    }

    pub(super) fn level(&self) -> Option<Level> {
        self.state().terms.level
    }

    pub(super) fn subscribes_to(&self, uri: &str) -> bool {
        self.state().terms.subscriptions.contains(uri)
    }

    /// What is to be expected now of the run that serves this session.
    pub(super) fn present(&self) -> Outlook {
        match self.inner.own_run.get() {
            Some(own) => own.borrow().clone(),
            None => self.hub().present(),
        }
    }

    /// The outlook of the run that serves this session.
    pub(super) fn outlook(&self) -> watch::Receiver<Outlook> {
        match self.inner.own_run.get() {
            Some(own) => own.clone(),
            None => self.hub().outlook(),
        }
    }

    /// Whether the run that serves this session is its own.
    pub(super) fn is_isolated(&self) -> bool {
        self.inner.own_run.get().is_some()
    }

    /// The run that serves this session is its own from now on.
    pub(super) fn isolate(&self, outlook: watch::Receiver<Outlook>) {
        // If there is one already, it is the same.
        self.inner.own_run.set(outlook).ok();
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
            RunLink::Lines(lane)
                if lane.misses_nothing() && self.state().knows == run.generation => {}
            // Its session is opened by whoever needs it next; subscribers need it now.
            RunLink::Http(_) if subscriptions.is_empty() => {}
            RunLink::Http(http) if !self.http().is_open_with(http) => {
                HttpLane::reopen(self, run.generation);
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

    /// The session, and when it was last used.
    pub(super) fn last_use(&self) -> (String, SystemTime) {
        let used = Duration::from_secs(self.inner.used.load(Ordering::Relaxed));
        (self.inner.id.clone(), SystemTime::UNIX_EPOCH + used)
    }

    /// How long the session has not been used; none while it is in use.
    pub(super) fn idle(&self) -> Option<Duration> {
        let busy = !self.state().open.is_empty() || self.general().has_reader();
        let idle = self.hub().wall().duration_since(self.last_use().1).unwrap_or_default();
        (!busy).then_some(idle)
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

    fn keep(&self, state: &State) {
        if state.kept
            && !state.over
            && let Some(record) = self.record_of(state)
        {
            self.hub().gate().pass(|keeper| keeper.save(record));
        }
    }

    fn record_of(&self, state: &State) -> Option<SessionRecord> {
        Some(SessionRecord {
            id: self.inner.id.clone(),
            server: self.hub().name().to_owned(),
            params: state.terms.params.as_ref()?.get().to_owned().into(),
            version: state.version?.as_str().to_owned(),
            initialized: state.initialized,
            level: state.terms.level.map(|level| level.as_str().to_owned()),
            subscriptions: state.terms.subscriptions.iter().cloned().collect(),
            run: (state.knows != 0).then_some(state.knows),
            upstream: self.http().record(),
            created_at: self.inner.created,
            used_at: self.last_use().1,
        })
    }

    /// The client gives a request up.
    fn cancelled(&self, notification: &Parsed) {
        let Some(place) = notification.cancelled_id() else { return };
        let open = self.state().open.remove(notification.get(place));
        if let Some(open) = open {
            open.stream.cancel();
        }
    }

    /// Passes a notification on to the server, if it is up.
    fn pass_on(&self, message: &Parsed) {
        let outlook = self.outlook();
        let Some(run) = outlook.borrow().run().cloned() else { return };
        match &run.link {
            RunLink::Lines(lane) => lane.tell_later(message.text().clone()),
            RunLink::Http(_) => {
                let text = message.text().clone();
                HttpLane::tell_later(self, run.generation, text);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.inner.state)
    }
}

impl front::Session for Session {
    fn id(&self) -> &str {
        &self.inner.id
    }

    fn version(&self) -> Option<ProtocolVersion> {
        self.state().version
    }

    fn request(&self, message: Parsed, out: Arc<Stream>) -> Answering {
        let arriving = self.hub().door.enter();
        // Boxed here, so that the large future is not moved on its way.
        Box::pin(exchange::answer(self.clone(), message, out, arriving))
    }

    fn post(&self, message: Parsed) {
        match message.kind() {
            Kind::Result | Kind::Error => self.answered(&message),
            Kind::Request => {}
            Kind::Notification => match message.method() {
                Some(Method::Initialized) => {
                    let mut state = self.state();
                    state.initialized = true;
                    self.keep(&state);
                }
                Some(Method::Cancelled) => self.cancelled(&message),
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

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

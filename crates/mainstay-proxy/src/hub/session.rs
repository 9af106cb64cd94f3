//! One client's session. It belongs to Mainstay: runs come and go behind it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::http::HttpLane;
use super::level::Level;
use super::lines::LineLane;
use super::outlook::{Outlook, Run, RunLink};
use super::{Hub, exchange};
use crate::frame::{self, Id, InitializeParams, Kind, Method, Parsed};
use crate::front::{self, ProtocolVersion};
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
    /// Requests of the client that are not answered yet, by their ids as the client wrote them.
    open: HashMap<Box<str>, Open>,
    /// Requests of the server that the client has not answered yet, by our numbers.
    asks: HashMap<u64, Ask>,
    next_ask: u64,
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

struct Open {
    stream: Arc<Stream>,
    /// Whether the client has answered a question of the server's on its account.
    interactive: bool,
}

/// A request of the server that is with the client.
struct Ask {
    origin: Origin,
    generation: u64,
    /// The client's request on whose stream it was put.
    stream: Option<Arc<Stream>>,
}

/// Who asked, and under which id.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    Lines { lane: Weak<LineLane>, id: Box<str> },
    Http { id: Box<str> },
}

impl Session {
    /// A session that is kept on disk from its beginning on, or never.
    pub(super) fn new(hub: Arc<Hub>, id: String, kept: bool) -> Self {
        Self { inner: Arc::new(Self::inner(hub, id, kept)) }
    }

    fn inner(hub: Arc<Hub>, id: String, kept: bool) -> Inner {
        let now = hub.wall();
        Inner {
            id,
            created: now,
            used: AtomicU64::new(seconds(now)),
            hub,
            streams: Streams::new(),
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
        }
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

    /// The outlook of the run that serves this session.
    pub(super) fn outlook(&self) -> watch::Receiver<Outlook> {
        match self.inner.own_run.get() {
            Some(own) => own.clone(),
            None => self.hub().outlook(),
        }
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
    }

    pub(super) fn set_level(&self, level: Level) {
        let mut state = self.state();
        state.terms.level = Some(level);
        self.keep(&state);
    }

    pub(super) fn subscribe(&self, uri: &str) {
        let mut state = self.state();
        state.terms.subscriptions.insert(uri.to_owned());
        self.keep(&state);
    }

    pub(super) fn unsubscribe(&self, uri: &str) {
        let mut state = self.state();
        state.terms.subscriptions.remove(uri);
        self.keep(&state);
    }

    /// Whether the client is to be told that it now speaks to another run than before. Once per run.
    pub(super) fn meets(&self, generation: u64) -> bool {
        let mut state = self.state();
        let before = state.knows;
        // An older run may still answer after the newer one.
        state.knows = before.max(generation);
        before != 0 && before < generation
    }

    /// There is a new run. What changed of the resources in between cannot be known.
    pub(super) fn meet(&self, run: &Run) {
        match &run.link {
            RunLink::Lines(_) => {
                for uri in self.terms().subscriptions {
                    self.hear(frame::resource_updated(&uri), None);
                }
            }
            // Its session is opened by whoever needs it next; subscribers need it now.
            RunLink::Http(_) if self.terms().subscriptions.is_empty() => {}
            RunLink::Http(_) => HttpLane::reopen(self, run.generation),
        }
    }

    pub(super) fn general(&self) -> &Arc<Stream> {
        self.inner.streams.general()
    }

    /// Takes note of a request of the client for as long as the result lives.
    pub(super) fn open(&self, id: Id<'_>, stream: &Arc<Stream>) -> OpenRequest {
        self.inner.used.store(seconds(self.hub().wall()), Ordering::Relaxed);
        let open = Open { stream: Arc::clone(stream), interactive: false };
        self.state().open.insert(id.get().into(), open);
        OpenRequest { session: self.clone(), id: id.get().into(), stream: Arc::clone(stream) }
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

    /// Puts a question of the server to the client. Says why not, if it cannot be.
    pub(super) fn ask_client(
        &self,
        origin: Origin,
        generation: u64,
        request: &Parsed,
        stream: Option<&Arc<Stream>>,
    ) -> Option<&'static str> {
        let mut state = self.state();
        if !state.terms.understands(request.method()) {
            return Some("the client did not announce that it can be asked this");
        }
        let number = state.next_ask;
        state.next_ask += 1;
        state.asks.insert(number, Ask { origin, generation, stream: stream.cloned() });
        drop(state);
        if self.put(request.with_id(&ask_id(number)), stream) {
            return None;
        }
        self.state().asks.remove(&number);
        Some("the client does not listen")
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

    /// The server takes a question back.
    pub(super) fn ask_cancelled(&self, generation: u64, notification: &Parsed) {
        let Some(place) = notification.cancelled_id() else { return };
        let taken = self.take_asks(|ask| {
            ask.generation == generation && ask.origin.id() == notification.get(place)
        });
        for (number, ask) in taken {
            self.hear(notification.with(place, &ask_id(number)), ask.stream.as_ref());
        }
    }

    /// The run is over, and with it what it asked.
    pub(super) fn forget_asks(&self, generation: u64) {
        self.withdraw(|ask| ask.generation == generation);
    }

    /// A request is over, and with it what was asked on its account.
    pub(super) fn forget_asks_of(&self, stream: &Arc<Stream>) {
        self.withdraw(|ask| ask.stream.as_ref().is_some_and(|other| Arc::ptr_eq(other, stream)));
    }

    /// Whether the client has answered a question of the server's on account of this request.
    pub(super) fn was_interactive(&self, stream: &Arc<Stream>) -> bool {
        let state = self.state();
        state.open.values().any(|open| open.interactive && Arc::ptr_eq(&open.stream, stream))
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
        self.general().cancel();
        self.inner.http.close(self);
    }

    fn keep(&self, state: &State) {
        if state.kept
            && let Some(record) = self.record_of(state)
        {
            self.hub().keeper().save(record);
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
            created_at: self.inner.created,
            used_at: self.last_use().1,
        })
    }

    fn withdraw(&self, which: impl Fn(&Ask) -> bool) {
        for (number, ask) in self.take_asks(which) {
            let id = ask_id(number);
            let id = Id::new(&id).expect("a string is an id");
            self.hear(
                frame::cancelled(id, "the server that asked has stopped"),
                ask.stream.as_ref(),
            );
        }
    }

    fn take_asks(&self, which: impl Fn(&Ask) -> bool) -> Vec<(u64, Ask)> {
        self.state().asks.extract_if(|_, ask| which(ask)).collect()
    }

    /// The client answers a question of the server's.
    fn answered(&self, response: &Parsed) {
        let number = response.id().and_then(|id| ask_number(id.get()));
        let Some(ask) = number.and_then(|number| self.state().asks.remove(&number)) else {
            // The server that asked has gone, or asked nothing.
            return;
        };
        // If it cannot be told which request the question was part of, it may have been any.
        let concerned = |open: &Open| {
            ask.stream.as_ref().is_none_or(|stream| Arc::ptr_eq(&open.stream, stream))
        };
        for open in self.state().open.values_mut() {
            open.interactive |= concerned(open);
        }
        match ask.origin {
            Origin::Lines { lane, id } => {
                if let Some(lane) = lane.upgrade() {
                    lane.tell_later(response.with_id(&id));
                }
            }
            Origin::Http { id } => {
                HttpLane::tell_later(self, ask.generation, response.with_id(&id));
            }
        }
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
        self.inner.state.lock().expect("no code panics with this lock")
    }
}

impl front::Session for Session {
    fn id(&self) -> &str {
        &self.inner.id
    }

    fn version(&self) -> Option<ProtocolVersion> {
        self.state().version
    }

    fn request(
        &self,
        message: Parsed,
        out: Arc<Stream>,
    ) -> impl Future<Output = ()> + Send + 'static {
        exchange::answer(self.clone(), message, out)
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

impl Terms {
    /// Whether the client announced that it can be asked this. What we do not know is left to it.
    fn understands(&self, method: Option<&Method>) -> bool {
        let capability = match method {
            Some(Method::CreateMessage) => "sampling",
            Some(Method::Elicit) => "elicitation",
            Some(Method::RootsList) => "roots",
            _ => return true,
        };
        let params = self.params.as_ref().map(|params| params.get().as_bytes());
        params.and_then(InitializeParams::read).is_some_and(|params| params.has(capability))
    }
}

impl Origin {
    fn id(&self) -> &str {
        match self {
            Self::Lines { id, .. } | Self::Http { id } => id,
        }
    }
}

/// An open request. It is closed when this is dropped.
pub(super) struct OpenRequest {
    session: Session,
    id: Box<str>,
    stream: Arc<Stream>,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.session.state();
        // A client that uses an id twice has only the newer request under it.
        if state.open.get(&self.id).is_some_and(|open| Arc::ptr_eq(&open.stream, &self.stream)) {
            state.open.remove(&self.id);
        }
        // Nobody waits for the answer to a question that was part of it.
        state.asks.retain(|_, ask| !ask.stream.as_ref().is_some_and(|it| Arc::ptr_eq(it, &self.stream)));
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The id under which a client sees a question of the server's.
fn ask_id(number: u64) -> String {
    format!("\"mainstay-{number}\"")
}

fn ask_number(id: &str) -> Option<u64> {
    id.strip_prefix("\"mainstay-")?.strip_suffix('"')?.parse().ok()
}

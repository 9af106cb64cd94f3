//! A server as its clients see it: always there.
//!
//! A [`Hub`] owns the sessions of one server and outlives all of its runs. The daemon tells it whether
//! the server is available ([`Hub::look`]) and attaches every new run ([`Hub::attach_run`]); the front brings the
//! clients. All messages between clients and the server pass through it. It guarantees that
//!
//! - a session goes on whatever happens to runs: a new run is told what its sessions had agreed with
//!   the last one, before anything else;
//! - every request gets exactly one answer, by the replay contract (see `call`);
//! - no session sees what belongs to another.
//!
//! Daemons come and go, too. What a hub needs to go on it has kept ([`StateStore`]), requests in flight
//! included: the next daemon [restores](Hub::restore) the sessions, [recovers](Hub::recover) their streams,
//! and attaches the runs. One that gives way to it is [frozen](Hubs::freeze) first.

mod attach_run;
mod availability;
mod call;
mod copies;
mod event_sink;
mod exchange;
mod http;
mod http_session;
mod http_stream;
mod hubs;
mod initialize;
mod level;
mod lines;
mod lists;
mod local;
mod lost_records;
mod messages;
mod notifications;
mod presence;
mod progress;
mod recover;
pub(crate) mod relay;
mod residency;
mod run_retention;
mod session;
mod session_runs;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::watch;

use self::copies::Copies;
use self::level::Level;
use self::lines::RecoveredRequest;
use self::residency::PendingLoads;
use self::session::WeakSession;
use crate::clock::SessionClock;
use crate::frame::Parsed;
use crate::intake_gate::IntakeGate;
use crate::lists::Lists;
use crate::record::StateStore;
use crate::session_id::SessionIds;
use crate::upstream::{Hello, Identity};
use crate::write_fence::WriteFence;

pub use self::availability::{Availability, Reason, Run};
pub use self::event_sink::{Decision, EventSink};
pub use self::hubs::Hubs;
pub use self::local::Local;
pub use self::relay::{RelayNews, RelayedCall, Relays};
pub use self::session::Session;

/// How many requests may be held for one server at a time.
const HELD: usize = 4096;

/// Limits of unanswered requests per server and per session. Further requests are refused before anything is
/// sent to the server.
const OPEN: usize = 8192;
const OPEN_IN_SESSION: usize = 1024;

/// The same for the bytes of large requests. Small requests are not counted, so that large ones cannot block
/// them.
const OPEN_BYTES: usize = 256 << 20;
const OPEN_BYTES_IN_SESSION: usize = 64 << 20;
const LARGE: usize = 16 << 10;

/// What the user decided about the sessions of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a request may wait for the next run.
    pub hold: Duration,
    /// Tools that may be executed twice.
    pub replay: BTreeSet<String>,
    /// Whether clients are not told of restarts.
    pub quiet_restart: bool,
    /// Whether every session has a run of its own.
    pub isolate: bool,
    /// How long such a run is kept after the last message of its client.
    pub isolate_idle: Duration,
}

/// What a hub needs of the world.
#[derive(Clone)]
pub struct Ports {
    /// Keeps sessions on disk.
    pub state_store: Arc<dyn StateStore>,
    /// Hears what was decided for requests.
    pub event_sink: Arc<dyn EventSink>,
    /// Provides runs for single sessions.
    pub isolation: Arc<dyn Isolation>,
    /// Reads what servers write to standard error.
    pub stderr: Arc<dyn Stderr>,
    /// Who we are toward servers.
    pub identity: Identity,
    /// Measures the age of sessions.
    pub clock: SessionClock,
    /// Issues the ids of sessions.
    pub ids: SessionIds,
}

/// Provides runs that belong to one session each.
pub trait Isolation: Send + Sync + 'static {
    /// Starts the session's own run, and returns its availability.
    fn provide(&self, server: &str, session: &str) -> watch::Receiver<Availability>;
    /// The availability of the session's own run, if an earlier daemon started one that is still alive.
    fn find(&self, server: &str, session: &str) -> Option<watch::Receiver<Availability>>;
    /// Stops the session's own run. The session continues, and may start another one.
    fn stop(&self, server: &str, session: &str);
    /// Stops the run of a session that has ended.
    fn release(&self, server: &str, session: &str);
}

/// Reads what servers write to standard error.
pub trait Stderr: Send + Sync + 'static {
    /// The last line of the server's present run, if there is one.
    fn last_line(&self, server: &str) -> LastLine;
}

/// See [`Stderr::last_line`].
pub type LastLine = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// What there is to know of a run before it is ready.
#[derive(Debug)]
pub struct RunInfo {
    /// Its number.
    pub generation: u64,
    /// How the run before it ended.
    pub after: Option<Arc<Reason>>,
    /// What it answered to `initialize`, if an earlier daemon has asked it already.
    pub known: Option<Hello>,
    /// A number that no other way to the run had, so that late answers to requests over another one,
    /// of this daemon or an earlier one, are told apart.
    pub epoch: u32,
    /// The session that the run belongs to, if it is one's own.
    pub session: Option<String>,
}

/// One server.
pub struct Hub {
    name: String,
    me: Weak<Self>,
    ports: Ports,
    /// Where sessions and streams are stored.
    write_fence: WriteFence,
    /// In it are requests that were given to sessions and are not open there yet.
    intake_gate: Arc<IntakeGate>,
    /// In it are requests of our own user.
    own_gate: Arc<IntakeGate>,
    settings: Mutex<Arc<Settings>>,
    /// Whether every session has a run of its own, as the settings say.
    isolates: AtomicBool,
    availability: watch::Sender<Availability>,
    /// The sessions in memory.
    sessions: Mutex<HashMap<String, Session>>,
    /// Sessions that are being loaded from disk.
    pending_loads: PendingLoads,
    /// The number of sessions at which some are moved to disk.
    move_to_disk_at: AtomicUsize,
    /// Ended sessions whose own runs are kept for a while, and when they ended (see `run_retention`).
    retained_runs: Mutex<HashMap<String, Duration>>,
    /// Active sessions, and some that have become inactive (see `presence`).
    active: Mutex<Vec<WeakSession>>,
    copies: Copies,
    held: Arc<AtomicUsize>,
    /// The number of unanswered requests.
    open: AtomicUsize,
    /// The bytes of the large ones among them.
    open_bytes: AtomicUsize,
    /// The number of the newest run that sessions were introduced to, and the way to it.
    met: Mutex<(u64, Weak<Run>)>,
    /// Whether the last run that came spoke over lines.
    speaks_lines: AtomicBool,
    /// The requests that an earlier daemon sent over lines, until their run is entered.
    awaited: Mutex<Vec<RecoveredRequest>>,
}

impl Hub {
    /// A server without sessions. `copy` is what an earlier daemon kept of its lists.
    pub fn new(name: &str, settings: Settings, ports: Ports, copy: Option<&[u8]>) -> Arc<Self> {
        let nothing_yet = Availability::Coming { due: None, why: Arc::default() };
        Arc::new_cyclic(|me| Self {
            name: name.to_owned(),
            me: me.clone(),
            write_fence: WriteFence::new(Arc::clone(&ports.state_store)),
            intake_gate: Arc::default(),
            own_gate: Arc::default(),
            ports,
            isolates: AtomicBool::new(settings.isolate),
            settings: Mutex::new(Arc::new(settings)),
            availability: watch::Sender::new(nothing_yet),
            sessions: Mutex::default(),
            pending_loads: PendingLoads::default(),
            move_to_disk_at: AtomicUsize::new(residency::MOVE_TO_DISK_AT),
            retained_runs: Mutex::default(),
            active: Mutex::default(),
            copies: Copies::restored(copy),
            held: Arc::default(),
            open: AtomicUsize::new(0),
            open_bytes: AtomicUsize::new(0),
            met: Mutex::default(),
            speaks_lines: AtomicBool::new(false),
            awaited: Mutex::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The user decided anew.
    pub fn set(&self, settings: Settings) {
        self.isolates.store(settings.isolate, Ordering::Relaxed);
        *lock(&self.settings) = Arc::new(settings);
    }

    /// How many sessions are in memory. Those of clients that have been absent for long may be on disk.
    pub fn session_count(&self) -> usize {
        self.all_sessions().len()
    }

    /// Whether this session is in memory.
    pub fn has(&self, session: &str) -> bool {
        self.all_sessions().contains_key(session)
    }

    /// What is to be expected of the server from now on.
    pub fn look(&self, availability: Availability) {
        if self.is_frozen() {
            return;
        }
        let run = availability.run().cloned();
        let removed = matches!(availability, Availability::Removed);
        self.availability.send_replace(availability);
        if let Some(run) = run {
            let now = (run.generation, Arc::downgrade(&run));
            let (before, way) = std::mem::replace(&mut *lock(&self.met), now);
            if !std::ptr::eq(way.as_ptr(), Arc::as_ptr(&run)) {
                self.introduce(run, before);
            }
        }
        if removed {
            let sessions = std::mem::take(&mut *self.all_sessions());
            for session in sessions.into_values() {
                session.retire();
            }
            lock(&self.awaited).clear();
            self.write_fence.pass(|state_store| state_store.remove_server(&self.name));
        }
    }

    /// Ends a session for its client. False if there is none of that id. A run of its own is kept for a
    /// minute.
    pub fn close(&self, id: &str) -> bool {
        if self.is_frozen() {
            // It goes on elsewhere.
            return self.session(id).is_some();
        }
        let Some(session) = self.end_session(id) else { return false };
        self.retain_run(&session);
        true
    }

    fn end_session(&self, id: &str) -> Option<Session> {
        let session = self.all_sessions().remove(id)?;
        self.pending_loads.session_ended(id);
        session.end();
        self.write_fence.pass(|state_store| state_store.remove(id));
        self.remember_end(id);
        Some(session)
    }

    fn session(&self, id: &str) -> Option<Session> {
        self.all_sessions().get(id).cloned()
    }

    /// Clients meet a new run, or one that was out of reach: if it is elsewhere, nobody knows what
    /// happened to it meanwhile.
    fn introduce(&self, run: Arc<Run>, before: u64) {
        self.copies.set_hello(&run.hello);
        // Before the first run there are only sessions that an earlier daemon had.
        if before != run.generation {
            for session in self.everyone() {
                session.meet(&run);
            }
        }
        self.read_lists(run);
    }

    fn present(&self) -> Availability {
        self.availability.borrow().clone()
    }

    fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&lock(&self.settings))
    }

    fn write_fence(&self) -> &WriteFence {
        &self.write_fence
    }

    /// Whether another daemon has taken over.
    fn is_frozen(&self) -> bool {
        self.write_fence.is_shut()
    }

    fn record_decision(&self, decision: Decision) {
        self.ports.event_sink.record_decision(decision);
    }

    /// The run of that generation did not take a request.
    fn unreachable(&self, generation: u64) {
        self.ports.event_sink.unreachable(&self.name, generation);
    }

    /// Whether every session has a run of its own.
    fn isolates(&self) -> bool {
        self.isolates.load(Ordering::Relaxed)
    }

    fn clock(&self) -> &SessionClock {
        &self.ports.clock
    }

    /// The current time of the session clock.
    fn now(&self) -> Duration {
        self.ports.clock.now()
    }

    /// Leave to hold a request, for as long as the result lives; none when too many are held.
    fn hold(&self) -> Option<Held> {
        let taken = self.held.fetch_add(1, Ordering::Relaxed);
        let held = Held(Arc::clone(&self.held));
        (taken < HELD).then_some(held)
    }

    async fn last_line(&self) -> Option<String> {
        self.ports.stderr.last_line(&self.name).await
    }

    fn last_hello(&self) -> Option<Arc<RawValue>> {
        self.copies.hello()
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.copies.lists()
    }

    /// The tool that a request calls, if it is one that the server no longer has.
    fn vanished(&self, request: &Parsed) -> Option<String> {
        let run = self.availability.borrow().run().map(|run| run.generation);
        if run.is_none_or(|run| !self.copies.are_of(run)) {
            // Whether the next run has it cannot be known.
            return None;
        }
        let lists = self.lists();
        if !lists.has_any_vanished() {
            return None;
        }
        let tool = request.name()?;
        lists.has_vanished(&tool).then(|| tool.into_owned())
    }

    /// Whether a tool call that was sent to the run of that generation may be repeated. Annotations from an
    /// earlier run do not count, because this run may be another program.
    fn is_safe_tool(&self, session: &Session, request: &Parsed, generation: u64) -> bool {
        let Some(tool) = request.name() else { return false };
        if self.settings().replay.contains(&*tool) {
            return true;
        }
        // The lists of a session's own run are not read; it is the same program as the shared run.
        let shared = || self.availability.borrow().run().map(|run| run.generation);
        let generation = if session.is_isolated() { shared() } else { Some(generation) };
        generation.is_some_and(|generation| self.copies.has_tools_of(generation))
            && self.lists().is_read_only(&tool)
    }

    /// Whether all sessions share one run, also while there is none.
    fn is_shared(&self) -> bool {
        !self.isolates() && self.speaks_lines.load(Ordering::Relaxed)
    }

    /// Whether a session has its run for itself.
    fn is_alone(&self, session: &Session) -> bool {
        !self.is_shared() || self.only_session().as_ref() == Some(session)
    }

    fn everybody(&self, tell: impl Fn(&Session)) {
        for session in self.everyone() {
            tell(&session);
        }
    }

    fn everyone(&self) -> Vec<Session> {
        self.all_sessions().values().cloned().collect()
    }

    /// The lowest level that any other session of a shared server wants.
    fn least_level(&self, than: &Session) -> Option<Level> {
        let others = || self.everyone().into_iter().filter(|other| other != than);
        self.is_shared().then(|| others().filter_map(|session| session.level()).min())?
    }

    fn others_subscribe(&self, than: &Session, uri: &str) -> bool {
        let others = || self.everyone().into_iter().filter(|other| other != than);
        self.is_shared() && others().any(|session| session.subscribes_to(uri))
    }

    fn resource_updated(&self, notification: &Parsed) {
        let Some(uri) = notification.uri() else { return };
        for session in self.everyone() {
            if session.subscribes_to(&uri) {
                session.hear(notification.text().clone(), None);
            }
        }
    }

    fn ask_cancelled(&self, generation: u64, notification: &Parsed) {
        self.everybody(|session| session.ask_cancelled(generation, notification));
    }

    fn all_sessions(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        lock(&self.sessions)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Leave to hold one request.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mainstay_core::lock(mutex)
}

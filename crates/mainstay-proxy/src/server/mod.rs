//! The code around the state machine of one server ([`mainstay_session::Server`]): it executes actions and reports what
//! happened.
//!
//! A [`ServerHandle`] is entered by synchronous calls, each of which executes the actions that it caused before it
//! returns. What takes time runs in tasks (`http`, `stdio`), which enter the server with their results. An exchange with an HTTP
//! server is performed by the task that waits for its answer, until that takes long (`operation`). A task of its own
//! calls the server when a deadline has passed; it lives only while there is one.

mod actions;
mod http;
mod local;
mod operation;
mod reader;
mod relay;
mod retries;
mod servers;
mod session;
mod silence;
mod stdio;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::Duration;

use mainstay_mcp::client::Client;
use mainstay_mcp::upstream::{Identity, UpstreamError, UpstreamTransport};
use mainstay_session::{
    Availability, Config, LinkKey, LinkTarget, Report, Run, RunInfo, RunOwner, SentRequest,
    SessionClock, SessionIds, SessionRecord, Settings, StreamRef,
};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use self::operation::{Operation, OperationIo};
use self::stdio::StdioIo;
use crate::catch_panic;
use crate::store::SessionStore;

pub use self::local::{Local, LocalWatch};
pub use self::reader::{Reader, Ready};
pub use self::relay::{RelayedCall, Relays};
pub use self::servers::{Lookup, OpenError, Servers};
pub use self::session::Session;

/// What a server needs of the world.
#[derive(Clone)]
pub struct Ports {
    /// Stores sessions on disk.
    pub store: Arc<dyn SessionStore>,
    /// Receives what sessions need and what was noticed about runs. It must not wait. The availability of runs of single
    /// sessions is reported with [`ServerHandle::set_session_availability`].
    pub report: Arc<dyn Fn(Report) + Send + Sync>,
    /// Reads the last line that a run wrote to standard error, if there is one.
    pub last_line: Arc<dyn Fn(RunOwner) -> LastLine + Send + Sync>,
    pub identity: Identity,
    /// Measures the age of sessions.
    pub clock: SessionClock,
    /// Issues the ids of sessions.
    pub ids: SessionIds,
}

/// See [`Ports::last_line`].
pub type LastLine = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// A handle to one server. Clones are the same server.
#[derive(Clone)]
pub struct ServerHandle {
    inner: Arc<Inner>,
}

struct Inner {
    name: Arc<str>,
    ports: Ports,
    state: Mutex<State>,
    /// The next deadline is earlier than before, or the server is gone.
    deadline_changed: Arc<Notify>,
}

struct State {
    machine: mainstay_session::Server,
    /// The readers that wait, by the index of their streams.
    wakers: Vec<Option<Waker>>,
    links: BTreeMap<LinkKey, LinkIo>,
    /// By the index of their keys.
    operations: Vec<Option<OperationIo>>,
    /// Requests that were cancelled, and that their servers may not have read.
    closed: Vec<SentRequest>,
    /// The deadline that the timer task waits for, if there is such a task.
    timer: Option<Instant>,
}

struct LinkIo {
    transport: Transport,
    attached: Option<oneshot::Sender<Result<Arc<Run>, UpstreamError>>>,
    closed: watch::Sender<bool>,
}

enum Transport {
    Stdio(StdioIo),
    Http(Client),
}

/// A run that is connected. When the last clone is dropped, the connection is released as soon as nothing needs it.
#[derive(Clone)]
pub struct AttachedRun {
    pub run: Arc<Run>,
    closed: watch::Receiver<bool>,
    link: Arc<LinkGuard>,
}

/// Releases a link when it is dropped.
struct LinkGuard {
    server: Weak<Inner>,
    link: LinkKey,
}

impl ServerHandle {
    /// A server without sessions. `copy` is what an earlier daemon stored of its lists.
    pub fn new(name: &str, settings: Settings, ports: Ports, copy: Option<&[u8]>) -> Self {
        let name: Arc<str> = name.into();
        let config = Config {
            name: Arc::clone(&name),
            settings,
            store: Arc::clone(&ports.store) as Arc<dyn mainstay_session::StateStore>,
            identity: ports.identity.clone(),
            clock: ports.clock,
            ids: ports.ids.clone(),
        };
        let state = State {
            machine: mainstay_session::Server::new(config, copy),
            wakers: Vec::new(),
            links: BTreeMap::new(),
            operations: Vec::new(),
            closed: Vec::new(),
            timer: None,
        };
        let (state, deadline_changed) = (Mutex::new(state), Arc::default());
        Self { inner: Arc::new(Inner { name, ports, state, deadline_changed }) }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The user has changed the settings.
    pub fn set(&self, settings: Settings) {
        self.enter(|machine, now| machine.set_settings(now, settings));
    }

    /// How many sessions are in memory. Those of clients that have been absent for long may be on disk.
    pub fn session_count(&self) -> usize {
        self.lock().machine.session_count()
    }

    /// Whether this session is in memory.
    pub fn has(&self, session: &str) -> bool {
        self.lock().machine.session(session).is_some()
    }

    /// The supervisor reports whether the server can be used.
    pub fn set_availability(&self, availability: Availability) {
        self.enter(|machine, now| machine.set_availability(now, availability));
    }

    /// The supervisor reports whether the own run of a session can be used.
    pub fn set_session_availability(&self, session: &str, availability: Availability) {
        self.enter(|machine, now| machine.set_session_availability(now, session, availability));
    }

    /// Ends a session for its client. False if there is none of that id. A run of its own is kept for a minute.
    pub fn close(&self, session: &str) -> bool {
        self.enter(|machine, now| machine.close(now, session))
    }

    /// Takes a session that an earlier daemon had. `resume_run` continues its own run, if an earlier daemon started one
    /// that is still alive, and returns whether it is.
    pub fn restore(&self, record: SessionRecord, resume_run: impl FnOnce(&str) -> bool) {
        let id = record.id.clone();
        let is_isolated = self.enter(|machine, now| machine.restore(now, record));
        if is_isolated && !resume_run(&id) {
            self.clear_own_run(&id);
        }
    }

    /// The own run of a session is gone. Its next request starts another one.
    pub fn clear_own_run(&self, session: &str) {
        self.enter(|machine, _| machine.clear_own_run(session));
    }

    /// The daemon before this one was killed, and may have sent requests to this run without recording them.
    pub fn expect_unrecorded_requests(&self, generation: u64) {
        self.enter(|machine, _| machine.expect_unrecorded_requests(generation));
    }

    pub fn sweep(&self) {
        self.enter(mainstay_session::Server::sweep);
    }

    /// Stores when sessions were last used.
    pub fn save_last_used(&self) {
        self.enter(mainstay_session::Server::save_last_used);
    }

    /// Connects to a run: opens its MCP session, unless that was done before, and restores what the clients agreed
    /// with the runs before it. There is no time limit: the caller sets one.
    pub async fn attach_run(
        &self,
        link: UpstreamTransport,
        info: RunInfo,
    ) -> Result<AttachedRun, UpstreamError> {
        let (attached, result) = oneshot::channel();
        let (closed, is_closed) = watch::channel(false);
        let (target, transport, lines) = match link {
            UpstreamTransport::Lines(link) => {
                let (written, earlier_output) = (*link.written.borrow(), link.earlier_output);
                let (io, lines) = stdio::split(
                    link.to_server,
                    link.from_server,
                    link.other_output,
                    (link.written, link.consumed),
                    link.interruptions,
                );
                (LinkTarget::Stdio { written, earlier_output }, Transport::Stdio(io), Some(lines))
            }
            UpstreamTransport::Http(target) => {
                (LinkTarget::Http, Transport::Http(Client::new(target)), None)
            }
            UpstreamTransport::Remote(target) => {
                (LinkTarget::Remote, Transport::Http(Client::new(target)), None)
            }
        };
        // The transport has to be there when the first actions are executed.
        let link = self.enter_with(|state, now| {
            let link = state.machine.attach(now, target, info);
            state.links.insert(link, LinkIo { transport, attached: Some(attached), closed });
            link
        });
        let guard = Arc::new(LinkGuard { server: Arc::downgrade(&self.inner), link });
        if let Some(lines) = lines {
            stdio::spawn(self, link, lines);
        }
        let gone = || UpstreamError::Closed { method: "initialize".to_owned(), sent: true };
        let run = result.await.map_err(|_| gone())??;
        Ok(AttachedRun { run, closed: is_closed, link: guard })
    }

    fn release_link(&self, link: LinkKey) {
        self.enter(|machine, _| machine.release_link(link));
    }

    /// Whether every request is answered or journaled, and every line of the server is confirmed.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().machine.is_settled()
    }

    /// Whether a request would miss its answer if another daemon took over.
    pub(crate) fn is_bound(&self) -> bool {
        self.lock().machine.is_bound()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.lock().machine.is_idle()
    }

    pub(crate) fn freeze(&self) {
        self.enter(|machine, _| machine.freeze());
    }

    /// Calls the state machine, then executes the actions.
    fn enter<T>(
        &self,
        call: impl FnOnce(&mut mainstay_session::Server, std::time::Instant) -> T,
    ) -> T {
        self.enter_with(|state, now| call(&mut state.machine, now))
    }

    fn enter_with<T>(&self, call: impl FnOnce(&mut State, std::time::Instant) -> T) -> T {
        let (result, operation) = self.enter_for_operation(call);
        if let Some(operation) = operation {
            operation.spawn();
        }
        result
    }

    /// The same, but leaves the last operation that was started to the caller.
    fn enter_for_operation<T>(
        &self,
        call: impl FnOnce(&mut State, std::time::Instant) -> T,
    ) -> (T, Option<Operation>) {
        let mut state = self.lock();
        let result = call(&mut state, now());
        let outside = self.execute(&mut state);
        self.update_timer(&mut state);
        drop(state);
        // This may call the server in turn.
        for report in outside.reports {
            (self.inner.ports.report)(report);
        }
        (result, outside.operation)
    }

    /// Has [`mainstay_session::Server::handle_timers`] called at the next deadline.
    fn update_timer(&self, state: &mut State) {
        let Some(deadline) = state.machine.deadline().map(Instant::from_std) else { return };
        match state.timer {
            Some(timer) if timer <= deadline => {}
            Some(_) => {
                state.timer = Some(deadline);
                self.inner.deadline_changed.notify_one();
            }
            None => {
                state.timer = Some(deadline);
                let server = Arc::downgrade(&self.inner);
                let changed = Arc::clone(&self.inner.deadline_changed);
                catch_panic::spawn(run_timer(server, changed, deadline));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.inner.state)
    }

    fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }
}

/// Calls the server at its deadlines, until there is none.
async fn run_timer(server: Weak<Inner>, changed: Arc<Notify>, mut deadline: Instant) {
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => {}
            () = changed.notified() => {}
        }
        let Some(inner) = server.upgrade() else { return };
        let server = ServerHandle { inner };
        let next = server.enter_with(|state, now| {
            state.machine.handle_timers(now);
            state.timer = state.machine.deadline().map(Instant::from_std);
            state.timer
        });
        match next {
            Some(next) => deadline = next,
            None => return,
        }
    }
}

impl AttachedRun {
    /// Waits until the run can no longer be used. A server that speaks HTTP may always come back.
    pub async fn closed(&self) {
        // An error means that the server is gone.
        self.closed.clone().wait_for(|closed| *closed).await.ok();
    }

    /// Whether the run can no longer be used.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }
}

impl Deref for AttachedRun {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        if let Some(inner) = self.server.upgrade() {
            ServerHandle { inner }.release_link(self.link);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(state) = self.state.get_mut() {
            state.operations.iter().flatten().for_each(OperationIo::abort);
        }
        // The timer task ends.
        self.deadline_changed.notify_one();
    }
}

impl State {
    fn set_waker(&mut self, stream: StreamRef, waker: &Waker) {
        let index = stream.index();
        if self.wakers.len() <= index {
            self.wakers.resize(index + 1, None);
        }
        match &mut self.wakers[index] {
            Some(waiting) => waiting.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
    }

    fn take_waker(&mut self, stream: StreamRef) -> Option<Waker> {
        self.wakers.get_mut(stream.index()).and_then(Option::take)
    }

    fn wake(&mut self, stream: StreamRef) {
        if let Some(waker) = self.take_waker(stream) {
            waker.wake();
        }
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for AttachedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedRun").field("run", &self.run).finish_non_exhaustive()
    }
}

impl PartialEq for ServerHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// How long a message without an answer may take.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a server may take to end a session.
const END_TIMEOUT: Duration = Duration::from_secs(120);

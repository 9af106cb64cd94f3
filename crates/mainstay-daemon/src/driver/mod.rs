//! One server's driver: feeds facts to its [`Unit`] and carries out what it answers.
//!
//! The driver never waits for anything long: starts, stops and handshakes are spawned and report back
//! as messages, so `stop` and `rm` act at once, whatever is going on.

mod availability;
mod away;
mod narrate;
mod news;
mod port;
#[cfg(test)]
mod tests;
mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_core::{
    Action, ClientSettings, Event, Exit, Found, LoggedEvent as Note, RunId, ServerName, ServerSpec,
    Unit, UnitHistory as Past, Wanted,
};
use mainstay_engine::{FoundState, News, RunKey, Started};
use mainstay_proxy::Servers;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::clock;
use crate::engines::{Engines, Home};
use crate::entries::{Clients, Entries};
use crate::listen::{Access, Listener, Sockets};
use crate::random;
use crate::run_session::Memory;
use crate::snapshot::{Session, Snapshot, Times};
use crate::startup::inherited::Inherited;
use crate::state::event_log::{Clocks, EventLog};
use crate::state::store::{Store, Stored};
pub(crate) use availability::Audience;
use away::Reach;
use work::Done;

/// Messages on their way to a driver.
const INBOX: usize = 64;

/// How long the end of a server waits for its entries to be taken out of clients' files.
const LEAVING: Duration = Duration::from_secs(8);

/// What every driver shares.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) engines: Engines,
    pub(crate) store: Store,
    pub(crate) event_log: EventLog,
    pub(crate) memory: Memory,
    pub(crate) servers: Arc<Servers>,
    pub(crate) clients: Clients,
    pub(crate) sockets: Sockets,
    /// Which callers listeners serve.
    pub(crate) access: Access,
    pub(crate) daemon: u64,
    /// Identifies the boot of the machine.
    pub(crate) boot: Arc<str>,
}

/// A fact or a wish for a driver.
#[derive(Debug)]
pub(crate) enum Message {
    /// The intent changed; it is stored already.
    Want(Wanted),
    /// The user asked for a restart; the intent to run is stored already.
    Restart,
    /// The server is described anew; that is stored already.
    Replace(Box<Stored>),
    /// Other clients get an entry for the server; that is stored already.
    Clients(ClientSettings),
    /// Something happened to a run.
    News(News),
    /// What a complete list of the engines', begun at that time, has of this server.
    Listed { begun: Instant, found: Vec<(Home, RunId, FoundState)> },
    /// The host slept.
    HostResumed,
    /// A client wants the server.
    Demand,
    /// The run of that generation, which speaks HTTP, did not take a request.
    Unreachable { generation: u64 },
    /// Ends the run of a single session, whose server stays.
    EndSessionRun(SessionRunEnd),
    /// The daemon ends and takes the server with it; the intent stays.
    Retire,
}

/// Why the run of a single session is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionRunEnd {
    /// Its client is idle. The session continues, and its next request starts another run.
    Idle,
    SessionEnded,
}

impl SessionRunEnd {
    /// The cause as the one word that JSON carries.
    fn cause(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::SessionEnded => "session-ended",
        }
    }
}

/// How others reach a driver.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) view: watch::Receiver<Snapshot>,
    /// Its entries in clients' files; a run of a single session has none.
    pub(crate) entries: Option<Entries>,
}

/// How a driver ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The server is forgotten; this was its last run.
    Forgotten(RunId),
    /// The daemon ends.
    Retired,
}

/// One server's driver.
pub(crate) struct Driver {
    context: Context,
    audience: Audience,
    stored: Stored,
    unit: Unit,
    times: Times,
    /// The run that the process, the session and the times of its life are about.
    about: Option<RunId>,
    /// Where that run lives; without one, where the next is to be.
    home: Home,
    /// Until it closes, the engine that ran the server before has something of it yet.
    moving: Option<oneshot::Receiver<()>>,
    /// How well it can be reached.
    reach: Reach,
    pid: Option<u32>,
    container: Option<String>,
    /// When and how the present run was seen to exit, until all of it is gone.
    exited: Option<(Timestamp, Exit)>,
    session: Option<Session>,
    /// What was noted last for the next daemon, and of the server that was described when.
    noted: (Timestamp, Past),
    /// Whether a session with the present run is being tried for.
    opening: bool,
    /// How many ways to the present run there were.
    ways: u64,
    last_stderr: Option<Arc<[u8]>>,
    retiring: bool,
    /// Set while the run of a single session is ended for a reason of its own.
    session_run_end: Option<SessionRunEnd>,
    /// Whether nobody knows yet what has become of the run that an earlier daemon left.
    unknown: bool,
    /// The run whose start has not been reported yet; it may have ended all the same.
    starting: Option<RunId>,
    /// News of that run, kept until its start is reported, so that things are told in order.
    early: VecDeque<News>,
    /// A run that somebody else started, until the unit has taken it for its own.
    newcomer: Option<(RunId, Started)>,
    /// The run that is being ended, and how.
    ending: Option<(RunId, Option<Duration>)>,
    /// What is being done about the present run's session; it ends with the run.
    attending: Vec<AbortHandle>,
    inbox: mpsc::Receiver<Message>,
    view: watch::Sender<Snapshot>,
    entries: Option<Entries>,
    work: JoinSet<Done>,
    /// The listener of the server's own port.
    port: Option<(u16, Listener)>,
}

impl Driver {
    /// A driver for a server, with what an earlier daemon left of it.
    pub(crate) fn new(
        context: Context,
        audience: Audience,
        stored: Stored,
        inherited: &Inherited,
    ) -> (Self, Handle) {
        let adopted = inherited.adopted.as_ref();
        let name = &stored.spec.name;
        let key = adopted.map(|found| RunKey::new(name.clone(), found.run));
        let known = key.as_ref().and_then(|key| context.memory.recall(key));
        let ready_at = known.as_ref().map(|known| known.ready_at);
        let found = adopted.map(|found| Found {
            run: found.run,
            age: found.age,
            ready_for: ready_at.map(clock::since),
        });
        let policy = stored.spec.restart.clone();
        let (clocks, seed) = (Clocks::read(), random::seed());
        let (past, unseen_end) = inherited.past(stored.created_at, clocks, &context.boot);
        let unit = Unit::resume(clocks.now, policy, seed, stored.wanted, found, past);
        let noted = (stored.created_at, unit.history());
        let known_alive = adopted.filter(|found| !found.unknown);
        let times = Times {
            started_at: known_alive.map(|found| clock::wall_before(found.age)),
            ready_at,
            ..Times::default()
        };
        let (sender, inbox) = mpsc::channel(INBOX);
        let snapshot = Snapshot {
            revision: 0,
            spec: Arc::new(stored.spec.clone()),
            created_at: stored.created_at,
            wanted: stored.wanted,
            unit: unit.clone(),
            times: times.clone(),
            pid: None,
            container: None,
            away: None,
            session: None,
            last_stderr: None,
        };
        let home = Home::of(&stored.spec.workload);
        let (view, watcher) = watch::channel(snapshot);
        let shared = !audience.is_one_session();
        let entries = shared.then(|| context.clients.keep(name.clone(), watcher.clone()));
        let mut driver = Self {
            context,
            audience,
            stored,
            unit,
            times,
            about: adopted.map(|found| found.run),
            home,
            moving: None,
            reach: Reach::default(),
            pid: adopted.and_then(|found| found.pid),
            container: adopted.and_then(|found| found.container.clone()),
            exited: None,
            session: None,
            noted,
            opening: false,
            ways: 0,
            last_stderr: None,
            retiring: false,
            session_run_end: None,
            unknown: adopted.is_some_and(|found| found.unknown),
            starting: None,
            early: VecDeque::new(),
            newcomer: None,
            ending: None,
            attending: Vec::new(),
            inbox,
            view,
            entries: entries.clone(),
            work: JoinSet::new(),
            port: None,
        };
        driver.recall_times();
        if let Some((run, cause)) = unseen_end {
            driver.note_unseen_end(run, cause);
        }
        if let Some(key) = key.filter(|_| !driver.unknown) {
            driver.note_adoption(&key);
            driver.open_session(key.run, known.map(|known| known.hello), Duration::ZERO);
        }
        driver.publish();
        (driver, Handle { inbox: sender, view: watcher, entries })
    }

    /// Drives the server until it is forgotten or the daemon ends.
    pub(crate) async fn run(mut self) -> Ending {
        let first = if self.unknown {
            Event::EngineAway { why: "its engine does not answer".to_owned() }
        } else {
            Event::Tick
        };
        if let Some(ending) = self.feed(first).await {
            return ending;
        }
        loop {
            let event = tokio::select! {
                biased;
                Some(news) = async { self.early.pop_front() }, if self.starting.is_none() => {
                    self.understand(Message::News(news))
                }
                message = self.inbox.recv() => match message {
                    Some(message) => self.understand(message),
                    None => return Ending::Retired,
                },
                Some(done) = self.work.join_next() => match done {
                    Ok(done) => self.take(done),
                    Err(error) if error.is_cancelled() => None,
                    Err(error) => {
                        tracing::error!(server = %self.name(), %error, "work ended badly");
                        None
                    }
                },
                () = clock::wait_until(self.unit.deadline()) => Some(Event::Tick),
            };
            let ending = match event {
                Some(event) => self.feed(event).await,
                None => None,
            };
            if let Some(ending) = ending {
                return ending;
            }
            // What cannot be reached is left for the next daemon to find.
            let done = self.unit.run().is_none() || self.unit.is_engine_away();
            if self.retiring && done {
                self.work.shutdown().await;
                return Ending::Retired;
            }
        }
    }

    /// Turns a message into an event for the unit, if it is one.
    fn understand(&mut self, message: Message) -> Option<Event> {
        match message {
            Message::Want(_)
            | Message::Restart
            | Message::Replace(_)
            | Message::EndSessionRun(_)
                if self.retiring =>
            {
                None
            }
            // It was sent before the registry knew that this run ends, and must not bring the run back.
            Message::Want(_) | Message::Restart | Message::Replace(_)
                if self.session_run_end.is_some() =>
            {
                None
            }
            Message::Want(wanted) => {
                self.stored.wanted = wanted;
                Some(Event::Want(wanted))
            }
            Message::Restart => {
                self.stored.wanted = Wanted::On;
                Some(Event::Restart)
            }
            Message::Replace(stored) => {
                // What runs as it is described now is left alone.
                let clients = self.stored.spec.clients.clone();
                let same = self.session.is_some()
                    && self.stored.spec == ServerSpec { clients, ..stored.spec.clone() };
                self.stored = *stored;
                self.publish();
                (!same).then(|| Event::Replaced(self.stored.spec.restart.clone()))
            }
            Message::Clients(clients) => {
                self.stored.spec.clients = clients;
                self.publish();
                None
            }
            Message::News(news) if self.is_early(&news) => {
                self.early.push_back(news);
                None
            }
            Message::News(news) => self.hear(news),
            Message::Listed { begun, found } => self.compare(begun, found),
            Message::HostResumed => Some(Event::HostResumed),
            Message::Demand => Some(Event::Demand),
            Message::Unreachable { generation } => self.lost_touch(generation),
            Message::EndSessionRun(why) => {
                self.session_run_end = Some(why);
                self.stored.wanted = Wanted::Gone;
                Some(Event::Want(Wanted::Gone))
            }
            Message::Retire => {
                self.retiring = true;
                Some(Event::Want(Wanted::Off))
            }
        }
    }

    /// Hands an event to the unit and does what it asks for.
    async fn feed(&mut self, event: Event) -> Option<Ending> {
        if self.ends_outage(&event)
            && let Some(ending) = self.hand_over(Event::EngineBack).await
        {
            return Some(ending);
        }
        self.hand_over(event).await
    }

    async fn hand_over(&mut self, event: Event) -> Option<Ending> {
        let restarts = self.unit.restarts_total();
        let action = self.unit.handle(clock::now(), event);
        if self.unit.restarts_total() > restarts {
            self.times.last_restart_at = Some(clock::wall());
        }
        let newcomer = self.newcomer.take();
        if self.unit.run() != self.about {
            self.about = self.unit.run();
            self.let_go();
            if let Some((_, started)) = newcomer.filter(|(run, _)| self.about == Some(*run)) {
                self.pid = started.pid;
                self.container = started.container;
            }
        }
        if self.about.is_none() && self.starting.is_none() {
            self.move_home();
        }
        let notes = self.unit.take_logged_events();
        for note in &notes {
            self.tell(note);
        }
        self.note_past();
        if action.is_none() && notes.iter().any(makes_reachable) {
            self.reconnect();
        }
        self.keep_intent().await;
        self.publish();
        match action {
            Some(Action::Start(run)) => self.start(run),
            Some(Action::Stop(run)) => {
                let grace = self.stored.spec.restart.stop_timeout;
                self.end(run, Some(grace));
            }
            Some(Action::Kill(run)) => self.end(run, None),
            Some(Action::Forget) => {
                self.forget().await;
                return Some(Ending::Forgotten(self.unit.last_run()));
            }
            None => {}
        }
        None
    }

    /// The unit may change the intent itself, when somebody stopped the server and that is respected.
    async fn keep_intent(&mut self) {
        let wanted = self.unit.wanted();
        if wanted == self.stored.wanted || self.retiring || self.audience.is_one_session() {
            return;
        }
        self.stored.wanted = wanted;
        let name = self.name().clone();
        if let Err(error) = self.context.store.want(vec![name], wanted).await {
            tracing::error!(server = %self.name(), %error, "the intent cannot be stored");
        }
    }

    async fn forget(&mut self) {
        self.work.shutdown().await;
        self.say_goodbye();
        if let Some(entries) = &self.entries {
            // What was done is in the event log. A client that holds its file for long is not waited
            // for: the entry goes when it lets go.
            timeout(LEAVING, entries.leave().await).await.ok();
        }
        let name = self.name().clone();
        self.context.memory.forget(&self.key(self.unit.last_run()));
        if let Err(error) = self.context.engines.forget(&name).await {
            tracing::warn!(server = %name, %error, "something of the server stays behind");
        }
        if self.audience.is_one_session() {
            return;
        }
        let _changing = self.context.access.changing.lock().await;
        if let Err(error) = self.context.store.delete(name.clone()).await {
            tracing::error!(server = %name, %error,
                "the server cannot be deleted; it will be when the daemon starts next");
        }
        self.context.access.callers.tokens.forget_server(name.as_str());
        self.context.event_log.set_progress(&name, None);
    }

    fn publish(&mut self) {
        let spec = &self.stored.spec;
        self.view.send_modify(|shown| {
            shown.revision += 1;
            if *shown.spec != *spec {
                shown.spec = Arc::new(spec.clone());
            }
            shown.created_at = self.stored.created_at;
            shown.wanted = self.stored.wanted;
            shown.unit.clone_from(&self.unit);
            shown.times.clone_from(&self.times);
            shown.pid = self.pid;
            shown.container.clone_from(&self.container);
            shown.away.clone_from(&self.reach.away);
            shown.session.clone_from(&self.session);
            shown.last_stderr.clone_from(&self.last_stderr);
        });
        self.tell_clients();
        self.keep_port();
    }

    /// Listens on the server's own port, as long as the server is wanted.
    fn keep_port(&mut self) {
        let wanted = self.unit.wanted() == Wanted::On && !self.retiring;
        let shared = !self.audience.is_one_session();
        let port = self.stored.spec.proxy.port.filter(|_| wanted && shared);
        if self.port.as_ref().map(|(port, _)| *port) != port {
            let listen = |port| {
                (port, Listener::for_one(port, self.stored.spec.name.as_str(), &self.context))
            };
            self.port = port.map(listen);
        }
    }

    fn key(&self, run: RunId) -> RunKey {
        RunKey::new(self.name().clone(), run)
    }

    fn name(&self) -> &ServerName {
        &self.stored.spec.name
    }
}

/// Whether there is a run that nobody could speak to before.
fn makes_reachable(note: &Note) -> bool {
    matches!(note, Note::Adopted { .. } | Note::EngineBack | Note::Unpaused { .. })
}

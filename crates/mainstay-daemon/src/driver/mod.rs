//! One server's driver: feeds facts to its [`Unit`] and carries out what it answers.
//!
//! The driver never waits for anything long: starts, stops and handshakes are spawned and report back
//! as messages, so `stop` and `rm` act at once, whatever is going on.

mod narrate;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_core::{
    Action, Cause, Event, Exit, Found, RunId, ServerName, Transport, Unit, Wanted,
};
use mainstay_engine::{Engine, News, RunKey, StartError, Started};
use mainstay_proxy::Hello;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::clock;
use crate::journal::Journal;
use crate::legacy::Legacy;
use crate::random;
use crate::session::{self, Memory, Remembered, SessionError};
use crate::snapshot::{Session, Snapshot, Times};
use crate::store::{Store, Stored};

/// Messages on their way to a driver.
const INBOX: usize = 64;

/// A server whose output is closed ends within this time, or it hangs.
const CLOSED_GRACE: Duration = Duration::from_secs(2);

/// What every driver shares.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) store: Store,
    pub(crate) journal: Journal,
    pub(crate) memory: Memory,
    pub(crate) daemon: u64,
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
    /// Something happened to a run.
    News(News),
    /// A complete list of the engine's runs of this server, begun at that time.
    Listed { begun: Instant, runs: Vec<RunId> },
    /// The host slept.
    HostResumed,
    /// A client wants the server.
    Demand,
    /// The daemon ends and takes the server with it; the intent stays.
    Retire,
}

/// The end of spawned work.
enum Done {
    Start(RunId, Result<Started, StartError>),
    Session(RunId, Result<Session, SessionError>),
    /// A run that closed its output has not ended within a while.
    StillThere(RunId),
    /// An HTTP server has forgotten the session, as they do when they are bored.
    SessionForgotten(RunId),
    Nothing,
}

/// How others reach a driver.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) view: watch::Receiver<Snapshot>,
}

/// How a driver ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The server is forgotten.
    Forgotten,
    /// The daemon ends.
    Retired,
}

/// One server's driver.
pub(crate) struct Driver {
    context: Context,
    stored: Stored,
    unit: Unit,
    times: Times,
    pid: Option<u32>,
    /// When the present run was seen to exit, until all of it is gone.
    exited_at: Option<Timestamp>,
    session: Option<Session>,
    last_words: Arc<[u8]>,
    retiring: bool,
    /// The run that is being ended, and how.
    ending: Option<(RunId, Option<Duration>)>,
    inbox: mpsc::Receiver<Message>,
    view: watch::Sender<Snapshot>,
    work: JoinSet<Done>,
}

impl Driver {
    /// A driver for a server, with what an earlier daemon left of it.
    pub(crate) fn new(context: Context, stored: Stored, legacy: &Legacy) -> (Self, Handle) {
        let survivor = legacy.survivor.as_ref();
        let name = &stored.spec.name;
        let key = survivor.map(|found| RunKey::new(name.clone(), found.run));
        let known = key.as_ref().and_then(|key| context.memory.recall(key));
        let ready_at = known.as_ref().map(|known| known.ready_at);
        let found = survivor.map(|found| Found {
            run: found.run,
            age: found.age,
            ready_for: ready_at.map(clock::since),
        });
        let policy = stored.spec.restart.clone();
        let (now, seed) = (clock::now(), random::seed());
        let unit = Unit::resume(now, policy, seed, stored.wanted, legacy.last, found);
        let times = Times {
            started_at: survivor.map(|found| clock::wall_before(found.age)),
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
            session: None,
            last_words: Arc::new([]),
        };
        let (view, watcher) = watch::channel(snapshot);
        let mut driver = Self {
            context,
            stored,
            unit,
            times,
            pid: survivor.and_then(|found| found.pid),
            exited_at: None,
            session: None,
            last_words: Arc::new([]),
            retiring: false,
            ending: None,
            inbox,
            view,
            work: JoinSet::new(),
        };
        if let Some((run, exit)) = legacy.ended {
            driver.note_unseen_end(run, exit);
        }
        if let Some(key) = key {
            driver.note_adoption(&key);
            driver.open_session(key.run, known.map(|known| known.hello));
        }
        driver.publish();
        (driver, Handle { inbox: sender, view: watcher })
    }

    /// Drives the server until it is forgotten or the daemon ends.
    pub(crate) async fn run(mut self) -> Ending {
        if let Some(ending) = self.feed(Event::Tick).await {
            return ending;
        }
        loop {
            let event = tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(message) => self.understand(message).await,
                    None => return Ending::Retired,
                },
                Some(done) = self.work.join_next() => match done {
                    Ok(done) => self.take(done),
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
            if self.retiring && self.unit.run().is_none() {
                self.work.shutdown().await;
                return Ending::Retired;
            }
        }
    }

    /// Turns a message into an event for the unit, if it is one.
    async fn understand(&mut self, message: Message) -> Option<Event> {
        match message {
            Message::Want(wanted) => {
                self.stored.wanted = wanted;
                Some(Event::Want(wanted))
            }
            Message::Restart => {
                self.stored.wanted = Wanted::On;
                Some(Event::Restart)
            }
            Message::Replace(stored) => {
                self.stored = *stored;
                // The budget is cleared with the new policy; what runs now is the old spec's.
                self.feed(Event::Policy(self.stored.spec.restart.clone())).await;
                Some(Event::Restart)
            }
            Message::News(News::Exited { key, stderr, .. }) => {
                if self.unit.run() == Some(key.run) {
                    self.exited_at = Some(clock::wall());
                    self.last_words = stderr.into();
                }
                None
            }
            Message::News(News::Gone { key, exit }) => Some(self.gone(key.run, exit)),
            Message::Listed { begun, runs } => self.compare(begun, &runs),
            Message::HostResumed => Some(Event::HostResumed),
            Message::Demand => Some(Event::Demand),
            Message::Retire => {
                self.retiring = true;
                Some(Event::Want(Wanted::Off))
            }
        }
    }

    /// Turns the end of spawned work into an event for the unit, if it is one.
    fn take(&mut self, done: Done) -> Option<Event> {
        match done {
            Done::Start(run, Ok(started)) => {
                if self.unit.run() != Some(run) {
                    self.end(run, None);
                    return None;
                }
                self.pid = started.pid;
                match self.ending {
                    // It was told to end before it was there to hear it.
                    Some((ending, grace)) if ending == run => self.end(run, grace),
                    Some(_) | None => self.open_session(run, None),
                }
                Some(Event::Started { run })
            }
            Done::Start(run, Err(error)) => {
                let why = with_causes(&error);
                Some(Event::StartFailed { run, why })
            }
            Done::Session(run, Ok(session)) if self.unit.run() == Some(run) => {
                Some(self.session_opened(run, session))
            }
            Done::Session(run, Err(error)) if self.unit.run() == Some(run) => {
                if error.may_be_an_end() {
                    self.expect_end(run);
                    return None;
                }
                Some(Event::Hung { run, what: error.to_string() })
            }
            Done::StillThere(run) if self.unit.run() == Some(run) && self.exited_at.is_none() => {
                let what = "it closed its output but went on running".to_owned();
                Some(Event::Hung { run, what })
            }
            Done::SessionForgotten(run) if self.unit.run() == Some(run) => {
                self.session = None;
                self.publish();
                self.open_session(run, None);
                None
            }
            Done::Session(..) | Done::StillThere(_) | Done::SessionForgotten(_) | Done::Nothing => {
                None
            }
        }
    }

    /// Hands an event to the unit and does what it asks for.
    async fn feed(&mut self, event: Event) -> Option<Ending> {
        let action = self.unit.handle(clock::now(), event);
        for note in self.unit.take_notes() {
            self.tell(&note);
        }
        if self.unit.run().is_none() {
            self.pid = None;
            self.session = None;
            self.times.started_at = None;
            self.times.ready_at = None;
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
                return Some(Ending::Forgotten);
            }
            None => {}
        }
        None
    }

    /// The unit may change the intent itself, when somebody stopped the server and that is respected.
    async fn keep_intent(&mut self) {
        let wanted = self.unit.wanted();
        if wanted == self.stored.wanted || self.retiring {
            return;
        }
        self.stored.wanted = wanted;
        let name = self.name().clone();
        if let Err(error) = self.context.store.want(vec![name], wanted).await {
            tracing::error!(server = %self.name(), %error, "the intent cannot be stored");
        }
    }

    fn start(&mut self, run: RunId) {
        let engine = self.context.engine.clone();
        let key = self.key(run);
        let spec = self.stored.spec.clone();
        self.exited_at = None;
        self.work.spawn(async move { Done::Start(run, engine.start(&key, &spec).await) });
    }

    /// Ends a run: gracefully if there is a time for that.
    fn end(&mut self, run: RunId, grace: Option<Duration>) {
        self.ending = Some((run, grace));
        let engine = self.context.engine.clone();
        let key = self.key(run);
        self.work.spawn(async move {
            let done = match grace {
                Some(grace) => engine.stop(&key, grace).await,
                None => engine.kill(&key).await,
            };
            if let Err(error) = done {
                tracing::error!(server = %key.server, run = %key.run, %error, "cannot end a run");
            }
            Done::Nothing
        });
    }

    fn open_session(&mut self, run: RunId, known: Option<Hello>) {
        let engine = self.context.engine.clone();
        let daemon = self.context.daemon;
        let key = self.key(run);
        let spec = self.stored.spec.clone();
        self.work.spawn(async move {
            let session = session::establish(&*engine, &key, &spec, known, daemon).await;
            Done::Session(run, session)
        });
    }

    fn session_opened(&mut self, run: RunId, session: Session) -> Event {
        let upstream = session.upstream.clone();
        let transport = self.stored.spec.transport.clone();
        self.work.spawn(async move {
            upstream.closed().await;
            match transport {
                Transport::Stdio => {
                    tokio::time::sleep(CLOSED_GRACE).await;
                    Done::StillThere(run)
                }
                Transport::StreamableHttp { .. } => Done::SessionForgotten(run),
            }
        });
        let ready_at = *self.times.ready_at.get_or_insert_with(clock::wall);
        let hello = Hello::clone(&session.hello);
        self.context.memory.remember(&self.key(run), &Remembered { ready_at, hello });
        self.session = Some(session);
        Event::Ready { run }
    }

    /// A run that cannot be reached is most likely ending: the news of that says more.
    fn expect_end(&mut self, run: RunId) {
        self.work.spawn(async move {
            tokio::time::sleep(CLOSED_GRACE).await;
            Done::StillThere(run)
        });
    }

    fn gone(&mut self, run: RunId, exit: Exit) -> Event {
        self.context.memory.forget(&self.key(run));
        Event::Gone { run, cause: Cause::Exited(exit) }
    }

    /// What the engine lists is the truth: a run it does not have is gone, one that is not ours any
    /// more must go. A run that was started after the list was begun is in neither case.
    fn compare(&mut self, begun: Instant, runs: &[RunId]) -> Option<Event> {
        let present = self.unit.run();
        for &run in runs {
            if Some(run) != present && run <= self.unit.last_run() {
                self.end(run, None);
            }
        }
        let run = present.filter(|run| !runs.contains(run))?;
        let started = self.unit.view(clock::now()).started?;
        (started < begun).then(|| self.gone(run, Exit::UNKNOWN))
    }

    async fn forget(&mut self) {
        self.work.shutdown().await;
        let name = self.name().clone();
        if let Err(error) = self.context.engine.forget(&name).await {
            tracing::warn!(server = %name, %error, "something of the server stays behind");
        }
        if let Err(error) = self.context.store.delete(name.clone()).await {
            tracing::error!(server = %name, %error,
                "the server cannot be deleted; it will be when the daemon starts next");
        }
    }

    fn publish(&self) {
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
            shown.session.clone_from(&self.session);
            shown.last_words = self.last_words.clone();
        });
    }

    fn key(&self, run: RunId) -> RunKey {
        RunKey::new(self.name().clone(), run)
    }

    fn name(&self) -> &ServerName {
        &self.stored.spec.name
    }
}

/// An error with all that caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

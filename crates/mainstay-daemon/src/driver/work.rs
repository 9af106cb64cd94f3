//! What a driver has done for it: starts, ends and sessions. Each reports back when it is done.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::{Cause, Event, RefreshMode, RunId, with_causes};
use mainstay_engine::{News, StartError, Started};
use mainstay_proxy::Hello;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Driver;
use super::away::Reach;
use crate::clock;
use crate::engines::Home;
use crate::run_session::{self, Remembered, SessionError};
use crate::snapshot::Session;

/// A server whose output is closed ends within this time, or it hangs.
const CLOSED_GRACE: Duration = Duration::from_secs(2);

/// After trouble of our own, a session is tried for again after this time.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The end of spawned work.
pub(super) enum Done {
    Start(RunId, Result<Started, StartError>),
    /// With the time at which the run was ready first.
    Session(RunId, Result<(Session, Timestamp), SessionError>),
    /// A run that closed its output has not ended within a while.
    StillThere(RunId),
    /// Whether the port of a run is another one than before.
    AskedForPort {
        run: RunId,
        moved: bool,
    },
    Nothing,
}

impl Driver {
    /// Turns the end of spawned work into an event for the unit, if it is one.
    pub(super) fn take(&mut self, done: Done) -> Option<Event> {
        let present = self.unit.run();
        if let Done::Start(run, _) = &done
            && self.starting == Some(*run)
        {
            self.starting = None;
        }
        match done {
            Done::Start(run, Ok(_)) if present != Some(run) => {
                self.end(run, None);
                None
            }
            Done::Start(run, Ok(started)) => {
                self.pid = started.pid;
                self.container = started.container;
                if let Some(why) = &started.replaced {
                    self.note_replacement(run, why);
                }
                match self.ending {
                    // It was told to end before it was there to hear it.
                    Some((ending, grace)) if ending == run => self.end(run, grace),
                    Some(_) | None => self.open_session(run, None, Duration::ZERO),
                }
                Some(Event::Started { run })
            }
            Done::Start(run, Err(error)) => Some(self.not_started(run, error)),
            Done::Session(run, _) | Done::StillThere(run) if present != Some(run) => None,
            Done::Session(run, opened) => {
                self.opening = false;
                match opened {
                    _ if self.exited.is_some() => None,
                    Ok((session, ready_at)) => Some(self.session_opened(run, session, ready_at)),
                    Err(error) => self.session_failed(run, &error),
                }
            }
            Done::StillThere(_) if self.exited.is_some() => None,
            Done::StillThere(run) => {
                let what = "it closed its output but went on running".to_owned();
                Some(Event::Hung { run, what })
            }
            Done::AskedForPort { run, moved } => {
                self.reach.asks_for_port = false;
                if moved && present == Some(run) {
                    self.follow_port(run);
                }
                None
            }
            Done::Nothing => None,
        }
    }

    fn not_started(&mut self, run: RunId, error: StartError) -> Event {
        match error {
            StartError::Away { why } => {
                // Nothing of the run is there. That is told when the outage is.
                let cause = Cause::EngineAway;
                self.early.push_front(News::Gone { key: self.key(run), cause });
                Event::EngineAway { why }
            }
            StartError::Removed => self.gone(run, Cause::Removed),
            error if error.is_temporary() => {
                Event::Gone { run, cause: Cause::NotStarted(with_causes(&error)) }
            }
            error => Event::StartFailed { run, why: with_causes(&error) },
        }
    }

    /// The server is run where it is described to be from now on. The engine that ran it before removes
    /// what it has of it; no run is started before that is done.
    pub(super) fn move_home(&mut self) {
        let home = Home::of(&self.stored.spec.workload);
        if home == self.home {
            return;
        }
        let old = self.context.engines.at(self.home).clone();
        self.home = home;
        let server = self.name().clone();
        let before = self.moving.take();
        let (done, moving) = oneshot::channel::<()>();
        self.moving = Some(moving);
        self.work.spawn(async move {
            let _done = done;
            over(before).await;
            if let Err(error) = old.release(&server).await {
                tracing::warn!(%server, %error, "something stays where the server ran before");
            }
            Done::Nothing
        });
    }

    pub(super) fn start(&mut self, run: RunId) {
        self.move_home();
        let moving = self.moving.take();
        self.reach = Reach::begun();
        let engine = self.context.engines.at(self.home).clone();
        let key = self.key(run);
        let spec = self.stored.spec.clone();
        self.exited = None;
        self.starting = Some(run);
        // Clients that are to see each restart see the entry go before it.
        let shows = self.context.clients.mode(&spec.clients) == RefreshMode::Always;
        let entries = self.entries.clone().filter(|_| shows);
        let revision = self.view.borrow().revision;
        self.work.spawn(async move {
            over(moving).await;
            if let Some(entries) = entries {
                entries.follow_up(revision).await;
            }
            Done::Start(run, engine.start(&key, &spec).await)
        });
    }

    /// Ends a run: gracefully if there is a time for that.
    pub(super) fn end(&mut self, run: RunId, grace: Option<Duration>) {
        self.end_at(self.home, run, grace);
    }

    /// The same, for a run that may live elsewhere than the present one.
    pub(super) fn end_at(&mut self, home: Home, run: RunId, grace: Option<Duration>) {
        self.ending = Some((run, grace));
        let engine = self.context.engines.at(home).clone();
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

    /// Opens a session with a run, or takes up the one that is known.
    pub(super) fn open_session(&mut self, run: RunId, known: Option<Hello>, after: Duration) {
        let engine = self.context.engines.at(self.home).clone();
        let server = self.audience.server().clone();
        let key = self.key(run);
        let spec = self.stored.spec.clone();
        let arrival = self.arrival(known);
        let (memory, home, ready_at) =
            (self.context.memory.clone(), self.home, self.times.ready_at);
        self.opening = true;
        self.ways += 1;
        self.attend(async move {
            sleep(after).await;
            let session = run_session::establish(&*engine, &key, &spec, &server, arrival).await;
            let ready_at = ready_at.unwrap_or_else(clock::wall);
            if let Ok(session) = &session {
                // Saved before the run is reported as ready, because the daemon may be killed after that.
                let hello = Hello::clone(&session.run.hello);
                memory.remember(&key, Remembered::new(ready_at, hello, home)).await;
            }
            Done::Session(run, session.map(|session| (session, ready_at)))
        });
    }

    /// Forgets everything about the run that is over, and ends what was being done about it.
    pub(super) fn let_go(&mut self) {
        self.leave();
        self.pid = None;
        self.container = None;
        self.ways = 0;
        self.times.started_at = None;
        self.times.ready_at = None;
    }

    /// Lets go of the session with the present run, and ends what was being done about it.
    pub(super) fn leave(&mut self) {
        for task in self.attending.drain(..) {
            task.abort();
        }
        self.session = None;
        self.opening = false;
    }

    fn session_opened(&mut self, run: RunId, session: Session, ready_at: Timestamp) -> Event {
        let opened = session.run.clone();
        self.attend(async move {
            opened.closed().await;
            still_there(run).await
        });
        self.times.ready_at = Some(ready_at);
        self.session = Some(session);
        Event::Ready { run }
    }

    /// Trouble of our own is no fault of the server's; and one that cannot be reached is most likely
    /// ending, of which the news says more.
    fn session_failed(&mut self, run: RunId, error: &SessionError) -> Option<Event> {
        if let Some(event) = self.not_reached(run, error) {
            return Some(event);
        }
        if self.unit.is_engine_away() {
            // It is tried for again when the engine is back.
            return None;
        }
        if error.is_ours() {
            tracing::warn!(server = %self.name(), %run, %error, "trying for a session again");
            self.open_session(run, None, TRY_AGAIN);
        } else if error.may_be_an_end() {
            self.attend(still_there(run));
        } else {
            return Some(Event::Hung { run, what: error.to_string() });
        }
        None
    }

    /// Spawns something that is of use only as long as the present run lives.
    fn attend(&mut self, task: impl Future<Output = Done> + Send + 'static) {
        self.attending.retain(|task| !task.is_finished());
        let task = self.work.spawn(task);
        self.attending.push(task);
    }
}

/// Waits for the end of a move, if there is one.
async fn over(moving: Option<oneshot::Receiver<()>>) {
    if let Some(moving) = moving {
        // Nothing is sent: it is over when the sender is no more.
        moving.await.ok();
    }
}

async fn still_there(run: RunId) -> Done {
    sleep(CLOSED_GRACE).await;
    Done::StillThere(run)
}

//! What takes time: starts, ends and sessions. Each task reports its result.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::supervisor::{Connection, Event, OBSERVATION, StartFailure};
use mainstay_core::{RefreshMode, RunId, Started, Wanted, WorkloadKind, with_causes};
use mainstay_engine::{Observation, StartError};
use mainstay_proxy::AttachedRun;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::Driver;
use crate::clock;
use crate::run_session::{self, SavedSession, SessionError};
use crate::snapshot::{self, Session};

/// How long it may take to log what a run waits for, before it is killed.
const LOG_STACKS: Duration = Duration::from_secs(3);

/// The result of a task.
pub(super) enum TaskResult {
    Started(RunId, Result<Started, StartError>),
    /// With the time at which the run became ready.
    Session(Connection, Result<(Session, Timestamp), SessionError>),
    Event(Event),
    IntentSaved,
    Done,
}

impl Driver {
    /// Turns the result of a task into an event.
    pub(super) fn finish_task(&mut self, result: TaskResult) -> Option<Event> {
        Some(match result {
            TaskResult::Started(run, result) => {
                if let Ok(Started { replaced: Some(why), .. }) = &result
                    && self.supervisor.unit().run() == Some(run)
                {
                    self.record_replacement(run, why);
                }
                Event::Started(run, result.map_err(start_failure))
            }
            TaskResult::Session(connection, _) if !self.supervisor.expects(connection) => {
                return None;
            }
            TaskResult::Session(connection, Ok((session, ready_at))) => {
                let run = session.run.clone();
                self.spawn_for_session(async move {
                    run.closed().await;
                    TaskResult::Event(Event::SessionClosed(connection))
                });
                self.times.ready_at = Some(ready_at);
                self.session = Some((connection, session));
                Event::SessionOpened(connection)
            }
            TaskResult::Session(connection, Err(error)) => {
                tracing::debug!(server = %self.name(), run = %connection.run, %error, "no session");
                let failure = error.failure(&self.supervisor.spec().workload);
                Event::SessionFailed(connection, failure)
            }
            TaskResult::Event(event) => event,
            TaskResult::IntentSaved => {
                self.is_saving_intent = false;
                if let Some(wanted) = self.unsaved_intent.take() {
                    self.save_intent(wanted);
                }
                return None;
            }
            TaskResult::Done => return None,
        })
    }

    /// Saves the intent, one change at a time, without waiting for the disk.
    pub(super) fn save_intent(&mut self, wanted: Wanted) {
        if self.is_saving_intent {
            self.unsaved_intent = Some(wanted);
            return;
        }
        self.is_saving_intent = true;
        let (store, name) = (self.context.store.clone(), self.name().clone());
        self.tasks.spawn(async move {
            if let Err(error) = store.want(vec![name.clone()], wanted).await {
                tracing::error!(server = %name, %error, "the intent cannot be stored");
            }
            TaskResult::IntentSaved
        });
    }

    /// Waits until the intent is saved.
    pub(super) async fn finish_saving(&mut self) {
        while self.is_saving_intent
            && let Some(result) = self.tasks.join_next().await
        {
            if let Ok(TaskResult::IntentSaved) = result {
                self.finish_task(TaskResult::IntentSaved);
            }
        }
    }

    pub(super) fn start(&mut self, run: RunId) {
        self.exited_at = None;
        let engine = self.context.engines.at(self.supervisor.engine()).clone();
        let (key, spec) = (self.key(run), self.supervisor.spec().clone());
        // Clients that should see every restart see that the entry is removed first.
        let is_visible = self.context.clients.mode(&spec.clients) == RefreshMode::Always;
        let entries = self.entries.clone().filter(|_| is_visible);
        let revision = self.view.borrow().revision;
        self.tasks.spawn(async move {
            if let Some(entries) = entries {
                entries.follow_up(revision).await;
            }
            TaskResult::Started(run, engine.start(&key, &spec).await)
        });
    }

    pub(super) fn end(
        &mut self,
        engine: WorkloadKind,
        run: RunId,
        grace: Option<Duration>,
        logs_stacks: bool,
    ) {
        let (engine, key) = (self.context.engines.at(engine).clone(), self.key(run));
        self.tasks.spawn(async move {
            if logs_stacks {
                // What is missing in the log does not keep the run alive.
                timeout(LOG_STACKS, engine.log_stacks(&key)).await.ok();
            }
            let ended = match grace {
                Some(grace) => engine.stop(&key, grace).await,
                None => engine.kill(&key).await,
            };
            if let Err(error) = ended {
                tracing::error!(server = %key.server, run = %key.run, %error, "cannot end a run");
            }
            TaskResult::Done
        });
    }

    pub(super) fn release(&mut self, engine: WorkloadKind) {
        let (engine, server) = (self.context.engines.at(engine).clone(), self.name().clone());
        self.tasks.spawn(async move {
            if let Err(error) = engine.release(&server).await {
                tracing::warn!(%server, %error,
                    "the engine that ran the server before could not remove everything");
            }
            TaskResult::Event(Event::Released)
        });
    }

    pub(super) fn open_session(&mut self, connection: Connection, resume: bool) {
        let kind = self.supervisor.engine();
        let engine = self.context.engines.at(kind).clone();
        let server = self.scope.server().clone();
        let (key, spec) = (self.key(connection.run), self.supervisor.spec().clone());
        let files = self.context.session_files.clone();
        let saved = resume.then(|| files.load(&key)).flatten();
        let is_inherited = connection.attempt == 0;
        let has_unrecorded = saved.as_ref().is_some_and(|saved| {
            saved.has_unrecorded || (is_inherited && !self.context.is_successor)
        });
        let known = saved.map(|saved| saved.hello);
        let info = self.run_info(connection, known);
        let ready_at = self.times.ready_at;
        self.spawn_for_session(async move {
            let session = run_session::establish(&*engine, &key, &spec, &server, info).await;
            let ready_at = ready_at.unwrap_or_else(clock::wall);
            if let Ok(session) = &session {
                // Before the run is reported as ready, because the daemon may be killed after that.
                let mut saved = SavedSession::new(ready_at, &session.run.hello, kind);
                saved.has_unrecorded = has_unrecorded;
                files.save(&key, saved).await;
            }
            TaskResult::Session(connection, session.map(|session| (session, ready_at)))
        });
    }

    pub(super) fn close_session(&mut self) {
        for task in self.session_tasks.drain(..) {
            task.abort();
        }
        self.session = None;
    }

    /// Finds out what a run that may not answer does. What cannot be seen is not known.
    pub(super) fn observe(&mut self, connection: Connection) {
        let session = self.session.as_ref().filter(|(open, _)| *open == connection);
        let Some(run) = session.map(|(_, session)| session.run.clone()) else { return };
        let engine = self.context.engines.at(self.supervisor.engine()).clone();
        let (key, overdue) = (self.key(connection.run), self.supervisor.overdue_after());
        self.spawn_for_session(async move {
            let since = Instant::now();
            let observe = async {
                // Most slow requests are answered by now.
                if run.is_waiting() {
                    engine.observe(&key).await
                } else {
                    Ok(Observation::default())
                }
            };
            let seen = match timeout(OBSERVATION, observe).await {
                Ok(Ok(seen)) => seen,
                Ok(Err(error)) => {
                    tracing::debug!(server = %key.server, run = %key.run, %error, "not observed");
                    Observation::default()
                }
                Err(_) => Observation::default(),
            };
            let evidence = run.evidence(since, &seen, overdue);
            TaskResult::Event(Event::Observed(connection, evidence.map(Box::new)))
        });
    }

    /// Finds out what a run does that does not become ready. What cannot be seen is not known.
    pub(super) fn observe_start(&mut self, run: RunId) {
        let engine = self.context.engines.at(self.supervisor.engine()).clone();
        let key = self.key(run);
        self.tasks.spawn(async move {
            let seen = timeout(OBSERVATION, engine.observe_start(&key)).await;
            let evidence = seen.ok().and_then(Result::ok).unwrap_or_default();
            TaskResult::Event(Event::StartObserved(run, evidence))
        });
    }

    /// Acts on the run of a session, if it is still open.
    pub(super) fn at_run(&self, connection: Connection, act: impl FnOnce(&AttachedRun)) {
        if let Some((_, session)) = self.session.as_ref().filter(|(open, _)| *open == connection) {
            act(&session.run);
        }
    }

    pub(super) fn check_port(&mut self, run: RunId, port: u16) {
        let engine = self.context.engines.at(self.supervisor.engine()).clone();
        let key = self.key(run);
        self.tasks.spawn(async move {
            let has_moved = engine.has_moved(&key, port).await;
            if has_moved {
                tracing::info!(server = %key.server, %run, "its engine published another port");
            }
            TaskResult::Event(Event::PortChecked { run, has_moved })
        });
    }

    pub(super) fn read_last_line(&mut self, reply: oneshot::Sender<Option<String>>) {
        let Some(run) = self.supervisor.unit().run() else { return };
        let engine = self.context.engines.at(self.supervisor.engine()).clone();
        let key = self.key(run);
        self.tasks.spawn(async move {
            let tail = engine.stderr_tail(&key).await.unwrap_or_default();
            reply.send(snapshot::tail_lines(&tail, 1).pop()).ok();
            TaskResult::Done
        });
    }

    fn spawn_for_session(&mut self, task: impl Future<Output = TaskResult> + Send + 'static) {
        self.session_tasks.retain(|task| !task.is_finished());
        let task = self.tasks.spawn(task);
        self.session_tasks.push(task);
    }
}

fn start_failure(error: StartError) -> StartFailure {
    match error {
        StartError::Away { why } => StartFailure::EngineAway { why },
        StartError::Removed => StartFailure::Removed,
        error if error.is_temporary() => StartFailure::Temporary(with_causes(&error)),
        error => StartFailure::Permanent(with_causes(&error)),
    }
}

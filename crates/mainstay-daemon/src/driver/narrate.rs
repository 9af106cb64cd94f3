//! What a driver tells: the event log for users, the daemon's log for operators.

use jiff::Timestamp;
use mainstay_api::EventRecord;
use mainstay_core::{Cause, LoggedEvent as Note, RunId, Wanted};
use mainstay_engine::RunKey;

use super::{Driver, SessionRunEnd};
use crate::clock;
use crate::engines::Home;
use crate::state::event_log::{Clocks, Progress};

impl Driver {
    /// Writes a note to the event log and to the daemon's own.
    pub(super) fn tell(&mut self, note: &Note) {
        let mut at = clock::wall();
        let server = self.stored.spec.name.clone();
        let run = note.run().map(RunId::generation);
        let detail = self.words(note);
        match note {
            Note::Starting { .. } | Note::Refunded { .. } => self.times.next_restart_at = None,
            Note::Started { .. } => {
                self.times.started_at = Some(at);
                tracing::info!(%server, run, pid = self.pid, container = self.container,
                    "server started");
            }
            Note::Ready { .. } => tracing::info!(%server, run, detail, "server ready"),
            Note::Ended { cause, ran_for, .. } => {
                at = self.exited.take().map_or(at, |(at, _)| at);
                self.times.ended = Some((cause.clone(), cause.after(*ran_for), at));
                let kind = cause.kind();
                match cause {
                    // Which is told when the server is forgotten.
                    Cause::Removed => {}
                    cause if cause.charged() => {
                        tracing::warn!(%server, run, cause = kind, detail, "server exited");
                    }
                    _ => tracing::info!(%server, run, cause = kind, detail, "server stopped"),
                }
            }
            Note::Amended { cause, .. } => {
                self.times.next_restart_at.take_if(|_| *cause == Cause::RestartedBySomeone);
                self.note_last_end();
                tracing::info!(%server, run, cause = cause.kind(), detail, "server ended by someone else");
            }
            Note::Adopted { .. } => {
                self.exited = None;
                self.times.started_at = Some(at);
                self.times.next_restart_at = None;
                self.note_last_end();
                tracing::info!(%server, run, cause = note.cause(), pid = self.pid,
                    container = self.container, "server restarted by someone else");
            }
            Note::EngineAway { why } => tracing::warn!(%server, why, "engine away"),
            Note::EngineBack => tracing::info!(%server, detail, "engine back"),
            Note::Unhealthy { .. } => tracing::warn!(%server, run, detail, "server unhealthy"),
            Note::Healthy { .. } => tracing::info!(%server, run, "server healthy again"),
            Note::Hung { .. } => tracing::warn!(%server, run, detail, "server hangs"),
            Note::StartTimedOut { .. } => {
                tracing::warn!(%server, run, detail, "server not ready in time");
            }
            Note::Respected => tracing::info!(%server, detail, "server left stopped"),
            Note::Paused { .. } => tracing::info!(%server, run, "server paused"),
            Note::Unpaused { .. } => tracing::info!(%server, run, "server goes on"),
            Note::Scheduled { attempt, delay, .. } => {
                self.times.next_restart_at = Some(clock::wall_after(*delay));
                tracing::info!(%server, attempt, detail, "restart scheduled");
            }
            Note::GaveUp { .. } => tracing::error!(%server, detail, "server given up"),
            Note::CannotStart { why, .. } => {
                self.times.ended = Some((Cause::CannotStart(why.clone()), detail.clone(), at));
                tracing::error!(%server, run, detail, "cannot start server");
            }
            Note::Removed => {
                if let Some(why) = self.session_run_end {
                    tracing::info!(%server, detail, "run of a session ended");
                    return self.record(at, None, "session-run-ended", Some(why.cause()), detail);
                }
                tracing::info!(%server, cause = note.cause(), detail, "server removed");
            }
            Note::Wanted { .. } if self.retiring => return,
            Note::Wanted { .. }
            | Note::RestartAsked
            | Note::Replaced
            | Note::BudgetReset { .. }
            | Note::HalfOpen { .. }
            | Note::HostResumed
            | Note::Stopping { .. }
            | Note::Killing { .. } => {
                tracing::debug!(%server, run, event = note.event(), detail);
            }
        }
        self.record(at, run, note.event(), note.cause(), detail);
    }

    /// A note in words.
    fn words(&self, note: &Note) -> String {
        if let Some(text) = self.session_run_end.and_then(|why| session_run_text(note, why)) {
            return text.to_owned();
        }
        match (note, self.home) {
            (Note::EngineBack, Home::Remote) if self.session.is_some() => {
                "it answers again".to_owned()
            }
            (Note::EngineBack, Home::Remote) => "no longer waited for".to_owned(),
            (Note::Removed, Home::Container) if self.unit.wanted() != Wanted::Gone => {
                "its container was removed by someone else".to_owned()
            }
            (note, _) => note.to_string(),
        }
    }

    /// Takes the times of the server's earlier life from its unit.
    pub(super) fn recall_times(&mut self) {
        let now = clock::now();
        let view = self.unit.view(now);
        let due = view.next_restart;
        self.times.next_restart_at =
            due.map(|due| clock::wall_after(due.saturating_duration_since(now)));
        let last = view.last_restart;
        self.times.last_restart_at =
            last.map(|last| clock::wall_before(now.saturating_duration_since(last)));
        self.note_last_end();
    }

    /// Notes for the next daemon how far the server has come, if that has changed.
    pub(super) fn note_past(&mut self) {
        let mut now = (self.stored.created_at, self.unit.history());
        if self.retiring {
            // The stop is the daemon's. What failures have led to still holds for the next daemon.
            now.1.failures = self.noted.1.failures;
            now.1.restart_state = self.noted.1.restart_state;
        }
        if now == self.noted || self.audience.is_one_session() {
            return;
        }
        let progress = Progress::of(now.0, &now.1, Clocks::read(), &self.context.boot);
        self.context.event_log.set_progress(self.name(), Some(progress));
        self.noted = now;
    }

    /// Notes how the last run ended after all.
    fn note_last_end(&mut self) {
        let now = clock::now();
        if let Some(end) = self.unit.view(now).last_end {
            let at = clock::wall_before(now.saturating_duration_since(end.at));
            let text = end.cause.after(end.ran_for);
            self.times.ended = Some((end.cause, text, at));
        }
    }

    /// A run that ended while no daemon was there is neither charged nor waited for.
    pub(super) fn note_unseen_end(&mut self, run: RunId, cause: Cause) {
        let at = clock::wall();
        let detail = match &cause {
            Cause::MachineRestarted => cause.to_string(),
            cause => format!("{cause} while no daemon was there"),
        };
        tracing::warn!(server = %self.name(), %run, detail, "server exited");
        self.record(at, Some(run.generation()), "ended", Some(cause.kind()), detail.clone());
        self.context.memory.forget(&self.key(run));
        self.times.ended = Some((cause, detail, at));
    }

    pub(super) fn note_adoption(&self, key: &RunKey) {
        let (server, run) = (&key.server, key.run);
        tracing::info!(%server, %run, pid = self.pid, container = self.container,
            "server found running");
        let detail = "found running by a new daemon, and kept".to_owned();
        self.record(clock::wall(), Some(run.generation()), "kept", None, detail);
    }

    /// Tells that a run has another container than the one before, although nobody asked for that.
    pub(super) fn note_replacement(&self, run: RunId, why: &str) {
        tracing::warn!(server = %self.name(), %run, why, "container replaced");
        let detail = format!(
            "in a new container, because the engine could not start the old one: {why}; what the \
             server had written outside of its volumes is lost"
        );
        self.record(clock::wall(), Some(run.generation()), "container-replaced", None, detail);
    }

    fn record(
        &self,
        at: Timestamp,
        run: Option<u64>,
        event: &str,
        cause: Option<&str>,
        detail: String,
    ) {
        let detail = match self.audience.session() {
            Some(session) => format!("{detail} (for session {})", &session[..session.len().min(8)]),
            None => detail,
        };
        self.context.event_log.record(EventRecord {
            at,
            server: self.audience.server_name(),
            run,
            event: event.to_owned(),
            cause: cause.map(str::to_owned),
            detail,
        });
    }
}

/// What a note means for the run of a single session that is ended while its server stays.
fn session_run_text(note: &Note, why: SessionRunEnd) -> Option<&'static str> {
    match (note, why) {
        (Note::Wanted { .. }, SessionRunEnd::Idle) => Some("asked to stop: its client is idle"),
        (Note::Wanted { .. }, SessionRunEnd::SessionEnded) => {
            Some("asked to stop: its session has ended")
        }
        (Note::Removed, SessionRunEnd::Idle) => {
            Some("stopped; the next request of its client starts another run")
        }
        (Note::Removed, SessionRunEnd::SessionEnded) => {
            Some("stopped because its session has ended")
        }
        _ => None,
    }
}

//! What a driver writes to the event log and to the daemon's log, and the times that it shows.

use jiff::Timestamp;
use mainstay_api::EventRecord;
use mainstay_core::{Cause, LoggedEvent, RunId, RunKey, UnitHistory};

use super::Driver;
use crate::clock;
use crate::state::event_log::{Clocks, Progress};

impl Driver {
    /// Records an event of the supervisor; `detail` describes it.
    pub(super) fn record(&mut self, event: &LoggedEvent, detail: String) {
        use LoggedEvent as E;
        let mut at = clock::wall();
        let server = self.name().clone();
        let run = event.run().map(RunId::generation);
        let details = self.supervisor.details();
        match event {
            E::Starting { .. } | E::Refunded { .. } => self.times.next_restart_at = None,
            E::Started { .. } => {
                tracing::info!(%server, run, pid = details.pid, container = details.container,
                    "server started");
                self.times.started_at = Some(at);
            }
            E::Ready { .. } => tracing::info!(%server, run, detail, "server ready"),
            E::Ended { cause, ran_for, .. } => {
                at = self.exited_at.take().unwrap_or(at);
                self.times.ended = Some((cause.clone(), cause.after(*ran_for), at));
                let kind = cause.kind();
                match cause {
                    // The removal of the server follows.
                    Cause::Removed => {}
                    cause if cause.charged() => {
                        tracing::warn!(%server, run, cause = kind, detail, "server exited");
                    }
                    _ => tracing::info!(%server, run, cause = kind, detail, "server stopped"),
                }
            }
            E::Amended { cause, .. } => {
                self.times.next_restart_at.take_if(|_| *cause == Cause::RestartedBySomeone);
                self.update_last_end();
                tracing::info!(%server, run, cause = cause.kind(), detail, "server ended by someone else");
            }
            E::Adopted { .. } => {
                tracing::info!(%server, run, cause = event.cause(), pid = details.pid,
                    container = details.container, "server restarted by someone else");
                self.exited_at = None;
                self.times.started_at = Some(at);
                self.times.next_restart_at = None;
                self.update_last_end();
            }
            E::EngineAway { why } => tracing::warn!(%server, why, "engine away"),
            E::EngineBack => tracing::info!(%server, detail, "engine back"),
            E::Unhealthy { .. } => tracing::warn!(%server, run, detail, "server unhealthy"),
            E::Healthy { .. } => tracing::info!(%server, run, "server healthy again"),
            E::Hung { .. } => tracing::warn!(%server, run, detail, "server hangs"),
            E::Verdict { verdict: verdict @ ("overdue" | "responsive"), .. } => {
                tracing::info!(%server, run, verdict, detail, "server observed");
            }
            E::Verdict { verdict, .. } => {
                tracing::warn!(%server, run, verdict, detail, "server observed");
            }
            E::SlowStart { activity, .. } => {
                tracing::info!(%server, run, activity, detail, "server not ready yet");
            }
            E::StartTimedOut { .. } => {
                tracing::warn!(%server, run, detail, "server not ready in time");
            }
            E::Respected => tracing::info!(%server, detail, "server left stopped"),
            E::Paused { .. } => tracing::info!(%server, run, "server paused"),
            E::Unpaused { .. } => tracing::info!(%server, run, "server no longer paused"),
            E::Scheduled { attempt, delay, .. } => {
                self.times.next_restart_at = Some(clock::wall_after(*delay));
                tracing::info!(%server, attempt, detail, "restart scheduled");
            }
            E::GaveUp { .. } => tracing::error!(%server, detail, "server given up"),
            E::CannotStart { why, .. } => {
                self.times.ended = Some((Cause::CannotStart(why.clone()), detail.clone(), at));
                tracing::error!(%server, run, detail, "cannot start server");
            }
            E::Removed => {
                if let Some(why) = self.supervisor.session_run_end() {
                    tracing::info!(%server, detail, "run of a session ended");
                    return self.write(at, None, "session-run-ended", Some(why.cause()), detail);
                }
                tracing::info!(%server, cause = event.cause(), detail, "server removed");
            }
            E::Wanted { .. } if self.supervisor.is_retiring() => return,
            E::Wanted { .. }
            | E::RestartAsked
            | E::Replaced
            | E::BudgetReset { .. }
            | E::HalfOpen { .. }
            | E::HostResumed
            | E::Stopping { .. }
            | E::Killing { .. } => {
                tracing::debug!(%server, run, event = event.event(), detail);
            }
        }
        self.write(at, run, event.event(), event.cause(), detail);
    }

    /// Takes the times of earlier runs from the unit.
    pub(super) fn restore_times(&mut self) {
        let now = clock::now();
        let view = self.supervisor.unit().view(now);
        let due = view.next_restart;
        self.times.next_restart_at =
            due.map(|due| clock::wall_after(due.saturating_duration_since(now)));
        let last = view.last_restart;
        self.times.last_restart_at =
            last.map(|last| clock::wall_before(now.saturating_duration_since(last)));
        self.update_last_end();
    }

    /// Saves the history for the next daemon.
    pub(super) fn save_history(&self, history: &UnitHistory) {
        let progress = Progress::of(self.created_at, history, Clocks::read(), &self.context.boot);
        self.context.event_log.set_progress(self.name(), Some(progress));
    }

    /// Shows how the last run ended, as the unit knows it now.
    fn update_last_end(&mut self) {
        let now = clock::now();
        if let Some(end) = self.supervisor.unit().view(now).last_end {
            let at = clock::wall_before(now.saturating_duration_since(end.at));
            let text = end.cause.after(end.ran_for);
            self.times.ended = Some((end.cause, text, at));
        }
    }

    /// Records a run that ended while no daemon ran. It is neither charged nor waited for.
    pub(super) fn record_unseen_end(&mut self, run: RunId, cause: Cause) {
        let at = clock::wall();
        let detail = match &cause {
            Cause::MachineRestarted => cause.to_string(),
            cause => format!("{cause} while no daemon was there"),
        };
        tracing::warn!(server = %self.name(), %run, detail, "server exited");
        self.write(at, Some(run.generation()), "ended", Some(cause.kind()), detail.clone());
        self.context.session_files.remove(&self.key(run));
        self.times.ended = Some((cause, detail, at));
    }

    pub(super) fn record_inherited(&self, key: &RunKey) {
        let (server, run, details) = (&key.server, key.run, self.supervisor.details());
        tracing::info!(%server, %run, pid = details.pid, container = details.container,
            "server found running");
        let detail = "found running by a new daemon, and kept".to_owned();
        self.write(clock::wall(), Some(run.generation()), "kept", None, detail);
    }

    /// Records that a run has another container than the one before, although that was not requested.
    pub(super) fn record_replacement(&self, run: RunId, why: &str) {
        tracing::warn!(server = %self.name(), %run, why, "container replaced");
        let detail = format!(
            "in a new container, because the engine could not start the old one: {why}; what the \
             server had written outside of its volumes is lost"
        );
        self.write(clock::wall(), Some(run.generation()), "container-replaced", None, detail);
    }

    fn write(
        &self,
        at: Timestamp,
        run: Option<u64>,
        event: &str,
        cause: Option<&str>,
        detail: String,
    ) {
        let detail = match self.scope.session() {
            Some(session) => format!("{detail} (for session {})", &session[..session.len().min(8)]),
            None => detail,
        };
        self.context.event_log.record(EventRecord {
            at,
            server: self.scope.server_name(),
            run,
            event: event.to_owned(),
            cause: cause.map(str::to_owned),
            detail,
        });
    }
}

//! The MCP session with the present run.

use std::time::{Duration, Instant};

use super::{Action, Connection, SessionFailure, Supervisor};
use crate::{RunId, Transport, Workload, WorkloadKind, unit};

/// A server whose output is closed ends within this time, or it hangs.
const CLOSED_GRACE: Duration = Duration::from_secs(2);

/// The delay before another attempt after a local failure.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The minimum time between two checks of a port that has not changed.
pub(super) const PORT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Session {
    None,
    /// It is opened at this time.
    Scheduled {
        at: Instant,
        resume: bool,
    },
    Opening {
        resume: bool,
    },
    Open {
        since: Instant,
        /// Whether the run has closed the connection.
        is_closed: bool,
        /// When the run counts as hung, because it is still there.
        hung_at: Option<Instant>,
    },
    /// It could not be opened, probably because the run is ending.
    Failed {
        hung_at: Instant,
    },
}

impl Session {
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Open { .. })
    }

    fn is_opening(self) -> bool {
        matches!(self, Self::Scheduled { .. } | Self::Opening { .. })
    }

    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::None | Self::Opening { .. } => None,
            Self::Scheduled { at, .. } => Some(at),
            Self::Open { hung_at, .. } => hung_at,
            Self::Failed { hung_at } => Some(hung_at),
        }
    }
}

impl Supervisor {
    /// Whether the result of this attempt is expected. If it succeeded, report [`super::Event::SessionOpened`].
    pub fn expects(&self, connection: Connection) -> bool {
        let is_opening = matches!(self.session, Session::Opening { .. });
        self.is_current(connection) && is_opening && self.exited.is_none()
    }

    /// Whether this is the newest attempt with the present run.
    fn is_current(&self, connection: Connection) -> bool {
        self.unit.run() == Some(connection.run) && connection.attempt + 1 == self.connections
    }

    pub(super) fn open_session(&mut self, run: RunId, resume: bool) {
        let connection = Connection { run, attempt: self.connections };
        self.connections += 1;
        self.session = Session::Opening { resume };
        self.actions.push(Action::OpenSession { connection, resume });
    }

    pub(super) fn schedule_session(&mut self, at: Instant, resume: bool) {
        self.session = Session::Scheduled { at, resume };
    }

    pub(super) fn close_session(&mut self) {
        self.session = Session::None;
        self.watch = None;
        self.actions.push(Action::CloseSession);
    }

    pub(super) fn session_opened(&mut self, now: Instant, connection: Connection) {
        if self.expects(connection) {
            self.session = Session::Open { since: now, is_closed: false, hung_at: None };
            self.feed(now, unit::Event::Ready { run: connection.run });
            self.begin_watch(now, connection);
        }
    }

    /// A run that cannot be reached is most likely ending, which its engine reports with more details.
    pub(super) fn session_failed(
        &mut self,
        now: Instant,
        connection: Connection,
        failure: SessionFailure,
    ) {
        if !self.expects(connection) {
            return;
        }
        let run = connection.run;
        let resume = matches!(self.session, Session::Opening { resume: true });
        self.session = Session::None;
        match failure {
            SessionFailure::Unreachable(why) => self.remote_away(now, why),
            SessionFailure::Refused(why) => {
                self.end(run, None);
                self.feed(now, unit::Event::StartFailed { run, why });
            }
            // Another attempt follows when the engine is back.
            _ if self.unit.is_engine_away() && self.engine != WorkloadKind::Remote => {}
            SessionFailure::Local => self.schedule_session(now + RETRY_DELAY, resume),
            SessionFailure::Ending => {
                self.session = Session::Failed { hung_at: now + CLOSED_GRACE };
            }
            SessionFailure::Faulty(what) => self.feed(now, unit::Event::Hung { run, what }),
        }
    }

    pub(super) fn session_closed(&mut self, now: Instant, connection: Connection) {
        if self.is_current(connection)
            && let Session::Open { is_closed: is_closed @ false, hung_at, .. } = &mut self.session
        {
            *is_closed = true;
            *hung_at = Some(now + CLOSED_GRACE);
            self.watch = None;
        }
    }

    pub(super) fn session_tick(&mut self, now: Instant) {
        if self.session.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let Some(run) = self.unit.run() else { return };
        match &mut self.session {
            Session::Scheduled { resume, .. } => {
                let resume = *resume;
                self.open_session(run, resume);
            }
            Session::Open { hung_at, .. } => {
                *hung_at = None;
                self.set_hung(now, run);
            }
            Session::Failed { .. } => {
                self.session = Session::None;
                self.set_hung(now, run);
            }
            Session::None | Session::Opening { .. } => {}
        }
    }

    fn set_hung(&mut self, now: Instant, run: RunId) {
        if self.exited.is_none() {
            let what = "it closed its output but kept running".to_owned();
            self.feed(now, unit::Event::Hung { run, what });
        }
    }

    /// Opens a session with the present run again, if it has become reachable. One that is still open is kept.
    pub(super) fn reconnect(&mut self) {
        let Some(run) = self.unit.run() else { return };
        let is_usable = matches!(self.session, Session::Open { is_closed: false, .. });
        let is_beginning = self.session.is_opening() || self.starting.is_some();
        let ends = self.exited.is_some() || self.is_ending(run);
        let is_remote = self.engine == WorkloadKind::Remote;
        if is_usable || is_beginning || ends || self.unit.is_engine_away() || is_remote {
            return;
        }
        self.close_session();
        self.open_session(run, true);
    }

    /// A request was not accepted by a run that counts as up. A local server that is ending reports that itself, but a
    /// container may have another port than before: engines publish another one when a container is disconnected from
    /// its network and connected again, without an event.
    pub(super) fn not_accepted(&mut self, now: Instant, generation: u64) {
        let Some(run) = self.unit.run().filter(|run| run.generation() == generation) else {
            return;
        };
        let Session::Open { since, .. } = self.session else { return };
        if self.is_ending(run) {
            return;
        }
        if self.engine == WorkloadKind::Remote {
            return self.remote_lost(now, since);
        }
        let Workload::Container(container) = &self.spec.workload else { return };
        let Transport::StreamableHttp { port, .. } = container.transport else { return };
        if !self.unit.is_engine_away() && self.reachability.begin_port_check(now) {
            self.actions.push(Action::CheckPort { run, port });
        }
    }

    pub(super) fn port_checked(&mut self, now: Instant, run: RunId, has_moved: bool) {
        self.reachability.end_port_check(now, has_moved);
        let ends = self.exited.is_some() || self.is_ending(run);
        // Nothing is charged: the run has not ended.
        if has_moved && self.unit.run() == Some(run) && !self.session.is_opening() && !ends {
            self.close_session();
            self.open_session(run, true);
            self.actions.push(Action::Publish);
        }
    }
}

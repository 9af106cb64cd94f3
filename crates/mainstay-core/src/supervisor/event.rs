//! The inputs and outputs of a supervisor.

use std::time::{Duration, Instant};

use crate::start_activity::StartEvidence;
use crate::watchdog::{Evidence, Probe};
use crate::{
    ClientSettings, FoundState, LoggedEvent, News, RunId, ServerSpec, Started, UnitHistory, Wanted,
    WorkloadKind,
};

/// An input of a [`Supervisor`](super::Supervisor).
#[derive(Debug)]
pub enum Event {
    /// The stored intent has changed.
    Want(Wanted),
    /// The user asked for a restart; the intent to run is stored.
    Restart,
    /// Another spec was stored. A server that runs like this already is left alone.
    Replace(Box<ServerSpec>),
    /// Other clients get an entry for the server.
    SetClients(ClientSettings),
    News(News),
    /// A complete list of all engines, requested at `begun`, has this of the server.
    Listed {
        /// When the list was requested.
        begun: Instant,
        found: Vec<(WorkloadKind, RunId, FoundState)>,
    },
    HostResumed,
    Demand,
    /// A run that speaks HTTP did not accept a request.
    Unreachable {
        generation: u64,
    },
    /// A request to this run is slow, or it has sent something while requests are held.
    Observe {
        /// Which run.
        generation: u64,
    },
    /// The result of [`Action::Observe`]; none if the session is closed.
    Observed(Connection, Option<Box<Evidence>>),
    /// The result of [`Action::ObserveStart`].
    StartObserved(RunId, StartEvidence),
    /// The run of a single session is no longer needed.
    EndSessionRun(SessionRunEnd),
    /// The daemon stops, and the server with it. The intent stays.
    Retire,
    /// The result of [`Action::Start`].
    Started(RunId, Result<Started, StartFailure>),
    /// [`Action::Release`] was executed.
    Released,
    /// [`Action::OpenSession`] succeeded.
    SessionOpened(Connection),
    /// [`Action::OpenSession`] failed.
    SessionFailed(Connection, SessionFailure),
    /// The run closed the connection of its session.
    SessionClosed(Connection),
    /// The result of [`Action::CheckPort`].
    PortChecked {
        run: RunId,
        /// Whether the engine publishes another port than before.
        has_moved: bool,
    },
    /// A deadline has passed.
    Tick,
}

/// What to do next, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write this to the event log and to the daemon's log.
    Record {
        event: LoggedEvent,
        /// The same as a sentence.
        detail: String,
    },
    /// Store the intent, which the supervisor has changed itself.
    SaveIntent(Wanted),
    /// Save the history of the server for the next daemon.
    SaveHistory(UnitHistory),
    /// Show the present state to everyone who follows it.
    Publish,
    /// The present run is another one, or none: nothing that is known of the last one applies to it.
    ClearRun,
    /// Start a run, and report [`Event::Started`].
    Start(RunId),
    /// End a run: TERM and, after the grace period, KILL; without one, KILL at once.
    End {
        engine: WorkloadKind,
        run: RunId,
        /// The time between TERM and KILL.
        grace: Option<Duration>,
        /// Whether to write to its log first what each thread waits for.
        logs_stacks: bool,
    },
    /// Let an engine remove what it has of the server, which it no longer runs, and report [`Event::Released`].
    Release(WorkloadKind),
    /// Open an MCP session with a run, and report [`Event::SessionOpened`] or [`Event::SessionFailed`].
    OpenSession {
        /// With which run, and which attempt this is.
        connection: Connection,
        /// Whether to resume the session that an earlier daemon or connection had, if it is known.
        resume: bool,
    },
    /// Close the session, or stop opening it.
    CloseSession,
    /// Forget the stored session of a run.
    ForgetSession(RunId),
    /// Ask the engine whether it publishes another port of the present run, and report [`Event::PortChecked`].
    CheckPort {
        run: RunId,
        /// The port inside the container.
        port: u16,
    },
    /// Find out what a run that may not answer does, and report [`Event::Observed`].
    Observe(Connection),
    /// Find out what a run does that does not become ready, and report [`Event::StartObserved`].
    ObserveStart(RunId),
    /// Send a probe to a run.
    Probe(Connection, Probe),
    /// Send no requests to a run until [`Action::SendHeldRequests`].
    HoldRequests(Connection),
    /// Send the requests that were held.
    SendHeldRequests(Connection),
    /// Use new connections to a run that speaks HTTP, and probe it again over these.
    RenewConnections(Connection),
    /// Drop everything known about the server. The supervisor is finished.
    Forget,
    /// The daemon may stop. The supervisor is finished.
    Retired,
}

/// An attempt to open a session with a run, and the session if it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Connection {
    pub run: RunId,
    /// The number of the attempt with this run, from 0.
    pub attempt: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartFailure {
    EngineAway {
        /// What is wrong, for people.
        why: String,
    },
    /// The container was removed.
    Removed,
    /// Another attempt may succeed.
    Temporary(String),
    /// Another attempt would not help.
    Permanent(String),
}

/// Why there is no session with a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionFailure {
    /// A remote server cannot be reached now.
    Unreachable(String),
    /// A remote server refused the request, or cannot be used at all.
    Refused(String),
    /// Something local failed that has nothing to do with the server.
    Local,
    /// The run is probably ending.
    Ending,
    /// The run answered wrongly.
    Faulty(String),
}

/// Why the run of a single session is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRunEnd {
    /// Its client is idle. The session continues, and its next request starts another run.
    Idle,
    /// All sessions of the server share one run from now on.
    Shared,
    SessionEnded,
}

impl SessionRunEnd {
    /// The cause as one word, as in JSON.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Shared => "shared",
            Self::SessionEnded => "session-ended",
        }
    }
}

/// A run that an earlier daemon left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InheritedRun {
    pub run: RunId,
    pub age: Duration,
    /// How long it has been ready, if that is known.
    pub ready_for: Option<Duration>,
    pub details: RunDetails,
    /// Whether it is only assumed to be alive, because its engine does not answer.
    pub is_assumed: bool,
}

impl InheritedRun {
    /// A run of which only its number is known.
    pub fn assumed(run: RunId) -> Self {
        let (age, details) = (Duration::ZERO, RunDetails::default());
        Self { run, age, ready_for: None, details, is_assumed: true }
    }
}

/// What a run consists of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunDetails {
    /// The server's own process.
    pub pid: Option<u32>,
    /// The container it runs in.
    pub container: Option<String>,
}

impl From<Started> for RunDetails {
    fn from(started: Started) -> Self {
        Self { pid: started.pid, container: started.container }
    }
}

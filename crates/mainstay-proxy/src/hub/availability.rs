//! What the supervisor knows of a server, as far as its clients are concerned.

use std::sync::Arc;
use std::time::Instant;

use super::http::HttpRun;
use super::lines::StdioConn;
use crate::Hello;

/// Whether requests can be served, or when.
#[derive(Debug, Clone)]
pub enum Availability {
    /// A run is there, and has answered `initialize`.
    Up(Arc<Run>),
    /// A run is being started, or will be when it is due.
    Coming {
        /// When the next start is due; none if it is under way.
        due: Option<Instant>,
        /// Why there is none now.
        why: Arc<Reason>,
    },
    /// There is no run, and none will be soon.
    Down {
        /// Why.
        why: Arc<Reason>,
    },
    /// The server is gone for good.
    Removed,
}

/// One run of a server that is ready.
#[derive(Debug)]
pub struct Run {
    /// Its number.
    pub generation: u64,
    /// What it answered to `initialize`.
    pub hello: Arc<Hello>,
    /// How the run before it ended, if it did while we watched.
    pub after: Option<Arc<Reason>>,
    /// The way to it.
    pub(crate) link: RunLink,
}

/// The way to a run.
#[derive(Debug)]
pub(crate) enum RunLink {
    /// The lines of a stdio server.
    Lines(Arc<StdioConn>),
    /// A streamable HTTP server, with which every session has a session of its own.
    Http(HttpRun),
}

impl Run {
    /// Waits until the run can no longer be spoken to. A server that speaks HTTP may always come back.
    pub async fn closed(&self) {
        match &self.link {
            RunLink::Lines(conn) => conn.closed().await,
            RunLink::Http(_) => std::future::pending().await,
        }
    }

    /// Whether the run can no longer be spoken to, as [`closed`](Self::closed) waits for.
    pub fn is_closed(&self) -> bool {
        match &self.link {
            RunLink::Lines(conn) => conn.is_closed(),
            RunLink::Http(_) => false,
        }
    }
}

/// Why a server is not up, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reason {
    /// In one line, such as `exited 1 after 3 s, restart 4 of 10 in 20 s`.
    pub text: String,
    /// The last lines that it wrote to standard error.
    pub stderr: Vec<String>,
}

impl Availability {
    /// The run that is up.
    pub(crate) fn run(&self) -> Option<&Arc<Run>> {
        match self {
            Self::Up(run) => Some(run),
            Self::Coming { .. } | Self::Down { .. } | Self::Removed => None,
        }
    }

    /// Whether another daemon would hear no line of the run that was heard here.
    pub(super) fn all_heard(&self) -> bool {
        match self.run().map(|run| &run.link) {
            Some(RunLink::Lines(conn)) => conn.all_heard(),
            Some(RunLink::Http(_)) | None => true,
        }
    }

    /// How the run of that generation ended, as far as that is known by now.
    pub(crate) fn end_of(&self, generation: u64) -> Option<&Arc<Reason>> {
        match self {
            Self::Up(run) if run.generation == generation => None,
            Self::Up(run) => run.after.as_ref(),
            Self::Coming { why, .. } | Self::Down { why, .. } => Some(why),
            Self::Removed => None,
        }
    }
}

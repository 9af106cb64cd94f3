//! Whether a server can be used, as the supervisor knows it.

use std::sync::Arc;
use std::time::Instant;

use mainstay_core::supervisor::{self, Supervisor};
use mainstay_mcp::upstream::Hello;

use crate::links::LinkKey;

/// Whether requests can be served, or when.
#[derive(Debug, Clone)]
pub enum Availability {
    /// A run is there, and has answered `initialize`.
    Up(Arc<Run>),
    /// A run is being started, or will be.
    Coming {
        /// When the next start is due; none if it is in progress.
        due: Option<Instant>,
        why: Arc<Reason>,
    },
    /// There is no run, and none will be started soon.
    Down { why: Arc<Reason> },
    /// The server was removed.
    Removed,
}

/// One run of a server that is ready.
#[derive(Debug)]
pub struct Run {
    pub generation: u64,
    /// What it answered to `initialize`.
    pub hello: Arc<Hello>,
    /// How the run before it ended, if this daemon saw that.
    pub after: Option<Arc<Reason>>,
    pub link: LinkKey,
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
    /// What sessions learn from the supervisor of their run. `run` is the present one, if it is attached; `stderr` reads
    /// its last lines. None for the run of a single session that is being ended, because the session may wait for its
    /// next run already.
    pub fn of(
        supervisor: &Supervisor,
        now: Instant,
        run: Option<&Arc<Run>>,
        stderr: impl FnOnce() -> Vec<String>,
    ) -> Option<Self> {
        if supervisor.session_run_end().is_some() {
            return None;
        }
        let reason = |text| Arc::new(Reason { text, stderr: stderr() });
        Some(match (supervisor.availability(now), run) {
            (supervisor::Availability::Up, Some(run)) => Self::Up(Arc::clone(run)),
            (supervisor::Availability::Up, None) => Self::unknown(),
            (supervisor::Availability::Coming { due, why }, _) => {
                Self::Coming { due, why: reason(why) }
            }
            (supervisor::Availability::Down { why }, _) => Self::Down { why: reason(why) },
        })
    }

    /// Nothing is known yet.
    pub(crate) fn unknown() -> Self {
        Self::Coming { due: None, why: Arc::default() }
    }

    pub(crate) fn run(&self) -> Option<&Arc<Run>> {
        match self {
            Self::Up(run) => Some(run),
            Self::Coming { .. } | Self::Down { .. } | Self::Removed => None,
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

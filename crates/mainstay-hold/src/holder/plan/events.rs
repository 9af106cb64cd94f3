//! The events that the plan handles, and its actions.

use std::path::PathBuf;

use super::Id;

/// What has happened.
#[derive(Debug, Clone)]
pub(in crate::holder) enum Event {
    /// A daemon has sent a message.
    Message(Id, Message),
    /// A daemon has closed its socket.
    Closed(Id),
    /// A daemon has exited, or could not be started.
    Gone(Id, End),
    /// Whether [`Action::Restore`] has succeeded.
    Restored(bool),
    /// A signal asks the holder to end.
    Signal,
    /// A connection waits at a listener, see [`Plan::watches_listeners`](super::Plan::watches_listeners).
    ClientWaits,
    /// Time has passed.
    Tick,
}

/// What a daemon sends about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::holder) enum Message {
    Prepared,
    Ready {
        /// Whether its program can also run as this holder.
        can_hold: bool,
    },
    Failed(Vec<u8>),
    Ending,
    Pulse,
    Replace {
        exe: PathBuf,
        fallback: Option<PathBuf>,
    },
    HandedOver,
}

/// How a daemon has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::holder) struct End {
    /// Such as `it exited with 1`.
    pub(in crate::holder) how: String,
    /// The end of what it wrote to standard error.
    pub(in crate::holder) last_output: String,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::holder) enum Action {
    Start(Start),
    /// Tell a prepared successor to serve.
    Serve(Id),
    /// Ask a daemon to hand over to its successor.
    HandOver(Id),
    /// Report to a daemon that it is not replaced, and why.
    NotReplaced(Id, String),
    Term(Id),
    Kill(Id),
    /// Rename a program over the one that replaced it. [`Event::Restored`] follows.
    Restore {
        from: PathBuf,
        to: PathBuf,
    },
    /// The first daemon is ready.
    First,
    /// Report why daemons keep failing, for commands that cannot reach one.
    Report(String),
    /// A daemon is ready: the report is outdated.
    ClearReport,
    /// Execute this program, the daemon's, as the holder, with everything that is held.
    Reexec(PathBuf),
    /// Close all listeners.
    Release,
    /// The holder is done.
    End(Outcome),
}

/// A daemon to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::holder) struct Start {
    pub(in crate::holder) id: Id,
    pub(in crate::holder) exe: PathBuf,
    pub(in crate::holder) standby: bool,
    pub(in crate::holder) replacement_failed: Option<String>,
    pub(in crate::holder) last_output: Option<String>,
}

/// How the holder ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::holder) enum Outcome {
    Done,
    NotStarted(Vec<u8>),
}

//! What happens later, in the order of its time.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_core::RunId;
use mainstay_core::supervisor::{self, Connection, SessionFailure};
use mainstay_session::{CallKey, HttpOperation, HttpOutcome, LinkKey, OperationKey, Run};

use crate::driver::Scope;

/// Something that happens later.
#[derive(Debug)]
pub(crate) enum Event {
    /// A line of a daemon arrives at a run.
    Line {
        daemon: usize,
        run: usize,
        line: Bytes,
    },
    /// A line of a run arrives at a daemon.
    Deliver {
        daemon: usize,
        link: LinkKey,
        run: usize,
        index: usize,
    },
    Confirm {
        daemon: usize,
        link: LinkKey,
        count: u64,
    },
    Execute {
        execution: usize,
        step: ExecutionStep,
    },
    ReadAgain {
        run: usize,
    },
    /// A run that may not answer is observed.
    Observe {
        daemon: usize,
        scope: Scope,
        connection: Connection,
    },
    /// A stdio server writes a line.
    Write {
        run: usize,
        line: String,
    },
    /// The engine starts the process of a run.
    Create {
        daemon: usize,
        scope: Scope,
        id: RunId,
    },
    /// A run exits, because it was told to.
    Exit {
        run: usize,
    },
    /// The engine notices that a run has exited.
    Exited {
        run: usize,
        written: u64,
    },
    /// Nothing of a run is left.
    Gone {
        run: usize,
    },
    EngineBack {
        loses_lines: bool,
    },
    /// A supervisor learns something.
    Driver {
        daemon: usize,
        scope: Scope,
        event: supervisor::Event,
    },
    OpenSession {
        daemon: usize,
        scope: Scope,
        connection: Connection,
        resume: bool,
    },
    SessionResult {
        daemon: usize,
        scope: Scope,
        connection: Connection,
        result: Result<Arc<Run>, SessionFailure>,
    },
    /// What sessions have asked for is handled.
    SessionRunRequests {
        daemon: usize,
    },
    /// The user starts the server again.
    WantOn,
    Written {
        daemon: usize,
        call: CallKey,
    },
    /// The head of a response is due.
    Commit {
        response: usize,
    },
    ClientReply {
        client: usize,
        text: String,
    },
    Http {
        daemon: usize,
        operation: OperationKey,
        run: Option<usize>,
        what: HttpOperation,
    },
    HttpMessage {
        daemon: usize,
        operation: OperationKey,
        text: Bytes,
    },
    HttpDone {
        daemon: usize,
        operation: OperationKey,
        outcome: HttpOutcome,
    },
    StartDaemon {
        is_lazy: bool,
    },
    Reload {
        until: u64,
    },
    Unstall,
    EndOld {
        daemon: usize,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ExecutionStep {
    Progress,
    Ask,
    Log,
    End,
}

pub(crate) struct Queued {
    pub(crate) at: u64,
    pub(crate) order: u64,
    pub(crate) event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

//! What happens later, in the order of its time.

use bytes::Bytes;
use mainstay_session::{CallKey, HttpOperation, HttpOutcome, LinkKey, OperationKey};

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
    /// The daemon notices that a run has ended.
    Ended {
        daemon: usize,
        link: LinkKey,
        written: u64,
    },
    Detach {
        daemon: usize,
        link: LinkKey,
    },
    /// The supervisor starts a run, of a session or the shared one, unless there is one.
    Start {
        session: Option<String>,
    },
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
        link: LinkKey,
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

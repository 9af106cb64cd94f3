//! What is known about a server that does not answer, or does not become ready.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a server that is up does not answer, with the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilenceInfo {
    /// What the evidence proves: `overdue` (nothing), `busy`, `blocked`, `hung`, `suspended` or `unresponsive`.
    pub verdict: String,
    /// Since when: of `overdue` and `blocked`, when the call was sent; else since when the server has read or sent
    /// nothing.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// The tool that the verdict is about, or else the one that has waited longest; the method, if no tool is called.
    pub call: Option<String>,
    /// When that call was sent to the server.
    #[schemars(with = "Option<String>")]
    pub call_sent_at: Option<Timestamp>,
    /// How many calls are overdue.
    pub overdue_calls: u64,
    /// How many bytes of its input the server has not read; null if they cannot be counted.
    pub unread_bytes: Option<u64>,
    /// Since when none of its threads was seen to run; null if one runs, or if they cannot be observed.
    #[schemars(with = "Option<String>")]
    pub quiet_since: Option<Timestamp>,
    /// What its main thread waits for: `lock`, `thread`, `child`, `pipe`, `network`, `events`, `disk`, `timer`; null
    /// if it runs or that is not known.
    pub waits_for: Option<String>,
    /// The probes without an answer: `ping`, `tools/list`.
    pub unanswered_probes: Vec<String>,
    /// Whether new requests wait in Mainstay until it reads again.
    pub holds_requests: bool,
    /// The process that is stopped, if the verdict is `suspended`.
    #[serde(default)]
    pub stopped_pid: Option<u32>,
    /// When it is killed if it stays as it is: by `--hang-after`, `--busy-limit` or `--block-limit`.
    #[schemars(with = "Option<String>")]
    pub kill_at: Option<Timestamp>,
}

impl SilenceInfo {
    /// Whether anything is proven about the server. Otherwise a call only takes long.
    pub fn is_proven(&self) -> bool {
        self.verdict != "overdue"
    }
}

/// What a request of a command waits for, as an item before its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReport {
    /// In one word: the server's status or verdict, or `held`, `unread`, `read`, `sent`, `opening`. It changes when
    /// something else is waited for. [`WaitReport::CANCELLED`] is the last one, if the command does not wait any more.
    pub state: String,
    /// The same as a sentence.
    pub reason: String,
    /// Whether the request was sent to the server, now or before.
    #[serde(default = "yes")]
    pub is_sent: bool,
}

impl WaitReport {
    /// The state of a request that was given up. It stays as it is: a request that was not sent never is.
    pub const CANCELLED: &str = "cancelled";

    /// Where a request was when it was given up.
    pub fn cancelled(is_sent: bool) -> Self {
        Self { state: Self::CANCELLED.to_owned(), reason: String::new(), is_sent }
    }
}

fn yes() -> bool {
    true
}

/// What a server does that takes long to become ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartInfo {
    /// `downloading`, `compiling`, `waiting-for-lock`, `working`, `waiting-for-child`, `not-reading`, `not-answering`,
    /// `suspended` or `running` (nothing else is known).
    pub activity: String,
    /// The same as a sentence.
    pub description: String,
    /// The program of the child process that this is about; null if it is the server's own process.
    pub child: Option<String>,
    /// Whether the server has read `initialize`; null if that cannot be seen.
    pub has_read: Option<bool>,
    /// How many bytes of its input the server has not read; null if they cannot be counted.
    pub unread_bytes: Option<u64>,
    /// How many TCP connections that process has.
    pub connections: u64,
    /// Since when none of its threads was seen to run; null if one ran since the last observation.
    #[schemars(with = "Option<String>")]
    pub quiet_since: Option<Timestamp>,
    /// What the main thread of that process waits for, as in `silence`.
    pub waits_for: Option<String>,
    /// When it is ended if it is not ready until then, by `--start-timeout`; null while its container is paused or its
    /// engine is away.
    #[schemars(with = "Option<String>")]
    pub kill_at: Option<Timestamp>,
}

//! What can be observed of a run that does not answer, and what follows from it.

use std::fmt;
use std::time::{Duration, Instant};

use super::WaitsFor;
use crate::{Status, human_duration};

/// The time limits for a run that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchLimits {
    /// A run that has been hung for this long is killed; without it, never.
    pub hang_after: Option<Duration>,
    /// A run that has been busy for this long is killed; without it, never.
    pub busy_limit: Option<Duration>,
    /// A run that has been blocked in a call for this long is killed; without it, never.
    pub block_limit: Option<Duration>,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            hang_after: Some(Duration::from_secs(60)),
            busy_limit: None,
            block_limit: Some(Duration::from_secs(15 * 60)),
        }
    }
}

impl WatchLimits {
    /// A request without an answer for this long is overdue: 30 s, or half of a short `hang_after`.
    pub fn overdue(&self) -> Duration {
        let default = Duration::from_secs(30);
        self.hang_after.map_or(default, |limit| default.min(limit / 2))
    }
}

/// What an engine can see of a run from outside. What it cannot see is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Of a stdio server: how far it has read its input.
    pub input: Option<ReadPosition>,
    /// Of a server that speaks HTTP: the connections to it on which something is unread, accepted or not.
    pub connections: Option<Vec<UnreadConnection>>,
    /// Its processes.
    pub processes: Option<Processes>,
}

/// How far a stdio server has read its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPosition {
    /// The last line of which it has read anything.
    pub line: u64,
    /// How many bytes it has not read.
    pub unread: u64,
}

/// A connection on which a server has not read everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadConnection {
    /// The port at the other end; none if addresses are translated on the way.
    pub peer: Option<u16>,
    /// How much is unread.
    pub bytes: u64,
}

/// What is known about a run at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The oldest request of a client that the run has not answered.
    pub oldest: Option<OpenRequest>,
    /// How many such requests are overdue.
    pub overdue: usize,
    /// The oldest request that the run has read and that a client still waits for; or else one that the run is left to finish:
    /// a request of Mainstay or, while no client needs the run, one that its client has given up.
    pub being_handled: Option<OpenRequest>,
    /// The last request that the run had read and not answered when its client stopped waiting for it.
    pub unawaited: Option<UnawaitedRequest>,
    /// Since when clients have given up requests that it may have read or not, while it has sent nothing.
    pub unanswered_since: Option<Instant>,
    /// When the run last sent anything.
    pub last_message: Option<Instant>,
    /// When it last answered a request.
    pub last_answer: Option<Instant>,
    /// Whether it has answered the last ping.
    pub answered_ping: bool,
    /// Whether it reads what is sent to it.
    pub input: Input,
    /// Its processes, where they can be observed.
    pub processes: Option<Processes>,
}

/// A request without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRequest {
    /// The tool, or else the method.
    pub what: String,
    /// When it was sent to the run.
    pub sent: Instant,
}

/// A request without an answer for which nobody waits any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnawaitedRequest {
    /// The tool, or else the method.
    pub what: String,
    /// When its client stopped waiting for it.
    pub since: Instant,
}

/// Whether a run reads what is sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// It cannot be observed.
    Unknown,
    /// Nothing is unread.
    Read,
    /// The run has read nothing since then.
    Unread {
        /// When the oldest unread request was sent.
        since: Instant,
        /// How much is unread.
        bytes: u64,
    },
}

/// The processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// A number that changes whenever a thread of any of them is scheduled.
    pub switches: u64,
    /// Whether a thread is running, waits for a processor, or waits for a disk.
    pub is_active: bool,
    /// The first of them that is stopped by a signal or a debugger, or frozen.
    pub suspended: Option<u32>,
    /// What the server's main thread waits for, if that is known.
    pub waits_for: Option<WaitsFor>,
}

/// What the evidence about a run proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It answers, or nothing is expected of it.
    Responsive,
    /// Requests are overdue, and nothing is proven about the run.
    Overdue {
        /// How many.
        requests: usize,
        /// The oldest one; none if only probes are.
        oldest: Option<OpenRequest>,
        /// Since when the run has read nothing, if it does not read.
        unread_since: Option<Instant>,
    },
    /// It reads nothing, and works.
    Busy {
        /// Since when it reads nothing.
        since: Instant,
    },
    /// It reads nothing, and waits inside a request that a client waits for, or that it is left to finish.
    Blocked {
        /// That request.
        inside: OpenRequest,
        /// Since when it has read nothing else.
        since: Instant,
    },
    /// It reads nothing, does nothing, and nobody waits for anything that it has read.
    Hung {
        /// Since when it reads nothing.
        since: Instant,
    },
    /// A process of it is stopped.
    Suspended {
        /// Since when a request has been waiting.
        since: Instant,
        /// The process.
        pid: u32,
    },
    /// It is silent, and its input and processes cannot be observed.
    Unresponsive {
        /// Since when.
        since: Instant,
    },
}

impl Verdict {
    /// The verdict as a word, as in events.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Responsive => "responsive",
            Self::Overdue { .. } => "overdue",
            Self::Busy { .. } => "busy",
            Self::Blocked { .. } => "blocked",
            Self::Hung { .. } => "hung",
            Self::Suspended { .. } => "suspended",
            Self::Unresponsive { .. } => "unresponsive",
        }
    }

    /// The status of a run that is up.
    pub fn status(&self) -> Status {
        match self {
            Self::Responsive | Self::Overdue { .. } => Status::Running,
            Self::Busy { .. } => Status::Busy,
            Self::Blocked { .. } => Status::Blocked,
            Self::Hung { .. } => Status::Hung,
            Self::Suspended { .. } => Status::Suspended,
            Self::Unresponsive { .. } => Status::Unresponsive,
        }
    }

    /// Since when the run has not answered.
    pub fn since(&self) -> Option<Instant> {
        match self {
            Self::Responsive => None,
            Self::Overdue { oldest, unread_since, .. } => {
                oldest.as_ref().map(|request| request.sent).or(*unread_since)
            }
            Self::Blocked { inside, .. } => Some(inside.sent),
            Self::Busy { since }
            | Self::Hung { since }
            | Self::Suspended { since, .. }
            | Self::Unresponsive { since } => Some(*since),
        }
    }

    /// The request that the verdict is about.
    pub fn request(&self) -> Option<&OpenRequest> {
        match self {
            Self::Overdue { oldest, .. } => oldest.as_ref(),
            Self::Blocked { inside, .. } => Some(inside),
            Self::Responsive
            | Self::Busy { .. }
            | Self::Hung { .. }
            | Self::Suspended { .. }
            | Self::Unresponsive { .. } => None,
        }
    }

    /// Whether new requests wait in Mainstay and are not sent to the run.
    pub fn holds_requests(&self) -> bool {
        match self {
            Self::Responsive | Self::Overdue { unread_since: None, .. } => false,
            Self::Overdue { unread_since: Some(_), .. }
            | Self::Busy { .. }
            | Self::Blocked { .. }
            | Self::Hung { .. }
            | Self::Suspended { .. }
            | Self::Unresponsive { .. } => true,
        }
    }

    /// The verdict with its evidence, as a sentence.
    pub fn describe(&self, now: Instant) -> Described<'_> {
        Described { verdict: self, now }
    }
}

/// See [`Verdict::describe`].
#[derive(Debug)]
pub struct Described<'a> {
    verdict: &'a Verdict,
    now: Instant,
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |at: Instant| human_duration(self.now.saturating_duration_since(at));
        match self.verdict {
            Verdict::Responsive => f.write_str("no request is overdue"),
            Verdict::Overdue { requests, oldest, unread_since } => {
                if let Some(OpenRequest { what, sent }) = oldest {
                    let calls = if *requests == 1 { "call" } else { "calls" };
                    let waited = since(*sent);
                    write!(f, "{requests} {calls} overdue: no answer to `{what}` for {waited}")?;
                }
                let separator = if oldest.is_some() { "; " } else { "" };
                match unread_since {
                    Some(at) => write!(f, "{separator}it has read nothing for {}", since(*at)),
                    None => Ok(()),
                }
            }
            Verdict::Busy { since: at } => {
                write!(f, "it is working, and has read nothing for {}", since(*at))
            }
            Verdict::Blocked { inside: OpenRequest { what, sent }, .. } => {
                write!(f, "blocked in `{what}` for {}; it reads nothing else", since(*sent))
            }
            Verdict::Hung { since: at } => {
                write!(f, "it has read nothing for {}, and none of its threads ran", since(*at))
            }
            Verdict::Suspended { since: at, pid } => write!(
                f,
                "process {pid} is stopped (SIGSTOP, a debugger or a frozen cgroup); a request waits for {}",
                since(*at)
            ),
            Verdict::Unresponsive { since: at } => {
                write!(f, "it accepts requests and has sent nothing for {}", since(*at))
            }
        }
    }
}

//! The holder: the small process that keeps listeners and lock while daemons come and go.

mod link;
mod place;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

pub use self::link::{Link, Order, Welcome};
pub use self::place::Place;

/// What a holder must know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The program of the daemon, absolute.
    pub exe: PathBuf,
    /// Its arguments. The environment is the holder's own.
    pub args: Vec<OsString>,
    /// Where the lock is. The directory exists and is private.
    pub state_dir: PathBuf,
    /// Where last words are left. The directory exists and is private.
    pub run_dir: PathBuf,
    /// Whether the daemon shares the standard output and error of the holder.
    pub foreground: bool,
}

/// How the first start went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum First {
    /// The daemon serves.
    Ready,
    /// It does not: its own word (see [`Link::failed`]) or, if it died silently, how it ended and
    /// its last words.
    Failed(Vec<u8>),
}

/// Why a holder ended other than on purpose.
#[derive(Debug)]
pub enum HoldError {
    /// Another holder, or a daemon of it, has the lock. Nothing was started.
    Taken {
        /// The process that left its number in the lock.
        pid: Option<u32>,
    },
    /// The first daemon did not start, as was told.
    NotStarted,
    /// The daemon died again and again, or cannot start any more.
    GaveUp {
        /// How it ended, and its last words.
        last_words: String,
    },
    /// The system refused something that the holder cannot do without.
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { pid: Some(pid) } => write!(f, "the process {pid} has the lock"),
            Self::Taken { pid: None } => f.write_str("another process has the lock"),
            Self::NotStarted => f.write_str("the daemon did not start"),
            Self::GaveUp { last_words } => write!(f, "the daemon keeps dying: {last_words}"),
            Self::Io { attempt, source } => write!(f, "cannot {attempt}: {source}"),
        }
    }
}

impl std::error::Error for HoldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Taken { .. } | Self::NotStarted | Self::GaveUp { .. } => None,
        }
    }
}

/// Lives until its daemon has ended for good. `tell` is told once how the first start went.
pub fn run(config: Config, tell: impl FnOnce(First)) -> Result<(), HoldError> {
    let _ = (config, tell);
    todo!()
}

/// As [`run`], for a service manager: waits until the lock is free instead of failing.
pub fn run_when_free(config: Config, tell: impl FnOnce(First)) -> Result<(), HoldError> {
    let _ = (config, tell);
    todo!()
}

/// The holder that replaces a dead one. Its standard input is the socket that
/// [`Link::replace_holder`] gave it; it comes back when the daemon has ended for good.
pub fn take_over(config: Config) -> Result<(), HoldError> {
    let _ = config;
    todo!()
}

//! What can go wrong with a workload, and with an engine.
//!
//! Both errors have `is_temporary`: a resource of this machine was exhausted, or a process of ours was lost.
//! Such a failure is not the server's fault, and the same request is worth another try. All other errors stay
//! until the spec or the machine changes.

use std::io;
use std::path::PathBuf;

use mainstay_core::{EngineKind, ServerName};
use rustix::io::Errno;

use crate::{PortOwner, RunKey};

/// Why a run could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("program `{program}` was not found on the search path ({searched})")]
    NotFound { program: String, searched: String },
    #[error("`{}` cannot be executed: {why}", program.display())]
    NotExecutable { program: PathBuf, why: String },
    #[error("the working directory `{}` cannot be used: {why}", cwd.display())]
    BadDirectory { cwd: PathBuf, why: String },
    #[error("port {port} is already in use by {owner}")]
    PortTaken { port: u16, owner: PortOwner },
    /// Another server is running that should listen on the same port, but does not yet.
    #[error("port {port} is also the --target-port of the server `{server}`, which is running")]
    PortReserved { port: u16, server: ServerName },
    /// The spec was given to the wrong engine.
    #[error("only the engine `{engine}` runs such a server")]
    OtherEngine { engine: &'static str },
    #[error("no {} answers{}", engine_name(*.kind), places(.tried))]
    NoEngine {
        /// The kind that the spec asks for, if it asks for one.
        kind: Option<EngineKind>,
        /// The addresses that were tried, each with its error.
        tried: Vec<String>,
    },
    /// The same, and this user must not connect to one of them.
    #[error("no {} answers{}", engine_name(*.kind), places(.tried))]
    EngineDenied { kind: Option<EngineKind>, tried: Vec<String> },
    /// The image is not on the engine's machine.
    #[error("the image `{image}` is not there")]
    NoImage { image: String },
    /// The engine does not answer. The state of the server is not known.
    #[error("{why}")]
    Away { why: String },
    #[error("its container was removed")]
    Removed,
    /// Every name that its container may have belongs to a container that we did not create.
    #[error("the container names {} are in use by other containers; rename or remove one", names(.taken))]
    NamesTaken {
        /// The names, and the ids of the containers that have them.
        taken: Vec<(String, String)>,
    },
    #[error("its container cannot be recorded in `{}`: {cause}", dir.display())]
    Unrecorded { dir: PathBuf, cause: io::Error },
    /// The shim could not be started or did not report.
    #[error("the process that holds the server could not be started: {what}")]
    Shim { what: &'static str, source: io::Error },
    /// The machine is out of a resource that the start needs.
    #[error("the server could not be started now: {what}")]
    Shortage { what: String, source: io::Error },
    #[error("the container engine cannot start it now: {why}")]
    EngineBusy { why: String },
    /// The system or the container engine refused to start the server.
    #[error("{0}")]
    Refused(String),
}

impl StartError {
    /// Whether the same start may succeed a little later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Shortage { .. } | Self::EngineBusy { .. } => true,
            Self::Unrecorded { cause, .. } => is_shortage(cause),
            Self::Shim { source, .. } => is_shortage(source) || is_disconnect(source),
            _ => false,
        }
    }

    /// For `map_err`: an error in dealing with the shim.
    pub(crate) fn shim(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Shim { what, source }
    }
}

fn engine_name(kind: Option<EngineKind>) -> &'static str {
    match kind {
        Some(EngineKind::Docker) => "Docker",
        Some(EngineKind::Podman) => "Podman",
        None => "container engine",
    }
}

fn names(taken: &[(String, String)]) -> String {
    let short = |id: &str| id.get(..12).unwrap_or(id).to_owned();
    let each = taken.iter().map(|(name, id)| format!("`{name}` (id {})", short(id)));
    each.collect::<Vec<_>>().join(" and ")
}

fn places(tried: &[String]) -> String {
    if tried.is_empty() { String::new() } else { format!(": {}", tried.join("; ")) }
}

/// Why an engine could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("run {} of `{}` does not exist", .0.run, .0.server)]
    NoSuchRun(RunKey),
    /// A remote server has no process, streams or port on this machine.
    #[error("run {} of `{}` is elsewhere: it is reached by its URL only", .0.run, .0.server)]
    Elsewhere(RunKey),
    #[error("{what} failed")]
    Io { what: &'static str, source: io::Error },
    #[error("port {port} is in use by {owner}, so this server cannot be reached")]
    PortTaken { port: u16, owner: PortOwner },
    /// The engine does not answer now.
    #[error("{0}")]
    Away(String),
    /// The engine answered that it cannot.
    #[error("{what}: {why}")]
    Engine { what: &'static str, why: String },
    /// The shim is alive but does not answer: it is stopped or starved.
    #[error("the process that holds the server does not answer")]
    NoAnswer,
    /// The shim obeys a newer daemon, or has too many connections.
    #[error("the process that holds the server refuses: {0}")]
    Refused(String),
    /// The shim broke its protocol.
    #[error("the process that holds the server: {0}")]
    Shim(String),
}

impl EngineError {
    /// Whether the run exists and the same request may succeed a little later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_shortage(source),
            Self::NoAnswer | Self::Refused(_) | Self::Away(_) => true,
            _ => false,
        }
    }

    /// For `map_err`: wraps an IO error with what was attempted.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// Whether the shim of a run does not exist, or no longer.
    pub(crate) fn is_gone(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        match self {
            Self::NoSuchRun(_) => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), NotFound | ConnectionRefused) || is_disconnect(source)
            }
            _ => false,
        }
    }
}

impl From<EngineError> for io::Error {
    /// Keeps the number of the system's error, so that a shortage is still recognized.
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Io { source, .. } => source,
            EngineError::NoAnswer => io::ErrorKind::TimedOut.into(),
            other => Self::other(other),
        }
    }
}

/// Whether the machine was out of a resource that may be free again in a moment: descriptors,
/// processes, memory, disk space, time. A program file that is being written counts too.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, TimedOut, WouldBlock};
    // A shim that refuses for a reason of its own reports the number 0, on which rustix panics.
    match error.raw_os_error().filter(|number| *number > 0).map(Errno::from_raw_os_error) {
        Some(errno) => [
            Errno::MFILE,
            Errno::NFILE,
            Errno::AGAIN,
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::TXTBSY,
            Errno::TIMEDOUT,
        ]
        .contains(&errno),
        None => matches!(error.kind(), TimedOut | WouldBlock | OutOfMemory),
    }
}

/// Whether the process at the other end of a connection ended.
fn is_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use mainstay_core::RunId;

    use super::*;

    fn os(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn a_shortage_is_temporary_and_a_mistake_is_not() {
        let shim = |source| StartError::Shim { what: "running it", source };
        let passing = [
            Errno::MFILE,
            Errno::NFILE,
            Errno::AGAIN,
            Errno::NOMEM,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::TXTBSY,
        ];
        let unrecorded = |cause| StartError::Unrecorded { dir: PathBuf::from("/x"), cause };
        let all = |errno: Errno| [shim(os(errno)), unrecorded(os(errno))];
        for errno in passing {
            assert!(all(errno).iter().all(StartError::is_temporary), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOTDIR, Errno::NOEXEC, Errno::ADDRINUSE] {
            assert!(!all(errno).iter().any(StartError::is_temporary), "{errno}");
        }
        let full = unrecorded(os(Errno::NOSPC)).to_string();
        let expected = "its container cannot be recorded in `/x`: No space left on device";
        assert!(full.starts_with(expected), "{full}");
        assert!(shim(io::ErrorKind::TimedOut.into()).is_temporary(), "no report in time");
        assert!(shim(io::ErrorKind::UnexpectedEof.into()).is_temporary(), "it died");
        assert!(!shim(io::Error::other("junk")).is_temporary());
        let program = PathBuf::from("/x");
        let why = String::new();
        let stays = [
            StartError::NotFound { program: "x".to_owned(), searched: why.clone() },
            StartError::NotExecutable { program: program.clone(), why: why.clone() },
            StartError::BadDirectory { cwd: program, why: why.clone() },
            StartError::PortTaken { port: 1, owner: PortOwner::Hidden { uid: None } },
            StartError::Refused(why),
        ];
        assert!(stays.iter().all(|error| !error.is_temporary()));
    }

    #[test]
    fn a_run_that_is_gone_differs_from_one_that_cannot_be_reached_now() {
        let key = RunKey::new("time".parse().unwrap(), RunId::new(1));
        let io = |source| EngineError::Io { what: "connecting", source };
        let check = |error: EngineError, passing, absent| {
            assert_eq!((error.is_temporary(), error.is_gone()), (passing, absent), "{error:?}");
        };
        check(EngineError::NoSuchRun(key), false, true);
        check(io(os(Errno::MFILE)), true, false);
        check(io(io::ErrorKind::WouldBlock.into()), true, false);
        check(io(os(Errno::CONNREFUSED)), false, true);
        check(io(os(Errno::PIPE)), false, true);
        check(io(os(Errno::ACCESS)), false, false);
        check(EngineError::NoAnswer, true, false);
        check(EngineError::Refused("there are too many connections".to_owned()), true, false);
        check(EngineError::Shim("junk".to_owned()), false, false);
    }
}

//! What can go wrong with a workload, and with an engine.
//!
//! Both errors tell whether the trouble is a passing one: a shortage on this machine, or a process of
//! ours that was lost. Such trouble says nothing about the server and is worth another try; all other
//! errors stay until somebody changes something.

use std::io;
use std::path::PathBuf;

use mainstay_core::{EngineKind, ServerName};
use rustix::io::Errno;

use crate::{PortOwner, RunKey};

/// Why a run could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no such program.
    #[error("program `{program}` was not found on the search path ({searched})")]
    NotFound {
        /// What was looked for.
        program: String,
        /// Where.
        searched: String,
    },
    /// There is such a file, but it cannot be run.
    #[error("`{}` cannot be executed: {why}", program.display())]
    NotExecutable {
        /// The file.
        program: PathBuf,
        /// Why.
        why: String,
    },
    /// The working directory is missing or no directory.
    #[error("the working directory `{}` cannot be used: {why}", cwd.display())]
    BadDirectory {
        /// The directory.
        cwd: PathBuf,
        /// Why.
        why: String,
    },
    /// Something else listens where the server should.
    #[error("port {port} is already in use by {owner}")]
    PortTaken {
        /// The port.
        port: u16,
        /// Who listens there.
        owner: PortOwner,
    },
    /// Another server is running that should listen on the same port, but does not.
    #[error("port {port} is also the --target-port of the server `{server}`, which is running")]
    PortReserved {
        /// The port.
        port: u16,
        /// The other server.
        server: ServerName,
    },
    /// Another engine runs such servers.
    #[error("only the engine `{engine}` runs such a server")]
    OtherEngine {
        /// The engine that runs it.
        engine: &'static str,
    },
    /// There is no container engine, or none of the wanted kind.
    #[error("no {} answers{}", name(*.kind), places(.tried))]
    NoEngine {
        /// The wanted kind, if there was one.
        kind: Option<EngineKind>,
        /// Where one was looked for, and what was wrong there.
        tried: Vec<String>,
    },
    /// The image is not on the engine's machine.
    #[error("the image `{image}` is not there")]
    NoImage {
        /// Which image.
        image: String,
    },
    /// The engine does not answer, so nothing can be said about the server.
    #[error("{why}")]
    Away {
        /// What is wrong, for people.
        why: String,
    },
    /// Somebody has removed what the server runs in.
    #[error("its container was removed")]
    Removed,
    /// Every name that its container may have belongs to a container that we did not create.
    #[error("the container names {} are in use by other containers; rename or remove one", names(.taken))]
    NamesTaken {
        /// The names, and the ids of the containers that have them.
        taken: Vec<(String, String)>,
    },
    /// The records of containers cannot be written.
    #[error("its container cannot be recorded in `{}`: {cause}", dir.display())]
    Unrecorded {
        /// The directory of the records.
        dir: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The holder process could not be started or did not report.
    #[error("the process that holds the server could not be started: {what}")]
    Shim {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The machine lacks what the start needs at this moment.
    #[error("the server could not be started now: {what}")]
    Short {
        /// What was attempted.
        what: String,
        /// What was lacking.
        #[source]
        source: io::Error,
    },
    /// The container engine answers, but cannot start the server now.
    #[error("the container engine cannot start it now: {why}")]
    EngineBusy {
        /// What it says.
        why: String,
    },
    /// The system refused to start the server.
    #[error("{0}")]
    Refused(String),
}

impl StartError {
    /// Whether the same start may well succeed a little later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Short { .. } | Self::EngineBusy { .. } => true,
            Self::Unrecorded { cause, .. } => is_shortage(cause),
            Self::Shim { source, .. } => is_shortage(source) || is_hang_up(source),
            Self::NotFound { .. }
            | Self::NotExecutable { .. }
            | Self::BadDirectory { .. }
            | Self::PortTaken { .. }
            | Self::PortReserved { .. }
            | Self::OtherEngine { .. }
            | Self::NoEngine { .. }
            | Self::NoImage { .. }
            | Self::Away { .. }
            | Self::Removed
            | Self::NamesTaken { .. }
            | Self::Refused(_) => false,
        }
    }

    /// For `map_err`: an error in dealing with the shim.
    pub(crate) fn shim(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Shim { what, source }
    }
}

fn name(kind: Option<EngineKind>) -> &'static str {
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
    /// There is no such run, or there is none any more.
    #[error("run {} of `{}` does not exist", .0.run, .0.server)]
    NoSuchRun(RunKey),
    /// It is there, but on no machine that this engine reaches into.
    #[error("run {} of `{}` is elsewhere: it is reached by its URL only", .0.run, .0.server)]
    Elsewhere(RunKey),
    /// Something with a file or a socket.
    #[error("{what} failed")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Another server listens where the run should.
    #[error("port {port} is in use by {owner}, so this server cannot be reached")]
    PortTaken {
        /// The port.
        port: u16,
        /// Who listens there.
        owner: PortOwner,
    },
    /// The engine does not answer now.
    #[error("{0}")]
    Away(String),
    /// The engine answered that it cannot.
    #[error("{what}: {why}")]
    Engine {
        /// What was attempted.
        what: &'static str,
        /// What it says.
        why: String,
    },
    /// The process that holds the run lives but does not answer: it is stopped or starved.
    #[error("the process that holds the server does not answer")]
    Mute,
    /// The process that holds the run answers, but does not do what this daemon wants.
    #[error("the process that holds the server refuses: {0}")]
    Refused(String),
    /// The process that holds the run answered something unexpected.
    #[error("the process that holds the server: {0}")]
    Shim(String),
}

impl EngineError {
    /// Whether the run is there and the same request may well succeed a little later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_shortage(source),
            Self::Mute | Self::Refused(_) | Self::Away(_) => true,
            Self::NoSuchRun(_)
            | Self::Elsewhere(_)
            | Self::PortTaken { .. }
            | Self::Engine { .. }
            | Self::Shim(_) => false,
        }
    }

    /// For `map_err`: wraps an IO error with what was attempted.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// Whether the other end of a connection to a run is not, or no longer, there.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Self::NoSuchRun(_) => true,
            Self::Io { source, .. } => is_absent(source) || is_hang_up(source),
            Self::Elsewhere(_)
            | Self::PortTaken { .. }
            | Self::Away(_)
            | Self::Engine { .. }
            | Self::Mute
            | Self::Refused(_)
            | Self::Shim(_) => false,
        }
    }
}

impl From<EngineError> for io::Error {
    /// Keeps the number of a system's error, so that a shortage is still known as one.
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Io { source, .. } => source,
            EngineError::Mute => io::ErrorKind::TimedOut.into(),
            other @ (EngineError::NoSuchRun(_)
            | EngineError::Elsewhere(_)
            | EngineError::PortTaken { .. }
            | EngineError::Away(_)
            | EngineError::Engine { .. }
            | EngineError::Refused(_)
            | EngineError::Shim(_)) => Self::other(other),
        }
    }
}

/// Whether the machine was short of something that may be there again in a moment: descriptors,
/// processes, memory, disk, time. A program that is being written counts too.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    // A shim that refuses for a reason of its own has no number, which rustix does not forgive.
    let number = error.raw_os_error().filter(|number| *number > 0);
    match number.map(Errno::from_raw_os_error) {
        Some(errno) => matches!(
            errno,
            Errno::MFILE
                | Errno::NFILE
                | Errno::AGAIN
                | Errno::NOMEM
                | Errno::NOBUFS
                | Errno::NOSPC
                | Errno::DQUOT
                | Errno::TXTBSY
                | Errno::TIMEDOUT
        ),
        None => matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory
        ),
    }
}

/// Whether a connection failed because nobody is there.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether a process of ours ended while we talked to it.
fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests {
    use mainstay_core::RunId;

    use super::*;

    fn os(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn a_shortage_passes_and_a_mistake_stays() {
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
            assert!(all(errno).iter().all(StartError::is_passing), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOTDIR, Errno::NOEXEC, Errno::ADDRINUSE] {
            assert!(!all(errno).iter().any(StartError::is_passing), "{errno}");
        }
        let full = unrecorded(os(Errno::NOSPC)).to_string();
        let expected = "its container cannot be recorded in `/x`: No space left on device";
        assert!(full.starts_with(expected), "{full}");
        assert!(shim(io::ErrorKind::TimedOut.into()).is_passing(), "no report in time");
        assert!(shim(io::ErrorKind::UnexpectedEof.into()).is_passing(), "it died");
        assert!(!shim(io::Error::other("junk")).is_passing());
        let program = PathBuf::from("/x");
        let why = String::new();
        let stays = [
            StartError::NotFound { program: "x".to_owned(), searched: why.clone() },
            StartError::NotExecutable { program: program.clone(), why: why.clone() },
            StartError::BadDirectory { cwd: program, why: why.clone() },
            StartError::PortTaken { port: 1, owner: PortOwner::Hidden { uid: None } },
            StartError::Refused(why),
        ];
        assert!(stays.iter().all(|error| !error.is_passing()));
    }

    #[test]
    fn a_run_that_is_gone_is_told_from_one_that_cannot_be_reached_now() {
        let key = RunKey::new("time".parse().unwrap(), RunId::new(1));
        let io = |source| EngineError::Io { what: "connecting", source };
        let check = |error: EngineError, passing, absent| {
            assert_eq!((error.is_passing(), error.is_absence()), (passing, absent), "{error:?}");
        };
        check(EngineError::NoSuchRun(key), false, true);
        check(io(os(Errno::MFILE)), true, false);
        check(io(io::ErrorKind::WouldBlock.into()), true, false);
        check(io(os(Errno::CONNREFUSED)), false, true);
        check(io(os(Errno::PIPE)), false, true);
        check(io(os(Errno::ACCESS)), false, false);
        check(EngineError::Mute, true, false);
        check(EngineError::Refused("there are too many connections".to_owned()), true, false);
        check(EngineError::Shim("junk".to_owned()), false, false);
    }
}

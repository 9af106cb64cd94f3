//! What can go wrong with a workload, and with an engine.

use std::io;
use std::path::PathBuf;

use crate::RunKey;

/// Why a run could not be started. None of these is cured by trying again.
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
    #[error("port {port} is already in use by another program")]
    PortTaken {
        /// The port.
        port: u16,
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
    /// The system refused to start the server.
    #[error("the server could not be started: {0}")]
    Refused(String),
}

/// Why an engine could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such run.
    #[error("run {} of `{}` does not exist", .0.run, .0.server)]
    NoSuchRun(RunKey),
    /// Something with a file or a socket.
    #[error("{what} failed")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The process that holds the run answered something unexpected.
    #[error("the process that holds the server: {0}")]
    Shim(String),
}

impl EngineError {
    /// For `map_err`: wraps an IO error with what was attempted.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

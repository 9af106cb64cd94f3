//! What a shim is told at its start, and its one answer.
//!
//! The caller writes a [`Launch`] to the shim's standard input and reads a [`Report`] from its
//! standard output until the end. Both formats carry a version and are read only by the version that
//! wrote them: a shim is always started by a daemon of its own binary.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

pub use crate::codec::DecodeError;
use crate::codec::{Put, Reader, length};

/// How many bytes of unconsumed output a shim keeps unless told otherwise.
pub const DEFAULT_OUTPUT_RING: u32 = 1024 * 1024;

/// How long a shim whose run is over waits for a daemon unless told otherwise.
pub const DEFAULT_LINGER: Duration = Duration::from_secs(60);

/// What the environment of a shim (not of its server) should hold, so that the allocator of glibc
/// gives the memory of a burst back to the system.
pub const SHIM_ENV: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

const VERSION: u32 = 1;

/// Version and length of the body.
const HEADER: usize = 8;

const MAX_LAUNCH: u32 = 16 * 1024 * 1024;

/// Everything that a shim must know to run a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Looked up in the `PATH` of `env` unless it holds a slash; then relative to `cwd`.
    pub program: PathBuf,
    /// The arguments after the program's name.
    pub args: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory of the server, absolute.
    pub cwd: PathBuf,
    /// What the standard output of the server is.
    pub stdout: Stdout,
    /// Where the server's words for people go.
    pub log: LogConfig,
    /// The name of the run in the log, such as `run 7`.
    pub label: String,
    /// How many bytes of unconsumed output are kept before the server is made to wait.
    pub output_ring: u32,
    /// How long the shim stays without a connection when the run is over.
    pub linger: Duration,
}

/// What the standard output of a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdout {
    /// Messages: kept and delivered to the attached daemon.
    Mcp,
    /// Words for people: written to the log like standard error.
    Log,
}

/// The log file and its rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The file that is appended to, absolute. Older ones are `PATH.1`, `PATH.2` and so on.
    pub path: PathBuf,
    /// The size at which the file becomes `PATH.1` (256 bytes at least).
    pub max_bytes: u64,
    /// How many older files are kept.
    pub keep: u32,
}

/// The one answer of a shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The server runs and the socket listens.
    Started {
        /// The server's own process.
        server_pid: u32,
    },
    /// Nothing runs and nothing is left behind.
    Failed {
        /// What went wrong.
        what: Failure,
        /// The error number of the system, or 0.
        errno: i32,
        /// The same for people.
        message: String,
    },
}

/// What kept a server from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The [`Launch`] could not be read.
    BadLaunch,
    /// The working directory is missing, is no directory or may not be entered.
    Cwd,
    /// There is no such program.
    ProgramNotFound,
    /// The program is there but cannot be executed.
    NotExecutable,
    /// The system refused to start the process for another reason.
    Spawn,
    /// The shim could not set itself up.
    Setup,
}

impl Launch {
    /// The launch as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_bytes(self.program.as_os_str().as_bytes());
        body.put_u32(length(self.args.len()));
        for arg in &self.args {
            body.put_bytes(arg.as_bytes());
        }
        body.put_u32(length(self.env.len()));
        for (name, value) in &self.env {
            body.put_bytes(name.as_bytes());
            body.put_bytes(value.as_bytes());
        }
        body.put_bytes(self.cwd.as_os_str().as_bytes());
        body.put_u8(match self.stdout {
            Stdout::Mcp => 0,
            Stdout::Log => 1,
        });
        body.put_bytes(self.log.path.as_os_str().as_bytes());
        body.put_u64(self.log.max_bytes);
        body.put_u32(self.log.keep);
        body.put_bytes(self.label.as_bytes());
        body.put_u32(self.output_ring);
        body.put_u64(self.linger.as_secs());
        body.put_u32(self.linger.subsec_nanos());
        sealed(&body)
    }

    /// The launch that these bytes hold, and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut body = opened(bytes)?;
        let launch = Self {
            program: os(body.bytes()?).into(),
            args: (0..body.u32()?).map(|_| Ok(os(body.bytes()?))).collect::<Result<_, _>>()?,
            env: (0..body.u32()?)
                .map(|_| Ok((os(body.bytes()?), os(body.bytes()?))))
                .collect::<Result<_, _>>()?,
            cwd: os(body.bytes()?).into(),
            stdout: match body.u8()? {
                0 => Stdout::Mcp,
                1 => Stdout::Log,
                _ => return Err(DecodeError::Invalid("stdout")),
            },
            log: LogConfig {
                path: os(body.bytes()?).into(),
                max_bytes: body.u64()?,
                keep: body.u32()?,
            },
            label: body.text("label")?,
            output_ring: body.u32()?,
            linger: match (body.u64()?, body.u32()?) {
                (secs, nanos @ 0..1_000_000_000) => Duration::new(secs, nanos),
                _ => return Err(DecodeError::Invalid("linger")),
            },
        };
        body.finish()?;
        Ok(launch)
    }

    /// Reads one launch, whether or not the writer closes its end.
    pub(crate) fn read(mut from: impl Read) -> io::Result<Self> {
        let invalid = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut bytes = vec![0; HEADER];
        from.read_exact(&mut bytes)?;
        let len = body_length(&bytes).map_err(invalid)?;
        if len > MAX_LAUNCH {
            return Err(invalid(DecodeError::Invalid("length")));
        }
        from.take(u64::from(len)).read_to_end(&mut bytes)?;
        Self::decode(&bytes).map_err(invalid)
    }
}

impl Report {
    /// The report as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Started { server_pid } => {
                body.put_u8(0);
                body.put_u32(*server_pid);
            }
            Self::Failed { what, errno, message } => {
                body.put_u8(1);
                body.put_u8(what.code());
                body.put_i32(*errno);
                body.put_bytes(message.as_bytes());
            }
        }
        sealed(&body)
    }

    /// The report that these bytes hold, and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut body = opened(bytes)?;
        let report = match body.u8()? {
            0 => Self::Started { server_pid: body.u32()? },
            1 => Self::Failed {
                what: Failure::from_code(body.u8()?)?,
                errno: body.i32()?,
                message: body.text("message")?,
            },
            _ => return Err(DecodeError::Invalid("report")),
        };
        body.finish()?;
        Ok(report)
    }
}

impl Failure {
    fn code(self) -> u8 {
        match self {
            Self::BadLaunch => 0,
            Self::Cwd => 1,
            Self::ProgramNotFound => 2,
            Self::NotExecutable => 3,
            Self::Spawn => 4,
            Self::Setup => 5,
        }
    }

    fn from_code(code: u8) -> Result<Self, DecodeError> {
        Ok(match code {
            0 => Self::BadLaunch,
            1 => Self::Cwd,
            2 => Self::ProgramNotFound,
            3 => Self::NotExecutable,
            4 => Self::Spawn,
            5 => Self::Setup,
            _ => return Err(DecodeError::Invalid("failure")),
        })
    }
}

fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.put_u32(VERSION);
    bytes.put_bytes(body);
    bytes
}

fn opened(bytes: &[u8]) -> Result<Reader<'_>, DecodeError> {
    let len = body_length(bytes)? as usize;
    let body = &bytes[HEADER..];
    match body.len() {
        given if given < len => Err(DecodeError::Short),
        given if given > len => Err(DecodeError::Trailing),
        _ => Ok(Reader::new(body)),
    }
}

fn body_length(bytes: &[u8]) -> Result<u32, DecodeError> {
    let mut header = Reader::new(bytes);
    match header.u32()? {
        VERSION => header.u32(),
        other => Err(DecodeError::Version(other)),
    }
}

fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_os() -> impl Strategy<Value = OsString> {
        prop::collection::vec(any::<u8>(), 0..40).prop_map(OsString::from_vec)
    }

    fn any_launch() -> impl Strategy<Value = Launch> {
        let command = (
            any_os(),
            prop::collection::vec(any_os(), 0..5),
            prop::collection::vec((any_os(), any_os()), 0..5),
            any_os(),
            prop_oneof![Just(Stdout::Mcp), Just(Stdout::Log)],
        );
        let log = (any_os(), any::<u64>(), any::<u32>())
            .prop_map(|(path, max_bytes, keep)| LogConfig { path: path.into(), max_bytes, keep });
        (command, log, any::<String>(), any::<u32>(), any::<Duration>()).prop_map(
            |((program, args, env, cwd, stdout), log, label, output_ring, linger)| Launch {
                program: program.into(),
                args,
                env,
                cwd: cwd.into(),
                stdout,
                log,
                label,
                output_ring,
                linger,
            },
        )
    }

    fn any_report() -> impl Strategy<Value = Report> {
        let failure = (0..6u8).prop_map(|code| Failure::from_code(code).unwrap());
        prop_oneof![
            any::<u32>().prop_map(|server_pid| Report::Started { server_pid }),
            (failure, any::<i32>(), any::<String>())
                .prop_map(|(what, errno, message)| Report::Failed { what, errno, message }),
        ]
    }

    proptest! {
        #[test]
        fn a_launch_survives_the_pipe(launch in any_launch(), more in any::<Vec<u8>>()) {
            let mut bytes = launch.encode();
            prop_assert_eq!(Launch::decode(&bytes), Ok(launch.clone()));
            bytes.extend(more);
            prop_assert_eq!(Launch::read(&bytes[..]).unwrap(), launch);
        }

        #[test]
        fn a_report_survives_the_pipe(report in any_report()) {
            prop_assert_eq!(Report::decode(&report.encode()), Ok(report));
        }

        #[test]
        fn a_cut_launch_is_short(launch in any_launch(), at in any::<prop::sample::Index>()) {
            let bytes = launch.encode();
            let cut = &bytes[..at.index(bytes.len())];
            prop_assert_eq!(Launch::decode(cut), Err(DecodeError::Short));
            prop_assert!(Launch::read(cut).is_err());
        }

        #[test]
        fn damage_never_panics(
            launch in any_launch(), at in any::<prop::sample::Index>(), byte: u8, junk: Vec<u8>,
        ) {
            let mut bytes = launch.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _launch = Launch::decode(&bytes);
            let _report = Report::decode(&bytes);
            let _junk = (Launch::decode(&junk), Report::decode(&junk));
        }
    }

    #[test]
    fn an_unknown_version_is_named() {
        let mut bytes = Report::Started { server_pid: 1 }.encode();
        bytes[0] = 9;
        assert_eq!(Report::decode(&bytes), Err(DecodeError::Version(9)));
    }
}

//! What a shim reads at its start, and its report.
//!
//! The caller writes a [`Launch`] to the shim's standard input and reads a [`Report`] from its
//! standard output until the end. Both formats carry a version and are read only by the version that
//! wrote them: a shim is always started by a daemon of its own binary.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

pub use crate::codec::DecodeError;
use crate::codec::{Field, Reader, encoded, put_bytes};

/// How many bytes of unconsumed output a shim keeps by default.
pub const DEFAULT_OUTPUT_RING: u32 = 1024 * 1024;

/// What the environment of a shim (not of its server) should hold, so that the allocator of glibc
/// gives the memory of a burst back to the system.
pub const SHIM_ENV: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

const VERSION: u32 = 1;

/// Version and length of the body.
const HEADER: usize = 8;

const MAX_LAUNCH: u32 = 16 * 1024 * 1024;

encoded! {
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
        /// Where the server's standard error goes.
        pub log: LogConfig,
        /// The name of the run in the log, such as `run 7`.
        pub label: String,
        /// How many bytes of unconsumed output are kept before the server is made to wait.
        pub output_ring: u32,
        /// How long the shim stays without a connection when the run is over.
        pub linger: Duration,
    }
}

encoded! {
    /// What the standard output of a server is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Stdout {
        /// Messages: kept and delivered to the attached daemon.
        Mcp = 0,
        /// Text for users: written to the log like standard error.
        Log = 1,
    }
}

encoded! {
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
}

encoded! {
    /// How the start went.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Report {
        /// The server runs and the socket listens.
        Started = 0 {
            /// The server's own process.
            server_pid: u32,
        },
        /// Nothing runs and nothing is left behind.
        Failed = 1 {
            /// What went wrong.
            what: Failure,
            /// The error number of the system, or 0.
            errno: i32,
            /// The same for users.
            message: String,
        },
    }
}

encoded! {
    /// What kept a server from starting.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Failure {
        /// The [`Launch`] could not be read.
        BadLaunch = 0,
        /// The working directory is missing, is not a directory or may not be entered.
        Cwd = 1,
        /// The program does not exist.
        ProgramNotFound = 2,
        /// The program exists but cannot be executed.
        NotExecutable = 3,
        /// The system refused to start the process for another reason.
        Spawn = 4,
        /// The shim could not set itself up.
        Setup = 5,
    }
}

impl Launch {
    /// The launch as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The launch that these bytes hold, and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(bytes)
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
        encode(self)
    }

    /// The report that these bytes hold, and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(bytes)
    }
}

fn encode(value: &impl Field) -> Vec<u8> {
    let (mut bytes, mut body) = (Vec::new(), Vec::new());
    value.put(&mut body);
    VERSION.put(&mut bytes);
    put_bytes(&mut bytes, &body);
    bytes
}

fn decode<T: Field>(bytes: &[u8]) -> Result<T, DecodeError> {
    let len = body_length(bytes)? as usize;
    let body = &bytes[HEADER..];
    match body.len() {
        given if given < len => return Err(DecodeError::Short),
        given if given > len => return Err(DecodeError::Trailing),
        _ => {}
    }
    let mut body = Reader::new(body);
    let value = T::take(&mut body, "body")?;
    body.finish()?;
    Ok(value)
}

fn body_length(bytes: &[u8]) -> Result<u32, DecodeError> {
    let mut header = Reader::new(bytes);
    match header.u32()? {
        VERSION => header.u32(),
        other => Err(DecodeError::Version(other)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;
    use crate::codec::Message;

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
        let failure = (0..6u8)
            .prop_map(|code| Failure::take_fields(code, &mut Reader::new(&[])).unwrap().unwrap());
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

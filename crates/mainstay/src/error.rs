//! Errors of the command line and their exit codes.

use std::fmt::Write as _;
use std::io::{self, ErrorKind::PermissionDenied};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mainstay_api::{ApiError, CallError, ErrorKind, InstanceError, ListenError, is_transient};
use mainstay_core::with_causes;
use miette::Diagnostic;
use serde_json::json;

use crate::rights;
use crate::settings::SettingsError;
use crate::ui::paint;

/// The exit codes, which scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    /// The arguments are invalid.
    Usage = 2,
    /// There is no server of that name.
    NoSuchServer = 3,
    /// There is no daemon to ask.
    Unreachable = 4,
    /// The user pressed Ctrl-C; shells use the same code.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub(crate) enum CliError {
    /// The arguments are invalid.
    #[error("{message}")]
    Usage {
        message: String,
        #[help]
        help: Option<String>,
    },
    /// There is no directory for state.
    #[error(transparent)]
    #[diagnostic(help("set HOME, or MAINSTAY_HOME to an absolute path"))]
    Instance(#[from] InstanceError),
    /// The config file cannot be used.
    #[error(transparent)]
    #[diagnostic(help("fix it, or move it away"))]
    Settings(#[from] SettingsError),
    /// `MAINSTAY_LISTEN` is invalid.
    #[error("MAINSTAY_LISTEN: {0}")]
    #[diagnostic(help("{}", .0.help()))]
    Listen(#[from] ListenError),
    /// No daemon answers on the socket.
    #[error("the daemon cannot be reached at `{}`", socket.display())]
    #[diagnostic(help(
        "it may be restarting: try again in a moment, or run `mainstay doctor` (with MAINSTAY_NO_START set, no daemon is started)"
    ))]
    Unreachable { socket: PathBuf, source: io::Error },
    /// The user has no access to the socket.
    #[error("the daemon cannot be reached at `{}`", socket.display())]
    Denied {
        socket: PathBuf,
        source: io::Error,
        #[help]
        help: String,
    },
    /// The daemon accepted the connection, but sent no hello.
    #[error("the daemon at `{}` accepted the connection but did not answer", socket.display())]
    #[diagnostic(help(
        "it may be restarting: try again in a moment, or see `mainstay daemon status`"
    ))]
    NoHello { socket: PathBuf },
    /// No daemon was running, and none could be started.
    #[error("the daemon could not be started: {message}")]
    NotStarted {
        message: String,
        #[help]
        help: Option<String>,
    },
    /// The daemons of the holder keep failing.
    #[error("the daemon keeps failing: {message}")]
    Failing {
        message: String,
        #[help]
        help: String,
    },
    /// The daemon was stopped on purpose.
    #[error("Mainstay is stopped, because of `mainstay daemon stop`")]
    #[diagnostic(help("`mainstay daemon start` starts it and its servers"))]
    Stopped,
    /// The state directory is shared with another machine.
    #[error("Mainstay is running on another machine, `{host_name}`, with this home directory")]
    #[diagnostic(help(
        "stop it there with `mainstay daemon stop`, or set MAINSTAY_HOME to a local directory"
    ))]
    OtherMachine { host_name: String },
    /// No daemon is running, and one started by a server would end with it.
    #[error("a server cannot start the daemon that supervises it")]
    #[diagnostic(help("run `mainstay daemon start` in a terminal"))]
    Supervised,
    /// The daemon uses another protocol.
    #[error(
        "the daemon (version {daemon}) uses protocol {theirs}, and this program protocol {ours}"
    )]
    #[diagnostic(help(
        "run `mainstay daemon stop --keep-servers` with the program of the daemon, then `mainstay daemon start`"
    ))]
    Skew { daemon: String, theirs: u32, ours: u32 },
    /// The daemon is too old for `mainstay connect` of this version.
    #[error("the daemon (version {daemon}) is too old for `mainstay connect` of this version")]
    #[diagnostic(help("`mainstay daemon reload` updates the daemon"))]
    OutdatedDaemon { daemon: String },
    /// The connection closed before the request was sent.
    #[error("the daemon closed the connection before it received the request")]
    #[diagnostic(help("it may be restarting; nothing was changed, so try again"))]
    Unsent { source: io::Error },
    /// The connection closed before the answer.
    #[error("the connection to the daemon closed in the middle of the request")]
    #[diagnostic(help(
        "the daemon may have restarted; the request may have been executed, so repeat it only if that is safe"
    ))]
    Cut { source: Option<io::Error> },
    /// The answer cannot be parsed.
    #[error("the daemon's answer cannot be read")]
    #[diagnostic(help("compare the versions: `mainstay daemon status`, `mainstay --version`"))]
    Garbled { source: serde_json::Error },
    /// The daemon refused.
    #[error("{}", .0.message)]
    Api(ApiError),
    #[error("{message}")]
    Failed {
        message: String,
        #[help]
        help: Option<String>,
    },
    /// A file or the terminal failed.
    #[error("{what}")]
    Io { what: String, source: io::Error },
    /// The reader of the output closed it.
    #[error("the output was closed")]
    OutputClosed,
    /// The answer has been printed; only the exit code is left.
    #[error("answered")]
    Answered(Exit),
}

impl CliError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), help: None }
    }

    pub(crate) fn misuse(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), help: Some(help.into()) }
    }

    pub(crate) fn failed(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), help: Some(help.into()) }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The output could not be written.
    pub(crate) fn output(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Io { what: "the output cannot be written".to_owned(), source },
        }
    }

    /// A request to the daemon behind `socket` has no answer.
    pub(crate) fn call(socket: &Path, error: CallError) -> Self {
        match error {
            CallError::Unreachable(source) if source.kind() == PermissionDenied => {
                Self::Denied { socket: socket.to_owned(), source, help: rights::advice(socket) }
            }
            CallError::Unreachable(source) => {
                Self::Unreachable { socket: socket.to_owned(), source }
            }
            CallError::NoHello => Self::NoHello { socket: socket.to_owned() },
            CallError::Skew { daemon, theirs, ours } => Self::Skew { daemon, theirs, ours },
            CallError::Unsent(source) => Self::Unsent { source },
            CallError::Cut(source) => Self::Cut { source },
            CallError::Garbled(source) => Self::Garbled { source },
            CallError::Api(error) => Self::Api(error),
        }
    }

    /// Whether a client that was connected before may retry later: the daemon is not running, cannot be started, or is too
    /// busy.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => is_transient(source.kind()),
            Self::Api(error) => matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Internal),
            Self::Denied { .. } | Self::Supervised | Self::Skew { .. } | Self::Answered(_) => false,
            error => error.exit() == Exit::Unreachable,
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage { .. } => Exit::Usage,
            Self::Unreachable { .. }
            | Self::Denied { .. }
            | Self::NoHello { .. }
            | Self::NotStarted { .. }
            | Self::Failing { .. }
            | Self::Stopped
            | Self::OtherMachine { .. }
            | Self::Supervised
            | Self::Skew { .. }
            | Self::OutdatedDaemon { .. }
            | Self::Unsent { .. }
            | Self::Cut { .. } => Exit::Unreachable,
            Self::Api(error) if error.kind == ErrorKind::NoSuchServer => Exit::NoSuchServer,
            Self::Api(_)
            | Self::Instance(_)
            | Self::Settings(_)
            | Self::Listen(_)
            | Self::Garbled { .. }
            | Self::Failed { .. }
            | Self::Io { .. } => Exit::Failed,
            Self::OutputClosed => Exit::Done,
            Self::Answered(exit) => *exit,
        }
    }

    /// What went wrong, in one line.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Settings(error) => error.line(),
            error => error.to_string(),
        }
    }

    /// What the user can do about it.
    pub(crate) fn advice(&self) -> Option<String> {
        let Self::Api(error) = self else { return self.help().map(|help| help.to_string()) };
        let usual = match error.kind {
            ErrorKind::NoSuchServer => Some("`mainstay ls -a` lists all servers"),
            ErrorKind::NameTaken => Some("choose another name, or give `--replace`"),
            _ => None,
        };
        error.help.clone().or_else(|| usual.map(str::to_owned))
    }

    /// The error as JSON. None if there is nothing to print.
    pub(crate) fn json(&self) -> Option<String> {
        if matches!(self, Self::OutputClosed | Self::Answered(_)) {
            return None;
        }
        let (message, help) = (with_causes(self), self.advice());
        let exit_code = self.exit() as u8;
        Some(json!({"error": message, "help": help, "exit_code": exit_code}).to_string())
    }

    /// The error as text: what failed and why on one line, then the help. None if there is nothing to print.
    pub(crate) fn report(&self) -> Option<String> {
        if matches!(self, Self::OutputClosed | Self::Answered(_)) {
            return None;
        }
        let mut text = format!("{} {}", paint::bad("error:"), with_causes(self));
        if let Some(help) = self.advice() {
            let _infallible = write!(text, "\n{} {help}", paint::note("help:"));
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: &CliError, exit: Exit, report: &str) {
        assert_eq!(error.exit(), exit);
        let printed = error.report().unwrap_or_default();
        assert_eq!(anstream::adapter::strip_str(&printed).to_string(), report);
    }

    #[test]
    fn an_error_says_what_why_and_what_to_do() {
        check(
            &CliError::call(
                Path::new("/run/daemon.sock"),
                CallError::Unreachable(io::Error::other("no such luck")),
            ),
            Exit::Unreachable,
            "error: the daemon cannot be reached at `/run/daemon.sock`: no such luck\n\
             help: it may be restarting: try again in a moment, or run `mainstay doctor` (with MAINSTAY_NO_START set, no daemon is started)",
        );
        check(
            &CliError::call(Path::new("/s"), CallError::Cut(None)),
            Exit::Unreachable,
            "error: the connection to the daemon closed in the middle of the request\n\
             help: the daemon may have restarted; the request may have been executed, so repeat it only if that is safe",
        );
        check(
            &CliError::Api(ApiError::new(ErrorKind::NoSuchServer, "there is no server `x`")),
            Exit::NoSuchServer,
            "error: there is no server `x`\nhelp: `mainstay ls -a` lists all servers",
        );
        check(
            &CliError::Api(ApiError::new(ErrorKind::Unavailable, "down").with_help("wait")),
            Exit::Failed,
            "error: down\nhelp: wait",
        );
    }

    #[test]
    fn an_absent_daemon_is_a_transient_error() {
        let socket = Path::new("/run/daemon.sock");
        let unreachable = |kind: io::ErrorKind| CallError::Unreachable(kind.into());
        let api = |kind| CallError::Api(ApiError::new(kind, "no"));
        let skew = CallError::Skew { daemon: "9.0.0".to_owned(), theirs: 2, ours: 1 };
        for (error, passes) in [
            (unreachable(io::ErrorKind::NotFound), true),
            (unreachable(io::ErrorKind::ConnectionRefused), true),
            (unreachable(io::ErrorKind::PermissionDenied), false),
            (CallError::NoHello, true),
            (CallError::Cut(None), true),
            (api(ErrorKind::Unavailable), true),
            (api(ErrorKind::NoSuchServer), false),
            (api(ErrorKind::Invalid), false),
            (skew, false),
        ] {
            let error = CliError::call(socket, error);
            assert_eq!(error.may_pass(), passes, "{error}");
        }
    }

    #[test]
    fn programs_get_an_error_as_json() {
        let error = CliError::failed("it is down", "start it");
        let expected = r#"{"error":"it is down","exit_code":1,"help":"start it"}"#;
        assert_eq!(error.json().as_deref(), Some(expected));
        assert_eq!(CliError::Answered(Exit::Failed).json(), None);
    }

    #[test]
    fn closed_output_is_not_an_error() {
        check(&CliError::output(io::ErrorKind::BrokenPipe.into()), Exit::Done, "");
        check(&CliError::Answered(Exit::Unreachable), Exit::Unreachable, "");
    }
}

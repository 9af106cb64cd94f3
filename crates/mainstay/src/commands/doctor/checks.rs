//! The checks of `mainstay doctor`.

use std::fs::{self, Metadata};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mainstay_api::{DaemonInfo, Listen, ListenError, ServerInfo};
use mainstay_core::Status;
use mainstay_daemon::RunError;
use rustix::fs::{Access, StatVfs, access, statvfs};
use rustix::process::{PidfdFlags, child_subreaper, geteuid, getpid, pidfd_open};

use super::{Check, Level};
use crate::context::Caller;
use crate::error::CliError;
use crate::failure_report::FailureReport;
use crate::rights;
use crate::settings::Settings;
use crate::text::reason;

/// Below this, databases and logs are at risk.
const LOW_SPACE: u64 = 100 * 1024 * 1024;

/// Below this, no daemon starts: each of its databases takes 32 KB to be opened.
const NO_SPACE: u64 = 80 * 1024;

const MAKE_ROOM: &str = "free some space on its file system";

/// Version and environment of this program.
pub(super) fn program_checks(caller: &Caller) -> Vec<Check> {
    let variable = |name: &str, help: &str| match caller.var(name) {
        Some(value) if !value.is_empty() => {
            Check::new(name, Level::Ok, value.to_string_lossy().into_owned())
        }
        Some(_) | None => Check::new(name, Level::Warn, "not set").help(help),
    };
    vec![
        Check::new("mainstay", Level::Ok, env!("CARGO_PKG_VERSION")),
        variable("HOME", "set it: many servers keep files there"),
        variable("PATH", "set it: programs are searched there"),
    ]
}

/// Required features of the kernel.
pub(super) fn kernel_checks() -> Vec<Check> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    let proc = match &release {
        Ok(release) => {
            Check::new("/proc", Level::Ok, format!("mounted, kernel {}", release.trim()))
        }
        Err(error) => Check::new("/proc", Level::Fail, error.to_string())
            .help("mount it: the processes of a server are found there"),
    };
    let feature = |name: &str, found: rustix::io::Result<()>, since: &str| match found {
        Ok(()) => Check::new(name, Level::Ok, "available"),
        Err(error) => Check::new(name, Level::Fail, error.to_string())
            .help(format!("needs Linux {since}, and no seccomp filter that forbids it")),
    };
    vec![
        proc,
        feature("pidfd", pidfd_open(getpid(), PidfdFlags::empty()).map(drop), "5.3"),
        feature("child subreaper", child_subreaper().map(drop), "3.4"),
    ]
}

/// A directory of Mainstay must be private, writable, and have free space.
pub(super) fn directory_check(name: &str, path: &Path) -> Check {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return absent(name, path);
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Check::new(name, Level::Fail, format!("`{shown}`: {error}"))
                .help(rights::advice(path));
        }
        Err(error) => {
            return Check::new(name, Level::Fail, format!("`{shown}`: {error}"))
                .help("make it accessible, or set MAINSTAY_HOME to another directory");
        }
    };
    let writable = access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let space = statvfs(path).ok().as_ref().map(free);
    let detail = |problem: &str| format!("`{shown}` {problem}");
    match problem(&metadata, geteuid().as_raw(), writable, space) {
        None => Check::new(name, Level::Ok, shown.to_string()),
        Some((level, problem, help)) => {
            Check::new(name, level, detail(&problem)).help(help.replace("DIR", &shown.to_string()))
        }
    }
}

/// What is wrong with a directory, worst first.
fn problem(
    metadata: &Metadata,
    user: u32,
    writable: bool,
    space: Option<u64>,
) -> Option<(Level, String, &'static str)> {
    let mode = metadata.mode() & 0o777;
    if !metadata.is_dir() {
        return Some((Level::Fail, "is not a directory".to_owned(), "move or remove it"));
    }
    if metadata.uid() != user {
        let problem = format!("belongs to user {}, not to you ({user})", metadata.uid());
        return Some((Level::Fail, problem, "set MAINSTAY_HOME to a directory of your own"));
    }
    if !writable {
        let help = "chmod 700 DIR, or remount its file system for writing";
        return Some((Level::Fail, "is not writable".to_owned(), help));
    }
    if mode & 0o077 != 0 {
        let problem = format!("is open to others (mode {mode:03o})");
        return Some((Level::Warn, problem, "chmod 700 DIR"));
    }
    let (level, problem) = space.and_then(shortage)?;
    Some((level, problem, MAKE_ROOM))
}

/// A directory that does not exist is ok if it can be created.
fn absent(name: &str, path: &Path) -> Check {
    let parent = path.ancestors().find(|parent| parent.exists());
    let makeable = parent.is_some_and(|parent| access(parent, Access::WRITE_OK).is_ok());
    let space = parent.and_then(|parent| statvfs(parent).ok()).as_ref().map(free);
    let detail = format!("`{}` does not exist yet", path.display());
    if !makeable {
        return Check::new(name, Level::Fail, format!("{detail} and cannot be created"))
            .help("make its parent directory writable, or set MAINSTAY_HOME to another directory");
    }
    match space.and_then(shortage) {
        None => Check::new(name, Level::Ok, format!("{detail}; the daemon creates it")),
        Some((level, problem)) => {
            Check::new(name, level, format!("{detail}, and its file system {problem}"))
                .help(MAKE_ROOM)
        }
    }
}

/// The problem with so little space, if any.
fn shortage(free: u64) -> Option<(Level, String)> {
    if free < NO_SPACE {
        let problem = format!("has only {} KB left, too little for a daemon", free / 1024);
        Some((Level::Fail, problem))
    } else if free < LOW_SPACE {
        Some((Level::Warn, format!("has only {} MB left", free / 1024 / 1024)))
    } else {
        None
    }
}

fn free(stat: &StatVfs) -> u64 {
    stat.f_bavail.saturating_mul(stat.f_frsize)
}

/// Whether a daemon can be started, while none is running.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextStart<'a> {
    /// Whether directories, database and settings are usable.
    pub(super) can_start: bool,
    /// Whether `mainstay daemon stop` ended the last one.
    pub(super) stopped_by_user: bool,
    /// Why the last starts failed, if they did.
    pub(super) failure_report: Option<&'a FailureReport>,
}

/// The daemon must have the version of this program, or be able to start.
pub(super) fn daemon_check(
    found: &Result<Option<DaemonInfo>, CliError>,
    next_start: NextStart<'_>,
) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    match found {
        Ok(Some(daemon)) if daemon.version == own => {
            let detail = format!("running (pid {}, version {own})", daemon.pid);
            Check::new("daemon", Level::Ok, detail)
        }
        Ok(Some(daemon)) => {
            let version = &daemon.version;
            Check::new("daemon", Level::Warn, format!("version {version}, this program is {own}"))
                .help("`mainstay daemon stop --keep-servers`, then `mainstay daemon start`")
        }
        Ok(None) => absent_daemon(next_start),
        Err(error) => Check::failed("daemon", error.to_string(), error.advice()),
    }
}

/// An absent daemon is ok if the next command can start it.
fn absent_daemon(next_start: NextStart<'_>) -> Check {
    let NextStart { can_start, stopped_by_user, failure_report } = next_start;
    if stopped_by_user {
        return Check::new("daemon", Level::Ok, "stopped by `mainstay daemon stop`")
            .help("`mainstay daemon start` starts it and its servers");
    }
    let failures =
        failure_report.map(|report| format!("; {}", report.summary())).unwrap_or_default();
    if !can_start {
        let detail = format!("not running, and cannot be started{failures}");
        return Check::new("daemon", Level::Fail, detail)
            .help("fix the other problems here; the next command starts it");
    }
    match failure_report {
        None => Check::new("daemon", Level::Ok, "not running; the next command starts it"),
        Some(report) => {
            let another = "the next command starts another one";
            let help = report.help.as_ref().map(|help| format!("{help}; {another}"));
            Check::new("daemon", Level::Warn, format!("not running{failures}"))
                .help(help.unwrap_or_else(|| another.to_owned()))
        }
    }
}

/// The config file, if there is one.
pub(super) fn settings_check(
    file: Option<&Path>,
    found: &Result<Option<Settings>, CliError>,
) -> Option<Check> {
    match (found, file) {
        (Ok(Some(_)), Some(file)) => {
            Some(Check::new("config file", Level::Ok, file.display().to_string()))
        }
        (Ok(_), _) => None,
        (Err(error), _) => Some(Check::failed("config file", error.line(), error.advice())),
    }
}

/// The address for MCP clients: that of the running daemon, or free for the next one.
pub(super) fn listen_check(
    wanted: Result<Listen, ListenError>,
    daemon: Option<&DaemonInfo>,
) -> Check {
    let wanted = match wanted {
        Ok(wanted) => wanted.first,
        Err(error) => {
            let detail = format!("MAINSTAY_LISTEN: {error}");
            return Check::new("listener", Level::Fail, detail).help(error.help());
        }
    };
    match daemon {
        Some(daemon) => listener_of(daemon, wanted),
        None => bind_check(wanted),
    }
}

/// Whether the next daemon can listen at its address.
fn bind_check(wanted: Option<SocketAddr>) -> Check {
    let addr = wanted.unwrap_or(Listen::DEFAULT);
    match (TcpListener::bind(addr), wanted) {
        (Ok(_), _) if addr.port() == 0 => {
            Check::new("listener", Level::Ok, format!("any free port of {}", addr.ip()))
        }
        (Ok(_), _) => Check::new("listener", Level::Ok, format!("{addr} is free")),
        (Err(error), Some(_)) => {
            Check::new("listener", Level::Fail, format!("{addr} cannot be used: {error}"))
                .help("set MAINSTAY_LISTEN to another address, such as 127.0.0.1:7434")
        }
        (Err(error), None) => {
            Check::new("listener", Level::Warn, format!("{addr} cannot be used: {error}")).help(
                "a new Mainstay takes another port if another user has this one; otherwise set \
                 MAINSTAY_LISTEN to another address, such as 127.0.0.1:7434",
            )
        }
    }
}

/// Whether the running daemon listens at its configured address.
fn listener_of(daemon: &DaemonInfo, wanted: Option<SocketAddr>) -> Check {
    let restart = "`mainstay daemon stop --keep-servers`, then `mainstay daemon start`";
    let Some(address) = &daemon.listen else {
        let taken = || format!("another program has {}", wanted.unwrap_or(Listen::DEFAULT));
        let why = daemon.listen_problem.clone().unwrap_or_else(taken);
        let what = format!("{why}, so clients cannot connect over HTTP");
        return Check::new("listener", Level::Warn, what).help(
            "the daemon listens as soon as the address is free; or set MAINSTAY_LISTEN to another one and restart the daemon (`mainstay daemon stop --keep-servers`, `mainstay daemon start`)",
        );
    };
    let is_at = |wanted: SocketAddr| {
        address.parse().is_ok_and(|found: SocketAddr| {
            found.ip() == wanted.ip() && (wanted.port() == 0 || found.port() == wanted.port())
        })
    };
    if let Some(problem) = daemon.more_addresses.iter().find_map(|more| more.problem.clone()) {
        let help = "the daemon tries again; correct `listen` in config.toml, then \
                    `mainstay daemon reload`";
        return Check::new("listener", Level::Warn, problem).help(help);
    }
    match wanted.filter(|wanted| !is_at(*wanted)) {
        None => Check::new("listener", Level::Ok, format!("the daemon listens at {address}")),
        Some(wanted) => {
            let detail = format!("the daemon listens at {address} instead of {wanted}");
            Check::new("listener", Level::Warn, detail).help(restart)
        }
    }
}

/// Warns if all local users may call servers without a token.
pub(super) fn callers_check(settings: &Settings) -> Option<Check> {
    let detail = "every user of this machine may call your servers (allow-other-users)";
    let help = "remove it from config.toml, then `mainstay daemon reload`; admit single users with \
                `mainstay token create`";
    let is_open = settings.allow_other_users == Some(true);
    is_open.then(|| Check::new("callers", Level::Warn, detail).help(help))
}

/// The database, as the next daemon would find it.
pub(super) fn database_check(error: Option<RunError>) -> Check {
    match error {
        None => Check::new("database", Level::Ok, "can be read"),
        Some(error) => Check::failed("database", error.to_string(), error.help()),
    }
}

/// The event log, if it cannot be used.
pub(super) fn events_check(path: &Path) -> Option<Check> {
    let found = fs::metadata(path).ok()?;
    if found.is_file() && access(path, Access::READ_OK | Access::WRITE_OK).is_ok() {
        return None;
    }
    let detail =
        format!("`{}` cannot be written: events are lost when the daemon ends", path.display());
    let help = "make it a file that you can write, then `mainstay daemon reload`";
    Some(Check::new("event log", Level::Warn, detail).help(help))
}

/// A server: up, or off on purpose.
pub(super) fn server_check(server: &ServerInfo) -> Check {
    let ServerInfo { name, status, .. } = server;
    let level = match status {
        Status::Running if server.silence.is_some() => Level::Warn,
        Status::Running | Status::Stopped | Status::Stopping | Status::Removing => Level::Ok,
        Status::Starting
        | Status::Restarting
        | Status::Busy
        | Status::Blocked
        | Status::Hung
        | Status::Suspended
        | Status::Unresponsive
        | Status::Unhealthy
        | Status::Waiting => Level::Warn,
        Status::Error => Level::Fail,
    };
    let detail = match reason(server) {
        Some(reason) => format!("{status}: {reason}"),
        None => status.to_string(),
    };
    let check = Check::new(format!("server {name}"), level, detail);
    match level {
        Level::Ok => check,
        Level::Warn | Level::Fail => check.help(format!("see `mainstay why {name}`")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::super::ls::tests::{overdue, server};
    use super::*;

    fn check_dir(mode: u32, user: Option<u32>, writable: bool, space: u64, expected: Option<&str>) {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let metadata = fs::metadata(dir.path()).unwrap();
        let user = user.unwrap_or(metadata.uid());
        let problem =
            problem(&metadata, user, writable, Some(space)).map(|(_, problem, _)| problem);
        assert_eq!(problem.as_deref(), expected);
    }

    #[test]
    fn a_directory_must_be_private_and_writable_with_free_space() {
        check_dir(0o700, None, true, LOW_SPACE, None);
        check_dir(0o755, None, true, LOW_SPACE, Some("is open to others (mode 755)"));
        check_dir(0o700, None, false, LOW_SPACE, Some("is not writable"));
        check_dir(0o700, None, true, 1024 * 1024, Some("has only 1 MB left"));
        let none = "has only 4 KB left, too little for a daemon";
        check_dir(0o700, None, true, 4 * 1024, Some(none));
        let metadata = fs::metadata("/").unwrap();
        let other_user = metadata.uid() + 1;
        assert_eq!(problem(&metadata, other_user, true, None).unwrap().0, Level::Fail);
    }

    #[test]
    fn a_directory_may_be_absent_if_it_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(directory_check("state", &dir.path().join("a/b")).level, Level::Ok);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(directory_check("state", &file).level, Level::Fail);
        assert_eq!(directory_check("state", &file.join("x")).level, Level::Fail);
    }

    #[test]
    fn a_server_that_was_given_up_fails_the_check() {
        assert_eq!(server_check(&server("a", Status::Running)).level, Level::Ok);
        assert_eq!(server_check(&server("a", Status::Stopped)).level, Level::Ok);
        assert_eq!(server_check(&server("a", Status::Starting)).level, Level::Warn);
        assert_eq!(server_check(&server("a", Status::Error)).level, Level::Fail);
        let silence = Some(overdue());
        let silent = ServerInfo { silence, ..server("a", Status::Running) };
        assert_eq!(server_check(&silent).level, Level::Warn);
    }

    fn daemon(listen: Option<&str>) -> DaemonInfo {
        DaemonInfo {
            pid: 1,
            version: String::new(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
            servers: 0,
            running: 0,
            listen: listen.map(str::to_owned),
            listen_problem: None,
            more_addresses: Vec::new(),
            sessions: 0,
            state_dir: "/state".into(),
            socket: "/run/daemon.sock".into(),
            log: "/state/daemon.log".into(),
            instance: String::new(),
            number: 1,
            holder: None,
            replacement_failed: None,
        }
    }

    #[test]
    fn the_listener_is_that_of_the_daemon_or_must_be_free() {
        let check = |wanted: &str, daemon: Option<&DaemonInfo>| {
            let check = listen_check(wanted.parse(), daemon);
            (check.level, check.detail)
        };
        let running = daemon(Some("127.0.0.1:7433"));
        let fine = (Level::Ok, "the daemon listens at 127.0.0.1:7433".to_owned());
        assert_eq!(check("127.0.0.1:7433", Some(&running)), fine);
        assert_eq!(check("127.0.0.1:0", Some(&running)), fine);
        assert_eq!(check("[::1]:7433", Some(&running)).0, Level::Warn);
        assert_eq!(check("127.0.0.1:7434", Some(&running)).0, Level::Warn);
        assert_eq!(check("127.0.0.1:7433", Some(&daemon(None))).0, Level::Warn);
        assert_eq!(check("0.0.0.0:7433", Some(&running)).0, Level::Fail);

        let any = (Level::Ok, "any free port of 127.0.0.1".to_owned());
        assert_eq!(check("127.0.0.1:0", None), any);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let (level, detail) = check(&taken.local_addr().unwrap().to_string(), None);
        assert_eq!(level, Level::Fail);
        assert!(detail.contains(" cannot be used: "), "{detail}");
    }

    #[test]
    fn an_absent_daemon_is_ok_if_it_can_start() {
        let check = |can_start, failure_report| {
            let next_start = NextStart { can_start, stopped_by_user: false, failure_report };
            let Check { level, detail, help, .. } = daemon_check(&Ok(None), next_start);
            (level, detail, help.unwrap_or_default())
        };
        assert_eq!(check(true, None).0, Level::Ok);
        assert_eq!(check(false, None).0, Level::Fail);
        let report = FailureReport { message: "bad file".to_owned(), help: None };
        let (level, detail, help) = check(true, Some(&report));
        assert_eq!(level, Level::Warn);
        assert!(detail.starts_with("not running; ") && detail.ends_with(": bad file"), "{detail}");
        assert_eq!(help, "the next command starts another one");
        let report = FailureReport { help: Some("correct it".to_owned()), ..report.clone() };
        assert!(check(true, Some(&report)).2.starts_with("correct it; the next "));
        let (level, detail, _) = check(false, Some(&report));
        assert_eq!(level, Level::Fail);
        assert!(detail.ends_with(": bad file"), "{detail}");
        let next_start =
            NextStart { can_start: true, stopped_by_user: false, failure_report: None };
        assert_eq!(daemon_check(&Err(CliError::OutputClosed), next_start).level, Level::Fail);
    }
}

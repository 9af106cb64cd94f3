//! Connections to the daemon, which is started on demand.
//!
//! A daemon that does not run is started, unless that is forbidden or the user has stopped it. While one is ending or
//! being replaced, connections are retried for the whole grace period: the holder may queue a connection before there is
//! a daemon to serve it. No byte of a request is sent before the daemon's hello, so retries are safe until then. After
//! that, nothing is retried.

mod version;

pub(crate) use version::warn_of_version;

use std::io::{self, ErrorKind::NotADirectory};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mainstay_api::{
    CallError, Connection, DaemonInfo, ErrorKind, Grace, Instance, Request, connect_if_present,
    connect_with_restart_grace,
};
use mainstay_core::ServerName;
use mainstay_hold::limits::{FAILING_GRACE, RESTART_GRACE};
use mainstay_hold::shim_search::run_dirs_of_shims;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::context::Context;
use crate::error::CliError;
use crate::failure_report::FailureReport;
use crate::launch::{Launch, RUN_VARIABLE};

/// Part of a daemon's error for an unknown request.
const NOT_UNDERSTOOD: &str = "the request cannot be understood";

/// How long to wait for a daemon that is being started or replaced.
pub(crate) const GRACE: Grace = Grace { every: Duration::from_millis(200), total: RESTART_GRACE };

/// The daemon of one instance.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    instance: Instance,
    start: Start,
}

/// Whether a daemon is started if none runs.
#[derive(Debug, Clone)]
enum Start {
    With(Launch),
    /// `MAINSTAY_NO_START` is set.
    Forbidden,
    /// This command was started by a server. Its processes end with the server, so a daemon would, too.
    InsideServer,
}

impl Remote {
    pub(crate) fn of(ctx: &Context) -> Result<Self, CliError> {
        let start = if ctx.caller.has(RUN_VARIABLE) {
            Start::InsideServer
        } else if ctx.caller.has("MAINSTAY_NO_START") {
            Start::Forbidden
        } else {
            Start::With(Launch::new(ctx.exe.clone(), &ctx.caller.env))
        };
        Ok(Self { instance: ctx.instance()?, start })
    }

    /// Sends a request and reads its answer. If the daemon ended before it received the request, the request is sent to
    /// the next one.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, CliError> {
        match self.connect(request).await?.call(request).await {
            Err(CallError::Unsent(_)) => {
                self.finish(self.connect(request).await?.call(request).await)
            }
            answer => self.finish(answer),
        }
    }

    /// Sends a request, passes each item to `each` until the stream ends or `each` fails, and reads the answer.
    pub(crate) async fn stream<I: DeserializeOwned, T: DeserializeOwned>(
        &self,
        request: &Request,
        each: impl FnMut(Vec<I>) -> Result<(), CliError>,
    ) -> Result<T, CliError> {
        let answer = self.stream_until(request, each, &Notify::new()).await?;
        Ok(answer.expect("it is never told to stop"))
    }

    /// The same until `stop`. `None` if the request was not sent to the daemon until then; otherwise the daemon sends last items,
    /// and an error follows.
    pub(crate) async fn stream_until<I: DeserializeOwned, T: DeserializeOwned>(
        &self,
        request: &Request,
        mut each: impl FnMut(Vec<I>) -> Result<(), CliError>,
        stop: &Notify,
    ) -> Result<Option<T>, CliError> {
        let mut each_error = None;
        let mut each = |items| {
            each(items).map_err(|error| {
                each_error = Some(error);
                io::Error::other("the reader is done")
            })
        };
        let connect = async || {
            tokio::select! {
                connection = self.connect(request) => connection.map(Some),
                () = stop.notified() => Ok(None),
            }
        };
        let Some(connection) = connect().await? else { return Ok(None) };
        let answer = match connection.stream_until(request, &mut each, stop.notified()).await {
            Err(CallError::Unsent(_)) => {
                let Some(connection) = connect().await? else { return Ok(None) };
                connection.stream_until(request, each, stop.notified()).await
            }
            answer => answer,
        };
        match each_error {
            Some(error) => Err(error),
            None => self.finish(answer).map(Some),
        }
    }

    /// A connection that carries HTTP to a server.
    pub(crate) async fn http(&self, name: &ServerName) -> Result<tokio::net::UnixStream, CliError> {
        let connection = self.connect(&Request::Http { name: name.clone() }).await?;
        self.http_over(connection, name).await
    }

    /// The same for a client that was connected before. Starts no daemon: the holder restarts one that died.
    pub(crate) async fn http_if_running(
        &self,
        name: &ServerName,
    ) -> Result<tokio::net::UnixStream, CliError> {
        let connection = self.finish(self.connect_existing().await)?;
        version::warn(connection.hello(), &Request::Http { name: name.clone() });
        self.http_over(connection, name).await
    }

    /// The same if there is no holder: starts a daemon, unless that is forbidden, the user has stopped it, or a service
    /// manager may be about to start it.
    pub(crate) async fn http_or_start(
        &self,
        name: &ServerName,
        waited: Duration,
    ) -> Result<tokio::net::UnixStream, CliError> {
        let managed = self.instance.is_managed() && waited < GRACE.total;
        match self.start {
            Start::With(_) if !managed => self.http(name).await,
            Start::With(_) | Start::Forbidden | Start::InsideServer => {
                self.http_if_running(name).await
            }
        }
    }

    async fn http_over(
        &self,
        connection: Connection,
        name: &ServerName,
    ) -> Result<tokio::net::UnixStream, CliError> {
        let daemon = connection.hello().mainstay.clone();
        match connection.http(name.clone()).await {
            // The daemon does not know the request.
            Err(CallError::Api(error))
                if error.kind == ErrorKind::Invalid && error.message.contains(NOT_UNDERSTOOD) =>
            {
                Err(CliError::OutdatedDaemon { daemon })
            }
            answer => self.finish(answer),
        }
    }

    /// Starts the daemon. False if it is running already.
    pub(crate) async fn start(&self) -> Result<bool, CliError> {
        if self.probe().await?.is_some() {
            return Ok(false);
        }
        match &self.start {
            Start::With(launch) => self.connect_or_launch(launch).await.map(|_| true),
            Start::InsideServer => Err(CliError::Supervised),
            Start::Forbidden => Err(CliError::failed(
                "MAINSTAY_NO_START is set, so no daemon is started",
                "unset it, or run `mainstay daemon run`",
            )),
        }
    }

    pub(crate) fn is_stopped_by_user(&self) -> bool {
        self.instance.is_stopped_by_user()
    }

    /// Whether servers are running as local processes. Does not need a daemon.
    pub(crate) fn has_running_servers(&self) -> bool {
        run_dirs_of_shims(&self.instance.runs_dir()).is_ok_and(|shims| !shims.is_empty())
    }

    /// Records that the user stopped the daemon, so that clients and read-only commands do not start it.
    pub(crate) fn mark_stopped(&self) -> Result<(), CliError> {
        let failed = "the stop cannot be recorded, so clients may start the daemon again";
        self.instance.mark_stopped().map_err(CliError::io(failed))
    }

    /// Removes that record after a failed stop.
    pub(crate) fn clear_stopped(&self) {
        let _disk_is_broken = self.instance.clear_stopped();
    }

    /// Connects to the daemon if there is one. Never starts it. While a holder has the lock of the instance, the
    /// socket is absent only for a moment: it was removed and is bound again, or its daemon is ending.
    async fn probe(&self) -> Result<Option<Connection>, CliError> {
        let deadline = Instant::now() + GRACE.total;
        loop {
            match connect_if_present(&|| self.dial(), self.short_grace()).await {
                Ok(connection) => return Ok(Some(connection)),
                Err(error) if !error.is_absence() => return Err(self.error(error)),
                Err(_) if self.holder().is_none() => return Ok(None),
                Err(error) if Instant::now() >= deadline => return Err(self.error(error)),
                Err(_) => sleep(GRACE.every).await,
            }
        }
    }

    /// Sends a request to the daemon if there is one. Never starts it.
    pub(crate) async fn call_if_running<T: DeserializeOwned>(
        &self,
        request: &Request,
    ) -> Result<Option<T>, CliError> {
        match self.probe().await? {
            Some(connection) => self.finish(connection.call(request).await).map(Some),
            None => Ok(None),
        }
    }

    /// Requests the status of the daemon if there is one. Never starts it.
    pub(crate) async fn inspect(&self) -> Result<Option<DaemonInfo>, CliError> {
        self.call_if_running(&Request::Daemon).await
    }

    /// Why the last daemons failed, if no other one has served since.
    pub(crate) fn failure_report(&self) -> Option<FailureReport> {
        FailureReport::read_from(&self.instance.run_dir)
    }

    /// The process of the holder, if one has the lock of this instance.
    pub(crate) fn holder(&self) -> Option<u32> {
        mainstay_hold::holder::pid(&self.instance.state_dir)
    }

    /// Adds the socket to the error of a request.
    fn finish<T>(&self, answer: Result<T, CallError>) -> Result<T, CliError> {
        answer.map_err(|error| self.error(error))
    }

    /// Connects, and starts the daemon if necessary.
    async fn connect(&self, request: &Request) -> Result<Connection, CliError> {
        let connection = match &self.start {
            Start::With(_) if self.is_stopped_by_user() && !starts_stopped_daemon(request) => {
                match self.connect_existing().await {
                    Err(error) if error.is_absence() => return Err(CliError::Stopped),
                    met => self.finish(met)?,
                }
            }
            Start::With(launch) => self.connect_or_launch(launch).await?,
            Start::Forbidden => self.finish(self.connect_when_started().await)?,
            Start::InsideServer => match self.connect_when_started().await {
                Err(error) if error.is_absence() => return Err(CliError::Supervised),
                waited => self.finish(waited)?,
            },
        };
        version::warn(connection.hello(), request);
        Ok(connection)
    }

    /// Connects, or starts the daemon. A launch has no effect while another daemon is starting, or still has the state
    /// directory while it ends. Both are then retried within the grace period.
    async fn connect_or_launch(&self, launch: &Launch) -> Result<Connection, CliError> {
        let deadline = Instant::now() + GRACE.total;
        loop {
            let absence = match self.connect_existing().await {
                Ok(connection) => return Ok(connection),
                Err(error) if error.is_absence() || is_invalid_path(&error) => error,
                Err(error) => return Err(self.error(error)),
            };
            if launch.start().await? {
                return self.finish(self.connect_when_started().await);
            }
            if Instant::now() >= deadline {
                return Err(self.instance.other_machine().map_or_else(
                    || self.error(absence),
                    |machine| CliError::OtherMachine { host_name: machine.host_name },
                ));
            }
            sleep(GRACE.every).await;
        }
    }

    /// Connects to a listening holder or daemon. Fails at once if there is none.
    async fn connect_existing(&self) -> Result<Connection, CallError> {
        connect_if_present(&|| self.dial(), GRACE).await
    }

    /// Connects to a daemon that is running or starting.
    async fn connect_when_started(&self) -> Result<Connection, CallError> {
        connect_with_restart_grace(&|| self.dial(), GRACE).await
    }

    fn dial(&self) -> io::Result<UnixStream> {
        // A daemon that was started meanwhile may use another run directory.
        let instance = self.instance.clone().located();
        mainstay_hold::socket::connect(&instance.run_dir, Instance::SOCKET)
    }

    fn error(&self, error: CallError) -> CliError {
        match (error, self.failure_report()) {
            (CallError::NoHello, Some(report)) => {
                let again = "Mainstay tries again every minute, and every 5 s while a client waits";
                CliError::Failing {
                    message: report.line().unwrap_or_else(|| "the disk may be full".to_owned()),
                    help: report.help.map_or(again.to_owned(), |help| format!("{help}; {again}")),
                }
            }
            (error, _) => CliError::call(&self.instance.socket(), error),
        }
    }

    /// How long to wait for a daemon if only its presence is queried.
    fn short_grace(&self) -> Grace {
        let usual = GRACE;
        match self.failure_report() {
            Some(_) => Grace { total: FAILING_GRACE, ..usual },
            None => usual,
        }
    }
}

/// Whether a request starts servers, and therefore also a daemon that the user has stopped.
fn starts_stopped_daemon(request: &Request) -> bool {
    matches!(
        request,
        Request::Run { .. }
            | Request::Import { .. }
            | Request::Pull { .. }
            | Request::Start { .. }
            | Request::Restart { .. }
    )
}

/// Whether a parent of the socket is not a directory. The daemon reports that in detail when it is started.
fn is_invalid_path(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable(error) if error.kind() == NotADirectory)
}

/// A process that need not be a child of this one.
pub(crate) struct ProcessHandle(rustix::fd::OwnedFd);

impl ProcessHandle {
    /// None if the process has exited.
    pub(crate) fn open(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let _gone_already = pidfd_send_signal(&self.0, Signal::TERM);
    }

    /// Waits for its exit. False if the limit has passed.
    pub(crate) async fn wait_exit(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.is_over() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(Duration::from_millis(5)).await;
        }
        true
    }

    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_daemon_that_died_is_started_again_unless_that_is_forbidden() {
        let dir = tempfile::tempdir().unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.path().join(Instance::SOCKET)).unwrap());
        let name = "time".parse().unwrap();
        let tried = async |start: Start| {
            let (state_dir, run_dir) = (dir.path().join("state"), dir.path().to_owned());
            let instance = Instance { state_dir, run_dir, config_file: None };
            let remote = Remote { instance, start };
            let tried = remote.http_or_start(&name, Duration::ZERO).await;
            tried.expect_err("there is no daemon")
        };
        for start in [Start::Forbidden, Start::InsideServer] {
            let error = tried(start).await;
            assert!(matches!(error, CliError::Unreachable { .. }), "{error:?}");
        }
        let error = tried(Start::With(Launch::new("/no/such".into(), &[]))).await;
        assert!(matches!(error, CliError::NotStarted { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn the_exit_of_a_process_is_seen_before_it_is_reaped() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let ending = ProcessHandle::open(child.id()).unwrap();
        assert!(!ending.wait_exit(Duration::ZERO).await);
        drop(child.stdin.take());
        assert!(ending.wait_exit(Duration::from_secs(30)).await);
        child.wait().unwrap();
        assert!(ProcessHandle::open(child.id()).is_none());
    }
}

//! The daemon as this program reaches it.
//!
//! A daemon that is not there is started, unless that is forbidden or the user has stopped it. One that is ending or
//! being replaced is waited for, for the whole grace: a connection may be queued by the holder
//! before there is a daemon to serve it. No request byte is written before the daemon has said
//! hello, so all of that is safe to try again; once a request is on its way, nothing is.

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
use mainstay_hold::shim_search::run_dirs_of_shims;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::context::Context;
use crate::error::CliError;
use crate::failure_report::FailureReport;
use crate::launch::{Launch, RUN_VARIABLE};

/// How a daemon refuses a request that it does not know.
const NOT_UNDERSTOOD: &str = "the request cannot be understood";

/// The daemon of one instance.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    instance: Instance,
    start: Start,
}

/// Whether a daemon that is not there is started.
#[derive(Debug, Clone)]
enum Start {
    /// It is, like this.
    With(Launch),
    /// The user does not want that.
    Forbidden,
    /// A server asks: whatever it starts ends with it, and a daemon with all other servers.
    InsideServer,
}

impl Remote {
    /// The daemon of the instance that the command is about.
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

    /// Sends a request and reads its answer. A request that a daemon did not take, because it was ending, goes to the
    /// next one.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, CliError> {
        match self.connect(request).await?.call(request).await {
            Err(CallError::Unsent(_)) => {
                self.finish(self.connect(request).await?.call(request).await)
            }
            answer => self.finish(answer),
        }
    }

    /// Sends a request, hands the items to `each` as they come, until the stream or `each` ends, and
    /// reads the answer.
    pub(crate) async fn stream<I: DeserializeOwned, T: DeserializeOwned>(
        &self,
        request: &Request,
        mut each: impl FnMut(Vec<I>) -> Result<(), CliError>,
    ) -> Result<T, CliError> {
        let mut each_error = None;
        let each = |items| {
            each(items).map_err(|error| {
                each_error = Some(error);
                io::Error::other("the reader is done")
            })
        };
        let answer = self.connect(request).await?.stream(request, each).await;
        match each_error {
            Some(error) => Err(error),
            None => self.finish(answer),
        }
    }

    /// A connection that carries HTTP to a server.
    pub(crate) async fn http(&self, name: &ServerName) -> Result<tokio::net::UnixStream, CliError> {
        let connection = self.connect(&Request::Http { name: name.clone() }).await?;
        self.http_over(connection, name).await
    }

    /// The same for a client that had one before. Starts nothing: the holder restarts a daemon that died.
    pub(crate) async fn http_if_running(
        &self,
        name: &ServerName,
    ) -> Result<tokio::net::UnixStream, CliError> {
        let connection = self.finish(self.connect_existing().await)?;
        version::warn(connection.hello(), &Request::Http { name: name.clone() });
        self.http_over(connection, name).await
    }

    /// The same, without a holder that would restart the daemon: starts another one, unless that is forbidden, the user
    /// has stopped it, or a service manager may be about to start it.
    pub(crate) async fn http_or_start(
        &self,
        name: &ServerName,
        waited: Duration,
    ) -> Result<tokio::net::UnixStream, CliError> {
        let managed = self.instance.is_managed() && waited < Grace::default().total;
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

    /// Whether the user stopped the daemon, and nothing has started one since.
    pub(crate) fn is_stopped_by_user(&self) -> bool {
        self.instance.is_stopped_by_user()
    }

    /// Whether servers that are local processes are running, as far as can be seen without a daemon.
    pub(crate) fn has_running_servers(&self) -> bool {
        run_dirs_of_shims(&self.instance.runs_dir()).is_ok_and(|shims| !shims.is_empty())
    }

    /// Keeps clients and commands that only ask from starting a daemon.
    pub(crate) fn mark_stopped(&self) -> Result<(), CliError> {
        let failed = "the stop cannot be recorded, so clients may start the daemon again";
        self.instance.mark_stopped().map_err(CliError::io(failed))
    }

    /// Removes the mark of a stop that failed.
    pub(crate) fn clear_stopped(&self) {
        let _disk_is_broken = self.instance.clear_stopped();
    }

    /// Connects to the daemon if there is one. Never starts it. While a holder has the lock of the instance, the
    /// socket is absent only for a moment: it was removed and is bound again, or its daemon is ending.
    pub(crate) async fn probe(&self) -> Result<Option<Connection>, CliError> {
        let deadline = Instant::now() + Grace::default().total;
        loop {
            match connect_if_present(&|| self.dial(), self.short_grace()).await {
                Ok(connection) => return Ok(Some(connection)),
                Err(error) if !error.is_absence() => return Err(self.error(error)),
                Err(_) if self.holder().is_none() => return Ok(None),
                Err(error) if Instant::now() >= deadline => return Err(self.error(error)),
                Err(_) => sleep(Grace::default().every).await,
            }
        }
    }

    /// Asks the daemon about itself, if there is one. Never starts it.
    pub(crate) async fn inspect(&self) -> Result<Option<DaemonInfo>, CliError> {
        match self.probe().await? {
            Some(connection) => self.finish(connection.call(&Request::Daemon).await).map(Some),
            None => Ok(None),
        }
    }

    /// Why the last daemons failed, if no other one has served since.
    pub(crate) fn failure_report(&self) -> Option<FailureReport> {
        FailureReport::read_from(&self.instance.run_dir)
    }

    /// The process of the holder, if one has the lock of this instance.
    pub(crate) fn holder(&self) -> Option<u32> {
        mainstay_hold::holder::pid(&self.instance.state_dir)
    }

    /// The answer to a request, or the error with the socket it was meant for.
    pub(crate) fn finish<T>(&self, answer: Result<T, CallError>) -> Result<T, CliError> {
        answer.map_err(|error| self.error(error))
    }

    /// Connects, and starts the daemon if need be.
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

    /// Connects, or starts the daemon. Another one that is just coming up, or still holds the state
    /// directory while it ends, makes a launch come to nothing; then both are tried again within the
    /// grace.
    async fn connect_or_launch(&self, launch: &Launch) -> Result<Connection, CliError> {
        let grace = Grace::default();
        let deadline = Instant::now() + grace.total;
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
            sleep(grace.every).await;
        }
    }

    /// Connects to a listening holder or daemon. Fails at once if there is none.
    async fn connect_existing(&self) -> Result<Connection, CallError> {
        connect_if_present(&|| self.dial(), Grace::default()).await
    }

    /// Connects to a daemon that is there or comes.
    async fn connect_when_started(&self) -> Result<Connection, CallError> {
        connect_with_restart_grace(&|| self.dial(), Grace::default()).await
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

    /// How long to wait for a daemon if only its presence is asked for.
    fn short_grace(&self) -> Grace {
        let usual = Grace::default();
        match self.failure_report() {
            Some(_) => Grace { total: Duration::from_secs(1), ..usual },
            None => usual,
        }
    }
}

/// Whether a request asks for running servers, and so starts a daemon that the user has stopped.
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

/// Whether the socket's path cannot be one. A daemon says best what is wrong with it.
fn is_invalid_path(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable(error) if error.kind() == NotADirectory)
}

/// A process whose end can be awaited without being its parent.
pub(crate) struct ProcessHandle(rustix::fd::OwnedFd);

impl ProcessHandle {
    /// None if the process is gone already.
    pub(crate) fn open(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Asks the process to end.
    pub(crate) fn terminate(&self) {
        let _gone_already = pidfd_send_signal(&self.0, Signal::TERM);
    }

    /// Waits for the end. False if it did not come within the limit.
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
    async fn the_end_of_a_process_is_seen_before_anyone_collects_it() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let ending = ProcessHandle::open(child.id()).unwrap();
        assert!(!ending.wait_exit(Duration::ZERO).await);
        drop(child.stdin.take());
        assert!(ending.wait_exit(Duration::from_secs(30)).await);
        child.wait().unwrap();
        assert!(ProcessHandle::open(child.id()).is_none());
    }
}

//! The daemon as this program reaches it.
//!
//! A daemon that is not there is started, unless that is forbidden. One that is ending or being
//! replaced is waited for. No request byte is written before the daemon has said hello, so all of
//! that is safe to try again; once a request is on its way, nothing is.

use std::io::{self, ErrorKind::NotADirectory};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use mainstay_api::{
    CallError, Connected, Connection, DaemonInfo, Grace, Instance, Request, Wire,
    connect_with_restart_grace,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::context::Context;
use crate::error::CliError;
use crate::launch::{Launch, Launched, RUN_MARK};

/// How long a daemon that accepted a connection may take over its hello when nobody insists.
const SHORT: Grace = Grace { every: Duration::from_millis(200), total: Duration::from_secs(2) };

/// The daemon of one instance.
#[derive(Debug)]
pub(crate) struct Remote {
    instance: Instance,
    start: Start,
}

/// Whether a daemon that is not there is started.
#[derive(Debug)]
enum Start {
    /// It is, like this.
    With(Launch),
    /// The user does not want that.
    Forbidden,
    /// A server asks: whatever it starts ends with it, and a daemon with all other servers.
    ByAServer,
}

impl Remote {
    /// The daemon of the instance that the command is about.
    pub(crate) fn of(ctx: &Context) -> Result<Self, CliError> {
        let start = if ctx.caller.has(RUN_MARK) {
            Start::ByAServer
        } else if ctx.caller.has("MAINSTAY_NO_START") {
            Start::Forbidden
        } else {
            Start::With(Launch::new(ctx.exe.clone(), &ctx.caller.env))
        };
        Ok(Self { instance: ctx.instance()?, start })
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, CliError> {
        self.finish(self.connect().await?.call(request).await)
    }

    /// Sends a request, hands the items to `each` as they come, until the stream or `each` ends, and
    /// reads the answer.
    pub(crate) async fn stream<I: DeserializeOwned, T: DeserializeOwned>(
        &self,
        request: &Request,
        mut each: impl FnMut(Vec<I>) -> Result<(), CliError>,
    ) -> Result<T, CliError> {
        let mut ours = None;
        let each = |items| {
            each(items).map_err(|error| {
                ours = Some(error);
                io::Error::other("the reader is done")
            })
        };
        let answer = self.connect().await?.stream(request, each).await;
        match ours {
            Some(error) => Err(error),
            None => self.finish(answer),
        }
    }

    /// Becomes a client of a server: `request` is a [`Request::Connect`].
    pub(crate) async fn attach(&self, request: &Request) -> Result<(Connected, Wire), CliError> {
        self.finish(self.connect().await?.attach(request).await)
    }

    /// Connects to the daemon if there is one. Never starts it.
    pub(crate) async fn probe(&self) -> Result<Option<Connection>, CliError> {
        let greeted = match self.dial() {
            Ok(first) => self.greet(Some(first), SHORT).await,
            Err(error) => Err(CallError::Unreachable(error)),
        };
        match greeted {
            Ok(connection) => Ok(Some(connection)),
            Err(error) if error.is_absence() => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    /// The daemon's own words about itself, if there is one. Never starts it.
    pub(crate) async fn inspect(&self) -> Result<Option<DaemonInfo>, CliError> {
        match self.probe().await? {
            Some(connection) => self.finish(connection.call(&Request::Daemon).await).map(Some),
            None => Ok(None),
        }
    }

    /// The answer to a request, or the error with the socket it was meant for.
    pub(crate) fn finish<T>(&self, answer: Result<T, CallError>) -> Result<T, CliError> {
        answer.map_err(|error| self.error(error))
    }

    /// Connects, and starts the daemon if need be.
    async fn connect(&self) -> Result<Connection, CliError> {
        let waited = match &self.start {
            Start::With(launch) => return self.connect_or_launch(launch).await,
            Start::Forbidden | Start::ByAServer => self.greet(None, Grace::default()).await,
        };
        waited.map_err(|error| match self.start {
            Start::ByAServer if error.is_absence() => CliError::Supervised,
            Start::Forbidden | Start::ByAServer | Start::With(_) => self.error(error),
        })
    }

    /// Connects, or starts the daemon. Another one that is just coming up, or still holds the state
    /// directory while it ends, makes a launch come to nothing; then both are tried again within the
    /// grace.
    async fn connect_or_launch(&self, launch: &Launch) -> Result<Connection, CliError> {
        let grace = Grace::default();
        let deadline = Instant::now() + grace.total;
        loop {
            let failure = match self.dial().map_err(CallError::Unreachable) {
                Ok(stream) => match self.greet(Some(stream), SHORT).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) if error.is_absence() => error,
                    Err(CallError::NoHello) => CallError::NoHello,
                    Err(error) => return Err(self.error(error)),
                },
                Err(error) if error.is_absence() || leads_nowhere(&error) => {
                    match launch.start().await? {
                        Launched::Ready => return self.finish(self.greet(None, grace).await),
                        Launched::Taken => error,
                    }
                }
                Err(error) => return Err(self.error(error)),
            };
            if Instant::now() >= deadline {
                return Err(self.error(failure));
            }
            sleep(grace.every).await;
        }
    }

    /// Waits for the hello, on the connection that is already there first.
    async fn greet(
        &self,
        first: Option<UnixStream>,
        grace: Grace,
    ) -> Result<Connection, CallError> {
        let first = Mutex::new(first);
        let dial = || {
            let first = first.lock().ok().and_then(|mut first| first.take());
            first.map_or_else(|| self.dial(), Ok)
        };
        connect_with_restart_grace(&dial, grace).await
    }

    fn dial(&self) -> io::Result<UnixStream> {
        mainstay_hold::socket::connect(&self.instance.run_dir, Instance::SOCKET)
    }

    fn error(&self, error: CallError) -> CliError {
        CliError::call(&self.instance.socket(), error)
    }
}

/// Whether the socket's path cannot be one. A daemon says best what is wrong with it.
fn leads_nowhere(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable(error) if error.kind() == NotADirectory)
}

/// A process whose end can be waited for, whoever its parent is.
pub(crate) struct Ending(rustix::fd::OwnedFd);

impl Ending {
    /// None if the process is gone already.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Waits for the end, and tells whether it came within the limit.
    pub(crate) async fn within(&self, limit: Duration) -> bool {
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
    async fn the_end_of_a_process_is_seen_before_anyone_collects_it() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let ending = Ending::of(child.id()).unwrap();
        assert!(!ending.within(Duration::ZERO).await);
        drop(child.stdin.take());
        assert!(ending.within(Duration::from_secs(30)).await);
        child.wait().unwrap();
        assert!(Ending::of(child.id()).is_none());
    }
}

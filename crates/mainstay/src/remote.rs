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
    CallError, Connection, DaemonInfo, Grace, Instance, Request, connect_with_restart_grace,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::{Instant, sleep};

use crate::context::Context;
use crate::error::CliError;
use crate::launch::{Launch, Launched};

/// How long a daemon that accepted a connection may take over its hello when nobody insists.
const SHORT: Grace = Grace { every: Duration::from_millis(200), total: Duration::from_secs(2) };

/// The daemon of one instance.
#[derive(Debug)]
pub(crate) struct Remote {
    instance: Instance,
    /// How to start it; none if that is forbidden.
    launch: Option<Launch>,
}

impl Remote {
    /// The daemon of the instance that the command is about.
    pub(crate) fn of(ctx: &Context) -> Result<Self, CliError> {
        let allowed = !ctx.caller.has("MAINSTAY_NO_START");
        let launch = allowed.then(|| Launch::new(ctx.exe.clone(), &ctx.caller.env));
        Ok(Self { instance: ctx.instance()?, launch })
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, CliError> {
        self.finish(self.connect().await?.call(request).await)
    }

    /// Sends a request and hands every item to `each` as it comes, until the stream or `each` ends.
    pub(crate) async fn stream<I: DeserializeOwned>(
        &self,
        request: &Request,
        mut each: impl FnMut(I) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut ours = None;
        let each = |item| {
            each(item).map_err(|error| {
                ours = Some(error);
                io::Error::other("the reader is done")
            })
        };
        let answer: Result<IgnoredAny, _> = self.connect().await?.stream(request, each).await;
        match (answer, ours) {
            (_, Some(error)) => Err(error),
            (Err(error), None) => Err(self.error(error)),
            (Ok(_), None) => Ok(()),
        }
    }

    /// Connects to the daemon if there is one. Never starts it.
    pub(crate) async fn probe(&self) -> Result<Option<Connection>, CliError> {
        let first = match self.dial() {
            Ok(stream) => stream,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(self.error(CallError::Unreachable(error))),
        };
        match self.greet(Some(first), SHORT).await {
            Ok(connection) => Ok(Some(connection)),
            Err(CallError::Unreachable(error)) if is_absent(&error) => Ok(None),
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

    /// Connects, and starts the daemon if need be. Another one that is just coming up, or still
    /// holds the state directory while it ends, makes a launch come to nothing; then both are tried
    /// again within the grace.
    async fn connect(&self) -> Result<Connection, CliError> {
        let Some(launch) = &self.launch else {
            return self.finish(self.greet(None, Grace::default()).await);
        };
        let grace = Grace::default();
        let deadline = Instant::now() + grace.total;
        loop {
            let failure = match self.dial() {
                Ok(stream) => match self.greet(Some(stream), SHORT).await {
                    Ok(connection) => return Ok(connection),
                    Err(CallError::Unreachable(error)) if is_absent(&error) => {
                        CallError::Unreachable(error)
                    }
                    Err(CallError::NoHello) => CallError::NoHello,
                    Err(error) => return Err(self.error(error)),
                },
                // Of a path that leads nowhere, the daemon says best what is wrong with it.
                Err(error) if is_absent(&error) || error.kind() == NotADirectory => {
                    match launch.start().await? {
                        Launched::Ready => return self.finish(self.greet(None, grace).await),
                        Launched::Taken => CallError::Unreachable(error),
                    }
                }
                Err(error) => return Err(self.error(CallError::Unreachable(error))),
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

/// Whether a dial failed because nobody listens.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
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

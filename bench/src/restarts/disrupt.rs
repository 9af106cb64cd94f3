//! Kills the daemon, or has it replaced, again and again.
//!
//! Each disruption waits until the daemon has answered and lived for a while, because the holder
//! gives up on daemons that die young, and then for a random time.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::board::Board;
use super::updates::Versions;
use crate::rig::{BenchError, Instance, kill};

/// How long one recovery may take.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// How long a daemon is left alone: longer than the second that makes its death an early one.
pub(super) const CALM: Duration = Duration::from_millis(1100);
/// At most this is added to it.
const WHIM_MS: u64 = 400;
const POLL: Duration = Duration::from_millis(20);
/// How closely the end of a process is watched.
const TICK: Duration = Duration::from_millis(1);

/// What is done to the daemon.
#[derive(Clone, Copy)]
pub(super) enum Kind<'a> {
    Kill,
    Reload,
    /// An update that fails: another daemon may take over for a moment, and the old program is back.
    Update(&'a Versions),
}

/// The part of `mainstay daemon status --json` that is read here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Daemon {
    pub(super) pid: u32,
    number: u64,
    pub(super) holder: Option<u32>,
    log: PathBuf,
}

impl Daemon {
    pub(super) async fn of(instance: &Instance) -> Result<Self, BenchError> {
        let stdout = instance.mainstay(&["daemon", "status", "--json"]).await?;
        let command = "mainstay daemon status --json".to_owned();
        serde_json::from_slice(&stdout).map_err(|source| BenchError::Unreadable { command, source })
    }

    /// The daemon after this one, once it answers.
    pub(super) async fn successor(&self, instance: &Instance) -> Result<Self, BenchError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let daemon = Self::of(instance).await?;
            if daemon.number > self.number {
                return Ok(daemon);
            }
            if Instant::now() >= deadline {
                return Err(late("another daemon"));
            }
            sleep(POLL).await;
        }
    }
}

/// Disrupts so many times; returns how long each took until the next daemon said that it was ready.
pub(super) async fn disrupt(
    instance: &Instance,
    kind: Kind<'_>,
    count: u32,
    board: &Board,
) -> Result<Vec<Duration>, BenchError> {
    let mut starts = Vec::new();
    let mut daemon = Daemon::of(instance).await?;
    for number in 1..=count {
        sleep(CALM + Duration::from_millis(whim()?)).await;
        let began = Timestamp::now();
        once(instance, kind, &daemon, board).await?;
        if !board.until(LIMIT, super::tally::Tally::recovered).await {
            return Err(late(&format!("an answer on every route after disruption {number}")));
        }
        daemon = daemon.successor(instance).await?;
        starts.push(ready_after(&daemon, began)?);
    }
    Ok(starts)
}

/// One disruption, to the end of the old daemon.
async fn once(
    instance: &Instance,
    kind: Kind<'_>,
    daemon: &Daemon,
    board: &Board,
) -> Result<(), BenchError> {
    let death = Death::of(daemon.pid).map_err(BenchError::SetUp)?;
    let replaced = !matches!(kind, Kind::Kill);
    board.note(|tally| tally.disrupted(Instant::now(), replaced));
    let gone = async {
        let gone = timeout(LIMIT, death.happens()).await;
        gone.map_err(|_| late("the end of the old daemon"))?.map_err(BenchError::SetUp)
    };
    let over = || board.note(|tally| tally.over(Instant::now()));
    match kind {
        Kind::Kill => {
            kill(daemon.pid);
            gone.await.map(|()| over())
        }
        Kind::Reload => {
            let gone = async { gone.await.map(|()| over()) };
            let (reloaded, gone) = tokio::join!(instance.mainstay(&["daemon", "reload"]), gone);
            if let Err(error) = reloaded {
                board.note(|tally| tally.misled(&crate::chain(&error)));
            }
            gone
        }
        Kind::Update(versions) => {
            // The flawed daemon may have had connections, too.
            let (undone, gone) = tokio::join!(versions.fail(instance), gone);
            undone.and(gone).map(|()| over())
        }
    }
}

/// Tells when a process has ended, and with it all its connections.
pub(crate) struct Death(OwnedFd);

impl Death {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    pub(crate) async fn happens(&self) -> io::Result<()> {
        loop {
            let mut state = [PollFd::new(&self.0, PollFlags::IN)];
            if poll(&mut state, Some(&Timespec::default()))? > 0 {
                return Ok(());
            }
            sleep(TICK).await;
        }
    }
}

pub(super) fn whim() -> Result<u64, BenchError> {
    let random = getrandom::u64().map_err(|error| BenchError::SetUp(io::Error::other(error)))?;
    Ok(random % WHIM_MS)
}

/// When a daemon said in its log that it was ready.
fn ready_after(daemon: &Daemon, began: Timestamp) -> Result<Duration, BenchError> {
    let log = fs::read_to_string(&daemon.log).map_err(BenchError::SetUp)?;
    let ready = ready_at(&log, daemon.pid).ok_or_else(|| unready(&daemon.log))?;
    Duration::try_from(ready.duration_since(began)).map_err(|_| unready(&daemon.log))
}

fn ready_at(log: &str, pid: u32) -> Option<Timestamp> {
    let mark = format!("pid={pid}");
    let said = |line: &&str| {
        line.contains("daemon ready") && line.split_whitespace().any(|word| word == mark)
    };
    log.lines().rev().find(said)?.split_whitespace().next()?.parse().ok()
}

fn unready(log: &Path) -> BenchError {
    BenchError::Wrong(format!("`{}` does not say when the daemon was ready", log.display()))
}

pub(super) fn late(what: &str) -> BenchError {
    BenchError::Late { what: what.to_owned(), limit: LIMIT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_when_a_daemon_was_ready() {
        let log = "2026-01-02T03:04:05.000001Z  INFO daemon ready version=\"0.1.0\" pid=41\n\
                   2026-01-02T03:04:06.000002Z  INFO daemon ready version=\"0.1.0\" pid=4\n";
        assert_eq!(ready_at(log, 4), Some("2026-01-02T03:04:06.000002Z".parse().unwrap()));
        assert_eq!(ready_at(log, 1), None);
    }
}

//! The holder: the small process that keeps listeners and lock while daemons come and go.
//!
//! It owns every listening socket, the instance lock and one daemon, with which it talks over a socket
//! that is the daemon's standard input ([`HolderChannel`] is the daemon's end). What it guarantees:
//!
//! - A listener stays open until it is released, whatever daemons do: connections are queued for the next daemon and
//!   none is refused.
//! - A daemon that dies is started again, at once at first, then with growing pauses while daemons are unstable, and
//!   without limit. From the third unstable daemon in a row on, a report in the run directory has the reason.
//! - Connections that are in use stay open when the daemon is killed, and the next one continues them
//!   ([`ConnectionStore`]).
//! - A daemon is replaced without a gap: its successor prepares beside it and serves when the old one has handed over.
//!   A successor that fails is rolled back, if necessary to the previous program.
//! - An end on purpose closes the listeners first, so a late client is refused rather than left waiting,
//!   and then waits for the daemon. They are closed when the daemon reports that it has stopped accepting; a signal to the
//!   holder only requests that, and a daemon that ignores it is killed.
//! - The instance is locked while the holder or any of its daemons lives. If the holder dies, the daemon
//!   starts another one with all that it holds ([`HolderChannel::replace_holder`]). There are never two.
//! - Packets are accepted from the daemon's pid only; others are discarded.
//! - A holder executes the program of its daemon when that has changed (`reexec`), so that updates reach it.
//!
//! `plan` decides what happens next, and is pure; `run` executes it. All times are in [`limits`](crate::limits). An idle
//! holder sleeps in `poll` without a time limit. A daemon inherits its three streams and no other descriptor.

mod channel;
mod connection_copies;
mod connection_store;
mod daemon;
mod failure_report;
mod listeners;
mod lock;
mod message;
mod notify;
mod packet;
mod plan;
mod process;
mod reexec;
mod run;
mod signals;
mod waiting;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Pid;

pub use self::channel::{
    HolderChannel, HolderEvent, Inherited, InheritedState, StartInfo, Welcome,
};
pub use self::connection_store::{
    CLOSE, ConnectionStore, IDLE, MAX_DATA, RESPONSE, StoredConnection,
};
use self::daemon::Daemon;
pub use self::failure_report::FILE as FAILURE_REPORT;
use self::listeners::Listeners;
use self::lock::Attempt;
pub use self::lock::pid;
pub use self::message::{ListenAddr, Unfinished};
use self::message::{ToDaemon, ToHolder, VERSION};
use self::notify::Notify;
use self::packet::{Buffer, Packet};
use self::plan::{Outcome, Plan};
use self::process::{Process, Spawned};
pub use self::reexec::runs;
use self::run::Holder;
use self::signals::Signals;
use crate::clock;
use crate::descriptors::null;

/// The settings of a holder.
#[derive(Debug, Clone)]
pub struct Config {
    /// The program of the daemon, absolute.
    pub exe: PathBuf,
    /// Its arguments. The environment is the holder's own.
    pub args: Vec<OsString>,
    /// Where the lock is. The directory exists and is private.
    pub state_dir: PathBuf,
    /// Where failures are reported. The directory exists and is private.
    pub run_dir: PathBuf,
    /// Whether the daemon shares the standard output and error of the holder.
    pub foreground: bool,
    /// Builds the command that executes the daemon's program as this holder; it calls [`take_over`]. Fails if
    /// the daemon (the pid) does not run the program that is at `exe` now.
    pub reexec: fn(&Config, exe: &Path, daemon: Pid) -> io::Result<Command>,
}

/// Why a holder ended other than on purpose.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another holder, or a daemon of it, has the lock. Nothing was started.
    #[error("{} has the lock", .pid.map_or("another process".into(), |pid| format!("the process {pid}")))]
    Taken {
        /// The process whose pid is in the lock.
        pid: Option<u32>,
    },
    /// The lock cannot be used.
    #[error("the lock cannot be used: {0}")]
    Lock(#[source] io::Error),
    /// The first daemon did not start. Nothing is left of it.
    #[error("the daemon did not start")]
    NotStarted {
        /// The error that it reported (see [`HolderChannel::failed`]) or, if there is none, how it ended and its last lines.
        error: Vec<u8>,
    },
    /// The system refused something that the holder cannot do without.
    #[error("cannot {attempt}: {source}")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Runs until its daemon has ended on purpose. Calls `ready` once, when the first daemon serves.
pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), HoldError> {
    match lock::attempt(&config.state_dir).map_err(HoldError::Lock)? {
        Attempt::Ours(lock) => {
            let signals = listen(&config)?;
            hold(config, lock, Notify::from_env(), signals, ready)
        }
        Attempt::Taken(_, pid) => Err(HoldError::Taken { pid }),
    }
}

/// As [`run()`], for a service manager: waits until the lock is free instead of failing, and meanwhile reports to the
/// manager that the service is up, because another holder serves. A signal ends the wait, and that holder too if it
/// belongs to the same service.
pub fn run_when_free(config: Config, ready: impl FnOnce()) -> Result<(), HoldError> {
    let notify = Notify::from_env();
    let mut signals = listen(&config)?;
    let lock = match lock::attempt(&config.state_dir).map_err(HoldError::Lock)? {
        Attempt::Ours(lock) => lock,
        Attempt::Taken(lock, pid) => {
            notify.waiting(pid);
            let waited = waiting::wait(lock, &config.state_dir, &notify, &mut signals);
            let Some(lock) = waited.map_err(io_error("wait for the lock"))? else { return Ok(()) };
            notify.starting();
            lock
        }
    };
    hold(config, lock, notify, signals, ready)
}

/// Runs a holder that replaces a dead one, or continues a holder after a re-exec. Its standard input is the
/// socket that [`HolderChannel::replace_holder`] or the previous program left there. Returns when the daemon has ended
/// for good.
pub fn take_over(config: Config) -> Result<(), HoldError> {
    let signals = listen(&config)?;
    let received = take_stdio(config.foreground).and_then(receive);
    let Received { spawned, mut lock, holder_lock, listeners } =
        received.map_err(io_error("take over"))?;
    let (plan, id) = Plan::adopt(clock::now(), config.exe.clone());
    let mut daemon = Daemon::new(id, spawned);
    let holder_lock = match holder_lock.map_or_else(|| lock::holder(&config.state_dir), Ok) {
        Ok(lock) => lock,
        Err(error) => {
            daemon.send(&ToDaemon::NotReplaced { why: error.to_string() }, Vec::new());
            return Err(HoldError::Lock(error));
        }
    };
    // The pid in the lock is informational. A full disk must not prevent the takeover.
    let _no_space = lock::sign(&mut lock);
    let holder_pid = std::process::id();
    daemon.send(&ToDaemon::TakenOver { version: VERSION, holder_pid }, Vec::new());
    let mut holder = Holder::new(config, plan, [lock, holder_lock], signals, Notify::from_env());
    holder.listeners = listeners;
    holder.daemons.push(daemon);
    finish(holder)
}

fn hold(
    config: Config,
    lock: File,
    notify: Notify,
    signals: Signals,
    ready: impl FnOnce(),
) -> Result<(), HoldError> {
    let holder_lock = lock::holder(&config.state_dir).map_err(HoldError::Lock)?;
    let plan = Plan::new(clock::now(), config.exe.clone());
    let mut holder = Holder::new(config, plan, [lock, holder_lock], signals, notify);
    holder.ready = Some(Box::new(ready));
    finish(holder)
}

fn finish(holder: Holder<'_>) -> Result<(), HoldError> {
    match holder.run().map_err(io_error("wait for the daemon"))? {
        Outcome::Done => Ok(()),
        Outcome::NotStarted(error) => Err(HoldError::NotStarted { error }),
    }
}

fn listen(config: &Config) -> Result<Signals, HoldError> {
    Signals::listen(config.foreground).map_err(io_error("listen to signals"))
}

/// Takes the socket from standard input and puts `/dev/null` there, so that no child inherits it.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(null()?)?;
    Ok(socket)
}

/// In the background, output and error are closed: they are the daemon's, which must be able to end without us.
fn take_stdio(foreground: bool) -> io::Result<OwnedFd> {
    let socket = take_stdin()?;
    if !foreground {
        rustix::stdio::dup2_stdout(null()?)?;
        rustix::stdio::dup2_stderr(null()?)?;
    }
    Ok(socket)
}

/// What a new holder starts with.
struct Received {
    spawned: Spawned,
    lock: File,
    /// Only from the program that ran in this process before a re-exec.
    holder_lock: Option<File>,
    listeners: Listeners,
}

/// Receives what a daemon hands over, or the program that ran in this process before a re-exec.
fn receive(stdin: OwnedFd) -> io::Result<Received> {
    let mut buffer = Buffer::new();
    let Packet { bytes, descriptors, .. } = channel::next(stdin.as_fd(), &mut buffer)?;
    let (has_stderr, count, resumed) = match message::decode(bytes).map_err(channel::unexpected)? {
        Some(ToHolder::Handover { version: 1.., stderr, listeners }) => (stderr, listeners, None),
        Some(ToHolder::Resume { version: 2.., stderr, listeners, last_output }) => {
            (stderr, listeners, Some(last_output))
        }
        _ => return Err(channel::unexpected("nothing was handed over")),
    };
    let mut descriptors = descriptors.into_iter();
    let mut next =
        || descriptors.next().ok_or_else(|| channel::unexpected("a descriptor is missing"));
    let lock = next()?;
    let holder_lock = resumed.is_some().then(&mut next).transpose()?;
    let pidfd = next()?;
    let socket = resumed.is_some().then(&mut next).transpose()?;
    let stderr = has_stderr.then(&mut next).transpose()?;
    if let Some(pipe) = &stderr {
        rustix::io::ioctl_fionbio(pipe, true)?;
    }
    let held = channel::read_listeners(stdin.as_fd(), &mut buffer, count)?;
    let socket = socket.unwrap_or(stdin);
    packet::enable_sender_credentials(socket.as_fd())?;
    Ok(Received {
        spawned: Spawned {
            process: Process::adopt(pidfd)?,
            socket,
            stderr,
            last_output: resumed.unwrap_or_default(),
        },
        lock: lock.into(),
        holder_lock: holder_lock.map(File::from),
        listeners: Listeners::adopt(held),
    })
}

fn io_error(attempt: &'static str) -> impl Fn(io::Error) -> HoldError {
    move |source| HoldError::Io { attempt, source }
}

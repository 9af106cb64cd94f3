//! The holder: the small process that keeps listeners and lock while daemons come and go.
//!
//! It owns every listening socket, the instance lock and one daemon, with which it talks over a socket
//! that is the daemon's standard input ([`Link`] is the daemon's end). What it guarantees:
//!
//! - A listener that was asked for stays open until it is released, whatever daemons do: connections
//!   wait for the next daemon and none is refused.
//! - A daemon that dies is started again, at once at first, then ever later while they live less than a
//!   second: after a minute at most, after 5 s if a client waits, and without limit. From the third such death in a row
//!   on the run directory says why. Daemons that live longer, but not long, are started again after a pause.
//! - Connections that are in use stay open when the daemon is killed, and the next one continues them
//!   ([`ConnectionStore`]).
//! - A daemon is replaced without a gap: its successor prepares beside it and serves when the old one has
//!   yielded. A successor that is no good is undone, in the end by the program that was there before.
//! - An end on purpose closes the listeners first, so a late client is refused rather than left waiting,
//!   and then waits for the daemon. They are closed at the daemon's word, which it gives when it has
//!   stopped accepting; a signal to the holder only asks for that, and kills a daemon that does not heed
//!   it within 10 seconds.
//! - The instance is locked while the holder or any of its daemons lives. If the holder dies, the daemon
//!   starts another one with all that it holds ([`Link::replace_holder`]). There are never two.
//! - Packets are accepted from the daemon's pid only; others are discarded.
//! - A holder executes the program of its daemon when that has changed (`reexec`), so that updates reach it.
//!
//! What happens next is decided in `plan`, which is pure; `run` carries it out. An idle holder sleeps in
//! `poll` without a time limit. Nothing leaks into a daemon but its three streams: everything else is
//! closed on exec.

mod connection_copies;
mod connection_store;
mod daemon;
mod failure_report;
mod link;
mod listeners;
mod lock;
mod message;
mod notify;
mod packet;
mod place;
mod plan;
mod process;
mod reexec;
mod run;
mod signals;
mod waiting;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use rustix::process::Pid;

pub use self::connection_store::{
    CLOSE, ConnectionStore, IDLE, MAX_DATA, RESPONSE, StoredConnection,
};
use self::daemon::Daemon;
pub use self::failure_report::FILE as FAILURE_REPORT;
pub use self::link::{HolderEvent, Link, Welcome};
use self::listeners::Listeners;
use self::lock::Attempt;
pub use self::lock::pid;
pub use self::message::Unfinished;
use self::message::{ToDaemon, ToHolder, VERSION};
use self::notify::Notify;
use self::packet::{Buffer, Packet};
pub use self::place::Place;
use self::plan::{Outcome, Plan};
use self::process::{Process, Spawned};
pub use self::reexec::runs;
use self::run::Holder;
use self::signals::Signals;
use crate::clock;
use crate::descriptors::null;

/// What a holder must know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The program of the daemon, absolute.
    pub exe: PathBuf,
    /// Its arguments. The environment is the holder's own.
    pub args: Vec<OsString>,
    /// Where the lock is. The directory exists and is private.
    pub state_dir: PathBuf,
    /// Where last words are left. The directory exists and is private.
    pub run_dir: PathBuf,
    /// Whether the daemon shares the standard output and error of the holder.
    pub foreground: bool,
    /// Builds the command that executes the daemon's program as this holder; it calls [`take_over`]. Fails if
    /// the daemon (the pid) does not run the program that is at `exe` now.
    pub reexec: fn(&Config, exe: &Path, daemon: Pid) -> io::Result<Command>,
}

/// How the first start went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum First {
    /// The daemon serves.
    Ready,
    /// It does not: its own word (see [`Link::failed`]) or, if it died silently, how it ended and
    /// its last lines.
    Failed(Vec<u8>),
}

/// Why a holder ended other than on purpose.
#[derive(Debug)]
pub enum HoldError {
    /// Another holder, or a daemon of it, has the lock. Nothing was started.
    Taken {
        /// The process that left its number in the lock.
        pid: Option<u32>,
    },
    /// The lock cannot be used.
    Lock(io::Error),
    /// The first daemon did not start, as was told.
    NotStarted,
    /// The system refused something that the holder cannot do without.
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { pid: Some(pid) } => write!(f, "the process {pid} has the lock"),
            Self::Taken { pid: None } => f.write_str("another process has the lock"),
            Self::Lock(source) => write!(f, "the lock cannot be used: {source}"),
            Self::NotStarted => f.write_str("the daemon did not start"),
            Self::Io { attempt, source } => write!(f, "cannot {attempt}: {source}"),
        }
    }
}

impl std::error::Error for HoldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lock(source) | Self::Io { source, .. } => Some(source),
            Self::Taken { .. } | Self::NotStarted => None,
        }
    }
}

/// Lives until its daemon has ended for good. `tell` is told once how the first start went, when a
/// failed start has left nothing behind.
pub fn run(config: Config, tell: impl FnOnce(First)) -> Result<(), HoldError> {
    match lock::attempt(&config.state_dir).map_err(HoldError::Lock)? {
        Attempt::Ours(lock) => {
            let signals = listen(&config)?;
            hold(config, lock, Notify::from_env(), signals, tell)
        }
        Attempt::Taken(_, pid) => Err(HoldError::Taken { pid }),
    }
}

/// As [`run()`], for a service manager: waits until the lock is free instead of failing, and tells the
/// manager meanwhile that all is well, because somebody serves. A signal ends the wait, and the one who
/// serves too if that is the manager's as well.
pub fn run_when_free(config: Config, tell: impl FnOnce(First)) -> Result<(), HoldError> {
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
    hold(config, lock, notify, signals, tell)
}

/// Runs a holder that replaces a dead one, or continues a holder after a re-exec. Its standard input is the
/// socket that [`Link::replace_holder`] or the previous program left there. Returns when the daemon has ended
/// for good.
pub fn take_over(config: Config) -> Result<(), HoldError> {
    let signals = listen(&config)?;
    let taken = take_stdio(config.foreground).and_then(receive);
    let Inherited { spawned, mut lock, holder_lock, listeners } =
        taken.map_err(io_error("take over"))?;
    let (plan, id) = Plan::adopt(clock::now(), config.exe.clone());
    let mut daemon = Daemon::new(id, spawned);
    let holder_lock = match holder_lock.map_or_else(|| lock::holder(&config.state_dir), Ok) {
        Ok(lock) => lock,
        Err(error) => {
            daemon.tell(&ToDaemon::NotReplaced { why: error.to_string() }, Vec::new());
            return Err(HoldError::Lock(error));
        }
    };
    // The pid in the lock is informational. A full disk must not prevent the takeover.
    let _no_space = lock::sign(&mut lock);
    let holder_pid = std::process::id();
    daemon.tell(&ToDaemon::TakenOver { version: VERSION, holder_pid }, Vec::new());
    finish(Holder {
        config,
        plan,
        lock: Rc::new(lock.into()),
        holder_lock: holder_lock.into(),
        listeners,
        stored: None,
        passed_on: Vec::new(),
        daemons: vec![daemon],
        signals,
        notify: Notify::from_env(),
        buffer: Buffer::new(),
        tell: Some(|_| ()),
        outcome: None,
    })
}

fn hold(
    config: Config,
    lock: File,
    notify: Notify,
    signals: Signals,
    tell: impl FnOnce(First),
) -> Result<(), HoldError> {
    let holder_lock = lock::holder(&config.state_dir).map_err(HoldError::Lock)?;
    finish(Holder {
        plan: Plan::begin(clock::now(), config.exe.clone()),
        lock: Rc::new(lock.into()),
        holder_lock: holder_lock.into(),
        listeners: Listeners::default(),
        stored: None,
        passed_on: Vec::new(),
        daemons: Vec::new(),
        signals,
        notify,
        buffer: Buffer::new(),
        tell: Some(tell),
        outcome: None,
        config,
    })
}

fn finish<T: FnOnce(First)>(holder: Holder<T>) -> Result<(), HoldError> {
    let (outcome, tell) = holder.live().map_err(io_error("wait for the daemon"))?;
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::NotStarted(word) => {
            if let Some(tell) = tell {
                tell(First::Failed(word));
            }
            Err(HoldError::NotStarted)
        }
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

/// In the background output and error lead nowhere from here on: they are the daemon's, which must be able
/// to end without us.
fn take_stdio(foreground: bool) -> io::Result<OwnedFd> {
    let socket = take_stdin()?;
    if !foreground {
        rustix::stdio::dup2_stdout(null()?)?;
        rustix::stdio::dup2_stderr(null()?)?;
    }
    Ok(socket)
}

/// What a new holder starts with.
struct Inherited {
    spawned: Spawned,
    lock: File,
    /// Only from the program that ran in this process before a re-exec.
    holder_lock: Option<File>,
    listeners: Listeners,
}

/// Receives what a daemon hands over, or the program that ran in this process before a re-exec.
fn receive(inherited: OwnedFd) -> io::Result<Inherited> {
    let mut buffer = Buffer::new();
    let Packet { bytes, descriptors, .. } = link::next(inherited.as_fd(), &mut buffer)?;
    let (has_stderr, count, resumed) = match ToHolder::decode(bytes).map_err(link::unexpected)? {
        Some(ToHolder::Handover { version: 1.., stderr, listeners }) => (stderr, listeners, None),
        Some(ToHolder::Resume { version: 2.., stderr, listeners, last_output }) => {
            (stderr, listeners, Some(last_output))
        }
        _ => return Err(link::unexpected("nothing was handed over")),
    };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| link::unexpected("a descriptor is missing"));
    let lock = next()?;
    let holder_lock = resumed.is_some().then(&mut next).transpose()?;
    let pidfd = next()?;
    let socket = resumed.is_some().then(&mut next).transpose()?;
    let stderr = has_stderr.then(&mut next).transpose()?;
    if let Some(pipe) = &stderr {
        rustix::io::ioctl_fionbio(pipe, true)?;
    }
    let held =
        link::read_listeners(
            inherited.as_fd(),
            &mut buffer,
            count,
            |bytes| match ToHolder::decode(bytes).map_err(link::unexpected)? {
                Some(ToHolder::Listeners(places)) => Ok(places),
                _ => Err(link::unexpected("no listeners came")),
            },
        )?;
    let socket = socket.unwrap_or(inherited);
    packet::enable_sender_credentials(socket.as_fd())?;
    Ok(Inherited {
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

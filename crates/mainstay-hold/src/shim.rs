//! The shim itself: one small process per local server, which outlives the daemon.
//!
//! It owns the server's pipes, its process tree and its exit status. Daemons come and go through
//! `RUN_DIR/shim.sock` in the protocol of [`wire`](crate::wire); the server notices none of it. What the
//! shim guarantees:
//!
//! - Output is kept until a daemon has consumed it. When the ring is full the server waits; no byte is lost
//!   or sent twice.
//! - A line of input is written whole or not at all, once, in order; a line that was only half received when
//!   its daemon died is never written.
//! - Only the daemon with the highest number is served. Those that were replaced are refused.
//! - The end is complete: `Exited` comes after the server's last output, `Gone` when every descendant has
//!   ended, also those that called setsid. The exit record is written before `Gone`. A shim that is
//!   dismissed ends when the attached daemon has been sent all of that, or has not taken it within the linger.
//! - Memory is bounded. A shim whose server is idle does not wake up while a daemon is
//!   connected; otherwise it checks its run directory now and then.
//! - The server inherits its three pipes and no other descriptor.
//! - A run directory that was removed is recreated when a daemon asks for it ([`wire::ToShim::Restore`](crate::wire::ToShim::Restore)) and
//!   while no daemon is connected, so that the next one finds the run.
//! - The server does not outlive the shim. If the shim is killed (also by TERM, which it does not handle), the
//!   kernel kills the server and the guard the other descendants. They are recorded too ([`process_record`]), and in a
//!   cgroup of their own where Mainstay's cgroup is delegated ([`cgroup`]).
//!
//! One thing it does not do: signals that are ignored stay so in the server (only PIPE is put back to its
//! default), because neither std nor rustix can change that. A shim whose first ancestor was started by
//! `nohup`, for example, has a server that ignores HUP unless the server itself decides otherwise.

mod conn;
mod directory_checks;
mod guard;
mod life;
mod oom;
mod reaper;
pub(crate) mod ring;
mod run;
mod scan_schedule;
mod server;
mod spawn;
mod stdin;

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{AtFlags, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, set_child_subreaper, setsid};

use self::guard::Role;
use self::oom::OomWatch;
use self::reaper::Reaper;
use self::run::Run;
use self::server::Server;
use crate::cgroup::{self, RunCgroup};
use crate::launch::{Failure, Launch, Report};
use crate::limits::EMPTY_CGROUP;
use crate::tree::{self, Process};
use crate::{clock, descriptors, process_record, procfs, record, socket};

/// How far the directory of a run is below what surrounds the run directory: `run/runs/SERVER/GENERATION`.
const RUN_DIR_DEPTH: usize = 4;

/// Runs a server to its end, as two processes, the shim and its guard. The [`Launch`] comes from standard input, a [`Report`] goes to standard
/// output. To be called by the main thread before there are others, and without a process group of
/// its own.
pub fn main(run_dir: &Path) -> ExitCode {
    let inherited = descriptors::close_inherited().and_then(|()| take_stdio());
    let Ok((input, output)) = inherited else { return ExitCode::FAILURE };
    // The launch is read first: its writer has set the limits of this process before, and must not get a
    // broken pipe before it reads the failure.
    let launch = match Launch::read(input) {
        Ok(launch) => launch,
        Err(error) => {
            report(output, &Failed::new(Failure::BadLaunch, "cannot read the launch", &error).0);
            return ExitCode::FAILURE;
        }
    };
    let guard = match guard::fork() {
        Ok(Role::Shim { guard }) => guard,
        Ok(Role::Guard { shim }) => {
            drop(output);
            return guard::watch(shim, run_dir);
        }
        Err(error) => {
            report(output, &Failed::setup("cannot start the guard of the shim")(error).0);
            return ExitCode::FAILURE;
        }
    };
    match start(run_dir, guard, &launch) {
        Ok(run) => {
            report(output, &Report::Started { server_pid: run.server_pid() });
            run.finish();
            ExitCode::SUCCESS
        }
        Err(Failed(failure)) => {
            report(output, &failure);
            ExitCode::FAILURE
        }
    }
}

/// A [`Report::Failed`].
struct Failed(Report);

impl Failed {
    fn new(what: Failure, attempt: &str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        Self(Report::Failed { what, errno, message: format!("{attempt}: {error}") })
    }

    fn setup(attempt: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::new(Failure::Setup, attempt, &error)
    }
}

/// Returns when the server runs and everything else is set up. A failure leaves nothing behind.
fn start(run_dir: &Path, guard: u32, launch: &Launch) -> Result<Run, Failed> {
    let (mut claim, listener) =
        Claim::take(run_dir, guard).map_err(Failed::setup("cannot use the run directory"))?;
    detach().map_err(Failed::setup("cannot leave the session of the daemon"))?;

    let oom = OomWatch::begin();
    let spawned = spawn::spawn(launch, claim.create_cgroup(run_dir))?;
    let reaper = Reaper::start(spawned.pid).map_err(|error| {
        // The kernel ends the server when we end, but not the server's children.
        let _best_effort = tree::kill_all(own_pid(), Signal::KILL);
        Failed::new(Failure::Setup, "cannot wait for the server", &error)
    })?;
    let server = Server::new(spawned, launch);
    Ok(Run::new(claim, listener, server, reaper, oom, launch, clock::unix_ms()))
}

/// Own session, so that no signal to the daemon's terminal or process group reaches us; subreaper, so that orphans of the
/// server become our children; a working directory that keeps no file system busy.
fn detach() -> io::Result<()> {
    match setsid() {
        Ok(_) => {}
        // Refused to a process that leads a session already, which is fine.
        Err(Errno::PERM) if leads_a_session()? => {}
        Err(errno) => return Err(errno.into()),
    }
    set_child_subreaper(Some(getpid()))?;
    std::env::set_current_dir("/")
}

/// Read from `/proc`, because a session whose leader is in another process namespace has the number 0,
/// which rustix takes for impossible.
fn leads_a_session() -> io::Result<bool> {
    Ok(procfs::stat(own_pid())?.is_some_and(|stat| stat.session == own_pid()))
}

/// Moves the two pipes of the daemon: after this, standard input, output and error are `/dev/null`.
fn take_stdio() -> io::Result<(File, File)> {
    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let null = descriptors::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok((input.into(), output.into()))
}

/// If the daemon has died meanwhile, the next one finds the socket.
fn report(mut output: File, report: &Report) {
    let _daemon_has_died = output.write_all(&report.encode());
}

fn own_pid() -> u32 {
    std::process::id()
}

/// The run directory while it is ours, and the cgroup of the run. Dropping it kills what is in the cgroup, and removes
/// the cgroup and everything in the directory except the exit record.
///
/// The directory is kept open: if it is removed and another one made in its place, for another run,
/// that one is never touched. Nor is what another shim put into this one.
struct Claim {
    path: PathBuf,
    dir: OwnedFd,
    identity: String,
    guard: u32,
    cgroup: Option<RunCgroup>,
    /// Whether records are missing in a recreated directory.
    is_unrecorded: bool,
}

impl Claim {
    fn take(run_dir: &Path, guard: u32) -> io::Result<(Self, UnixListener)> {
        let (dir, identity) = (socket::open_dir(run_dir)?, record::own_identity()?);
        let path = std::path::absolute(run_dir)?;
        let claim = Self { path, dir, identity, guard, cgroup: None, is_unrecorded: false };
        let dir = claim.dir.as_fd();
        if record::shim_alive_in(dir)?.is_some() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another shim lives here"));
        }
        // If this fails, the record stays, and this run gets no cgroup.
        let _stays = cgroup::end_recorded(run_dir, EMPTY_CGROUP);
        claim.clear();
        let listener = claim.occupy()?;
        Ok((claim, listener))
    }

    /// Binds the socket and names the shim in the directory, which no other shim has.
    fn occupy(&self) -> io::Result<UnixListener> {
        let dir = self.dir.as_fd();
        let listener = socket::bind_in(dir, socket::SHIM)?;
        listener.set_nonblocking(true)?;
        // The link makes the socket ours to remove.
        record::write_pid(dir, &self.identity).inspect_err(|_| self.clear())?;
        record::write_guard(dir, self.guard).inspect_err(|_| self.clear())?;
        Ok(listener)
    }

    /// Recreates the directory if it, its socket or its link was removed, so that daemons find this run. Returns the new
    /// socket, if one had to be bound: its records are still to be [written](Self::write_records).
    fn restore(&mut self) -> io::Result<Option<UnixListener>> {
        if self.is_intact() {
            return Ok(None);
        }
        // If the whole instance was removed, it is not created again for one of its servers.
        if self.path.ancestors().nth(RUN_DIR_DEPTH).is_some_and(|above| !above.exists()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let dir = socket::open_dir(&self.path)?;
        if record::shim_alive_in(dir.as_fd())?.is_some_and(|shim| shim.pid != own_pid()) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another shim lives here"));
        }
        self.dir = dir;
        self.clear();
        let listener = self.occupy()?;
        self.is_unrecorded = true;
        Ok(Some(listener))
    }

    /// Whether daemons find this run: at the path are the directory that is open, the socket and the name of this shim.
    fn is_intact(&self) -> bool {
        let inode = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let is_open_dir = || {
            Some(
                inode(rustix::fs::stat(&self.path).ok()?)
                    == inode(rustix::fs::fstat(&self.dir).ok()?),
            )
        };
        is_open_dir() == Some(true)
            && self.is_ours()
            && statat(&self.dir, socket::SHIM, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Whether the directory exists and no other shim has taken it.
    fn is_ours(&self) -> bool {
        record::names(self.dir.as_fd(), &self.identity)
    }

    /// Creates the cgroup of the run, if that is possible, and returns the way into it.
    fn create_cgroup(&mut self, run_dir: &Path) -> Option<OwnedFd> {
        self.cgroup = RunCgroup::create(run_dir, self.dir.as_fd(), &self.identity);
        self.cgroup.as_ref()?.entry().ok()
    }

    /// Sends KILL to everything in the cgroup. What that misses is killed by the next call, or when it ends.
    fn kill_cgroup(&self) {
        let _again = self.cgroup.as_ref().map(RunCgroup::kill);
    }

    /// Kills what is left in the cgroup, and removes it.
    fn end_cgroup(&mut self) {
        // Processes that survive KILL keep it. Its record stays, so the guard and the next daemon try again.
        if let Some(cgroup) = self.cgroup.take()
            && cgroup.end(EMPTY_CGROUP).is_ok()
            && self.is_ours()
        {
            cgroup::remove_record(self.dir.as_fd());
        }
    }

    /// Records the processes of the run, and its cgroup if that is not recorded, unless another shim has taken the directory.
    fn write_records(&mut self, processes: &[Process]) -> io::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| !cgroup::is_recorded(&self.path)) {
            cgroup.record(self.dir.as_fd(), &self.identity)?;
        }
        process_record::write(self.dir.as_fd(), processes)?;
        self.is_unrecorded = false;
        Ok(())
    }

    /// Removes everything but the exit record, and the record of a cgroup that could not be ended.
    fn clear(&self) {
        for name in [socket::SHIM, record::PID, record::GUARD, process_record::PROCESSES] {
            // What is not there need not be removed; what cannot be is found to be stale later.
            let _stale = unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end_cgroup();
        if self.is_ours() {
            self.clear();
        }
    }
}

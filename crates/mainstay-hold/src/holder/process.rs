//! A daemon's process, our child or not.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal,
    waitid,
};

use super::{notify, packet};
use crate::{descriptors, procfs};

/// A process that is waited for and signalled by descriptor, which is safe if its pid is used again.
#[derive(Debug)]
pub(super) struct Process {
    /// `None` if it had ended, and was reaped, before it was adopted.
    pid: Option<Pid>,
    pidfd: OwnedFd,
}

/// A daemon that was started, and our ends of its socket and pipe.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) process: Process,
    /// Has sender credentials enabled.
    pub(super) socket: OwnedFd,
    /// Its standard error, in the background.
    pub(super) stderr: Option<OwnedFd>,
    /// What was read from there before.
    pub(super) last_output: Vec<u8>,
}

/// Starts a daemon whose standard input is a socket to us. It has a process group of its own: signals of a terminal
/// reach only the holder, which stops the daemon.
pub(super) fn spawn(exe: &Path, args: &[OsString], foreground: bool) -> io::Result<Spawned> {
    let (socket, theirs) = packet::pair()?;
    packet::enable_sender_credentials(socket.as_fd())?;
    let mut command = Command::new(exe);
    descriptors::pass_only_stdio(&mut command);
    command.args(args).process_group(0).stdin(Stdio::from(theirs));
    for name in notify::VARIABLES {
        command.env_remove(name);
    }
    if !foreground {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    }
    let mut child = command.spawn()?;
    let stderr = child.stderr.take().map(OwnedFd::from);
    let set_up = stderr.as_ref().map_or(Ok(()), |pipe| rustix::io::ioctl_fionbio(pipe, true));
    let pid = Pid::from_child(&child);
    match set_up.and_then(|()| pidfd_open(pid, PidfdFlags::empty())) {
        Ok(pidfd) => {
            let process = Process { pid: Some(pid), pidfd };
            Ok(Spawned { process, socket, stderr, last_output: Vec::new() })
        }
        Err(errno) => {
            child.kill()?;
            child.wait()?;
            Err(errno.into())
        }
    }
}

impl Process {
    /// Adopts a process that another process, or this one before a re-exec, has started.
    pub(super) fn adopt(pidfd: OwnedFd) -> io::Result<Self> {
        Ok(Self { pid: procfs::pid_of(pidfd.as_fd())?, pidfd })
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// Does nothing if the process has exited.
    pub(super) fn signal(&self, signal: Signal) {
        let _has_ended = pidfd_send_signal(&self.pidfd, signal);
    }

    /// How it has ended. Call it after the exit. Unknown if it is not our child.
    pub(super) fn reap(&self) -> String {
        match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => how(&status),
            Ok(None) | Err(_) => "it ended".into(),
        }
    }
}

impl AsFd for Process {
    /// Readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn how(status: &WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("it exited with {code}"),
        (None, Some(signal)) => format!("it was killed by signal {signal}"),
        (None, None) => "it ended".into(),
    }
}

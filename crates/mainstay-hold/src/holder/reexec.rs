//! A holder executes the program of its daemon, so that an update replaces the holder too.
//!
//! The pid, the service manager's main process and the child stay the same. What the holder has is sent into a
//! socket that becomes the standard input of the new program, which receives it with
//! [`take_over`](super::take_over). Nothing is closed in between: a connection that arrives meanwhile is
//! queued by its listener, a message of the daemon by its socket.
//!
//! If the new program fails after that, the daemon starts another holder, as for any holder that dies.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::SendFlags;
use rustix::process::getpid;

use super::channel::send_list;
use super::daemon::Daemon;
use super::listeners::Listeners;
use super::message::{self, ToHolder, VERSION};
use super::packet;
use super::signals::Signals;
use crate::codec::length;
use crate::descriptors;

/// Everything that goes to the new program.
pub(super) struct HandoverState<'a> {
    pub(super) lock: BorrowedFd<'a>,
    pub(super) holder_lock: BorrowedFd<'a>,
    pub(super) listeners: &'a Listeners,
    pub(super) daemon: &'a Daemon,
}

/// Executes the command. Returns only if that failed; the holder then continues unchanged.
pub(super) fn reexec(
    mut command: Command,
    state: &HandoverState<'_>,
    signals: &Signals,
) -> io::Result<Infallible> {
    let (ours, theirs) = packet::pair()?;
    state.send(ours.as_fd())?;
    let stdin = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    command.stdin(Stdio::from(theirs));
    signals.keep_through_exec(&mut command)?;
    // The new program raises the limit again, and must see the original.
    descriptors::restore_limit_of(getpid())?;
    let error = command.exec();
    // The attempt has replaced standard input, and reset how signals are handled.
    rustix::stdio::dup2_stdin(stdin)?;
    Signals::restore()?;
    descriptors::raise_limit();
    Err(error)
}

/// Whether a process (a pid, or `self`) runs the program that is at this path now.
pub fn runs(process: &str, program: &Path) -> io::Result<bool> {
    let running = fs::metadata(format!("/proc/{process}/exe"))?;
    let installed = fs::metadata(program)?;
    Ok((running.dev(), running.ino()) == (installed.dev(), installed.ino()))
}

impl HandoverState<'_> {
    /// The reader does not run yet, so everything must fit into the socket's buffer.
    fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let daemon_socket = self.daemon.socket().ok_or(io::ErrorKind::NotConnected)?;
        let stderr = self.daemon.stderr();
        let held = self.listeners.held();
        let resume = ToHolder::Resume {
            version: VERSION,
            stderr: stderr.is_some(),
            listeners: length(held.len()),
            last_output: self.daemon.last_output(),
        };
        let process = self.daemon.process.as_fd();
        let mut descriptors = vec![self.lock, self.holder_lock, process, daemon_socket];
        descriptors.extend(stderr);
        packet::send(socket, &message::encode(&resume), &descriptors, SendFlags::DONTWAIT)?;
        send_list(
            socket,
            held,
            |listen_addrs| ToHolder::Listeners { listen_addrs },
            SendFlags::DONTWAIT,
        )
    }
}

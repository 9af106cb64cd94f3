//! Waits for child processes without polling.
//!
//! One thread is blocked in `wait` as long as there are children: the server, and every orphan that the subreaper
//! inherits.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};

const STACK: usize = 64 * 1024;

/// How the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    /// The server has exited. Comes once.
    Exited(Ended),
    /// No descendant is left. Comes last.
    Childless,
}

/// The readable end of the reaper's pipe.
pub(super) struct Reaper(OwnedFd);

impl Reaper {
    /// Call it when the server is a child already: the thread ends when there are no children.
    pub(super) fn start(server: Pid) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        let work = move || reap(server, &write);
        thread::Builder::new().name("reaper".into()).stack_size(STACK).spawn(work)?;
        Ok(Self(read))
    }

    pub(super) fn pipe(&self) -> &OwnedFd {
        &self.0
    }

    pub(super) fn next(&self) -> Option<Reaped> {
        let mut message = [0; MESSAGE];
        match rustix::io::read(&self.0, &mut message) {
            Ok(0) => Some(Reaped::Childless),
            Ok(_) => Some(Reaped::Exited(decode(message))),
            Err(_) => None,
        }
    }
}

/// Reports the exit of the server by a message and the end by closing the pipe.
fn reap(server: Pid, pipe: &OwnedFd) {
    let mut server = Some(server);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == server => {
                server = None;
                // If the other end is closed, the shim is ending.
                let _ending = rustix::io::write(pipe, &encode(status));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

const MESSAGE: usize = 8;

fn encode(status: WaitStatus) -> [u8; MESSAGE] {
    let half = |value: Option<i32>| value.unwrap_or(-1).to_le_bytes();
    let (code, signal) = (half(status.exit_status()), half(status.terminating_signal()));
    let mut message = [0; MESSAGE];
    message[..4].copy_from_slice(&code);
    message[4..].copy_from_slice(&signal);
    message
}

fn decode(message: [u8; MESSAGE]) -> Ended {
    let (halves, _) = message.as_chunks();
    let half = |at: usize| Some(i32::from_le_bytes(halves[at])).filter(|value| *value >= 0);
    Ended { code: half(0), signal: half(1) }
}

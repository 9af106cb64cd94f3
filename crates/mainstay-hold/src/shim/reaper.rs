//! Waits for child processes without polling.
//!
//! One thread is blocked in `wait` as long as there are children: the server, and every orphan that the subreaper
//! inherits.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, wait};

use crate::codec::{Field, Reader, encoded};

const STACK: usize = 64 * 1024;

encoded! {
    /// How the server ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Ended {
        pub(super) code: Option<i32>,
        pub(super) signal: Option<i32>,
    }
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
        let mut message = [0; 64];
        match rustix::io::read(&self.0, &mut message) {
            Ok(0) => Some(Reaped::Childless),
            Ok(_) => Ended::take(&mut Reader::new(&message), "status").ok().map(Reaped::Exited),
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
                let (code, signal) = (status.exit_status(), status.terminating_signal());
                let mut message = Vec::new();
                Ended { code, signal }.put(&mut message);
                // If the other end is closed, the shim is ending.
                let _ending = rustix::io::write(pipe, &message);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

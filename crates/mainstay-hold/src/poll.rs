//! Waits for several descriptors at once.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Descriptors to wait for, each with a value that identifies it.
pub(crate) struct Sources<'a, S>(Vec<(S, PollFd<'a>)>);

impl<'a, S> Sources<'a, S> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, source: S, fd: BorrowedFd<'a>, flags: PollFlags) {
        self.0.push((source, PollFd::from_borrowed_fd(fd, flags)));
    }

    /// Returns those that are ready, none after this time or a signal.
    pub(crate) fn wait(self, timeout: Option<Duration>) -> io::Result<Vec<(S, PollFlags)>> {
        let timeout = timeout.map(|timeout| {
            Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
        });
        let (sources, mut fds): (Vec<S>, Vec<PollFd<'_>>) = self.0.into_iter().unzip();
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = fds.iter().map(PollFd::revents);
        Ok(sources.into_iter().zip(flags).filter(|(_, flags)| !flags.is_empty()).collect())
    }
}

//! Signals as something to wait for.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// The signals that ask for the end.
#[derive(Debug)]
pub(super) struct Signals(UnixStream);

impl Signals {
    /// From here on they are told here instead of ending the process. In the foreground that includes
    /// the end of the terminal, unless whoever started us had it ignored.
    pub(super) fn listen(foreground: bool) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        let hangup = (foreground && !is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGTERM, SIGINT].into_iter().chain(hangup) {
            pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self(read))
    }

    /// How many have come since.
    pub(super) fn count(&mut self) -> usize {
        self.0.read(&mut [0; 64]).unwrap_or(0)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_known() {
        assert!(is_ignored(signal_hook::consts::SIGPIPE), "std ignores it");
        assert!(!is_ignored(SIGTERM));
    }
}

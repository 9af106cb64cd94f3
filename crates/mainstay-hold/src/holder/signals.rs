//! Signals as a descriptor that can be polled.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// TERM, INT and, in the foreground, HUP.
#[derive(Debug)]
pub(super) struct Signals(UnixStream);

impl Signals {
    /// From now on they are counted here instead of ending the process. HUP is not, if the process that started us had
    /// ignored it.
    pub(super) fn listen(foreground: bool) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        let hangup = (foreground && !is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGTERM, SIGINT].into_iter().chain(hangup) {
            pipe::register(signal, write.try_clone()?)?;
        }
        // Signals that arrived during a re-exec are delivered now.
        mask(libc::SIG_UNBLOCK)?;
        Ok(Self(read))
    }

    /// How many have arrived since the last call.
    pub(super) fn count(&mut self) -> usize {
        self.0.read(&mut [0; 64]).unwrap_or(0)
    }

    /// No signal is lost across `exec`: it fails with [`Interrupted`](ErrorKind::Interrupted) if one is pending,
    /// and later ones stay blocked until the new program [listens](Self::listen).
    #[expect(
        unsafe_code,
        reason = "pre_exec is the only way to run code after std resets the mask"
    )]
    pub(super) fn keep_through_exec(&self, command: &mut Command) -> io::Result<()> {
        let arrived = self.0.try_clone()?;
        let before_exec = move || {
            mask(libc::SIG_BLOCK)?;
            match rustix::io::ioctl_fionread(&arrived)? {
                0 => Ok(()),
                _ => Err(ErrorKind::Interrupted.into()),
            }
        };
        // SAFETY: the closure makes system calls only. Besides, this process does not fork.
        unsafe { command.pre_exec(before_exec) };
        Ok(())
    }

    /// Undoes what a failed `exec` has changed: std resets SIGPIPE, which it ignores otherwise.
    #[expect(unsafe_code, reason = "neither std nor rustix can ignore a signal")]
    pub(super) fn restore() -> io::Result<()> {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        mask(libc::SIG_UNBLOCK)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks or unblocks these signals.
#[expect(unsafe_code, reason = "neither std nor rustix can change the signal mask")]
fn mask(how: i32) -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set; the others get a valid pointer to it.
    let failed = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
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
    fn ignored_signals_are_known() {
        assert!(is_ignored(signal_hook::consts::SIGPIPE), "std ignores it");
        assert!(!is_ignored(SIGTERM));
    }

    #[test]
    fn a_signal_that_was_not_counted_keeps_the_process_from_executing_another() {
        let mut signals = Signals::listen(false).unwrap();
        let exec = |signals: &Signals| {
            let mut command = Command::new("/no/such/program");
            signals.keep_through_exec(&mut command).unwrap();
            let error = command.exec();
            Signals::restore().unwrap();
            assert!(is_ignored(signal_hook::consts::SIGPIPE), "as before");
            error.kind()
        };
        assert_eq!(exec(&signals), ErrorKind::NotFound);
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(exec(&signals), ErrorKind::Interrupted);
        assert_eq!(signals.count(), 1);
        assert_eq!(exec(&signals), ErrorKind::NotFound);
    }
}

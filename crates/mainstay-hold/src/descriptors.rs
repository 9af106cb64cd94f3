//! Which descriptors a process inherits.
//!
//! Everything in this workspace is opened with close-on-exec. These functions are a second line of defence:
//! whatever leaked is closed before another program runs.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, getrlimit};

/// The first descriptor after standard input, output and error.
const FIRST: u32 = 3;

/// The highest descriptor that is looked at one by one, on kernels without `close_range`.
const LAST: u64 = 1 << 20;

/// Closes every descriptor except the three standard ones. A program that stays must not keep open what
/// its parent forgot to close: a pipe whose reader waits for its end, a lock, a deleted file.
///
/// Call it before anything else is opened; later it would close what is in use.
pub fn close_inherited() -> io::Result<()> {
    match close_range(0) {
        Ok(()) => Ok(()),
        Err(_) => close_via_proc(),
    }
}

/// Makes sure that the command starts with no more than standard input, output and error.
#[expect(unsafe_code, reason = "pre_exec is the only way to run code between fork and exec")]
pub fn pass_only_stdio(command: &mut Command) {
    let before_exec = || {
        close_on_exec();
        Ok(())
    };
    // SAFETY: the closure only makes system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// Opens `/dev/null`, to put it in the place of a standard stream.
pub fn null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Has the next `exec` close every descriptor except the three standard ones.
fn close_on_exec() {
    if close_range(libc::CLOSE_RANGE_CLOEXEC.cast_signed()).is_err() {
        set_cloexec_one_by_one();
    }
}

/// Linux 5.9, with the flag 5.11.
#[expect(unsafe_code, reason = "no safe wrapper exists: it affects descriptors that others own")]
fn close_range(flags: i32) -> io::Result<()> {
    // SAFETY: with the flag it closes nothing now. Without it, `close_inherited` asks its caller to come
    // before anything else is opened, so no value owns what is closed.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(unsafe_code, reason = "descriptors that nobody in this process owns have only numbers")]
fn set_cloexec_one_by_one() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(LAST).min(LAST);
    for descriptor in FIRST..u32::try_from(limit).unwrap_or(u32::MAX) {
        // SAFETY: sets a flag. A number that is not open is refused with EBADF, which is fine.
        unsafe { libc::fcntl(descriptor.cast_signed(), libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

#[expect(unsafe_code, reason = "descriptors that nobody in this process owns have only numbers")]
fn close_via_proc() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    // The listing's own descriptor is among the numbers and already closed; rustix panics if it is closed
    // a second time.
    open.retain(|descriptor| fs::symlink_metadata(format!("/proc/self/fd/{descriptor}")).is_ok());
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > 2) {
        // SAFETY: nothing in this process has opened a descriptor yet, so no value owns this one.
        unsafe { rustix::io::close(descriptor) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// A descriptor that was opened without close-on-exec.
    fn leak() -> std::os::fd::OwnedFd {
        let leaked = rustix::io::dup(File::open("/dev/zero").unwrap()).unwrap();
        assert!(rustix::io::fcntl_getfd(&leaked).unwrap().is_empty());
        leaked
    }

    #[test]
    fn a_leaked_descriptor_does_not_reach_a_command_that_gets_only_stdio() {
        let leaked = leak();
        let list = |only_stdio: bool| {
            let mut command = Command::new("ls");
            command.arg("/proc/self/fd");
            if only_stdio {
                pass_only_stdio(&mut command);
            }
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let number = leaked.as_raw_fd().to_string();
        assert!(list(false).lines().any(|open| open == number), "it leaks otherwise");
        // The fourth is the directory that `ls` reads.
        assert_eq!(list(true), "0\n1\n2\n3\n");
    }

    #[test]
    fn old_kernels_mark_descriptors_one_by_one() {
        let leaked = leak();
        set_cloexec_one_by_one();
        let flags = rustix::io::fcntl_getfd(&leaked).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

//! Which descriptors a process inherits, and how many it may open.
//!
//! Everything in this workspace is opened with close-on-exec. These functions are a second line of defence:
//! leaked descriptors are closed before another program runs.
//!
//! Holder and daemon [raise](raise_limit) their soft limit of descriptors. Every process that they start gets
//! the limit that they were started with: a server sees the limit of its user, and programs that use
//! `select` rely on the usual 1,024.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

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

/// The soft limit of descriptors is raised to this, if the hard limit allows it.
const LIMIT: u64 = 65_536;

/// The limit with which this process was started, once it is raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit of descriptors as far as the hard limit and [`LIMIT`] allow, and returns how many
/// descriptors this process may have.
pub fn raise_limit() -> u64 {
    let original = *ORIGINAL.get_or_init(|| getrlimit(Resource::Nofile));
    let Rlimit { current, maximum } = raised(original);
    // A sandbox may refuse it; then the limit stays as it is.
    let _refused = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Gives a child the limit with which this process was started.
pub fn restore_limit_of(child: Pid) -> io::Result<()> {
    if let Some(original) = ORIGINAL.get() {
        prlimit(Some(child), Resource::Nofile, *original)?;
    }
    Ok(())
}

fn raised(original: Rlimit) -> Rlimit {
    let most = original.maximum.unwrap_or(u64::MAX).min(LIMIT);
    Rlimit { current: original.current.map(|current| current.max(most)), ..original }
}

/// Makes sure that the command starts with no more than standard input, output and error, and with the limit
/// of descriptors with which this process was started.
#[expect(unsafe_code, reason = "pre_exec is the only way to run code between fork and exec")]
pub fn pass_only_stdio(command: &mut Command) {
    let before_exec = || {
        close_on_exec();
        match ORIGINAL.get() {
            Some(original) => Ok(setrlimit(Resource::Nofile, *original)?),
            None => Ok(()),
        }
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

#[expect(unsafe_code, reason = "no value in this process owns these descriptors")]
fn set_cloexec_one_by_one() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(LAST).min(LAST);
    for descriptor in FIRST..u32::try_from(limit).unwrap_or(u32::MAX) {
        // SAFETY: sets a flag. A number that is not open is refused with EBADF, which is fine.
        unsafe { libc::fcntl(descriptor.cast_signed(), libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

#[expect(unsafe_code, reason = "no value in this process owns these descriptors")]
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
    fn a_limit_is_raised_to_the_hard_limit_but_not_beyond_ours_and_never_lowered() {
        let check = |current, maximum, expected| {
            let raised = raised(Rlimit { current, maximum });
            assert_eq!((raised.current, raised.maximum), (expected, maximum));
        };
        check(Some(1024), Some(524_288), Some(LIMIT));
        check(Some(1024), Some(4096), Some(4096));
        check(Some(1024), Some(1024), Some(1024));
        check(Some(1024), None, Some(LIMIT));
        check(Some(100_000), Some(524_288), Some(100_000));
        check(None, None, None);
    }

    #[test]
    fn children_get_the_limit_that_this_process_was_started_with() {
        let original = getrlimit(Resource::Nofile);
        raise_limit();
        raise_limit();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn; ulimit -Hn"]);
        pass_only_stdio(&mut command);
        let seen = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let text = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |it| it.to_string());
        assert_eq!(seen, format!("{}\n{}\n", text(original.current), text(original.maximum)));
    }

    #[test]
    fn old_kernels_mark_descriptors_one_by_one() {
        let leaked = leak();
        set_cloexec_one_by_one();
        let flags = rustix::io::fcntl_getfd(&leaked).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

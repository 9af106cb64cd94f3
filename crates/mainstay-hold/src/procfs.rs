//! Facts about processes, from `/proc`.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;

/// The facts that we read from `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) parent: u32,
    /// The leader of its session, or 0 if that is in another process namespace.
    pub(crate) session: u32,
    /// In clock ticks since boot. Together with the pid it identifies one process.
    pub(crate) started: u64,
    pub(crate) alive: bool,
}

/// The facts about one process, or `None` if there is no such process.
pub(crate) fn stat(pid: u32) -> io::Result<Option<Stat>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(line) => parse(&line)
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc/PID/stat")),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The process that a pidfd refers to, or `None` if it has ended and was reaped, or cannot be seen from here.
pub(crate) fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<Option<Pid>> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    // The kernel writes -1 and 0 for these.
    Ok(pid.filter(|pid| *pid > 0).and_then(Pid::from_raw))
}

/// Where a process is in the control groups, as the kernel writes it.
pub(crate) fn control_group(pid: u32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
}

/// The unique id of this boot.
pub(crate) fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

/// The children of all threads of a process, or `None` if the kernel does not list them. A child may be
/// missing if another one ends during the read.
pub(crate) fn children(pid: u32) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let list = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        all.extend(list.split_ascii_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Some(all)
}

/// The pids of all processes that can be seen.
pub(crate) fn pids() -> io::Result<impl Iterator<Item = u32>> {
    Ok(fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// Whether an error of `/proc` only means that the process has ended meanwhile.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The command name comes second, in parentheses, and may itself hold blanks and parentheses.
fn parse(line: &[u8]) -> Option<Stat> {
    let after_name = line.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = std::str::from_utf8(line.get(after_name..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let threads: u32 = fields.nth(13)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A process whose main thread has ended looks like a zombie while its other threads continue.
    let alive = match state {
        "Z" | "X" => threads > 1,
        _ => true,
    };
    Some(Stat { parent, session, started, alive })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, state: &str, threads: u32, alive: bool) {
        let line = format!(
            "71 ({name}) {state} 70 71 69 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 8812 1 2 3\n"
        );
        let expected = Stat { parent: 70, session: 69, started: 8812, alive };
        assert_eq!(parse(line.as_bytes()), Some(expected), "{line}");
    }

    #[test]
    fn stat_is_read_whatever_the_name() {
        check("sh", "S", 1, true);
        check("a) Z 1 (b c)", "R", 4, true);
        check("dead", "Z", 1, false);
        check("main thread ended", "Z", 3, true);
        for bad in ["", "71 (sh", "71 (sh)", "71 (sh) S x", "71 (sh) S 70 71"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn this_process_is_alive_and_its_parent_is_known() {
        let me = stat(std::process::id()).unwrap().unwrap();
        assert!(me.alive);
        assert_eq!(me.parent, std::os::unix::process::parent_id());
        assert!(pids().unwrap().any(|pid| pid == std::process::id()));
    }
}

//! What a container on this machine does, seen from outside: evidence about a server that does not answer.
//!
//! An engine reports the first process of a container. On another machine, or in a virtual machine, that number means another
//! process or none. So it counts only if its control group is named after the container. It must also be the first one of its
//! process namespace: all other processes of the container descend from it and die with it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::{Mode, OFlags};

use crate::activity::{self, Activity, ProcessActivity};
use crate::procfs;
use crate::tree::{self, Process};
use crate::unread::{self, UnreadConnection};

/// The length of the id of a container. Anything shorter may be part of another name.
const ID: usize = 64;

/// Programs that images start first, that only wait for their children, and wake up every second to do so. The last one is what
/// Docker starts with `--init`.
const INITS: [&str; 3] = ["tini", "tini-static", "docker-init"];

/// The processes of a container.
#[derive(Debug)]
pub struct Container {
    id: String,
    first: Process,
    /// Whether the first process is an init, which only waits for the others, and wakes up to do so.
    has_init: bool,
}

impl Container {
    /// The container with this id, if this is its first process, as its engine reports it.
    /// `has_init`: the engine reports that it started an init.
    pub fn find(id: &str, pid: u32, has_init: bool) -> io::Result<Option<Self>> {
        let Some(stat) = procfs::stat(pid)?.filter(|stat| stat.alive) else { return Ok(None) };
        let has_init = has_init || is_init(&fs::read_to_string(format!("/proc/{pid}/comm"))?);
        let found = Self { id: id.to_owned(), first: Process::new(pid, stat), has_init };
        Ok(found.is_there()?.then_some(found))
    }

    /// What its processes do.
    pub fn activity(&self) -> io::Result<Activity> {
        Ok(activity::of_processes(&self.processes()?))
    }

    /// What each of its processes does, oldest first, at most `limit` of them.
    pub fn each_process(&self, limit: usize) -> io::Result<Vec<ProcessActivity>> {
        Ok(activity::each_of(self.processes()?, limit))
    }

    /// What each of its threads waits for, for people.
    pub fn report(&self) -> io::Result<Vec<String>> {
        Ok(activity::report_of(self.processes()?))
    }

    /// The connections to a port in its network namespace on which something is unread.
    pub fn unread_connections(&self, port: u16) -> io::Result<Vec<UnreadConnection>> {
        unread::at_port_of(self.first.pid, port)
    }

    /// Its standard input, if that is a pipe. While the result is open, the pipe outlives the container.
    pub fn stdin(&self) -> io::Result<Option<StdinPipe>> {
        let path = format!("/proc/{}/fd/0", self.first.pid);
        if !fs::metadata(&path)?.file_type().is_fifo() {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = rustix::fs::open(path, flags, Mode::empty())?;
        // Another process may have had its number meanwhile.
        Ok(self.is_there()?.then_some(StdinPipe(pipe)))
    }

    /// Without what others execute in the container, such as health checks.
    fn processes(&self) -> io::Result<Vec<Process>> {
        let mut all = tree::living_descendants(self.first.pid)?;
        if !self.has_init || all.is_empty() {
            all.push(self.first);
        }
        Ok(all)
    }

    fn is_there(&self) -> io::Result<bool> {
        let pid = self.first.pid;
        let is_same = procfs::stat(pid)?.is_some_and(|stat| Process::new(pid, stat) == self.first);
        Ok(is_same && is_named(&procfs::control_group(pid)?, &self.id) && is_first(pid)?)
    }
}

/// The end of a pipe from which a server reads its input.
#[derive(Debug)]
pub struct StdinPipe(OwnedFd);

impl StdinPipe {
    /// How many bytes nobody has read.
    pub fn unread(&self) -> io::Result<u64> {
        Ok(rustix::io::ioctl_fionread(&self.0)?)
    }
}

/// Whether a program with this name only waits for its children.
fn is_init(name: &str) -> bool {
    INITS.contains(&name.trim_end())
}

/// Whether a control group is named after a container.
fn is_named(groups: &str, id: &str) -> bool {
    id.len() >= ID && groups.lines().any(|group| group.contains(id))
}

/// Whether a process is the first one of its process namespace.
fn is_first(pid: u32) -> io::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<&str> = numbers.unwrap_or_default().split_ascii_whitespace().collect();
    Ok(numbers.len() > 1 && numbers.last() == Some(&"1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_is_named_after_its_container_only_with_the_whole_id() {
        let id = "9f".repeat(32);
        assert!(is_named(&format!("0::/system.slice/docker-{id}.scope\n"), &id));
        assert!(is_named(&format!("9:pids:/\n0::/user.slice/libpod-{id}.scope/container\n"), &id));
        assert!(!is_named("0::/system.slice/docker-9f9f.scope\n", &id));
        assert!(!is_named("0::/9f9f9f\n", "9f9f9f"));
        assert!(!is_named("0::/\n", ""));
    }

    #[test]
    fn inits_of_images_are_known() {
        assert!(is_init("tini\n") && is_init("docker-init\n"));
        assert!(!is_init("python3\n") && !is_init("tini2\n"));
    }

    #[test]
    fn a_process_outside_of_a_container_is_not_taken_for_one() {
        let find = |pid| Container::find(&"9f".repeat(32), pid, false).unwrap();
        assert!(find(std::process::id()).is_none() && find(u32::MAX >> 1).is_none());
        assert!(!is_first(std::process::id()).unwrap());
    }
}

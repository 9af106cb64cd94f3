//! Processes by what they are, and signals to exactly these.
//!
//! A tree is found by one scan of `/proc`, because not every kernel lists the children of a process.
//! A process that is being moved to its next parent during the scan can be missed; ending a
//! tree takes scans until it is empty.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::procfs::{self, Stat};

/// A longer environment is not searched, so that other users' processes cannot cause large allocations.
const MAX_ENVIRON: usize = 1024 * 1024;

/// The maximum number of ancestors that are listed.
const MAX_ANCESTORS: usize = 256;

/// One process, and never another that was given its pid later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Its pid while it exists.
    pub pid: u32,
    started: u64,
}

impl Process {
    pub(crate) fn new(pid: u32, stat: Stat) -> Self {
        Self { pid, started: stat.started }
    }

    pub(crate) fn from_parts(pid: u32, started: u64) -> Self {
        Self { pid, started }
    }

    /// In clock ticks since boot.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Whether this process is alive, and not another one with its pid.
    pub fn is_alive(&self) -> bool {
        let now = procfs::stat(self.pid).ok().flatten();
        now.is_some_and(|stat| stat.alive && stat.started == self.started)
    }

    /// Kills it. Succeeds if it has exited already.
    pub fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// The descriptor pins the process, the start time proves that the pid had not been given to
    /// another one before that. Kernels without such descriptors leave a tiny gap.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        if procfs::stat(self.pid)?.is_none_or(|stat| stat.started != self.started) {
            return Ok(());
        }
        let sent = match pidfd {
            Ok(pidfd) => pidfd_send_signal(&pidfd, signal),
            Err(_) => kill_process(pid, signal),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Sends a signal to every living descendant of a process.
pub fn kill_all(of: u32, signal: Signal) -> io::Result<()> {
    for process in living(of)? {
        // A process that may not be signalled is found again by the next scan.
        let _forbidden = process.signal(signal);
    }
    Ok(())
}

/// The processes of our user whose environment has this variable, with its value. Processes that cannot be read, and
/// environments over 1 MiB, are left out.
///
/// One call reads all of `/proc`, so async code should make it on a thread for blocking work.
pub fn find_marked(variable: &str) -> io::Result<Vec<(Process, Vec<u8>)>> {
    let uid = rustix::process::geteuid().as_raw();
    let mut environ = Vec::new();
    let ours = procfs::pids()?
        .filter(|pid| fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == uid))
        .filter_map(|pid| {
            // The start time comes first. If the pid changes hands in between, the result names a
            // process that has exited, and not one that has no mark.
            let process = Process::new(pid, procfs::stat(pid).ok()??);
            read_environ(pid, &mut environ)?;
            Some((process, value_of(&environ, variable.as_bytes())?.to_vec()))
        });
    Ok(ours.collect())
}

/// The value of a variable in the environment that a process was started with, if it can be read.
pub fn variable_of(pid: u32, variable: &str) -> Option<Vec<u8>> {
    let mut environ = Vec::new();
    read_environ(pid, &mut environ)?;
    value_of(&environ, variable.as_bytes()).map(<[u8]>::to_vec)
}

/// The parent of a process, its parent, and so on.
pub fn ancestors(of: u32) -> Vec<u32> {
    let parent = |pid: &u32| Some(procfs::stat(*pid).ok()??.parent).filter(|parent| *parent > 0);
    // A pid that is reused during the walk could lead in a circle.
    std::iter::successors(parent(&of), parent).take(MAX_ANCESTORS).collect()
}

/// The name of a process's program, if there is such a process.
pub fn program_of(pid: u32) -> Option<String> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let program = program.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    // Of a process of another user only the name of its main thread can be read.
    let name = || fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    program.or_else(name).map(|name| name.trim_end().to_owned())
}

/// The living descendants of a process. Reads the kernel's lists of children where available, which costs far
/// less than a scan of all processes.
pub fn living_descendants(of: u32) -> io::Result<Vec<Process>> {
    let Some(mut open) = procfs::children(of) else { return living(of) };
    let mut found = Vec::new();
    while let Some(pid) = open.pop() {
        let Some(stat) = procfs::stat(pid)? else { continue };
        if stat.alive {
            found.push(Process::new(pid, stat));
        }
        // A thread may have ended in the meantime, so the subtree must not be taken for empty.
        let Some(children) = procfs::children(pid) else { return living(of) };
        open.extend(children);
    }
    Ok(found)
}

/// The living among these processes, and the living descendants of each.
pub(crate) fn living_with_descendants(of: &BTreeSet<Process>) -> io::Result<Vec<Process>> {
    let all = scan()?;
    let is_there = |process: &&Process| {
        all.get(&process.pid).is_some_and(|stat| stat.started == process.started)
    };
    let mut found: BTreeSet<Process> = BTreeSet::new();
    for process in of.iter().filter(is_there) {
        if all[&process.pid].alive {
            found.insert(*process);
        }
        found.extend(below(process.pid, &all));
    }
    Ok(found.into_iter().collect())
}

fn living(of: u32) -> io::Result<Vec<Process>> {
    Ok(below(of, &scan()?))
}

fn scan() -> io::Result<HashMap<u32, Stat>> {
    let facts = |pid| procfs::stat(pid).ok().flatten().map(|stat| (pid, stat));
    Ok(procfs::pids()?.filter_map(facts).collect())
}

/// The living ones among `all` whose line of parents leads to `root`.
fn below(root: u32, all: &HashMap<u32, Stat>) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (&pid, stat) in all {
        children.entry(stat.parent).or_default().push(pid);
    }
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            open.push(pid);
            let stat = all[&pid];
            if stat.alive {
                found.push(Process::new(pid, stat));
            }
        }
    }
    found
}

/// Reads the environment of a process into `environ`. `None` if there is nothing to search.
fn read_environ(pid: u32, environ: &mut Vec<u8>) -> Option<()> {
    environ.clear();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    let read = file.take(MAX_ENVIRON as u64 + 1).read_to_end(environ).ok()?;
    (read <= MAX_ENVIRON).then_some(())
}

fn value_of<'a>(environ: &'a [u8], variable: &[u8]) -> Option<&'a [u8]> {
    environ
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(variable)?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn stat(parent: u32, alive: bool) -> Stat {
        Stat { parent, session: 1, started: 1, alive }
    }

    fn sleeper(mark: &str, padding: &[String]) -> Child {
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null()).env("HOLD_TEST_MARK", mark);
        command.envs(padding.iter().enumerate().map(|(at, text)| (format!("PAD_{at}"), text)));
        command.spawn().unwrap()
    }

    fn process(child: &Child) -> Process {
        Process::new(child.id(), procfs::stat(child.id()).unwrap().unwrap())
    }

    #[test]
    fn a_tree_contains_all_living_descendants() {
        let all = HashMap::from([
            (10, stat(1, true)),
            (11, stat(10, true)),
            (12, stat(11, false)),
            (13, stat(12, true)),
            (20, stat(1, true)),
            (21, stat(20, true)),
        ]);
        let mut pids: Vec<u32> = below(10, &all).iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [11, 13]);
    }

    #[test]
    fn a_child_is_found_by_parent_and_by_mark_and_ends_by_signal() {
        let mark = format!("instance-{}-7", std::process::id());
        let mut child = sleeper(&mark, &[]);
        assert!(living(std::process::id()).unwrap().contains(&process(&child)));
        let marked = find_marked("HOLD_TEST_MARK").unwrap();
        assert!(marked.contains(&(process(&child), mark.clone().into_bytes())), "{marked:?}");
        assert!(find_marked("HOLD_TEST_OTHER").unwrap().is_empty());

        let found = process(&child);
        assert_eq!(ancestors(child.id()).first(), Some(&std::process::id()));
        assert!(ancestors(1).is_empty());
        assert_eq!(program_of(child.id()).map(|name| name.is_empty()), Some(false));
        let value = variable_of(child.id(), "HOLD_TEST_MARK").unwrap();
        assert_eq!(value, mark.as_bytes());
        let other = Process { started: found.started + 1, ..found };
        other.kill().unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it is another process with that pid");
        found.kill().unwrap();
        child.wait().unwrap();
        found.kill().expect("what has ended needs no signal");
        assert!(!living(std::process::id()).unwrap().contains(&found));
    }

    #[test]
    fn a_huge_environment_is_skipped() {
        let mark = format!("huge-{}", std::process::id());
        let padding = vec!["x".repeat(100_000); 11];
        let mut child = sleeper(&mark, &padding);
        let found = find_marked("HOLD_TEST_MARK").unwrap();
        process(&child).kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().all(|(_, value)| value != mark.as_bytes()), "{found:?}");
    }

    #[test]
    fn only_the_whole_name_of_a_variable_counts() {
        let environ = b"AB=1\0B=2\0C=\0";
        assert_eq!(value_of(environ, b"B"), Some(&b"2"[..]));
        assert_eq!(value_of(environ, b"A"), None);
        assert_eq!(value_of(environ, b"C"), Some(&b""[..]));
    }
}

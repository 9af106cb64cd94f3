//! What each process of a tree does: evidence about a server that does not become ready.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::Duration;

use super::{is_frozen, threads, wait_channel};
use crate::tree::{self, Process};
use crate::{procfs, sock_diag};

/// The most arguments of a process that are read, and the most bytes of them.
const MAX_ARGUMENTS: usize = 8;
const MAX_COMMAND: usize = 4096;

/// The most descriptors of a process among which connections are looked for.
const MAX_DESCRIPTORS: usize = 1024;

/// What one process does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessActivity {
    pub pid: u32,
    pub parent: u32,
    /// Its program and its first arguments.
    pub command: Vec<String>,
    /// A number that grows whenever one of its threads is scheduled.
    pub switches: u64,
    /// The processor time that it has used, with that of children that have ended.
    pub cpu: Duration,
    /// Whether a thread is stopped by a signal or a debugger, or all are frozen.
    pub is_suspended: bool,
    /// Whether a thread waits for a disk.
    pub waits_for_disk: bool,
    /// The place in the kernel where its main thread waits, if this user may read it.
    pub waits_in: Option<String>,
    /// How many TCP connections it has.
    pub connections: usize,
}

/// What each living descendant of a process does, oldest first, at most `limit` of them. Reads many files, so async code
/// should call it on a thread for blocking work.
pub fn each_descendant(of: u32, limit: usize) -> io::Result<Vec<ProcessActivity>> {
    Ok(each_of(tree::living_descendants(of)?, limit))
}

/// A process that ends meanwhile is left out.
pub(crate) fn each_of(mut processes: Vec<Process>, limit: usize) -> Vec<ProcessActivity> {
    processes.sort_unstable_by_key(|process| (process.started(), process.pid));
    processes.truncate(limit);
    let mut connected = None;
    processes.iter().filter_map(|process| one(process.pid, &mut connected)).collect()
}

fn one(pid: u32, connected: &mut Option<HashSet<u64>>) -> Option<ProcessActivity> {
    let parent = procfs::stat(pid).ok()??.parent;
    let threads = threads(pid);
    let is_in = |states: &[char]| threads.iter().any(|thread| states.contains(&thread.state));
    Some(ProcessActivity {
        pid,
        parent,
        command: command(pid),
        switches: threads.iter().fold(0, |sum, it| sum.wrapping_add(it.switches)),
        cpu: cpu(pid).unwrap_or_default(),
        is_suspended: is_in(&['T', 't']) || is_frozen(pid),
        waits_for_disk: is_in(&['D']),
        waits_in: wait_channel(pid, pid),
        connections: connections(pid, connected),
    })
}

/// The program and first arguments of a process; its name, if they cannot be read.
fn command(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = &line[..line.len().min(MAX_COMMAND)];
    // A process that sets its title may leave blanks after it.
    let word = |word: &[u8]| String::from_utf8_lossy(word).trim_end().to_owned();
    let words = line.split(|byte| *byte == 0).map(word).filter(|word| !word.is_empty());
    let words: Vec<String> = words.take(MAX_ARGUMENTS).collect();
    if words.is_empty() { tree::program_of(pid).into_iter().collect() } else { words }
}

/// From `/proc/PID/stat`; the name in parentheses may hold anything.
fn cpu(pid: u32) -> Option<Duration> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = line.rsplit_once(')')?;
    let times = fields.split_ascii_whitespace().skip(11).take(4);
    let ticks: u64 = times.filter_map(|field| field.parse::<u64>().ok()).sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_millis(ticks.saturating_mul(1000) / per_second))
}

/// Reads the kernel's list of connections only if a process has a socket.
fn connections(pid: u32, connected: &mut Option<HashSet<u64>>) -> usize {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let inode = |path: std::path::PathBuf| {
        let target = fs::read_link(path).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse::<u64>().ok()
    };
    let sockets: Vec<u64> = descriptors
        .take(MAX_DESCRIPTORS)
        .filter_map(|descriptor| inode(descriptor.ok()?.path()))
        .collect();
    if sockets.is_empty() {
        return 0;
    }
    let connected = connected.get_or_insert_with(|| {
        let all = sock_diag::in_namespace_of(pid).unwrap_or_default();
        all.iter().filter(|socket| !socket.is_listening).map(|socket| socket.inode).collect()
    });
    sockets.iter().filter(|inode| connected.contains(inode)).count()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::super::tests::{Children, eventually};
    use super::*;

    fn descendants() -> Vec<ProcessActivity> {
        each_descendant(std::process::id(), 64).unwrap()
    }

    #[test]
    fn each_process_of_a_tree_is_described() {
        let shell = Children::start("sh", &["-c", "sleep 1000; :"]);
        eventually("both are there", || descendants().len() == 2);
        let all = descendants();
        assert_eq!((all[0].pid, all[0].parent), (shell.0.id(), std::process::id()));
        assert_eq!((&all[0].command[0][..], all[1].parent), ("sh", shell.0.id()));
        eventually("it has become sleep", || descendants()[1].command == ["sleep", "1000"]);
        assert_eq!(each_descendant(std::process::id(), 1).unwrap().len(), 1);
        Process::from_parts(all[1].pid, procfs::stat(all[1].pid).unwrap().unwrap().started)
            .kill()
            .unwrap();
    }

    #[test]
    fn processor_time_grows_while_a_process_computes() {
        let _shell = Children::start("sh", &["-c", "while :; do :; done"]);
        eventually("it computes", || descendants()[0].cpu >= Duration::from_millis(50));
        assert!(!descendants()[0].is_suspended);
    }

    #[test]
    fn connections_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(connections(std::process::id(), &mut None), 1);
    }
}

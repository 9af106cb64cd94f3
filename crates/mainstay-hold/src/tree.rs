//! Process trees, and signals to all of one.
//!
//! A tree is found by one scan of `/proc`, because not every kernel lists the children of a process.
//! A process that is being moved to its next parent during the scan can be missed; whoever wants a
//! tree to end must scan until it is empty.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::procfs::{self, Stat};

/// All living descendants of a process, in no order. Zombies are not among them.
pub fn descendants(of: u32) -> io::Result<Vec<u32>> {
    Ok(living(of)?.into_iter().map(|(pid, _)| pid).collect())
}

/// Sends a signal to every living descendant of a process and says how many there were.
pub fn kill_all(of: u32, signal: Signal) -> io::Result<usize> {
    let found = living(of)?;
    for &(pid, stat) in &found {
        // A process that has ended meanwhile needs no signal.
        let _ended = signal_exactly(pid, stat, signal);
    }
    Ok(found.len())
}

/// The processes of our user whose environment holds this variable with a value that begins like
/// this, with the whole value. Processes that cannot be read are left out.
pub fn find_marked(variable: &str, value_prefix: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let uid = rustix::process::geteuid().as_raw();
    let Ok(pids) = procfs::pids() else { return Vec::new() };
    pids.filter(|pid| fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == uid))
        .filter_map(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let value = value_of(&environ, variable.as_bytes())?;
            value.starts_with(value_prefix).then(|| (pid, value.to_vec()))
        })
        .collect()
}

fn living(of: u32) -> io::Result<Vec<(u32, Stat)>> {
    let all: HashMap<u32, Stat> = procfs::pids()?
        .filter_map(|pid| procfs::stat(pid).ok().flatten().map(|stat| (pid, stat)))
        .collect();
    Ok(below(of, &all))
}

/// The living ones among `all` whose line of parents leads to `root`.
fn below(root: u32, all: &HashMap<u32, Stat>) -> Vec<(u32, Stat)> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (&pid, stat) in all {
        children.entry(stat.parent).or_default().push(pid);
    }
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            open.push(pid);
            found.push((pid, all[&pid]));
        }
    }
    found.retain(|(_, stat)| stat.alive);
    found
}

/// Signals this very process: the descriptor pins it, the start time proves that the pid had not
/// been given to another process before that. Kernels without such descriptors leave a tiny gap.
fn signal_exactly(pid: u32, expected: Stat, signal: Signal) -> io::Result<()> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    let pidfd = pidfd_open(raw, PidfdFlags::empty());
    let same = procfs::stat(pid)?.is_some_and(|stat| stat.started == expected.started);
    match (same, pidfd) {
        (true, Ok(pidfd)) => Ok(pidfd_send_signal(&pidfd, signal)?),
        (true, Err(_)) => Ok(kill_process(raw, signal)?),
        (false, _) => Ok(()),
    }
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
        Stat { parent, started: 1, alive }
    }

    fn sleeper(mark: &str) -> Child {
        Command::new("sleep")
            .arg("600")
            .env("HOLD_TEST_MARK", mark)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_tree_is_all_that_is_below_and_lives() {
        let all = HashMap::from([
            (10, stat(1, true)),
            (11, stat(10, true)),
            (12, stat(11, false)),
            (13, stat(12, true)),
            (20, stat(1, true)),
            (21, stat(20, true)),
        ]);
        let mut pids: Vec<u32> = below(10, &all).into_iter().map(|(pid, _)| pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [11, 13]);
    }

    #[test]
    fn a_child_is_found_by_parent_and_by_mark_and_ends_by_signal() {
        let mark = format!("instance-{}-7", std::process::id());
        let mut child = sleeper(&mark);
        assert!(descendants(std::process::id()).unwrap().contains(&child.id()));
        let prefix = format!("instance-{}-", std::process::id());
        let marked = find_marked("HOLD_TEST_MARK", prefix.as_bytes());
        assert!(marked.contains(&(child.id(), mark.into_bytes())), "{marked:?}");
        assert!(find_marked("HOLD_TEST_MARK", b"other").is_empty());

        let found = procfs::stat(child.id()).unwrap().unwrap();
        let other = Stat { started: found.started + 1, ..found };
        signal_exactly(child.id(), other, Signal::KILL).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "another process with that pid was meant");
        signal_exactly(child.id(), found, Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!descendants(std::process::id()).unwrap().contains(&child.id()));
    }

    #[test]
    fn only_the_whole_name_of_a_variable_counts() {
        let environ = b"AB=1\0B=2\0C=\0";
        assert_eq!(value_of(environ, b"B"), Some(&b"2"[..]));
        assert_eq!(value_of(environ, b"A"), None);
        assert_eq!(value_of(environ, b"C"), Some(&b""[..]));
    }
}

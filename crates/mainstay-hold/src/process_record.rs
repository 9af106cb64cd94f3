//! Records the processes of a run in its run directory.
//!
//! A killed shim cannot end its process tree, and neither the parent nor the environment of an orphan proves
//! which run it belonged to. The shim therefore records the pid and start time of its descendants while it
//! can see them. Before the next run starts, exactly these processes and their descendants are killed.
//!
//! The file is text: the id of the boot, then one line `PID START_TIME` per process. Like every record it is
//! replaced atomically. A process matches only if boot id, pid and start time are equal.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::process::Signal;

use crate::tree::{self, Process};
use crate::{procfs, record};

/// The name of the record in a run directory.
pub const PROCESSES: &str = "processes";

/// The maximum number of recorded processes.
const MAX_PROCESSES: usize = 4096;

/// How often the tree is scanned for new children before it is killed.
const ROUNDS: usize = 32;

/// The processes that a run directory records, if they were recorded since the last boot. Some may have ended.
pub fn read(dir: &Path) -> io::Result<Vec<Process>> {
    let text = String::from_utf8(record::read_file(dir, PROCESSES)?.unwrap_or_default());
    let text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(parse(&text, procfs::boot_id()?.trim()))
}

/// Kills the living among these processes and all their descendants, which are added to `known`. Returns the
/// processes that were alive. Call it until that is empty, because some may have children that were not seen
/// yet.
///
/// They are stopped first, so that they cannot fork while the tree is read.
pub fn kill(known: &mut BTreeSet<Process>) -> io::Result<Vec<Process>> {
    let mut stopped = BTreeSet::new();
    for _ in 0..ROUNDS {
        let found = tree::living_with_descendants(known)?;
        let before = stopped.len();
        for process in found {
            if stopped.insert(process) {
                known.insert(process);
                // A process that may not be signalled is found again, and reported by the caller.
                let _forbidden = process.signal(Signal::STOP);
            }
        }
        if stopped.len() == before {
            break;
        }
    }
    for process in &stopped {
        let _forbidden = process.kill();
    }
    Ok(stopped.into_iter().collect())
}

/// Replaces the record of a run.
pub(crate) fn write(dir: BorrowedFd<'_>, processes: &[Process]) -> io::Result<()> {
    let text = render(processes, procfs::boot_id()?.trim());
    record::replace_file(dir, PROCESSES, text.as_bytes())
}

fn render(processes: &[Process], boot: &str) -> String {
    let mut text = format!("{boot}\n");
    for process in processes.iter().take(MAX_PROCESSES) {
        let _never_fails = writeln!(text, "{} {}", process.pid, process.started());
    }
    text
}

fn parse(text: &str, boot: &str) -> Vec<Process> {
    let mut lines = text.lines();
    if lines.next() != Some(boot) {
        return Vec::new();
    }
    let process = |line: &str| {
        let (pid, started) = line.split_once(' ')?;
        // Neither the first process of the machine nor a process group is ever a server.
        let pid = pid.parse().ok().filter(|pid| *pid > 1)?;
        Some(Process::from_parts(pid, started.parse().ok()?))
    };
    lines.map_while(process).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::fd::AsFd as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let found = tree::living_descendants(std::process::id()).unwrap();
        let process = *found.iter().find(|process| process.pid == child.id()).unwrap();
        (child, process)
    }

    #[test]
    fn a_record_is_valid_for_its_own_boot_only() {
        let processes = [Process::from_parts(70, 8812), Process::from_parts(71, 1)];
        let text = render(&processes, "boot");
        assert_eq!(parse(&text, "boot"), processes);
        assert_eq!(parse(&text, "another"), []);
        for junk in [
            "",
            "boot",
            "boot\n",
            "boot\n1 5\n",
            "boot\n0 5\n",
            "boot\n-1 5\n",
            "boot\nx\n70 8812\n",
        ] {
            assert_eq!(parse(junk, "boot"), [], "{junk:?}");
        }
    }

    #[test]
    fn only_a_process_with_the_recorded_start_time_is_killed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = File::open(temp.path()).unwrap();
        assert_eq!(read(temp.path()).unwrap(), []);
        let (mut child, process) = sleeper();
        let reused = Process::from_parts(process.pid, process.started() + 1);
        write(dir.as_fd(), &[reused]).unwrap();
        let mut known: BTreeSet<Process> = read(temp.path()).unwrap().into_iter().collect();
        assert_eq!(known, BTreeSet::from([reused]));
        assert_eq!(kill(&mut known).unwrap(), []);
        assert!(child.try_wait().unwrap().is_none(), "it is another process with that pid");

        write(dir.as_fd(), &[process]).unwrap();
        let mut known: BTreeSet<Process> = read(temp.path()).unwrap().into_iter().collect();
        assert_eq!(kill(&mut known).unwrap(), [process]);
        child.wait().unwrap();
        assert_eq!(kill(&mut known).unwrap(), []);
        fs::write(temp.path().join(PROCESSES), [0xff; 8]).unwrap();
        assert_eq!(read(temp.path()).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn descendants_of_a_recorded_process_are_killed_too() {
        let script = "sleep 600 & echo $! && wait";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut output, &mut line).unwrap();
        let started = procfs::stat(child.id()).unwrap().unwrap().started;
        let mut known = BTreeSet::from([Process::from_parts(child.id(), started)]);
        assert_eq!(kill(&mut known).unwrap().len(), 2);
        child.wait().unwrap();
        let below: u32 = line.trim().parse().unwrap();
        let dead = || procfs::stat(below).unwrap().is_none_or(|stat| !stat.alive);
        for _ in 0..1000 {
            if dead() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("{below} lives");
    }
}

//! Whether the processes of a server run, wait or are stopped: evidence about a server that does not answer.
//!
//! The kernel counts how often each thread was scheduled. Processor time is too coarse for this: a thread that
//! wakes up, does little and sleeps again does not add a clock tick.

mod processes;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use processes::each_of;
pub use processes::{ProcessActivity, each_descendant};

use crate::tree::Process;
use crate::{procfs, tree};

/// The most lines of a [`report`].
const MAX_LINES: usize = 200;

/// What a process tree is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// A number that is another one whenever a thread was scheduled, or threads came or went.
    pub switches: u64,
    /// Whether a thread runs, waits for a processor, or waits for a disk.
    pub is_active: bool,
    /// The first process that is stopped by a signal or a debugger, or frozen.
    pub suspended: Option<u32>,
    /// The place in the kernel where the main thread of the first process waits, if this user may read it.
    pub waits_in: Option<String>,
}

/// What the living descendants of a process are doing. Reads many files, so async code should call it on a thread for
/// blocking work.
pub fn of_descendants(of: u32) -> io::Result<Activity> {
    Ok(of_processes(&tree::living_descendants(of)?))
}

pub(crate) fn of_processes(processes: &[Process]) -> Activity {
    let mut switches = DefaultHasher::new();
    let mut processes = processes.to_vec();
    processes.sort_unstable_by_key(Process::started);
    let (mut is_active, mut suspended) = (processes.is_empty(), None);
    for process in &processes {
        let mut is_suspended = is_frozen(process.pid);
        let threads = threads(process.pid);
        // Nothing is known of a process whose threads cannot be read.
        is_active |= threads.is_empty();
        for thread in threads {
            thread.hash(&mut switches);
            is_active |= matches!(thread.state, 'R' | 'D');
            is_suspended |= matches!(thread.state, 'T' | 't');
        }
        suspended = suspended.or(is_suspended.then_some(process.pid));
    }
    let first = processes.first();
    let waits_in = first.and_then(|process| wait_channel(process.pid, process.pid));
    Activity { switches: switches.finish(), is_active, suspended, waits_in }
}

/// What each thread of the living descendants of a process waits for, for people: a line per process, with its threads
/// and, where this user may read it, their kernel stacks below it.
pub fn report(of: u32) -> io::Result<Vec<String>> {
    Ok(report_of(tree::living_descendants(of)?))
}

pub(crate) fn report_of(mut processes: Vec<Process>) -> Vec<String> {
    let mut lines = Vec::new();
    processes.sort_unstable_by_key(|process| process.pid);
    let is_listed = |pid: u32| processes.iter().any(|process| process.pid == pid);
    for process in &processes {
        let program = tree::program_of(process.pid).unwrap_or_default();
        let parent = procfs::stat(process.pid).ok().flatten().map(|stat| stat.parent);
        let parent = parent.filter(|parent| is_listed(*parent));
        let parent = parent.map(|parent| format!(", child of {parent}")).unwrap_or_default();
        let frozen = if is_frozen(process.pid) { ", frozen" } else { "" };
        lines.push(format!("process {} ({program}){parent}{frozen}", process.pid));
        for Thread { id, state, .. } in threads(process.pid) {
            let file = |name: &str| {
                let path = format!("/proc/{}/task/{id}/{name}", process.pid);
                fs::read_to_string(path).unwrap_or_default()
            };
            let waits_in = wait_channel(process.pid, id);
            let waits_in = waits_in.map(|place| format!(", waits in {place}")).unwrap_or_default();
            lines.push(format!("  thread {id}: state {state}{waits_in}"));
            lines.extend(file("stack").lines().map(|line| format!("    {}", line.trim())));
        }
    }
    lines.truncate(MAX_LINES);
    lines
}

/// The place in the kernel where a thread waits, if it does and this user may read it.
fn wait_channel(pid: u32, thread: u32) -> Option<String> {
    let place = fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan")).ok()?;
    Some(place.trim().to_owned()).filter(|place| !matches!(place.as_str(), "" | "0"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Thread {
    id: u32,
    /// As in `/proc/PID/stat`: R, S, D, T, t and others.
    state: char,
    /// How often it was scheduled.
    switches: u64,
}

/// The threads of a process, without those that end meanwhile.
fn threads(pid: u32) -> Vec<Thread> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let thread = |path: &Path| {
        let id = path.file_name()?.to_str()?.parse().ok()?;
        parse(id, &fs::read_to_string(path.join("status")).ok()?)
    };
    let mut threads: Vec<_> = entries.filter_map(|entry| thread(&entry.ok()?.path())).collect();
    threads.sort_unstable_by_key(|thread| thread.id);
    threads
}

fn parse(id: u32, status: &str) -> Option<Thread> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    let state = field("State:")?.chars().next()?;
    let voluntary = number("voluntary_ctxt_switches:")?;
    let involuntary = number("nonvoluntary_ctxt_switches:")?;
    Some(Thread { id, state, switches: voluntary.wrapping_add(involuntary) })
}

/// Whether the cgroup of a process is frozen.
fn is_frozen(pid: u32) -> bool {
    let groups = procfs::control_group(pid).unwrap_or_default();
    state_files(&groups)
        .into_iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .any(|state| state.lines().any(|line| matches!(line, "frozen 1" | "FROZEN" | "FREEZING")))
}

/// The files that say whether a cgroup is frozen: in version 2, alone or beside version 1, and in version 1.
fn state_files(groups: &str) -> Vec<PathBuf> {
    let files = groups.lines().filter_map(|line| {
        let (_, group) = line.split_once(':')?;
        Some(match group.split_once(":/")? {
            ("", group) => vec![
                Path::new("/sys/fs/cgroup").join(group).join("cgroup.events"),
                Path::new("/sys/fs/cgroup/unified").join(group).join("cgroup.events"),
            ],
            (controllers, group) if controllers.split(',').any(|it| it == "freezer") => {
                vec![Path::new("/sys/fs/cgroup/freezer").join(group).join("freezer.state")]
            }
            _ => Vec::new(),
        })
    });
    files.flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// The children of this test process; each test is a process of its own.
    pub(super) struct Children(pub(super) Child);

    impl Children {
        pub(super) fn start(program: &str, arguments: &[&str]) -> Self {
            let null = || Stdio::null();
            let child = Command::new(program).args(arguments).stdin(null()).stdout(null()).spawn();
            Self(child.unwrap())
        }

        fn signal(&self, signal: Signal) {
            let pid = Pid::from_raw(self.0.id().try_into().unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
        }
    }

    impl Drop for Children {
        fn drop(&mut self) {
            let _gone = self.0.kill();
            let _reaped = self.0.wait();
        }
    }

    fn now() -> Activity {
        of_descendants(std::process::id()).unwrap()
    }

    #[track_caller]
    pub(super) fn eventually(what: &str, test: impl Fn() -> bool) {
        #[expect(clippy::disallowed_methods, reason = "a real process is waited for")]
        let clock = Instant::now;
        let limit = clock() + Duration::from_secs(10);
        while !test() {
            assert!(clock() < limit, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_process_that_sleeps_is_quiet() {
        let _sleep = Children::start("sleep", &["1000"]);
        eventually("it sleeps", || {
            let before = now();
            std::thread::sleep(Duration::from_millis(100));
            !before.is_active && before == now()
        });
        let report = report(std::process::id()).unwrap();
        assert!(report.iter().any(|line| line.contains("(sleep)")), "{report:?}");
        assert!(report.iter().any(|line| line.contains("state S")), "{report:?}");
    }

    #[test]
    fn a_report_names_the_parent_of_a_child_and_where_it_waits() {
        let shell = Children::start("sh", &["-c", "sleep 1000; :"]);
        let child = format!("(sleep), child of {}", shell.0.id());
        eventually("the child is reported", || {
            let report = report(std::process::id()).unwrap();
            report.iter().any(|line| line.contains(&child))
        });
        eventually("the shell waits for it", || {
            now().waits_in.is_none_or(|place| place.contains("wait"))
        });
        let children = tree::living_descendants(shell.0.id()).unwrap();
        for child in children {
            child.kill().unwrap();
        }
    }

    #[test]
    fn a_process_that_wakes_up_is_not_quiet() {
        let _shell = Children::start("sh", &["-c", "while :; do sleep 0.02; done"]);
        let before = now();
        eventually("it was scheduled", || now().switches != before.switches);
    }

    #[test]
    fn a_process_that_computes_is_active() {
        let _shell = Children::start("sh", &["-c", "while :; do :; done"]);
        eventually("it runs", || now().is_active);
    }

    #[test]
    fn a_stopped_process_is_suspended_until_it_continues() {
        let sleep = Children::start("sleep", &["1000"]);
        assert_eq!(now().suspended, None);
        sleep.signal(Signal::STOP);
        eventually("it is stopped", || now().suspended == Some(sleep.0.id()));
        sleep.signal(Signal::CONT);
        eventually("it continues", || now().suspended.is_none());
    }

    #[test]
    fn the_state_of_a_cgroup_is_found_in_each_version() {
        let check = |groups: &str, expected: &[&str]| {
            let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(state_files(groups), expected);
        };
        let unified = |group: &str| {
            ["", "/unified"].map(|place| format!("/sys/fs/cgroup{place}/{group}/cgroup.events"))
        };
        let files = unified("user.slice/a:b");
        check("0::/user.slice/a:b\n", &files.each_ref().map(String::as_str));
        let files = unified("s");
        check(
            "8:pids:/p\n7:cpu,freezer:/docker/9f\n1:name=systemd:/s\n0::/s\n",
            &["/sys/fs/cgroup/freezer/docker/9f/freezer.state", &files[0], &files[1]],
        );
        check("", &[]);
    }

    #[test]
    fn a_status_without_counts_is_left_out() {
        let status = "Name:\tx\nState:\tD (disk sleep)\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t5\n";
        assert_eq!(parse(3, status), Some(Thread { id: 3, state: 'D', switches: 12 }));
        assert_eq!(parse(3, "State:\tS (sleeping)\n"), None);
    }
}

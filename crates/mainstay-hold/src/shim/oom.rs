//! Whether the kernel killed a server for lack of memory.
//!
//! The kernel reports this only by a counter of victims in the memory control group. A server is in the group of its shim
//! or in a child of it, whose victims the group counts too. The counter is read at the start, whenever the shim is awake
//! anyway, and when the server was killed by a KILL that the shim did not send. If it rose then or in the seconds before,
//! the server counts as the victim. That is wrong if the kernel killed another process of the group in that time and
//! another user killed the server.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A victim is counted before it has ended, and its end wakes the shim more than once: first by its
/// closed pipes, then by its status. Within this time the count and the end belong together.
const DYING: Duration = Duration::from_secs(5);

/// Room for the whole file, which has a few short lines.
const LONGEST: usize = 1024;

/// The counter of victims in our memory control group, if there is one.
pub(super) struct OomWatch(Option<(File, Victims)>);

/// How many victims there were, and when that was last seen to change.
#[derive(Debug)]
struct Victims {
    count: u64,
    rose: Option<Instant>,
}

impl OomWatch {
    pub(super) fn begin() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let file = counter_file(&groups).and_then(|path| File::open(path).ok());
        Self(file.and_then(|file| {
            let count = read(&file)?;
            Some((file, Victims { count, rose: None }))
        }))
    }

    /// Reads the number of victims so far.
    pub(super) fn look(&mut self, now: Instant) {
        if let Some((file, victims)) = &mut self.0
            && let Some(count) = read(file)
        {
            victims.record_count(now, count);
        }
    }

    /// Whether a process that is found killed now was the last victim.
    pub(super) fn killed_recently(&mut self, now: Instant) -> bool {
        self.look(now);
        self.0.as_ref().is_some_and(|(_, victims)| victims.rose_lately(now))
    }
}

impl Victims {
    fn record_count(&mut self, now: Instant, count: u64) {
        if count > self.count {
            self.rose = Some(now);
        }
        self.count = count;
    }

    fn rose_lately(&self, now: Instant) -> bool {
        self.rose.is_some_and(|rose| now.duration_since(rose) <= DYING)
    }
}

/// The file stays open, so that a look is one system call.
fn read(file: &File) -> Option<u64> {
    let mut text = [0; LONGEST];
    let length = file.read_at(&mut text, 0).ok()?;
    victims(std::str::from_utf8(&text[..length]).ok()?)
}

/// A version 1 hierarchy with the memory controller is asked before version 2, which has the
/// controller only if version 1 has not.
fn counter_file(groups: &str) -> Option<PathBuf> {
    let entries = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let of = |wanted: fn(&str) -> bool| {
        entries.clone().find(|(controllers, _)| wanted(controllers)).map(|(_, group)| group)
    };
    let file = |root: &str, group: &str, name: &str| {
        PathBuf::from(root).join(group.trim_start_matches('/')).join(name)
    };
    of(|controllers| controllers.split(',').any(|controller| controller == "memory"))
        .map(|group| file("/sys/fs/cgroup/memory", group, "memory.oom_control"))
        .or_else(|| of(str::is_empty).map(|group| file("/sys/fs/cgroup", group, "memory.events")))
}

/// Both versions have a line `oom_kill COUNT`.
fn victims(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rise_just_before_the_end_counts() {
        let start = crate::clock::now();
        let mut victims = Victims { count: 3, rose: None };
        victims.record_count(start, 3);
        assert!(!victims.rose_lately(start));
        victims.record_count(start, 4);
        victims.record_count(start, 4);
        assert!(victims.rose_lately(start), "the rise was seen at an earlier look");
        assert!(victims.rose_lately(start + DYING));
        assert!(!victims.rose_lately(start + 2 * DYING), "that was another victim");
        victims.record_count(start + 3 * DYING, 5);
        assert!(victims.rose_lately(start + 3 * DYING));
    }

    #[test]
    fn the_counter_is_found_in_both_versions() {
        let check = |groups, expected: Option<&str>| {
            assert_eq!(counter_file(groups), expected.map(PathBuf::from), "{groups}");
        };
        check("0::/user.slice/a:b\n", Some("/sys/fs/cgroup/user.slice/a:b/memory.events"));
        check("0::/\n", Some("/sys/fs/cgroup/memory.events"));
        check(
            "5:cpu,memory:/job\n1:name=systemd:/\n0::/\n",
            Some("/sys/fs/cgroup/memory/job/memory.oom_control"),
        );
        check("1:name=systemd:/\n", None);
    }

    #[test]
    fn the_counter_is_read_in_both_versions() {
        assert_eq!(victims("low 0\noom 4\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(victims("oom_kill_disable 0\nunder_oom 0\noom_kill 12\n"), Some(12));
        assert_eq!(victims("low 0\n"), None);
    }
}

//! Whether the kernel killed a server for lack of memory.
//!
//! The kernel tells only through the memory control group, by a counter of its victims. A server is in
//! the group of its shim; if the counter has risen when it is found killed, it was the victim.

use std::fs;
use std::path::PathBuf;

/// The counter of victims in our memory control group, as it was at the start of the run.
pub(super) struct OomWatch(Option<(PathBuf, u64)>);

impl OomWatch {
    pub(super) fn begin() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let counter = counter_file(&groups);
        Self(
            counter
                .and_then(|path| Some((path.clone(), victims(&fs::read_to_string(path).ok()?)?))),
        )
    }

    /// Whether there were victims since the start.
    pub(super) fn has_struck(&self) -> bool {
        let Some((path, before)) = &self.0 else { return false };
        let now = fs::read_to_string(path).ok().and_then(|text| victims(&text));
        now.is_some_and(|now| now > *before)
    }
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

//! What `/proc` tells about processes: CPU time, memory and command lines.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Why a figure could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The file is not there, most often because the process is not.
    #[error("`{path}` could not be read")]
    Read {
        /// Which file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file has not the expected form.
    #[error("`{path}` has an unknown form")]
    Form {
        /// Which file.
        path: String,
    },
}

/// User and system time that all threads of a process have used so far.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration, ProcError> {
    let path = format!("/proc/{pid}/stat");
    let ticks = cpu_ticks(&read(&path)?).ok_or(ProcError::Form { path })?;
    Ok(Duration::from_secs(ticks) / ticks_per_second())
}

/// The process that a process belongs to.
pub(crate) fn parent(pid: u32) -> Result<u32, ProcError> {
    let path = format!("/proc/{pid}/stat");
    parent_field(&read(&path)?).ok_or(ProcError::Form { path })
}

/// The proportional set size of a process, in KiB: shared pages count in part.
pub(crate) fn pss_kib(pid: u32) -> Result<u64, ProcError> {
    let path = format!("/proc/{pid}/smaps_rollup");
    pss(&read(&path)?).ok_or(ProcError::Form { path })
}

/// A process that was there a moment ago.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The words of its command, separated by spaces.
    pub(crate) command: String,
    /// Its environment as it was at the start, if we may read it.
    environment: Vec<u8>,
}

impl Process {
    /// Whether this text is part of the command or the environment.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        let in_environment =
            || self.environment.windows(text.len()).any(|window| window == text.as_bytes());
        self.command.contains(text) || in_environment()
    }
}

/// All processes, without kernel threads and those that have ended.
pub(crate) fn processes() -> Result<Vec<Process>, ProcError> {
    let failed = |source| ProcError::Read { path: "/proc".to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.extend(process(pid, &entry.path()));
        }
    }
    Ok(found)
}

fn process(pid: u32, dir: &Path) -> Option<Process> {
    let words = fs::read(dir.join("cmdline")).ok().filter(|words| !words.is_empty())?;
    let command = String::from_utf8_lossy(&words).replace('\0', " ");
    let environment = fs::read(dir.join("environ")).unwrap_or_default();
    Some(Process { pid, command, environment })
}

fn read(path: &str) -> Result<String, ProcError> {
    fs::read_to_string(path).map_err(|source| ProcError::Read { path: path.to_owned(), source })
}

fn ticks_per_second() -> u32 {
    u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
}

/// Fields 14 and 15 of `/proc/PID/stat`. The second field may itself contain spaces and brackets.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Field 4 of `/proc/PID/stat`.
fn parent_field(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn pss(rollup: &str) -> Option<u64> {
    let value = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_an_odd_name() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 8 20 0 1 0 99 0 0";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(parent_field(stat), Some(1));
        assert_eq!((cpu_ticks("nothing"), parent_field("nothing")), (None, None));
    }

    #[test]
    fn pss_is_not_mistaken_for_its_parts() {
        let rollup = "00400000-7fff [rollup]\nRss:  900 kB\nPss:      123 kB\nPss_Dirty: 9 kB\n";
        assert_eq!(pss(rollup), Some(123));
        assert_eq!(pss("Rss: 1 kB\n"), None);
    }

    #[test]
    fn this_process_has_figures() {
        let pid = std::process::id();
        cpu_time(pid).unwrap();
        assert!(pss_kib(pid).unwrap() > 0);
        let own = std::env::current_exe().unwrap();
        let found = processes().unwrap().into_iter().find(|process| process.pid == pid).unwrap();
        assert!(found.command.contains(own.file_name().unwrap().to_str().unwrap()));
        assert!(found.mentions("CARGO_MANIFEST_DIR=") && !found.mentions("CARGO_MANIFEST_DIR=="));
    }
}

//! Finds living shims, even if their run directories were removed.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{ffi::OsStr, io};

use crate::procfs;

/// The argument by which a program becomes a shim. The run directory follows it.
pub const SHIM_COMMAND: &str = "__shim";

/// No command line of a shim is longer.
const MAX_COMMAND: u64 = 64 * 1024;

/// The run directories below `runs_dir` of this user's shims. Anyone can give a process such a command line: it is a hint,
/// not a proof.
pub fn run_dirs_of_shims(runs_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let of_shim = |pid| run_dir_of(pid).filter(|dir| dir.starts_with(runs_dir));
    let mut dirs: Vec<PathBuf> = procfs::pids()?.filter_map(of_shim).collect();
    // A shim and its guard have the same command line.
    dirs.sort_unstable();
    dirs.dedup();
    Ok(dirs)
}

fn run_dir_of(pid: u32) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if fs::metadata(&process).ok()?.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut command = Vec::new();
    File::open(process.join("cmdline")).ok()?.take(MAX_COMMAND).read_to_end(&mut command).ok()?;
    let mut args = command.split(|byte| *byte == 0).skip(1);
    let is_shim = args.next()? == SHIM_COMMAND.as_bytes();
    is_shim.then(|| args.next().map(|dir| PathBuf::from(OsStr::from_bytes(dir))))?
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shim_is_found_by_its_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("runs/time/1");
        let mut like_a_shim = Command::new("sh");
        // `sh -c SCRIPT NAME ARG`: the argument is not in its place.
        like_a_shim.args(["-c", "echo; read line", SHIM_COMMAND]).arg(&run);
        let (input, output) = (std::process::Stdio::piped(), std::process::Stdio::piped());
        let mut other = like_a_shim.stdin(input).stdout(output).spawn().unwrap();
        other.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(run_dirs_of_shims(dir.path()).unwrap(), Vec::<PathBuf>::new());
        drop(other.stdin.take());
        other.wait().unwrap();

        let script = dir.path().join(SHIM_COMMAND);
        fs::write(&script, "read line\n").unwrap();
        let mut shim = Command::new("sh");
        shim.current_dir(dir.path()).arg(SHIM_COMMAND).arg(&run);
        let mut shim = shim.stdin(std::process::Stdio::piped()).spawn().unwrap();
        // The kernel shows the command line a moment after the program has begun.
        let found = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            Some(run_dirs_of_shims(dir.path()).unwrap()).filter(|found| !found.is_empty())
        });
        assert_eq!(found, Some(vec![run]));
        assert_eq!(run_dirs_of_shims(Path::new("/elsewhere")).unwrap(), Vec::<PathBuf>::new());
        drop(shim.stdin.take());
        shim.wait().unwrap();
    }
}

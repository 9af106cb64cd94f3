//! A cgroup for one test, delegated as systemd does it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{XattrFlags, setxattr};

/// How often, and after which time, a cgroup that is not empty yet is removed again.
const TRIES: u32 = 1000;
const STEP: Duration = Duration::from_millis(5);

/// A cgroup below the one of the test. Dropping it kills everything in it and removes it.
#[derive(Debug)]
pub struct TestCgroup {
    path: PathBuf,
}

impl TestCgroup {
    /// Creates a cgroup with systemd's mark of delegation.
    ///
    /// # Panics
    ///
    /// If this process may not create cgroups: a test that needs one cannot do without.
    pub fn delegated() -> Self {
        let cgroup = Self::undelegated();
        setxattr(&cgroup.path, "user.delegate", b"1", XattrFlags::empty()).unwrap();
        cgroup
    }

    /// As [`TestCgroup::delegated`], without the mark.
    ///
    /// # Panics
    ///
    /// The same.
    pub fn undelegated() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let parent = mainstay_hold::cgroup::own_dir().expect(
            "this test needs a cgroup version 2 hierarchy, mounted where the test can see it",
        );
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| {
            panic!("this test needs to create cgroups (as root): {}: {error}", path.display())
        });
        Self { path }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the cgroups in it.
    pub fn children(&self) -> Vec<String> {
        children(&self.path).iter().map(|path| last(path)).collect()
    }

    /// Writes a script that runs a program in this cgroup.
    ///
    /// # Panics
    ///
    /// If the script cannot be written.
    pub fn write_wrapper(&self, script: &Path, program: &Path) {
        use std::os::unix::fs::PermissionsExt as _;
        let (procs, program) = (self.path.join("cgroup.procs"), program.display());
        let text = format!(
            "#!/bin/sh\necho 0 > '{}' || exit 1\nexec '{program}' \"$@\"\n",
            procs.display()
        );
        fs::write(script, text).unwrap();
        fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        fs::write(self.path.join("cgroup.kill"), "1").unwrap();
        for _ in 0..TRIES {
            if remove(&self.path) {
                return;
            }
            thread::sleep(STEP);
        }
        // Another panic would hide the first one.
        assert!(thread::panicking(), "{} cannot be removed", self.path.display());
    }
}

/// A command that runs a program in the cgroup of this directory.
pub fn command_in(cgroup: &Path, program: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    let script = format!("echo 0 > '{}/cgroup.procs' && exec \"$0\" \"$@\"", cgroup.display());
    command.args(["-c", &script, program]);
    command
}

/// The version 2 cgroup of a process, as the kernel shows it.
///
/// # Panics
///
/// If there is no such process.
pub fn cgroup_of(pid: u32) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
}

fn remove(path: &Path) -> bool {
    let below = children(path).iter().all(|child| remove(child));
    match fs::remove_dir(path) {
        Ok(()) => below,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

fn children(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

fn last(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

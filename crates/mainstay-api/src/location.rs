//! Which run directory an instance uses, recorded in its state directory.
//!
//! A program finds the state directory through `HOME` alone, in every environment that a client passes. The record
//! there names the run directory, so that no other variable can hide the daemon's socket. It also names machine and
//! boot, because a home directory may be shared by several machines, and a run directory may not survive a boot.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Instance, InstanceError};

/// The name of the record in the state directory.
const FILE: &str = "location.json";

/// Opens a pipe without waiting for its other end.
const O_NONBLOCK: i32 = 0o4000;

/// The record is a few hundred bytes; a longer file is something else.
const MAX_BYTES: u64 = 64 * 1024;

/// The machine that this process runs on, since its last boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Identifies the machine.
    pub id: String,
    /// Identifies the boot.
    pub boot: String,
    /// The name of the machine, for people.
    pub host_name: String,
}

impl Machine {
    /// Reads the identity of this machine from the system.
    pub fn current() -> Self {
        let read = |path| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        let host_name = read("/proc/sys/kernel/hostname").unwrap_or_default();
        // Containers often lack a machine id.
        let id = read("/etc/machine-id").filter(|id| !id.is_empty());
        Self {
            id: id.unwrap_or_else(|| host_name.clone()),
            boot: read("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            host_name,
        }
    }

    pub(crate) fn is_same_boot(&self, other: &Self) -> bool {
        self.id == other.id && self.boot == other.boot
    }
}

/// The record: where the last daemon of an instance was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// On which machine, since which boot.
    pub machine: Machine,
    /// With which state directory.
    pub state_dir: PathBuf,
    /// With which run directory.
    pub run_dir: PathBuf,
    /// Whether a service manager started it, which also restarts it.
    #[serde(default)]
    pub service: bool,
}

impl Location {
    /// Reads the record. An unreadable record counts as none: the next daemon writes another.
    pub fn read(state_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&read_file(state_dir, FILE)?).ok()
    }

    /// Replaces the record, atomically.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        replace_file(state_dir, FILE, self)
    }

    /// Whether the run directory can be in use: on this machine, since this boot, by this instance rather than one
    /// whose state directory was copied, and in a directory that is still there.
    fn applies_to(&self, instance: &Instance) -> bool {
        self.machine.is_same_boot(&Machine::current())
            && self.state_dir == instance.state_dir
            && self.run_dir.parent().is_some_and(Path::exists)
    }
}

/// The content of a small regular file. Nothing else is read: a pipe or a device would never end.
pub(crate) fn read_file(dir: &Path, name: &str) -> Option<Vec<u8>> {
    let mut options = fs::File::options();
    let file = options.read(true).custom_flags(O_NONBLOCK).open(dir.join(name)).ok()?;
    let found = file.metadata().ok()?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return None;
    }
    let mut content = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Replaces a file by a private one with this content, atomically.
pub(crate) fn replace_file(dir: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.{}", std::process::id()));
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = serde_json::to_vec(content)
        .map_err(io::Error::from)
        .and_then(|json| options.open(&temporary)?.write_all(&json))
        .and_then(|()| fs::rename(&temporary, dir.join(name)));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

impl Instance {
    /// Finds the instance that the environment means, with the run directory that its daemon uses. Reads the record and
    /// changes nothing.
    pub fn find(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, InstanceError> {
        let mut instance = Self::from_env(&get)?;
        let has_home = get("MAINSTAY_HOME").is_some_and(|home| !home.is_empty());
        if !has_home
            && Location::read(&instance.state_dir).is_none()
            && let Some(earlier) = earlier_run_dir(get)
        {
            instance.run_dir = earlier;
        }
        Ok(instance.located())
    }

    /// The same instance with the run directory that is recorded now.
    #[must_use]
    pub fn located(mut self) -> Self {
        let recorded = Location::read(&self.state_dir);
        if let Some(location) = recorded.filter(|location| location.applies_to(&self)) {
            self.run_dir = location.run_dir;
        }
        self
    }

    /// The machine on which the daemon of this instance was started, if that is another one.
    pub fn other_machine(&self) -> Option<Machine> {
        let recorded = Location::read(&self.state_dir)?.machine;
        (recorded.id != Machine::current().id).then_some(recorded)
    }

    /// Whether a service manager started the last daemon, and may be about to start the next.
    pub fn is_managed(&self) -> bool {
        let recorded = Location::read(&self.state_dir);
        recorded.is_some_and(|location| location.service && location.applies_to(self))
    }
}

/// The run directory of a daemon up to 0.1.0, which followed `XDG_RUNTIME_DIR`. It and its servers may still be
/// running.
fn earlier_run_dir(get: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let runtime = get("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute())?;
    let run_dir = runtime.join("mainstay");
    let is_in_use = run_dir.join(Instance::SOCKET).exists() || run_dir.join("runs").exists();
    is_in_use.then_some(run_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instance below `home`, as the variables name it.
    fn find(home: &Path, more: &[(&str, &Path)]) -> Instance {
        let get = |name: &str| {
            let home = ("HOME", home);
            [home].iter().chain(more).find(|(key, _)| *key == name).map(|(_, value)| value.into())
        };
        Instance::find(get).unwrap()
    }

    fn location(instance: &Instance, run_dir: &Path) -> Location {
        Location {
            machine: Machine::current(),
            state_dir: instance.state_dir.clone(),
            run_dir: run_dir.to_owned(),
            service: true,
        }
    }

    #[test]
    fn variables_do_not_hide_a_recorded_run_directory() {
        let home = tempfile::tempdir().unwrap();
        let usual = find(home.path(), &[]);
        fs::create_dir_all(&usual.state_dir).unwrap();
        let elsewhere = home.path().join("elsewhere");
        location(&usual, &elsewhere).write(&usual.state_dir).unwrap();
        let xdg = ("XDG_RUNTIME_DIR", Path::new("/run/user/7"));
        for more in [&[][..], &[xdg]] {
            let found = find(home.path(), more);
            assert_eq!(found.run_dir, elsewhere);
            assert!(found.is_managed() && found.other_machine().is_none());
        }
        let own = find(home.path(), &[("MAINSTAY_HOME", Path::new("/m")), xdg]);
        assert_eq!(own.run_dir, Path::new("/m/run"));
    }

    #[test]
    fn a_record_of_another_machine_boot_or_state_directory_does_not_apply() {
        let home = tempfile::tempdir().unwrap();
        let usual = find(home.path(), &[]);
        fs::create_dir_all(&usual.state_dir).unwrap();
        let record = location(&usual, &home.path().join("elsewhere"));
        let check = |record: &Location| {
            record.write(&usual.state_dir).unwrap();
            assert_eq!(find(home.path(), &[]), usual, "{record:?}");
        };
        let machine = |id: Option<&str>, boot: Option<&str>| {
            let current = Machine::current();
            let or = |new: Option<&str>, old| new.map_or(old, str::to_owned);
            Machine { id: or(id, current.id), boot: or(boot, current.boot), ..Machine::current() }
        };
        check(&Location { machine: machine(None, Some("before")), ..record.clone() });
        check(&Location { state_dir: "/copied".into(), ..record.clone() });
        check(&Location { run_dir: home.path().join("gone/mainstay"), ..record.clone() });
        check(&Location { machine: machine(Some("other"), None), ..record });
        assert_eq!(usual.other_machine().unwrap().id, "other");
    }

    #[test]
    fn the_run_directory_of_an_earlier_program_stays_in_use() {
        let (home, runtime) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let xdg = [("XDG_RUNTIME_DIR", runtime.path())];
        let usual = find(home.path(), &xdg);
        assert_eq!(usual.run_dir, usual.state_dir.join("run"));
        fs::create_dir_all(runtime.path().join("mainstay/runs")).unwrap();
        let earlier = find(home.path(), &xdg);
        assert_eq!(earlier.run_dir, runtime.path().join("mainstay"));
        fs::create_dir_all(&earlier.state_dir).unwrap();
        location(&earlier, &earlier.run_dir).write(&earlier.state_dir).unwrap();
        assert_eq!(find(home.path(), &[]).run_dir, earlier.run_dir, "without the variable too");
    }

    #[test]
    fn a_record_that_cannot_be_read_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for content in ["", "{", "[]", r#"{"machine":{},"run_dir":"/r"}"#] {
            fs::write(&path, content).unwrap();
            assert_eq!(Location::read(dir.path()), None, "{content}");
        }
        for endless in ["/dev/zero", "/dev/ptmx"] {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(endless, &path).unwrap();
            assert_eq!(Location::read(dir.path()), None, "{endless}");
        }
        let instance = find(dir.path(), &[]);
        let location = location(&instance, Path::new("/r"));
        location.write(dir.path()).unwrap();
        assert_eq!(Location::read(dir.path()), Some(location));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }
}

//! A separately installed Mainstay, and other versions of it.
//!
//! Another version is the built program with some bytes replaced, so that the program needs no hooks for tests.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::env::{Output, TestEnv, fixture, patiently, until};

/// This version, and one that is made of it.
pub(crate) const OLD: &str = env!("CARGO_PKG_VERSION");
pub(crate) const NEW: &str = "9.9.9";

/// The defect of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It passes the trial run, but does not know the arguments by which a holder starts a daemon.
    NeverPrepared,
    /// It prepares to take over, and then cannot open its socket.
    NeverReady,
}

impl Flaw {
    pub(super) const ALL: [Self; 2] = [Self::NeverPrepared, Self::NeverReady];
}

/// An environment with a program in a directory with blanks.
pub(super) struct Setup {
    pub(super) env: TestEnv,
    pub(super) program: PathBuf,
}

impl Setup {
    pub(super) fn new() -> Self {
        Self::with_program(Path::new(built()))
    }

    /// The same, with a daemon of that program and a server that remembers.
    pub(super) fn running() -> Self {
        Self::running_program(Path::new(built()))
    }

    /// The same with another program.
    pub(super) fn running_program(program: &Path) -> Self {
        let setup = Self::with_program(program);
        setup.ok(&["run", "fx", "--wait", "--json", "--", &fixture()]);
        setup
    }

    fn with_program(from: &Path) -> Self {
        let env = TestEnv::new();
        let bin = env.root().join("some where");
        fs::create_dir(&bin).unwrap();
        let program = bin.join("mainstay");
        fs::copy(from, &program).unwrap();
        Self { env, program }
    }

    /// The installed program, ready to run.
    pub(super) fn command(&self, program: &Path, args: &[&str]) -> Command {
        let like = self.env.command(args);
        let mut command = Command::new(program);
        command.args(args).env_clear().current_dir(self.env.work()).stdin(Stdio::null());
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// Runs the installed program to its end.
    pub(super) fn run(&self, args: &[&str]) -> Output {
        self.env.run_prepared(self.command(&self.program, args))
    }

    /// The same, for what must succeed.
    pub(super) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.code, 0, "{output}");
        output.stdout
    }

    pub(super) fn update(&self, from: &Path) -> Output {
        self.run(&["update", "--from", from.to_str().unwrap()])
    }

    /// An update that must be refused without changes.
    #[track_caller]
    pub(super) fn refused(&self, from: &Path) -> String {
        let before = self.files();
        let output = self.update(from);
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output}");
        assert_eq!(self.files(), before, "nothing was changed");
        output.stderr
    }

    /// The daemon, which must be there.
    pub(super) fn daemon(&self) -> Value {
        let mut command = self.command(&self.program, &["daemon", "status", "--json"]);
        let output = self.env.run_prepared({
            command.env("MAINSTAY_NO_START", "1");
            command
        });
        serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output}"))
    }

    /// Waits until the holder runs the program that is at this path now, which it does when the trial of an update is over.
    pub(super) fn until_holder_runs(&self, program: &Path) {
        let holder = self.daemon()["holder"].as_u64().unwrap();
        let runs = || {
            let running = fs::metadata(format!("/proc/{holder}/exe")).unwrap().ino();
            (running == fs::metadata(program).unwrap().ino()).then_some(())
        };
        patiently(runs).or_else(|| patiently(runs)).unwrap_or_else(|| {
            until("the holder runs the new program", runs);
        });
    }

    pub(super) fn previous(&self) -> PathBuf {
        self.program.with_file_name("mainstay.previous")
    }

    /// The names beside the program, and how long each of their files is.
    pub(super) fn files(&self) -> Vec<(String, u64)> {
        let entries = fs::read_dir(self.program.parent().unwrap()).unwrap().map(Result::unwrap);
        let mut files: Vec<_> = entries
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, entry.metadata().unwrap().len())
            })
            .collect();
        files.sort();
        files
    }

    /// What is in the state directory for an update, and should be gone after it.
    pub(super) fn has_rehearsal(&self) -> bool {
        self.env.mainstay_home().join("state/rehearsal").exists()
    }

    /// Writes a program that was not installed. Nobody may run it, as after a download.
    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.env.root().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// A newer version.
    pub(super) fn newer(&self) -> PathBuf {
        self.file("newer", &version(NEW))
    }

    /// A newer version with a defect.
    pub(super) fn flawed(&self, flaw: Flaw) -> PathBuf {
        let mut bytes = version(NEW);
        match flaw {
            Flaw::NeverPrepared => patch(&mut bytes, "held", "hexd"),
            Flaw::NeverReady => patch(&mut bytes, "daemon.sock", "no/dir.sock"),
        }
        self.file(&format!("{flaw:?}"), &bytes)
    }
}

/// The program under test.
pub(super) fn built() -> &'static str {
    env!("CARGO_BIN_EXE_mainstay")
}

/// The program under test as if it were of that version.
pub(crate) fn version(version: &str) -> Vec<u8> {
    let mut bytes = fs::read(built()).unwrap();
    patch(&mut bytes, OLD, version);
    bytes
}

/// Replaces all occurrences of a text by another one of the same length.
fn patch(bytes: &mut [u8], from: &str, to: &str) {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    assert_eq!(from.len(), to.len());
    let mut at = 0;
    let mut patched = 0;
    while let Some(next) = bytes[at..].iter().position(|byte| *byte == from[0]) {
        at += next;
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            patched += 1;
        }
        at += 1;
    }
    assert!(patched > 0, "the words are in the program");
}

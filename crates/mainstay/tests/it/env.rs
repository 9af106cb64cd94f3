//! A home of its own for each test: own HOME, own Mainstay, nothing inherited.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Where a test's Mainstay lives. Dropping it stops the daemon, ends every process that was started
/// in it, and removes the files.
pub(crate) struct TestEnv {
    root: tempfile::TempDir,
    vars: Vec<(String, String)>,
}

/// What a command printed and how it ended.
pub(crate) struct Output {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: i32,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        let root = tempfile::Builder::new().prefix("mainstay-test-").tempdir().unwrap();
        for dir in ["home", "work"] {
            fs::create_dir(root.path().join(dir)).unwrap();
        }
        Self { root, vars: Vec::new() }
    }

    /// The same, with one more variable for every command.
    pub(crate) fn with_var(mut self, name: &str, value: &str) -> Self {
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The directory in which commands run.
    pub(crate) fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// What `MAINSTAY_HOME` is.
    pub(crate) fn mainstay_home(&self) -> PathBuf {
        self.root.path().join("mainstay")
    }

    /// Writes a file into the directory in which commands run.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.work().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// The program, ready to run in this environment.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.root.path().join("home"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("TMPDIR", self.root.path())
            .env("MAINSTAY_HOME", self.mainstay_home())
            .envs(self.vars.iter().map(|(name, value)| (name, value)))
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.finish(self.command(args).output().unwrap())
    }

    /// Runs the program with this on its standard input.
    pub(crate) fn run_with_input<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        input: &str,
    ) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A program that does not read its input may be gone already.
        let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
        self.finish(child.wait_with_output().unwrap())
    }

    /// Output with the paths of this environment replaced, so that it can be compared.
    fn finish(&self, output: std::process::Output) -> Output {
        let root = self.root.path().to_str().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace(root, "[ROOT]");
        Output {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code().unwrap_or(-1),
        }
    }

    /// Processes that were started in this environment: they carry its `MAINSTAY_HOME`, run in one
    /// of its directories, or were given one of its paths.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let root = self.root.path().to_str().unwrap();
        let mark = format!("MAINSTAY_HOME={}", self.mainstay_home().display());
        let ours = |pid: &u32| {
            let proc = Path::new("/proc").join(pid.to_string());
            let words = |file: &str| {
                let bytes = fs::read(proc.join(file)).unwrap_or_default();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            words("environ").split('\0').any(|variable| variable == mark)
                || words("cmdline").contains(root)
                || fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(root))
        };
        let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(ours).collect()
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        if self.mainstay_home().exists() {
            self.run(["daemon", "stop"]);
        }
        for pid in self.processes() {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
            // It may have ended since.
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

/// The form that snapshots keep: exit code, then whatever was printed.
impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit: {}", self.code)?;
        for (title, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                write!(f, "\n--- {title}\n{}", text.trim_end_matches('\n'))?;
            }
        }
        Ok(())
    }
}

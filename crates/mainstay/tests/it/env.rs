//! The environment of a test: its own HOME and Mainstay, nothing inherited.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mainstay_testkit::cgroup::TestCgroup;
use mainstay_testkit::programs::program;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::Instant;

/// No test waits longer for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// How often a condition is checked.
const STEP: Duration = Duration::from_millis(20);

/// How often a change without an event is checked for.
const UNTOLD: Duration = Duration::from_millis(200);

/// The environment of a test. Dropping it stops the daemon, kills every process that was started in it, and removes its
/// files.
pub(crate) struct TestEnv {
    root: tempfile::TempDir,
    vars: Vec<(String, String)>,
    /// The program, and the user who runs it, if not the user of the tests.
    program: PathBuf,
    uid: Option<u32>,
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
        for dir in ["home", "project"] {
            fs::create_dir(root.path().join(dir)).unwrap();
        }
        let program = env!("CARGO_BIN_EXE_mainstay").into();
        Self { root, vars: Vec::new(), program, uid: None }
    }

    /// The same, where every command is run by this user. The directories are still to be given away. The
    /// program is copied, because not every user may see where it was built.
    pub(crate) fn run_by(mut self, uid: u32) -> Self {
        let copy = self.root().join("bin");
        fs::copy(&self.program, &copy).unwrap();
        (self.program, self.uid) = (copy, Some(uid));
        self
    }

    /// The same, where every command is run in this cgroup.
    pub(crate) fn in_cgroup(mut self, cgroup: &TestCgroup) -> Self {
        let wrapper = self.root().join("in-cgroup");
        cgroup.write_wrapper(&wrapper, &self.program);
        self.program = wrapper;
        self
    }

    /// The same, with one more variable for every command.
    pub(crate) fn with_var(mut self, name: &str, value: &str) -> Self {
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The directory that holds everything; `[ROOT]` in outputs.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// The directory in which commands run.
    pub(crate) fn work(&self) -> PathBuf {
        self.root.path().join("project")
    }

    /// What `MAINSTAY_HOME` is.
    pub(crate) fn mainstay_home(&self) -> PathBuf {
        self.root.path().join("mainstay")
    }

    /// How often the daemon's log has this text, once that is so at least `count` times.
    #[track_caller]
    pub(crate) fn once_logged(&self, text: &str, count: usize) -> usize {
        let mut log = String::new();
        let found = patiently(|| {
            log = fs::read_to_string(self.mainstay_home().join("state/daemon.log")).ok()?;
            Some(log.matches(text).count()).filter(|found| *found >= count)
        });
        found.unwrap_or_else(|| panic!("`{text}` is not {count} times in the log: {log}"))
    }

    /// Writes a file into the directory in which commands run.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.work().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// The program, ready to run in this environment.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
            .args(args)
            .env_clear()
            .env("HOME", self.root.path().join("home"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("TMPDIR", self.root.path())
            .env("MAINSTAY_HOME", self.mainstay_home())
            .env("MAINSTAY_LISTEN", "127.0.0.1:0")
            .envs(self.vars.iter().map(|(name, value)| (name, value)))
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.run_prepared(self.command(args))
    }

    /// Runs a command that was made ready here to its end.
    pub(crate) fn run_prepared(&self, mut command: Command) -> Output {
        self.finish(command.output().unwrap())
    }

    /// What the command prints on a terminal, which `script` of util-linux provides.
    pub(crate) fn on_terminal(&self, args: &[&str]) -> String {
        let like = self.command(args);
        let words = std::iter::once(like.get_program()).chain(like.get_args());
        let quoted: Vec<String> =
            words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        let mut command = Command::new("script");
        command.args(["-q", "-c", &quoted.join(" "), "/dev/null"]).env_clear();
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("TERM", "xterm-256color").env("SHELL", "/bin/sh").env_remove("NO_COLOR");
        let output = command.stdin(Stdio::null()).output().expect("util-linux has `script`");
        // A terminal returns the carriage at each line's end by itself.
        String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
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
            kill(pid, Signal::KILL);
        }
    }
}

/// Common steps of tests.
impl TestEnv {
    /// Runs a command that must succeed, and gives what it printed.
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.run(args);
        assert_eq!(output.code, 0, "{output}");
        output.stdout
    }

    /// The same, with the JSON that it printed.
    pub(crate) fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// `run NAME OPTIONS --wait --json -- COMMAND`, which must succeed.
    pub(crate) fn run_server(&self, name: &str, options: &[&str], command: &[&str]) -> Value {
        self.json(run_args(name, options, command))
    }

    /// The same, for a server that must fail.
    pub(crate) fn run_failing(&self, name: &str, options: &[&str], command: &[&str]) -> Output {
        let args = run_args(name, options, command).into_iter().filter(|arg| *arg != "--json");
        let output = self.run(args);
        assert_eq!(output.code, 1, "{output}");
        output
    }

    /// A server as `ls --json` shows it; null if it is not there.
    pub(crate) fn server(&self, name: &str) -> Value {
        let Value::Array(servers) = self.json(["ls", "--json"]) else { panic!("no array") };
        servers.into_iter().find(|server| server["name"] == name).unwrap_or_default()
    }

    /// Waits until the server fulfils a condition. It is checked after every event, and periodically, because not every
    /// change has an event.
    #[track_caller]
    pub(crate) fn once(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = self.server(name);
        let begun = Instant::now();
        let mut events = None;
        while !is_so(&last) {
            assert!(begun.elapsed() < LIMIT, "{name} never {what}; it is {last:#}");
            let follower = events.get_or_insert_with(|| {
                // The last event comes at once, so that nothing after it is missed.
                self.follow(["events", "-f", "--tail", "1", "--json"])
            });
            if !follower.wait(UNTOLD) {
                thread::sleep(STEP);
                events = None;
            }
            last = self.server(name);
        }
        last
    }

    /// A server once its run of this generation is up and ready.
    pub(crate) fn once_running(&self, name: &str, generation: u64) -> Value {
        self.once(name, "got to that run", |server| {
            server["status"] == "running" && server["generation"] == generation
        })
    }

    /// The result of a call that must succeed, as text.
    pub(crate) fn call(&self, name: &str, tool: &str, arguments: &str) -> String {
        self.ok(["call", name, tool, arguments]).trim_end().to_owned()
    }

    /// The events of a server, oldest first.
    pub(crate) fn events(&self, name: &str) -> Vec<Value> {
        let lines = self.ok(["events", name, "--json"]);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The events of a server that are called that.
    pub(crate) fn events_called(&self, name: &str, event: &str) -> Vec<Value> {
        self.events(name).into_iter().filter(|found| found["event"] == event).collect()
    }

    /// The daemon's process, which must be there.
    pub(crate) fn daemon(&self) -> u32 {
        pid_of(&self.json(["daemon", "status", "--json"]))
    }

    /// The daemon's and its holder's processes, in order.
    pub(crate) fn mainstays(&self) -> Vec<u32> {
        let about = self.json(["daemon", "status", "--json"]);
        let holder = u32::try_from(about["holder"].as_u64().unwrap()).unwrap();
        let mut both = vec![pid_of(&about), holder];
        both.sort_unstable();
        both
    }

    /// Kills the daemon and its holder, so that no daemon is there until the next command.
    pub(crate) fn kill_mainstay(&self) {
        let about = self.json(["daemon", "status", "--json"]);
        let (daemon, holder) =
            (pid_of(&about), u32::try_from(about["holder"].as_u64().unwrap()).unwrap());
        // Neither of the two can start the other again.
        kill(holder, Signal::STOP);
        kill(daemon, Signal::KILL);
        until_dead(daemon);
        kill(holder, Signal::KILL);
        until_dead(holder);
    }

    /// Starts a command whose lines can be read as they are printed.
    pub(crate) fn follow<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Follower {
        let mut command = self.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Follower { child, lines }
    }
}

/// A command that runs until it is ended.
pub(crate) struct Follower {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Follower {
    /// The next line that is so; others are passed over.
    pub(crate) fn line(&self, is_so: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.lines.recv_timeout(LIMIT).expect("the line comes in time");
            if is_so(&line) {
                return line;
            }
        }
    }

    /// Drops further lines for this time. Returns whether the command is still running.
    fn wait(&self, limit: Duration) -> bool {
        let next = self.lines.recv_timeout(limit);
        self.lines.try_iter().for_each(drop);
        next != Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Waits for its exit, and returns the exit code and standard error.
    pub(crate) fn ending(mut self) -> (Option<i32>, String) {
        let status = until("it ended by itself", || self.child.try_wait().unwrap());
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status.code(), stderr)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Polls until there is a result, within the time limit.
pub(crate) fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    patiently(ask).unwrap_or_else(|| panic!("not within {LIMIT:?}: {what}"))
}

/// The same, with a message for the case that the time limit passes.
pub(crate) fn patiently<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        thread::sleep(STEP);
    }
    None
}

fn run_args<'a>(name: &'a str, options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&["run", name], options, &["--wait", "--json", "--"], command].concat()
}

/// A server as a shell script that answers `initialize` and then runs these commands.
pub(crate) fn shell_server(then: &str) -> String {
    let handshake = r#"
        read -r line
        id=$(printf '%s' "$line" | sed 's/.*"id":\([^,}]*\).*/\1/')
        info='"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"sh","version":"1"}'
        printf '{"jsonrpc":"2.0","id":%s,"result":{%s}}\n' "$id" "$info"
        read -r initialized
        "#;
    format!("{handshake}{then}")
}

/// The fixture MCP server.
pub(crate) fn fixture() -> String {
    program("fixture-mcp").into_os_string().into_string().unwrap()
}

/// A free port. It is below the ephemeral ports, and each test process begins its search at another one, so that no
/// other process binds it meanwhile.
pub(crate) fn free_port() -> u16 {
    let first = std::process::id().wrapping_mul(31);
    let ports = (0..12_000).map(|n| 20_000 + first.wrapping_add(n) % 12_000);
    let mut ports = ports.map(|port| u16::try_from(port).unwrap());
    ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()).unwrap()
}

/// The process that a JSON object names.
pub(crate) fn pid_of(object: &Value) -> u32 {
    u32::try_from(object["pid"].as_u64().unwrap()).unwrap()
}

/// Sends a signal to a process, which may have ended already.
pub(crate) fn kill(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let _gone = kill_process(pid, signal);
}

/// Whether a process is running. A zombie is not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let is_running = stat(pid).is_some_and(|(state, _)| state != "Z" && state != "X");
    // The first thread of a killed process may have ended before the others, which keep its connections open.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    is_running || threads > 1
}

/// Waits until a process has ended.
pub(crate) fn until_dead(pid: u32) {
    until("the process ended", || (!is_alive(pid)).then_some(()));
}

/// The process that holds a server, and that is its parent.
pub(crate) fn shim_of(server: &Value) -> u32 {
    parent_of(pid_of(server))
}

/// The parent of a process: the shim of a server, the guard of a shim.
pub(crate) fn parent_of(pid: u32) -> u32 {
    stat(pid).expect("the process lives").1
}

/// The state and the parent of a process.
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain anything, blanks and parentheses too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// The form of snapshots: exit code, then the output.
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

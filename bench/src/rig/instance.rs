//! A Mainstay of our own: separate state, home and port, and nothing left when it ends.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::BenchError;
use super::contract::{Daemon, Event, Server};
use crate::procfs::{Process, processes};

/// How long one command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// How long everything may take to end after `daemon stop`.
const END_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// The programs that a measure needs.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    mainstay: PathBuf,
    fixture: PathBuf,
    /// Variables that `mainstay` is given besides.
    vars: Vec<(&'static str, String)>,
}

impl Programs {
    /// Those in the folder of this program, except that `mainstay` may be elsewhere.
    pub(crate) fn beside_this(mainstay: Option<&Path>) -> io::Result<Self> {
        let this = std::env::current_exe()?;
        let mainstay = match mainstay {
            Some(path) => std::path::absolute(path)?,
            None => this.with_file_name("mainstay"),
        };
        let fixture = this.with_file_name("fixture-mcp");
        Ok(Self { mainstay, fixture, vars: Vec::new() })
    }

    /// The program that is measured.
    pub(crate) fn mainstay(&self) -> &Path {
        &self.mainstay
    }

    /// The same, but with another `mainstay`.
    pub(crate) fn with_mainstay(self, mainstay: PathBuf) -> Self {
        Self { mainstay, ..self }
    }

    /// The same, with a variable for every `mainstay` command.
    pub(crate) fn with_var(mut self, name: &'static str, value: String) -> Self {
        self.vars.push((name, value));
        self
    }
}

/// How Mainstay is to talk to a fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upstream {
    Stdio,
    Http,
}

/// The instance. Its folder's name is unique and occurs in the command or environment of every
/// process that it starts, which is how they are found at the end.
#[derive(Debug)]
pub(crate) struct Instance {
    programs: Programs,
    folder: TempDir,
    /// Where its proxy listens.
    listen: SocketAddr,
}

impl Instance {
    pub(crate) fn new(programs: Programs) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("mainstay-bench-").tempdir()?;
        std::fs::create_dir(folder.path().join("home"))?;
        symlink(&programs.fixture, folder.path().join("fixture-mcp"))?;
        Ok(Self { programs, folder, listen: free_address()? })
    }

    /// The folder of this instance, for files and as the mark of its processes.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where clients find a server.
    pub(crate) fn url(&self, server: &str) -> String {
        format!("http://{}/{server}/mcp", self.listen)
    }

    /// The fixture under a path that belongs to this instance alone.
    pub(crate) fn fixture(&self) -> PathBuf {
        self.folder.path().join("fixture-mcp")
    }

    /// Where its clients' files are.
    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Where its proxy listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listen
    }

    /// Where the state of the instance is.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Runs `mainstay` to its end.
    pub(crate) async fn mainstay(&self, arguments: &[&str]) -> Result<Vec<u8>, BenchError> {
        let mut command = self.command(arguments);
        let output = output(&mut command, COMMAND_LIMIT).await?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(BenchError::Failed { command: describe(&command), stderr })
    }

    /// Runs a `mainstay` command that prints JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        arguments: &[&str],
    ) -> Result<T, BenchError> {
        let stdout = self.mainstay(arguments).await?;
        parse(&describe(&self.command(arguments)), &stdout)
    }

    /// Adds a fixture. It counts as stable at once, so no end of it is ever a second failure.
    pub(crate) async fn add(&self, name: &str, upstream: Upstream) -> Result<(), BenchError> {
        self.mainstay(&as_str(&self.run_arguments(name, upstream)?)).await.map(drop)
    }

    /// What follows `mainstay` to add a fixture.
    pub(crate) fn run_arguments(
        &self,
        name: &str,
        upstream: Upstream,
    ) -> Result<Vec<String>, BenchError> {
        let fixture = self.fixture().to_string_lossy().into_owned();
        let mut words: Vec<String> = ["run", name, "--stable-after", "0s"].map(String::from).into();
        match upstream {
            Upstream::Stdio => words.extend(["--".to_owned(), fixture]),
            Upstream::Http => {
                let address = free_address().map_err(BenchError::SetUp)?;
                let port = address.port().to_string();
                words.extend(["--transport", "streamable-http", "--target-port"].map(String::from));
                words.extend([port, "--".to_owned(), fixture, "--http".to_owned()]);
                words.push(address.to_string());
            }
        }
        Ok(words)
    }

    pub(crate) async fn servers(&self) -> Result<Vec<Server>, BenchError> {
        self.json(&["ls", "--json"]).await
    }

    /// All servers, those that are stopped as well.
    pub(crate) async fn all_servers(&self) -> Result<Vec<Server>, BenchError> {
        self.json(&["ls", "-a", "--json"]).await
    }

    pub(crate) async fn daemon_pid(&self) -> Result<u32, BenchError> {
        Ok(self.daemon().await?.pid)
    }

    pub(crate) async fn daemon(&self) -> Result<Daemon, BenchError> {
        self.json(&["daemon", "status", "--json"]).await
    }

    /// Waits until this many servers are ready and returns them.
    pub(crate) async fn ready_servers(
        &self,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<Server>, BenchError> {
        let deadline = Instant::now() + limit;
        loop {
            let servers = self.servers().await?;
            if servers.iter().filter(|server| server.is_ready()).count() >= count {
                return Ok(servers);
            }
            if Instant::now() >= deadline {
                return Err(BenchError::Late { what: format!("{count} ready servers"), limit });
            }
            sleep(POLL).await;
        }
    }

    /// Waits until a server is ready and returns its process id.
    pub(crate) async fn ready_pid(&self, name: &str, limit: Duration) -> Result<u32, BenchError> {
        let deadline = Instant::now() + limit;
        loop {
            let mut servers = self.servers().await?.into_iter();
            match servers.find(|server| server.name == name && server.is_ready()) {
                Some(Server { pid: Some(pid), .. }) => return Ok(pid),
                Some(Server { pid: None, .. }) => {
                    return Err(BenchError::Untold { server: name.to_owned(), what: "pid" });
                }
                None if Instant::now() >= deadline => {
                    return Err(BenchError::Late { what: format!("readiness of `{name}`"), limit });
                }
                None => sleep(POLL).await,
            }
        }
    }

    /// Follows the events from now on; older ones may come first.
    pub(crate) fn follow(&self) -> Result<Events, BenchError> {
        let mut command = self.command(&["events", "-f", "--json"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| BenchError::Start { program: describe(&command), source })?;
        let stdout = child.stdout.take().expect("stdout was asked for as a pipe");
        Ok(Events { _child: child, lines: BufReader::new(stdout).lines() })
    }

    /// The processes of this instance that are alive.
    pub(crate) fn processes(&self) -> Result<Vec<Process>, BenchError> {
        let mark = self.folder.path().to_string_lossy();
        let mut found = processes()?;
        found.retain(|process| process.mentions(&mark));
        Ok(found)
    }

    /// Ends the servers and the daemon, then whatever is still there, and says if there was any.
    pub(crate) async fn end(self) -> Result<(), BenchError> {
        let goodbyes = [&["rm", "--all"][..], &["daemon", "stop"]];
        for goodbye in goodbyes {
            if self.processes()?.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.mainstay(goodbye).await {
                complain(&crate::chain(&error));
            }
        }
        let deadline = Instant::now() + END_LIMIT;
        while !self.processes()?.is_empty() && Instant::now() < deadline {
            sleep(POLL).await;
        }
        self.kill_the_rest().await
    }

    /// The same, but gives what was wrong with that, and what was still there.
    pub(crate) async fn left_over(&self) -> Result<Vec<String>, BenchError> {
        let mut wrong = Vec::new();
        for goodbye in [&["rm", "--all"][..], &["daemon", "stop"]] {
            wrong.extend(self.mainstay(goodbye).await.err().map(|error| crate::chain(&error)));
        }
        let deadline = Instant::now() + END_LIMIT;
        while !self.processes()?.is_empty() && Instant::now() < deadline {
            sleep(POLL).await;
        }
        let rest = self.processes()?.into_iter();
        wrong.extend(rest.map(|process| format!("{} ({})", process.command, process.pid)));
        self.kill_the_rest().await?;
        Ok(wrong)
    }

    /// More than one round, because what is killed may be replaced by what is not killed yet.
    async fn kill_the_rest(&self) -> Result<(), BenchError> {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            let rest = self.processes()?;
            if rest.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = format!("the end of {} processes", rest.len());
                return Err(BenchError::Late { what, limit: END_LIMIT });
            }
            for process in rest {
                complain(&format!("`{}` ({}) had to be killed", process.command, process.pid));
                kill(process.pid);
            }
            sleep(POLL).await;
        }
    }

    /// A `mainstay` command of this instance.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.mainstay);
        command
            .args(arguments)
            .env("MAINSTAY_HOME", self.state())
            .env("MAINSTAY_LISTEN", self.listen.to_string())
            .env("HOME", self.home())
            .envs(self.programs.vars.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The events of an instance as they come.
pub(crate) struct Events {
    /// Killed when dropped.
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Events {
    /// The next event, or nothing at the deadline.
    pub(crate) async fn next(&mut self, deadline: Instant) -> Result<Option<Event>, BenchError> {
        match timeout_at(deadline, self.lines.next_line()).await {
            Err(_) => Ok(None),
            Ok(Ok(Some(line))) => parse("mainstay events -f --json", line.as_bytes()).map(Some),
            Ok(Ok(None) | Err(_)) => Err(BenchError::EventsEnded),
        }
    }
}

/// Runs a command to its end; it is killed at the limit.
pub(crate) async fn output(command: &mut Command, limit: Duration) -> Result<Output, BenchError> {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    match timeout(limit, running).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(source)) => Err(BenchError::Start { program: describe(command), source }),
        Err(_) => {
            Err(BenchError::Late { what: format!("the end of `{}`", describe(command)), limit })
        }
    }
}

/// Reads what a command printed.
pub(crate) fn parse<T: DeserializeOwned>(command: &str, stdout: &[u8]) -> Result<T, BenchError> {
    serde_json::from_slice(stdout)
        .map_err(|source| BenchError::Unreadable { command: command.to_owned(), source })
}

pub(crate) fn as_str(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// An address of loopback that nobody listens on at the moment.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Kills a process; one that is not there any more needs no killing.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        kill_process(pid, Signal::KILL).ok();
    }
}

fn describe(command: &Command) -> String {
    let command = command.as_std();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Tells on stderr about something that spoils the tidiness but not the figures.
fn complain(text: &str) {
    writeln!(io::stderr(), "bench: {text}").ok();
}

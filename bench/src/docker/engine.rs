//! The engine that measures use: one that `scripts/docker` has made, in whose network this program runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::sleep;

use crate::rig::{BenchError, Instance, Server, output};

/// The image of the fixture server.
pub(crate) const IMAGE: &str = "mainstay-fixture:test";
/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// A container engine of our own.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Engine {
    /// The directory of the engine to use, as `scripts/docker up` made it.
    #[arg(long = "engine", value_name = "DIR")]
    dir: PathBuf,
    /// `scripts/docker`, which ends and starts it.
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
}

impl Engine {
    /// The engine in a directory, and the script that ends and starts it.
    pub(crate) fn new(dir: PathBuf, script: PathBuf) -> Self {
        Self { dir, script }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    /// Runs the `docker` command and gives what it printed.
    pub(crate) async fn docker(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let mut command = Command::new("docker");
        command.args(self.prefix()).args(arguments);
        run(command).await
    }

    /// What follows `docker` to reach this engine.
    pub(super) fn prefix(&self) -> [String; 2] {
        ["--host".to_owned(), host(&self.socket())]
    }

    /// `docker VERB OPTIONS IMAGE FLAGS`, which prints the id of a container.
    pub(super) async fn container(
        &self,
        verb: &[&str],
        flags: &[&str],
    ) -> Result<String, BenchError> {
        self.docker(&[verb, &["--init", IMAGE], flags].concat()).await
    }

    /// The first process of a container.
    pub(crate) async fn pid(&self, container: &str) -> Result<u32, BenchError> {
        let told = self.docker(&["inspect", "--format", "{{.State.Pid}}", container]).await?;
        told.parse().map_err(|_| BenchError::Wrong(format!("`{told}` is no process id")))
    }

    /// The first process of the container of a server that is ready.
    pub(super) async fn ready_pid(
        &self,
        instance: &Instance,
        name: &str,
    ) -> Result<u32, BenchError> {
        let servers = instance.ready_servers(1, LIMIT).await?;
        let untold = || BenchError::Untold { server: name.to_owned(), what: "container" };
        let id = servers.into_iter().find(|server| server.name == name);
        self.pid(&id.and_then(|server: Server| server.container_id).ok_or_else(untold)?).await
    }

    /// Adds the fixture in a container to a Mainstay. It counts as stable at once.
    pub(super) async fn add(
        &self,
        instance: &Instance,
        name: &str,
        wire: Wire,
    ) -> Result<(), BenchError> {
        let options = ["run", name, "--stable-after", "0s", "--image", IMAGE];
        let words = [&options[..], wire.options(), &["--wait", "--"], wire.flags()].concat();
        instance.mainstay(&words).await.map(drop)
    }

    /// Ends the engine in peace, and all its containers.
    pub(super) async fn stop(&self) -> Result<(), BenchError> {
        self.script("stop").await
    }

    /// Ends the engine at once.
    pub(crate) async fn kill(&self) -> Result<(), BenchError> {
        self.script("kill").await
    }

    /// Starts the engine again.
    pub(crate) async fn start(&self) -> Result<(), BenchError> {
        self.script("start").await
    }

    /// The process of the engine.
    pub(crate) fn process(&self) -> Result<u32, BenchError> {
        let told = std::fs::read_to_string(self.dir.join("pid")).map_err(BenchError::SetUp)?;
        told.trim().parse().map_err(|_| BenchError::Wrong(format!("`{told}` is no process id")))
    }

    /// Returns when the engine answers.
    pub(super) async fn answers(&self) {
        while ping(&self.socket()).await.is_err() {
            sleep(POLL).await;
        }
    }

    async fn script(&self, verb: &str) -> Result<(), BenchError> {
        let mut command = Command::new(&self.script);
        command.arg(verb).arg(&self.dir);
        run(command).await.map(drop)
    }
}

/// How a server in a container speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Stdio,
    Http,
}

impl Wire {
    /// Where it listens, in its container.
    pub(super) const PORT: &str = "8000";

    /// What it is told itself.
    pub(super) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Stdio => &[],
            Self::Http => &["--http", "0.0.0.0:8000"],
        }
    }

    /// What Mainstay is told.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Stdio => &[],
            Self::Http => &["--transport", "streamable-http", "--target-port", Self::PORT],
        }
    }
}

/// A socket as `DOCKER_HOST` names it.
pub(crate) fn host(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

async fn run(mut command: Command) -> Result<String, BenchError> {
    let output = output(&mut command, LIMIT).await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    let words = command.as_std().get_args().map(|word| word.to_string_lossy());
    let command = words.collect::<Vec<_>>().join(" ");
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Failed { command, stderr })
}

async fn ping(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.contains(" 200 ") { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}

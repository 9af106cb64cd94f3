//! The programs to compare with, each on loopback, with its files in the folder of the instance.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::load::{Endpoint, Transport as _};
use crate::procfs::{parent, processes};
use crate::rig::{BenchError, Instance, free_address};

/// How long a program may take until it serves.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take to end.
const END_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Where the programs are. Those that are not named take no part.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Peers {
    /// nginx, the plain reverse proxy.
    #[arg(long, value_name = "FILE")]
    pub(super) nginx: Option<PathBuf>,
    /// The `mcp-proxy` of crates.io.
    #[arg(long, value_name = "FILE")]
    pub(super) mcp_proxy: Option<PathBuf>,
    /// The main script of npm's `supergateway`, which runs with the `node` of the path.
    #[arg(long, value_name = "FILE")]
    pub(super) supergateway: Option<PathBuf>,
}

/// A running program. It has to be ended by [`Peer::end`], which also ends its children.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    pid: u32,
    address: SocketAddr,
    pub(super) url: String,
}

impl Peer {
    /// The fixture over HTTP.
    pub(super) async fn fixture(instance: &Instance) -> Result<Self, BenchError> {
        let address = free_address().map_err(BenchError::SetUp)?;
        let mut command = Command::new(instance.fixture());
        command.arg("--http").arg(address.to_string());
        Self::start(instance, command, address, "/mcp").await
    }

    /// nginx with two workers, before the server at this address.
    pub(super) async fn nginx(
        instance: &Instance,
        program: &Path,
        upstream: SocketAddr,
    ) -> Result<Self, BenchError> {
        let address = free_address().map_err(BenchError::SetUp)?;
        let file = write(instance, "nginx.conf", &nginx_config(upstream, address))?;
        let mut command = Command::new(program);
        command.arg("-p").arg(instance.folder()).arg("-c").arg(file);
        Self::start(instance, command, address, "/mcp").await
    }

    /// crates.io's mcp-proxy before one stdio fixture; it calls the tools `fx/...`.
    pub(super) async fn mcp_proxy(instance: &Instance, program: &Path) -> Result<Self, BenchError> {
        let address = free_address().map_err(BenchError::SetUp)?;
        let file =
            write(instance, "mcp-proxy.toml", &mcp_proxy_config(&instance.fixture(), address))?;
        let mut command = Command::new(program);
        command.arg("--config").arg(file);
        Self::start(instance, command, address, "/").await
    }

    /// npm's supergateway, stateful: a stdio fixture for each session.
    pub(super) async fn supergateway(
        instance: &Instance,
        script: &Path,
    ) -> Result<Self, BenchError> {
        let address = free_address().map_err(BenchError::SetUp)?;
        let preload = write(instance, "loopback.cjs", include_str!("loopback.cjs"))?;
        let mut command = Command::new("node");
        command.arg("-r").arg(preload).arg(script).arg("--stdio").arg(instance.fixture());
        command.args(["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"]);
        command.arg("--port").arg(address.port().to_string());
        Self::start(instance, command, address, "/mcp").await
    }

    async fn start(
        instance: &Instance,
        mut command: Command,
        address: SocketAddr,
        path: &str,
    ) -> Result<Self, BenchError> {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        // The mark makes it and its children part of the instance, which sweeps up what is left.
        let child = command
            .env("MAINSTAY_BENCH", instance.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| BenchError::Start { program: program.clone(), source })?;
        let pid = child.id().expect("a child that has not been waited for has an id");
        let mut peer = Self { child, pid, address, url: format!("http://{address}{path}") };
        if peer.serves().await {
            return Ok(peer);
        }
        peer.end().await;
        let what = format!("an answer of `{program}`");
        Err(BenchError::Late { what, limit: START_LIMIT })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it answers; says whether it did.
    async fn serves(&mut self) -> bool {
        let deadline = Instant::now() + START_LIMIT;
        let Ok(endpoint) = endpoint(&self.url) else { return false };
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            if let Ok(Ok(session)) = timeout(START_LIMIT, endpoint.open()).await {
                endpoint.close(session).await;
                return true;
            }
            sleep(POLL).await;
        }
        false
    }

    /// Its process and those children that are not servers.
    pub(super) fn pids(&self, instance: &Instance) -> Result<Vec<u32>, BenchError> {
        let fixture = instance.fixture();
        let fixture = fixture.to_string_lossy();
        let children = processes()?
            .into_iter()
            .filter(|process| !process.command.contains(fixture.as_ref()))
            .map(|process| process.pid)
            .filter(|pid| parent(*pid).is_ok_and(|parent| parent == self.pid));
        Ok(std::iter::once(self.pid).chain(children).collect())
    }

    /// Ends it in a way that lets it end its children.
    pub(super) async fn end(mut self) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).ok();
        }
        if timeout(END_LIMIT, self.child.wait()).await.is_err() {
            self.child.kill().await.ok();
        }
    }
}

/// The endpoint at a URL that we made ourselves.
pub(super) fn endpoint(url: &str) -> Result<Endpoint, BenchError> {
    let url = url.parse().expect("an address and a path make a URL");
    Ok(Endpoint::new(&url)?)
}

fn write(instance: &Instance, name: &str, text: &str) -> Result<PathBuf, BenchError> {
    let path = instance.folder().join(name);
    std::fs::write(&path, text).map_err(BenchError::SetUp)?;
    Ok(path)
}

/// Two workers, keep-alive on both sides, no buffering, no log. Paths are below the prefix.
fn nginx_config(upstream: SocketAddr, listen: SocketAddr) -> String {
    format!(
        "daemon off;
worker_processes 2;
pid nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path temp-body;
    proxy_temp_path temp-proxy;
    fastcgi_temp_path temp-fastcgi;
    uwsgi_temp_path temp-uwsgi;
    scgi_temp_path temp-scgi;
    upstream fixture {{ server {upstream}; keepalive 512; keepalive_requests 1000000000; }}
    server {{
        listen {listen};
        keepalive_requests 1000000000;
        location / {{
            proxy_pass http://fixture;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_request_buffering off;
        }}
    }}
}}
"
    )
}

fn mcp_proxy_config(fixture: &Path, listen: SocketAddr) -> String {
    let (fixture, port) = (fixture.display(), listen.port());
    format!(
        "[proxy]
name = \"bench\"
separator = \"/\"
[proxy.listen]
host = \"127.0.0.1\"
port = {port}
[[backends]]
name = \"fx\"
transport = \"stdio\"
command = \"{fixture}\"
[observability]
log_level = \"error\"
"
    )
}

//! Real container engines for tests only.
//!
//! `scripts/docker` makes them, each in a directory and a network namespace of its own. One is shared
//! by all tests of a run ([`Engine::shared`]); a test that ends, kills or restarts its engine has one
//! for itself ([`Engine::own`], [`Engine::podman`]), which leaves nothing behind when it is dropped, or
//! when the test ends in any other way. All of them have the fixture server as the image [`IMAGE`].
//!
//! What a container publishes on loopback is published in the engine's network namespace. A test goes
//! there first ([`Engine::enter`]), before it starts any thread or program.

#![expect(clippy::missing_panics_doc, reason = "a test fails by panicking")]

mod fault_proxy;
mod request;

use std::env;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

pub use fault_proxy::{Fault, FaultProxy};

/// The image of the fixture server. Its entry point takes the fixture's flags.
pub const IMAGE: &str = "mainstay-fixture:test";

/// What is set for tests that use engines: the directory of the shared one.
const SHARED: &str = "MAINSTAY_TEST_DOCKER";

/// A container engine.
#[derive(Debug)]
pub struct Engine {
    dir: PathBuf,
    /// Where it is and who removes it in the worst case, if it is this test's own.
    own: Option<(TempDir, Child)>,
}

/// How an engine of a test's own is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Whether containers go on while it is down.
    pub live_restore: bool,
}

impl Engine {
    /// The engine that all tests of this run share. It must stay up, and what a test leaves in it
    /// must not disturb others.
    #[expect(clippy::disallowed_methods, reason = "scripts/test sets it")]
    pub fn shared() -> Self {
        let dir = env::var(SHARED).unwrap_or_else(|_| {
            panic!("{SHARED} is not set: tests that need Docker are run by `cargo nextest`, as scripts/test does")
        });
        Self { dir: dir.into(), own: None }
    }

    /// Starts a Docker engine for this test alone.
    pub fn own(options: Options) -> Self {
        let flags: &[&str] = if options.live_restore { &["--live-restore"] } else { &[] };
        Self::make("up", flags)
    }

    /// Starts Podman, which speaks Docker's language, for this test alone.
    pub fn podman() -> Self {
        Self::make("podman", &[])
    }

    fn make(verb: &str, flags: &[&str]) -> Self {
        let fixture = Self::shared().dir.join("fixture-mcp");
        // Sockets below it must have short paths.
        let dir = tempfile::Builder::new().prefix("mst-").tempdir_in("/tmp").unwrap();
        let guard = guard(dir.path());
        let engine = Self { dir: dir.path().to_owned(), own: Some((dir, guard)) };
        engine.script(verb, flags);
        engine.script("image", &[fixture.to_str().expect("paths of tests are text")]);
        engine
    }

    /// Moves this thread into the engine's network namespace, with all threads and programs that it
    /// starts from now on.
    pub fn enter(&self) {
        let name = fs::read_to_string(self.dir.join("netns")).unwrap();
        enter_network(&Path::new("/run/netns").join(name.trim()));
    }

    /// Where it is reached.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    /// Where it is reached, as `DOCKER_HOST` says it.
    pub fn host(&self) -> String {
        host(&self.socket())
    }

    /// Ends the engine in peace. Returns when it has ended.
    pub fn stop(&self) {
        self.change("stop");
    }

    /// Kills the engine. Returns when it has ended.
    pub fn kill(&self) {
        self.change("kill");
    }

    /// Starts the engine again. Returns when it answers.
    pub fn start(&self) {
        self.change("start");
    }

    fn change(&self, verb: &str) {
        assert!(self.own.is_some(), "the shared engine stays up");
        self.script(verb, &[]);
    }

    /// Runs the `docker` command, which must succeed, and gives what it printed, without the line end.
    #[track_caller]
    pub fn docker(&self, args: &[&str]) -> String {
        let output = self.try_docker(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// Runs the `docker` command.
    pub fn try_docker(&self, args: &[&str]) -> Output {
        let mut command = Command::new("docker");
        // Ignores the user's contexts and plugins.
        command.arg("--config").arg(self.dir.join("cli")).arg("--host").arg(self.host()).args(args);
        command.stdin(Stdio::null()).output().expect("the docker command is installed")
    }

    /// One field of what `docker inspect` says of a container, as a Go template.
    #[track_caller]
    pub fn inspect(&self, container: &str, template: &str) -> String {
        self.docker(&["inspect", "--format", template, container])
    }

    /// The first process of a container that is up.
    #[track_caller]
    pub fn pid(&self, container: &str) -> u32 {
        self.inspect(container, "{{.State.Pid}}").parse().expect("a pid is a number")
    }

    /// The containers of a label, whatever their state.
    #[track_caller]
    pub fn labelled(&self, label: &str) -> Vec<String> {
        let filter = format!("label={label}");
        let ids = self.docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]);
        ids.lines().map(str::to_owned).collect()
    }

    /// Removes the containers of a label, as far as that can be done: a test that has failed may be why.
    pub fn sweep(&self, label: &str) {
        let filter = format!("label={label}");
        let output = self.try_docker(&["ps", "--all", "--quiet", "--filter", &filter]);
        for id in String::from_utf8_lossy(&output.stdout).lines() {
            self.try_docker(&["rm", "--force", "--volumes", id]);
        }
    }

    fn script(&self, verb: &str, args: &[&str]) {
        let output = self.command(verb, args).stdin(Stdio::null()).output();
        let output = output.expect("scripts/docker can be run");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "scripts/docker {verb}: {stderr}");
    }

    fn command(&self, verb: &str, args: &[&str]) -> Command {
        command(verb, &self.dir, args)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some((_dir, mut guard)) = self.own.take() {
            let _status = self.command("down", &[]).stdin(Stdio::null()).status();
            let _ended = guard.kill();
            let _status = guard.wait();
        }
    }
}

/// Lets an engine be removed also if this process is killed.
fn guard(dir: &Path) -> Child {
    let this = std::process::id().to_string();
    let mut guard = command("guard", dir, &[&this]);
    guard.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // What ends the test, such as a runner at its limit, may end the whole group of processes.
    guard.process_group(0).spawn().expect("scripts/docker can be run")
}

fn command(verb: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/docker"));
    command.arg(verb).arg(dir).args(args);
    command
}

/// A socket as `DOCKER_HOST` names it.
fn host(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

/// Moves this thread, and all that it starts, into a network namespace: a file such as `/proc/PID/ns/net`.
///
/// # Panics
///
/// If there is no such namespace, or this is not root.
pub fn enter_network(path: &Path) {
    let namespace = File::open(path).expect("the namespace exists");
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may enter a network namespace");
}

//! The set-up of a test, and the ways in which its daemon ends.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, fixture, kill, until_dead};
use crate::proxy::client::text_of;
use crate::proxy::raw::{Raw, parts};

/// The server's name in every test.
pub(super) const NAME: &str = "fx";

/// How long slow calls take: longer than a restart of the daemon.
pub(super) const SLOW: u64 = 2_500;

/// The pause between two connections.
const KNOCK_EVERY: Duration = Duration::from_millis(5);

/// The maximum number of connections.
const KNOCKS: usize = 10_000;

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    Kill,
    Reload,
}

impl Blow {
    pub(super) const ALL: [Self; 2] = [Self::Kill, Self::Reload];

    /// Ends the daemon, and returns when the next one serves.
    pub(super) fn strike(self, env: &TestEnv) {
        let old = env.daemon();
        match self {
            Self::Kill => {
                kill(old, Signal::KILL);
                until_dead(old);
            }
            Self::Reload => drop(env.ok(["daemon", "reload"])),
        }
        assert_ne!(env.daemon(), old, "{self:?}");
    }
}

/// A Mainstay with one server.
pub(super) struct Setup {
    pub(super) env: TestEnv,
    pub(super) url: String,
    pub(super) server: Value,
}

impl Setup {
    /// The fixture server with these flags, ready.
    pub(super) fn new(options: &[&str], flags: &[&str]) -> Self {
        Self::in_env(TestEnv::new(), options, flags)
    }

    /// The same, where files have been put already.
    pub(super) fn in_env(env: TestEnv, options: &[&str], flags: &[&str]) -> Self {
        Self::run(env, options, &[&[&*fixture()], flags].concat())
    }

    /// Any server, ready.
    pub(super) fn run(env: TestEnv, options: &[&str], command: &[&str]) -> Self {
        let server = env.run_server(NAME, options, command);
        let url = server["url"].as_str().expect("a server has a URL").to_owned();
        Self { env, url, server }
    }

    /// Opens a session over raw HTTP.
    pub(super) fn raw(&self) -> Raw {
        Raw::open(&self.url)
    }

    /// The address in the server's URL.
    pub(super) fn address(&self) -> String {
        parts(&self.url).0
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.env.mainstay_home().join("run/daemon.sock")
    }

    /// The daemon's process and its holder's.
    pub(super) fn mainstay(&self) -> (u32, u32) {
        let about = self.env.json(["daemon", "status", "--json"]);
        let pid = |field: &str| u32::try_from(about[field].as_u64().unwrap()).unwrap();
        (pid("pid"), pid("holder"))
    }

    /// Asserts that the server still has the same process.
    #[track_caller]
    pub(super) fn assert_server_kept(&self) {
        let now = self.env.server(NAME);
        for field in ["pid", "generation", "status", "restarts_total"] {
            assert_eq!(now[field], self.server[field], "{field}");
        }
    }
}

/// Calls a tool that must succeed, and gives the first text of its result.
#[track_caller]
pub(super) fn say(session: &Raw, id: u64, tool: &str, arguments: &Value) -> String {
    let result = session.ask(id, "tools/call", &json!({"name": tool, "arguments": arguments}));
    assert_ne!(result["isError"], true, "{result}");
    text_of(&result, 0)
}

/// How many lines a file has.
pub(super) fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// A client that connects continuously and sends nothing.
pub(crate) struct Knocker {
    enough: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Vec<io::Error>)>,
}

impl Knocker {
    pub(crate) fn tcp(address: &str) -> Self {
        let address = address.to_owned();
        Self::start(move || TcpStream::connect(&address).map(drop))
    }

    pub(super) fn unix(socket: PathBuf) -> Self {
        Self::start(move || UnixStream::connect(&socket).map(drop))
    }

    fn start(mut knock: impl FnMut() -> io::Result<()> + Send + 'static) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let is_enough = Arc::clone(&enough);
        let thread = thread::spawn(move || {
            let mut failures = Vec::new();
            let mut count = 0;
            while count < KNOCKS && !is_enough.load(Ordering::Relaxed) {
                failures.extend(knock().err());
                count += 1;
                thread::sleep(KNOCK_EVERY);
            }
            (count, failures)
        });
        Self { enough, thread }
    }

    /// Ends it, and asserts that no connection was refused.
    #[track_caller]
    pub(crate) fn was_always_welcome(self) {
        self.enough.store(true, Ordering::Relaxed);
        let (count, failures) = self.thread.join().unwrap();
        assert!(failures.is_empty(), "of {count} connects {} failed: {failures:?}", failures.len());
        assert!((1..KNOCKS).contains(&count), "{count} connects");
    }
}

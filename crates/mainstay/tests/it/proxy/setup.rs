//! The set-up of a test: its own Mainstay with one server.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::client::{Client, Sdk};
use super::raw::Raw;
use crate::env::{TestEnv, fixture, free_port, kill, pid_of, until};
use crate::real_servers::environment;

/// The server's name in every test.
pub(super) const NAME: &str = "fx";

/// Restarts that a test need not wait for.
pub(super) const QUICK: [&str; 4] = ["--restart-initial", "100ms", "--restart-cap", "100ms"];

/// Runs a command once the file `barred` does not exist.
pub(super) const BEHIND_A_BAR: [&str; 4] =
    ["sh", "-c", r#"while test -e barred; do sleep 0.02; done; exec "$@""#, "sh"];

/// The transport of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Stdio,
    Http,
}

impl Wire {
    pub(super) const ALL: [Self; 2] = [Self::Stdio, Self::Http];
}

/// A Mainstay with one server.
pub(super) struct Setup {
    pub(super) env: TestEnv,
    pub(super) url: String,
}

impl Setup {
    /// Runs the fixture server, until it is ready.
    pub(super) fn new(wire: Wire, options: &[&str], flags: &[&str]) -> Self {
        Self::in_env(test_env(), wire, options, flags)
    }

    /// The same, where files have been put already.
    pub(super) fn in_env(env: TestEnv, wire: Wire, options: &[&str], flags: &[&str]) -> Self {
        let program = fixture();
        let port = free_port().to_string();
        let address = format!("127.0.0.1:{port}");
        let (more, speak): (&[&str], &[&str]) = match wire {
            Wire::Stdio => (&[], &[]),
            Wire::Http => {
                (&["--transport", "streamable-http", "--target-port", &port], &["--http", &address])
            }
        };
        let options = [more, options].concat();
        let command = [&BEHIND_A_BAR[..], &[&*program], speak, flags].concat();
        Self::run(env, &options, &command)
    }

    /// Runs any server, until it is ready.
    pub(super) fn run(env: TestEnv, options: &[&str], command: &[&str]) -> Self {
        env.run_server(NAME, options, command);
        Self::of(env)
    }

    /// A setup with the server that is there.
    pub(super) fn of(env: TestEnv) -> Self {
        let url = env.server(NAME)["url"].as_str().expect("a server has a URL").to_owned();
        assert!(url.ends_with("/fx/mcp"), "{url}");
        Self { env, url }
    }

    /// Opens a session.
    pub(super) fn client(&self, sdk: Sdk) -> Client {
        Client::connect(&self.env, sdk, &self.url)
    }

    /// Opens a session with each SDK.
    pub(super) fn everyone(&self) -> Vec<Client> {
        Client::connect_all(&self.env, &self.url)
    }

    /// Opens a session over raw HTTP.
    pub(super) fn raw(&self) -> Raw {
        Raw::open(&self.url)
    }

    /// The server as `ls` shows it.
    pub(super) fn server(&self) -> Value {
        self.env.server(NAME)
    }

    /// Kills the server, and returns when Mainstay knows.
    pub(super) fn kill(&self) {
        let before = self.server();
        kill(pid_of(&before), Signal::KILL);
        self.env.once(NAME, "was seen to be dead", |now| now["pid"] != before["pid"]);
    }

    /// Kills the server, which stays down until it is allowed to start.
    pub(super) fn take_down(&self) {
        bar(&self.env);
        self.kill();
    }

    /// Asserts that the server is still down, and allows it to start.
    #[track_caller]
    pub(super) fn let_up(&self) {
        assert_ne!(self.server()["status"], "running");
        unbar(&self.env);
    }

    /// Kills the server, and returns when the next run is ready.
    pub(super) fn restart(&self) {
        let before = self.server();
        kill(pid_of(&before), Signal::KILL);
        self.back(before["generation"].as_u64().unwrap() + 1);
    }

    /// Returns when this run is ready.
    pub(super) fn back(&self, generation: u64) {
        self.env.once_running(NAME, generation);
    }

    /// A path for the server to write to.
    pub(super) fn file(&self, name: &str) -> Lines {
        Lines(self.env.work().join(name))
    }

    /// Asserts that each client has the one session it began with, and that nothing disturbed it.
    #[track_caller]
    pub(super) fn assert_clean(&self, clients: &[Client]) {
        for client in clients {
            client.assert_clean();
        }
        assert_eq!(self.server()["sessions"], json!(clients.len()), "no session but theirs");
    }
}

/// Where interpreters are found, and the listener takes any port.
pub(super) fn test_env() -> TestEnv {
    environment().with_var("MAINSTAY_LISTEN", "127.0.0.1:0")
}

/// Keeps runs of the fixture server from starting.
pub(super) fn bar(env: &TestEnv) {
    env.write("barred", "");
}

/// Lets them start.
pub(super) fn unbar(env: &TestEnv) {
    fs::remove_file(env.work().join("barred")).unwrap();
}

/// A file that servers append lines to.
pub(super) struct Lines(PathBuf);

impl Lines {
    pub(super) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(super) fn read(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until there are so many lines.
    pub(super) fn until(&self, count: usize) {
        let what = format!("{count} lines in {}", self.0.display());
        until(&what, || (self.read().len() >= count).then_some(()));
    }

    /// Waits for the first recorded message of this method after so many lines.
    pub(super) fn message(&self, after: usize, method: &str) -> Value {
        until(&format!("{method} in {}", self.0.display()), || {
            let lines = self.read();
            let new = lines.iter().skip(after).filter_map(|line| serde_json::from_str(line).ok());
            new.into_iter().find(|message: &Value| message["method"] == method)
        })
    }
}

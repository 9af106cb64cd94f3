//! The set-up of a test: its own Mainstay with one server in a container.

use std::process;
use std::rc::Rc;

use mainstay_testkit::docker::{Engine, FaultProxy, IMAGE, Options};
use serde_json::{Value, json};

use crate::env::{TestEnv, free_port, until};
use crate::proxy::client::{Client, Sdk, text_of};
use crate::proxy::raw::Raw;
use crate::real_servers::environment;

/// Restarts that a test need not wait for.
pub(super) const QUICK: [&str; 4] = ["--restart-initial", "50ms", "--restart-cap", "50ms"];

/// A second restart that never comes within a test.
pub(super) const SLOW: [&str; 4] = ["--restart-initial", "1h", "--restart-cap", "1h"];

/// Where a server that speaks HTTP listens, in its container.
const PORT: &str = "8000";

/// How the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Stdio,
    Http,
}

/// A Mainstay with one server in a container.
pub(super) struct Setup {
    pub(super) env: TestEnv,
    /// Swept when the daemon has ended, so that nothing is started again.
    _rest: Rest,
    pub(super) engine: Rc<Engine>,
    pub(super) name: String,
    pub(super) url: String,
}

impl Setup {
    /// Runs the fixture server in the shared engine, until it is ready.
    pub(super) fn new(wire: Wire, options: &[&str], flags: &[&str]) -> Self {
        Self::on(&Rc::new(Engine::shared()), wire, options, flags)
    }

    /// The same, in an engine of its own.
    pub(super) fn alone(engine: Options, wire: Wire, options: &[&str]) -> Self {
        Self::on(&Rc::new(Engine::own(engine)), wire, options, &[])
    }

    /// The same, in this engine.
    pub(super) fn on(engine: &Rc<Engine>, wire: Wire, options: &[&str], flags: &[&str]) -> Self {
        Self::through(engine, &engine.host(), wire, options, flags)
    }

    /// The same, in an engine that is reached by a proxy.
    pub(super) fn behind(
        proxy: &FaultProxy,
        engine: &Rc<Engine>,
        wire: Wire,
        options: &[&str],
    ) -> Self {
        Self::through(engine, &proxy.host(), wire, options, &[])
    }

    fn through(
        engine: &Rc<Engine>,
        host: &str,
        wire: Wire,
        options: &[&str],
        flags: &[&str],
    ) -> Self {
        let env = engine_env(engine, host);
        let name = server_name("fx");
        run(&env, &name, wire, options, flags);
        let url = env.server(&name)["url"].as_str().expect("a server has a URL").to_owned();
        Self { env, _rest: Rest::new(engine, &name), engine: Rc::clone(engine), name, url }
    }

    /// The server as `ls` shows it.
    pub(super) fn server(&self) -> Value {
        self.env.server(&self.name)
    }

    /// The server's container.
    #[track_caller]
    pub(super) fn container(&self) -> String {
        let server = self.server();
        server["container_id"].as_str().unwrap_or_else(|| panic!("no container: {server:#}")).into()
    }

    /// Runs `docker VERB ARGS CONTAINER`, as any user may.
    #[track_caller]
    pub(super) fn docker(&self, args: &[&str]) {
        let container = self.container();
        self.engine.docker(&[args, &[&container]].concat());
    }

    /// Kills the server, and returns when the next run is ready.
    #[track_caller]
    pub(super) fn kill(&self) -> Value {
        let generation = self.generation();
        self.docker(&["kill"]);
        self.back(generation + 1)
    }

    pub(super) fn generation(&self) -> u64 {
        self.server()["generation"].as_u64().expect("a server has a generation")
    }

    /// Returns when this run is ready.
    pub(super) fn back(&self, generation: u64) -> Value {
        self.env.once_running(&self.name, generation)
    }

    /// Returns when the server has this status.
    pub(super) fn status(&self, status: &str) -> Value {
        self.env.once(&self.name, status, |server| server["status"] == status)
    }

    /// Returns when there is such an event of the server.
    pub(super) fn event(&self, kind: &str) -> Value {
        until(&format!("an event `{kind}`"), || {
            self.env.events_called(&self.name, kind).first().cloned()
        })
    }

    /// Opens a session.
    pub(super) fn client(&self, sdk: Sdk) -> Client {
        Client::connect(&self.env, sdk, &self.url)
    }

    /// Opens a session over raw HTTP.
    pub(super) fn raw(&self) -> Raw {
        Raw::open(&self.url)
    }

    /// Asserts that each client has the one session it began with, and that it works.
    #[track_caller]
    pub(super) fn assert_goes_on(&self, clients: &[&Client]) {
        for client in clients {
            assert_eq!(client.text("echo", &json!({"text": "still here"})), "still here");
            client.assert_clean();
        }
        assert_eq!(self.server()["sessions"], json!(clients.len()), "no session but theirs");
    }

    /// What the daemon has logged.
    pub(super) fn log(&self) -> String {
        let dir = self.env.mainstay_home().join("state");
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        text("daemon.log")
    }
}

/// Where `mainstay` finds this engine, and what it publishes is found. To be called before any thread is
/// started.
pub(super) fn engine_env(engine: &Engine, host: &str) -> TestEnv {
    engine.enter();
    let listen = format!("127.0.0.1:{}", free_port());
    environment().with_var("DOCKER_HOST", host).with_var("MAINSTAY_LISTEN", &listen)
}

/// A name that no other test uses, though their servers share an engine.
pub(super) fn server_name(prefix: &str) -> String {
    format!("{prefix}-{}", process::id())
}

/// Runs the fixture server in a container, until it is ready.
pub(super) fn run(
    env: &TestEnv,
    name: &str,
    wire: Wire,
    options: &[&str],
    flags: &[&str],
) -> Value {
    let address = format!("0.0.0.0:{PORT}");
    let (more, speak): (&[&str], &[&str]) = match wire {
        Wire::Stdio => (&[], &[]),
        Wire::Http => {
            (&["--transport", "streamable-http", "--target-port", PORT], &["--http", &address])
        }
    };
    let options = [&["--image", IMAGE], more, options].concat();
    env.run_server(name, &options, &[speak, flags].concat())
}

/// Calls a tool that cannot be reached, and returns the error that the client gets.
#[track_caller]
pub(super) fn refused(client: &Client) -> String {
    let result = client.call("echo", &json!({"text": "anybody?"}));
    assert_eq!(result["isError"], true, "{:?}: {result}", client.sdk);
    text_of(&result, 0)
}

/// Asserts that the session is the one it was.
#[track_caller]
pub(super) fn assert_works(session: &Raw) {
    let call = json!({"name": "echo", "arguments": {"text": "still here"}});
    let result = session.ask(1, "tools/call", &call);
    assert_eq!(result["content"][0]["text"], "still here", "{result}");
}

/// What a server leaves in an engine that others use too.
pub(super) struct Rest {
    engine: Rc<Engine>,
    label: String,
}

impl Rest {
    pub(super) fn new(engine: &Rc<Engine>, name: &str) -> Self {
        Self { engine: Rc::clone(engine), label: format!("mainstay.server={name}") }
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.engine.sweep(&self.label);
    }
}

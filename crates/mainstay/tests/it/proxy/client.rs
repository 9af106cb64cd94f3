//! Drives real clients in all languages.
//!
//! Commands to a client and its events are JSON, described in `tests/clients/README.md`. All events are kept, so that a
//! test can wait for events of the past, and can check that an event has not happened.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::rust_sdk::RustSdk;
use crate::env::TestEnv;
use crate::real_servers::tool;

/// The time limit for events of a client.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// The official clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sdk {
    /// npm `@modelcontextprotocol/sdk` 1.17, which speaks 2025-06-18
    Ts117,
    /// npm `@modelcontextprotocol/sdk` 1.x
    Ts1,
    /// npm `@modelcontextprotocol/client` 2.x
    Ts2,
    /// `PyPI` `mcp` 1.x
    Py1,
    /// `PyPI` `mcp` 2.x
    Py2,
    /// crates.io `rmcp`
    Rust,
}

impl Sdk {
    pub(crate) const ALL: [Self; 5] = [Self::Ts1, Self::Ts2, Self::Py1, Self::Py2, Self::Rust];

    /// Those that are programs of their own, and can speak stdio.
    pub(crate) const PROGRAMS: [Self; 4] = [Self::Ts1, Self::Ts2, Self::Py1, Self::Py2];

    /// The same, and the older versions that many clients still have.
    pub(crate) const VERSIONS: [Self; 5] =
        [Self::Ts117, Self::Ts1, Self::Ts2, Self::Py1, Self::Py2];
}

/// A real client in a session.
pub(crate) struct Client {
    pub(crate) sdk: Sdk,
    reported: EventLog,
    driver: Driver,
    last_id: AtomicU64,
}

/// Executes commands.
enum Driver {
    Program(Child, Mutex<Option<ChildStdin>>),
    Rust(RustSdk),
}

/// A request that has been sent.
pub(crate) struct Ticket<'a> {
    client: &'a Client,
    pub(crate) id: u64,
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum End {
    Result(Value),
    Error { code: Value, message: String },
}

impl Client {
    /// Connects to a URL, and returns when the session is open.
    pub(crate) fn connect(env: &TestEnv, sdk: Sdk, url: &str) -> Self {
        Self::start(env, sdk, url).connected()
    }

    /// Connects to a command that speaks stdio.
    pub(crate) fn connect_stdio(env: &TestEnv, sdk: Sdk, command: &[&str]) -> Self {
        Self::start(env, sdk, &json!(command).to_string()).connected()
    }

    /// Connects to a URL with all SDKs at once, each in a session of its own.
    pub(crate) fn connect_all(env: &TestEnv, url: &str) -> Vec<Self> {
        let started: Vec<_> = Sdk::ALL.into_iter().map(|sdk| Self::start(env, sdk, url)).collect();
        started.into_iter().map(Self::connected).collect()
    }

    /// Begins to connect.
    pub(crate) fn start(env: &TestEnv, sdk: Sdk, target: &str) -> Self {
        let reported = EventLog::default();
        let driver = match program_of(sdk) {
            Some(program) => start_program(env, &program, target, reported.clone()),
            None => Driver::Rust(RustSdk::start(target, reported.clone())),
        };
        Self { sdk, reported, driver, last_id: AtomicU64::new(0) }
    }

    /// Waits until the session is open.
    pub(crate) fn connected(self) -> Self {
        let first = self
            .event("connected", |reported| is(reported, "connected") || is(reported, "trouble"));
        assert_eq!(first["event"], "connected", "{:?}: {first}", self.sdk);
        self
    }

    /// The capabilities of the server.
    pub(crate) fn capabilities(&self) -> Value {
        self.event("connected", |reported| is(reported, "connected"))["capabilities"].clone()
    }

    /// Sends a request.
    pub(crate) fn send(&self, method: &str, params: &Value) -> Ticket<'_> {
        let id = self.next_id();
        self.order(&json!({"id": id, "do": method, "params": params}));
        Ticket { client: self, id }
    }

    /// Sends a call of a tool with options of the TypeScript SDK.
    pub(crate) fn send_call_with(&self, tool: &str, options: &Value) -> Ticket<'_> {
        let id = self.next_id();
        let params = json!({"name": tool, "arguments": {}});
        self.order(&json!({"id": id, "do": "tools/call", "params": params, "options": options}));
        Ticket { client: self, id }
    }

    /// Sends a call of a tool.
    pub(crate) fn send_call(&self, tool: &str, arguments: &Value) -> Ticket<'_> {
        self.send("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// The same, with the client's own timeout in seconds.
    pub(crate) fn send_call_within(
        &self,
        seconds: f64,
        tool: &str,
        arguments: &Value,
    ) -> Ticket<'_> {
        let id = self.next_id();
        let params = json!({"name": tool, "arguments": arguments});
        self.order(&json!({"id": id, "do": "tools/call", "params": params, "timeout": seconds}));
        Ticket { client: self, id }
    }

    fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a request and waits for its result.
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Value {
        self.send(method, params).result()
    }

    /// Calls a tool and waits for its result, which may be an error.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.send_call(tool, arguments).result()
    }

    /// Calls a tool that must succeed, and gives the first text of its result.
    pub(crate) fn text(&self, tool: &str, arguments: &Value) -> String {
        self.send_call(tool, arguments).text()
    }

    /// The names of the tools, of the first page.
    pub(crate) fn tools(&self) -> Vec<String> {
        names(&self.ask("tools/list", &json!({}))["tools"])
    }

    /// Cancels a request.
    pub(crate) fn cancel(&self, ticket: &Ticket<'_>) {
        self.order(&json!({"do": "cancel", "id": ticket.id}));
    }

    /// Answers all later requests of the server with this method.
    pub(crate) fn will_answer(&self, method: &str, result: &Value) {
        self.order(&json!({"do": "answers", "method": method, "result": result}));
    }

    /// Answers one request of the server.
    pub(crate) fn answer(&self, question: &Value, result: &Value) {
        self.order(&json!({"do": "answer", "key": question["key"], "result": result}));
    }

    /// Waits for the first event that fulfils a condition.
    pub(crate) fn event(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let found =
            self.reported.wait(|reported| reported.iter().find(|event| is_so(event)).cloned());
        found.unwrap_or_else(|reported| {
            panic!("{:?} never reported {what}: {reported:#?}", self.sdk)
        })
    }

    /// Waits until the response to a call has begun; the Rust SDK does not show it.
    pub(crate) fn call_has_begun(&self) {
        if self.sdk != Sdk::Rust {
            let call = |reported: &Value| is(reported, "http") && reported["rpc"] == "tools/call";
            self.event("the head of a response", call);
        }
    }

    /// Waits for a notification.
    pub(crate) fn notified(&self, method: &str) -> Value {
        self.event(method, |reported| is(reported, "notification") && reported["method"] == method)
    }

    /// Waits for a request of the server.
    pub(crate) fn asked(&self, method: &str) -> Value {
        self.event(method, |reported| is(reported, "asked") && reported["method"] == method)
    }

    /// All events so far that fulfil a condition.
    pub(crate) fn all(&self, is_so: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.reported.lock().iter().filter(|event| is_so(event)).cloned().collect()
    }

    /// The notifications of this kind so far.
    pub(crate) fn notifications(&self, method: &str) -> Vec<Value> {
        self.all(|reported| is(reported, "notification") && reported["method"] == method)
    }

    /// The session id that it sends; none over stdio and for the Rust SDK, which shows none.
    pub(crate) fn session(&self) -> Option<String> {
        let given = self.all(|reported| is(reported, "http") && reported["given"].is_string());
        Some(given.first()?["given"].as_str().unwrap().to_owned())
    }

    /// Asserts that nothing has disturbed it: no error callback, one `initialize`, one session id,
    /// and no HTTP status but good ones.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let sdk = self.sdk;
        let troubles =
            self.all(|reported| is(reported, "trouble") && !is_overtaken_progress(reported));
        assert_eq!(troubles, [Value::Null; 0], "{sdk:?}");
        let http = self.all(|reported| is(reported, "http"));
        let initialized = http.iter().filter(|exchange| exchange["rpc"] == "initialize").count();
        assert!(initialized <= 1, "{sdk:?} initialized {initialized} times");
        let sessions = http.iter().filter_map(|exchange| exchange["session"].as_str());
        for session in sessions {
            assert_eq!(Some(session), self.session().as_deref(), "{sdk:?}");
        }
        // A client of 2026 asks first which era the server belongs to, and is refused.
        for exchange in http.iter().filter(|exchange| exchange["rpc"] != "server/discover") {
            assert!(matches!(exchange["status"].as_u64(), Some(200..300)), "{sdk:?}: {exchange}");
        }
    }

    /// Ends the session as the SDK does it, which must succeed.
    pub(crate) fn close(self) {
        self.order(&json!({"do": "close"}));
        self.event("its end", |reported| is(reported, "closed"));
        self.assert_clean();
    }

    fn order(&self, command: &Value) {
        match &self.driver {
            Driver::Program(_, stdin) => {
                let mut stdin = stdin.lock().unwrap();
                // A client that has ended has reported that.
                let _ended = writeln!(stdin.as_mut().unwrap(), "{command}");
            }
            Driver::Rust(sdk) => sdk.order(command.clone()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        match &mut self.driver {
            Driver::Program(child, _) => {
                let _ended = child.kill();
                let _status = child.wait();
            }
            Driver::Rust(sdk) => sdk.stop(),
        }
    }
}

impl Ticket<'_> {
    /// Waits for the end.
    pub(crate) fn end(&self) -> End {
        let id = self.id;
        let end = self.client.event(&format!("the end of request {id}"), |reported| {
            (is(reported, "result") || is(reported, "error")) && reported["id"] == id
        });
        if is(&end, "result") {
            return End::Result(end["result"].clone());
        }
        let message = end["message"].as_str().unwrap_or_default().to_owned();
        End::Error { code: end["code"].clone(), message }
    }

    /// Waits for the result, which must come.
    #[track_caller]
    pub(crate) fn result(&self) -> Value {
        match self.end() {
            End::Result(result) => result,
            End::Error { code, message } => {
                panic!("{:?}: request {} failed: {code} {message}", self.client.sdk, self.id)
            }
        }
    }

    /// Waits for the result of a call, which must be a good one, and gives its first text.
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        let result = self.result();
        assert_ne!(result["isError"], true, "{:?}: {result}", self.client.sdk);
        text_of(&result, 0)
    }

    /// The progress so far.
    pub(crate) fn progress(&self) -> Vec<f64> {
        let id = self.id;
        let progress = self.client.all(|reported| is(reported, "progress") && reported["id"] == id);
        progress.iter().map(|reported| reported["progress"].as_f64().unwrap()).collect()
    }
}

/// The TypeScript SDK may deal with an answer before the progress that came just before it, without us too.
fn is_overtaken_progress(reported: &Value) -> bool {
    let message = reported["message"].as_str().unwrap_or_default();
    message.starts_with("Received a progress notification for an unknown token")
}

/// Whether an event is of this kind.
pub(crate) fn is(reported: &Value, event: &str) -> bool {
    reported["event"] == event
}

/// One of the texts of a tool's result.
#[track_caller]
pub(crate) fn text_of(result: &Value, item: usize) -> String {
    let text = result["content"][item]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text {item} in {result}")).to_owned()
}

/// The names in a list.
pub(crate) fn names(list: &Value) -> Vec<String> {
    let items = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

/// All events of a client, shared with its reader.
#[derive(Clone, Default)]
pub(crate) struct EventLog(Arc<(Mutex<Vec<Value>>, Condvar)>);

impl EventLog {
    pub(crate) fn add(&self, event: Value) {
        self.lock().push(event);
        self.0.1.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Value>> {
        self.0.0.lock().unwrap()
    }

    /// Waits for a result; returns all events if the time limit passes.
    fn wait<T>(&self, ask: impl Fn(&[Value]) -> Option<T>) -> Result<T, Vec<Value>> {
        let none_yet = |reported: &mut Vec<Value>| ask(reported).is_none();
        let (reported, _) = self.0.1.wait_timeout_while(self.lock(), LIMIT, none_yet).unwrap();
        ask(&reported).ok_or_else(|| reported.clone())
    }
}

/// The command line of an SDK's driver, before its target.
fn program_of(sdk: Sdk) -> Option<Vec<String>> {
    let script = |name: &str| {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        clients.join(name).into_os_string().into_string().unwrap()
    };
    let node = |name, installed| vec!["node".to_owned(), script(name), tool(installed)];
    let python = |interpreter, name| {
        let flags = ["-B", "-W", "ignore"].map(str::to_owned);
        [&[tool(interpreter)], &flags[..], &[script(name)]].concat()
    };
    match sdk {
        Sdk::Ts117 => Some(node("ts1.mjs", "ts17")),
        Sdk::Ts1 => Some(node("ts1.mjs", "ts")),
        Sdk::Ts2 => Some(node("ts2.mjs", "ts")),
        Sdk::Py1 => Some(python("py1/bin/python", "py1.py")),
        Sdk::Py2 => Some(python("py2/bin/python", "py2.py")),
        Sdk::Rust => None,
    }
}

/// Starts a driver in the environment that `mainstay` itself is run in, since it may start it.
fn start_program(env: &TestEnv, program: &[String], target: &str, reported: EventLog) -> Driver {
    let ours = env.command([""; 0]);
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).arg(target).env_clear();
    command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(env.work()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            let event = serde_json::from_str(&line);
            reported.add(event.unwrap_or_else(|_| json!({"event": "trouble", "message": line})));
        }
    });
    let stdin = child.stdin.take();
    Driver::Program(child, Mutex::new(stdin))
}

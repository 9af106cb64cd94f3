//! Calls that take long: their time limit, the progress that clients get meanwhile, and lists of a silent server.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, kill, pid_of, until};
use crate::proxy::client::{Client, Sdk, is, text_of};
use crate::proxy::raw::{Raw, call};
use crate::real_servers::tool;

const NAME: &str = "slow";

/// A server that works in threads, and writes down what it is told to cancel.
const SERVER: &str = r#"
import json, sys, threading
begun, cancelled, fifo = sys.argv[1:]
def note(path):
    with open(path, "a") as file:
        file.write("x\n")
sending = threading.Lock()
def answer(id, result):
    with sending:
        print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
def wait(id):
    open(fifo).read()
    answer(id, {"content": [{"type": "text", "text": "waited"}]})
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message["method"]
    if method == "initialize":
        info = {"name": "slow", "version": "1"}
        version = message["params"]["protocolVersion"]
        answer(id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        answer(id, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ["wait", "never"]]})
    elif method == "tools/call":
        note(begun)
        threading.Thread(target=wait, args=(id,), daemon=True).start()
    elif method == "notifications/cancelled":
        note(cancelled)
    elif id is not None:
        answer(id, {})
"#;

struct Setup {
    env: TestEnv,
    begun: PathBuf,
    cancelled: PathBuf,
    fifo: PathBuf,
}

impl Setup {
    fn new(options: &[&str]) -> Self {
        let env = TestEnv::new();
        let script = env.write("server.py", SERVER);
        let [begun, cancelled, fifo] = ["begun", "cancelled", "fifo"].map(|it| env.work().join(it));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let python = tool("python/bin/python");
        let words = [&script, &begun, &cancelled, &fifo].map(|path| path.to_str().unwrap());
        env.run_server(NAME, options, &[&[python.as_str()][..], &words].concat());
        Self { env, begun, cancelled, fifo }
    }

    fn url(&self) -> String {
        self.env.server(NAME)["url"].as_str().unwrap().to_owned()
    }

    /// Lets all calls end.
    fn release(&self) {
        fs::File::options().write(true).open(&self.fifo).unwrap().write_all(b"x").unwrap();
    }

    /// How often the server was told to cancel a call, once it was.
    fn cancellations(&self) -> usize {
        until("a call was cancelled", || Some(lines(&self.cancelled)).filter(|count| *count > 0))
    }
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn a_call_over_its_limit_is_answered_and_cancelled() {
    let setup = Setup::new(&["--call-timeout", "1h", "--call-timeout", "wait=1s"]);
    let status = setup.env.ok(["status", NAME]);
    assert!(status.contains("call timeout: 1 h, wait 1 s"), "{status}");
    let session = Raw::open(&setup.url());
    let answer = session.answered(&call(1, "wait", &json!({})));
    let text = text_of(&answer["result"], 0);
    assert!(text.starts_with("no answer from `slow` within 1 s"), "{text}");
    assert!(text.contains("its effect is unknown"), "{text}");
    assert_eq!(answer["result"]["isError"], true);
    assert_eq!(setup.cancellations(), 1);
    let output = setup.env.run(["call", NAME, "wait", "{}"]);
    assert_ne!(output.code, 0, "{output}");
    assert!(output.stderr.contains("no answer from `slow` within 1 s"), "{output}");
    let requests = setup.env.events_called(NAME, "request");
    let is_timeout = |event: &&Value| event["cause"] == "call-timeout";
    assert_eq!(requests.iter().filter(is_timeout).count(), 2, "{requests:?}");
    // Both were given up: the server still waits in them.
    setup.release();
}

#[test]
fn a_limit_is_kept_changed_exported_and_removed() {
    let setup = Setup::new(&["--call-timeout", "5m", "--call-timeout", "wait=never"]);
    let limits = |env: &TestEnv| {
        let proxy = env.json(["status", NAME, "--json"])["proxy"].clone();
        (proxy["call_timeout"].clone(), proxy["tool_timeouts"].clone())
    };
    setup.env.ok(["run", NAME, "--replace", "--hold", "50s"]);
    assert_eq!(limits(&setup.env), (json!("5m"), json!({"wait": "never"})));
    let exported = setup.env.ok(["export"]);
    assert!(exported.contains(r#"proxy.call-timeout = "5m""#), "{exported}");
    assert!(exported.contains(r#"proxy.tool-timeouts = { wait = "never" }"#), "{exported}");
    setup.env.ok(["run", NAME, "--replace", "--call-timeout", "never"]);
    assert_eq!(limits(&setup.env), (json!("never"), json!({})));
    let exported = exported.replace("[ROOT]", setup.env.root().to_str().unwrap());
    let file = setup.env.write("servers.toml", &exported);
    setup.env.ok(["import", "--replace", file.to_str().unwrap()]);
    assert_eq!(limits(&setup.env), (json!("5m"), json!({"wait": "never"})));
    for (given, expected) in [
        ("5", "write a duration with its unit, as `45s` or `2m`, or `never`"),
        ("wait=soon", "write a duration with its unit, as `45s` or `2m`, or `never`"),
        ("=5s", "write the name of a tool before `=`"),
        ("10ms", "a call timeout must be at least 1 second"),
        ("wait=20y", "a call timeout cannot be longer than 10 years"),
    ] {
        let output = setup.env.run(["run", NAME, "--replace", "--call-timeout", given]);
        assert_eq!(output.code, 2, "{output}");
        assert!(output.stderr.contains(expected), "{output}");
    }
}

#[test]
fn a_call_of_the_daemon_before_keeps_its_limit() {
    let setup = Setup::new(&["--call-timeout", "8s"]);
    let session = Raw::open(&setup.url());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| session.answered(&call(1, "wait", &json!({}))));
        until("the call has begun", || (lines(&setup.begun) > 0).then_some(()));
        setup.env.ok(["daemon", "reload"]);
        let text = text_of(&waiting.join().unwrap()["result"], 0);
        assert!(text.starts_with("no answer from `slow` within 8 s"), "{text}");
    });
    assert_eq!(setup.cancellations(), 1);
    setup.release();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long the answer took is what is tested")]
fn lists_and_initialize_of_a_suspended_server_are_answered_from_the_copy() {
    let setup = Setup::new(&[]);
    let session = Raw::open(&setup.url());
    let list = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"});
    let copied = session.answered(&list(1));
    let pid = pid_of(&setup.env.server(NAME));
    kill(pid, Signal::STOP);
    let begun = Instant::now();
    let listed = session.answered(&list(2));
    assert_eq!(listed["result"], copied["result"]);
    let waited = begun.elapsed().as_secs();
    assert!((7..20).contains(&waited), "{waited} s");
    let another = Raw::open(&setup.url());
    assert_eq!(another.answered(&list(3))["result"], copied["result"]);
    kill(pid, Signal::CONT);
    assert_eq!(session.answered(&list(4))["result"], copied["result"]);
}

#[test]
fn progress_keeps_calls_of_the_sdks_alive() {
    let setup = Setup::new(&[]);
    let options = json!({"timeout": 12_000, "resetTimeoutOnProgress": true});
    let typescript = Client::connect(&setup.env, Sdk::Ts1, &setup.url());
    let python = Client::connect(&setup.env, Sdk::Py1, &setup.url());
    let calls = [typescript.send_call_with("wait", &options), python.send_call("wait", &json!({}))];
    for client in [&typescript, &python] {
        let is_second = |reported: &Value| {
            let text = reported["message"].as_str().unwrap_or_default();
            is(reported, "progress") && text.contains("for 20 s")
        };
        client.event("progress for 20 s", is_second);
    }
    setup.release();
    for call in calls {
        assert_eq!(call.text(), "waited");
        let progress = call.progress();
        assert!(progress.len() >= 2 && progress.is_sorted_by(|a, b| a < b), "{progress:?}");
    }
}

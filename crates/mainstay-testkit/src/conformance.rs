//! What every engine must do, as tests that every engine runs.
//!
//! An engine's own test suite gives a [`Subject`] and calls [`run_all`]. The workload is always the
//! fixture MCP server with some flags, so that the same cases run on processes and in containers. A
//! signal is compared without the exit code that some engines report with it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_core::{Exit, RunId, ServerSpec, Transport};
use mainstay_engine::{Engine, EngineError, FoundState, LogRange, News, RunKey, Stdio};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};

use crate::samples::key;

/// No case waits longer for anything.
const LIMIT: Duration = Duration::from_secs(30);

/// The polling interval.
const LOOK: Duration = Duration::from_millis(5);

/// Long enough for a server to end in peace, and much shorter than [`LIMIT`].
const GRACE: Duration = Duration::from_secs(20);

/// The servers of the suite.
pub const SERVERS: [&str; 21] = [
    "listed",
    "code",
    "signal",
    "polite",
    "stubborn",
    "killed",
    "nobody",
    "parent",
    "lines",
    "last-words",
    "attached",
    "passed-on",
    "untold",
    "web",
    "impossible",
    "survivor",
    "talker",
    "again",
    "forgotten",
    "one",
    "two",
];

/// An engine under test. It is one that wants all of [`SERVERS`].
pub trait Subject: Send + Sync {
    /// A stdio server of this name: the fixture with these flags.
    fn fixture(&self, name: &str, flags: &[&str]) -> ServerSpec;

    /// The same fixture as a server that speaks HTTP, on whatever port is free.
    fn http_fixture(&self, name: &str) -> ServerSpec;

    /// A file that does not exist yet, which the fixture can write and the suite can read, both under
    /// this path.
    fn shared_file(&self, name: &str) -> PathBuf;

    /// Whether the process of this id, as the fixture knows it, is alive; none if that is not known.
    fn is_alive(&self, pid: u32) -> Option<bool>;

    /// A server that can never start.
    fn impossible(&self, name: &str) -> ServerSpec;

    /// A new handle on the same engine, as the next daemon would open it.
    fn reopen(&self) -> impl Future<Output = Arc<dyn Engine>> + Send;
}

/// Runs every case.
pub async fn run_all(subject: &impl Subject) {
    a_run_is_listed_until_it_is_gone(subject).await;
    an_exit_code_is_told(subject).await;
    a_signal_is_told(subject).await;
    a_stop_is_graceful_and_idempotent(subject).await;
    what_ignores_a_stop_is_killed(subject).await;
    a_kill_needs_no_grace(subject).await;
    ending_what_does_not_exist_is_no_error(subject).await;
    descendants_that_left_the_session_end_too(subject).await;
    lines_go_in_and_come_out(subject).await;
    the_last_words_before_an_exit_arrive(subject).await;
    the_newest_attachment_wins(subject).await;
    attachments_follow_each_other(subject).await;
    what_nobody_dealt_with_is_told_again(subject).await;
    an_http_server_is_reached_at_its_endpoint(subject).await;
    what_cannot_start_leaves_nothing(subject).await;
    the_next_daemon_finds_what_runs(subject).await;
    standard_error_is_kept(subject).await;
    all_runs_of_a_server_share_one_log(subject).await;
    a_forgotten_server_leaves_no_log(subject).await;
    servers_do_not_mix(subject).await;
}

async fn a_run_is_listed_until_it_is_gone(subject: &impl Subject) {
    let run = Running::start(subject, "listed", 1, &[]).await;
    assert!(run.is_alive().await);
    run.engine.kill(&run.key).await.unwrap();
    run.gone().await;
}

async fn an_exit_code_is_told(subject: &impl Subject) {
    let run = Running::start(subject, "code", 1, &["--exit-at-start", "3"]).await;
    assert_eq!(run.gone().await, Exit::code(3));
}

async fn a_signal_is_told(subject: &impl Subject) {
    let run = Running::start(subject, "signal", 1, &[]).await;
    let stdio = run.attach().await;
    stdio.to_server.send(call(1, "crash", &json!({"signal": 9}))).await.unwrap();
    assert_eq!(run.gone().await.signal, Some(9));
}

async fn a_stop_is_graceful_and_idempotent(subject: &impl Subject) {
    let mut run = Running::start(subject, "polite", 1, &[]).await;
    run.answers_ping().await;
    run.engine.stop(&run.key, GRACE).await.unwrap();
    run.engine.stop(&run.key, GRACE).await.unwrap();
    let exit = run.gone().await;
    assert_ne!(exit.signal, Some(9), "a server that obeys is not killed");
    assert_ne!(exit, Exit::UNKNOWN);
}

async fn what_ignores_a_stop_is_killed(subject: &impl Subject) {
    let flags = ["--ignore-term", "--ignore-stdin-eof"];
    let mut run = Running::start(subject, "stubborn", 1, &flags).await;
    run.answers_ping().await;
    run.engine.stop(&run.key, Duration::from_millis(100)).await.unwrap();
    assert_eq!(run.gone().await.signal, Some(9));
}

async fn a_kill_needs_no_grace(subject: &impl Subject) {
    let flags = ["--ignore-term", "--ignore-stdin-eof"];
    let mut run = Running::start(subject, "killed", 1, &flags).await;
    run.answers_ping().await;
    run.engine.stop(&run.key, GRACE).await.unwrap();
    run.engine.kill(&run.key).await.unwrap();
    assert_eq!(run.gone().await.signal, Some(9));
}

async fn ending_what_does_not_exist_is_no_error(subject: &impl Subject) {
    let engine = subject.reopen().await;
    let key = key("nobody", 1);
    engine.stop(&key, GRACE).await.unwrap();
    engine.kill(&key).await.unwrap();
    assert!(matches!(engine.attach(&key).await, Err(EngineError::NoSuchRun(_))));
}

async fn descendants_that_left_the_session_end_too(subject: &impl Subject) {
    let file = subject.shared_file("grandchild.pid");
    let path = file.to_str().expect("paths of tests are text");
    let flags = ["--daemonize-child", "--child-pid-file", path];
    let mut run = Running::start(subject, "parent", 1, &flags).await;
    run.answers_ping().await;
    let child = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert_ne!(subject.is_alive(child), Some(false), "it was started before the server answered");
    let stdio = run.stdio.take().unwrap();
    stdio.to_server.send(call(1, "crash", &json!({"code": 4}))).await.unwrap();
    assert_eq!(run.gone().await, Exit::code(4));
    assert_ne!(subject.is_alive(child), Some(true), "it outlived its run");
}

async fn lines_go_in_and_come_out(subject: &impl Subject) {
    let mut run = Running::start(subject, "lines", 1, &[]).await;
    run.answers_ping().await;
    assert_eq!(*run.stdio.as_ref().unwrap().written.borrow(), 1, "the line was acknowledged");
    run.end().await;
}

async fn the_last_words_before_an_exit_arrive(subject: &impl Subject) {
    let run = Running::start(subject, "last-words", 1, &[]).await;
    let mut stdio = run.attach().await;
    // An attachment ends with its engine.
    let _engine = run.engine.clone();
    let length = 300_000;
    stdio.to_server.send(call(1, "bytes", &json!({"n": length}))).await.unwrap();
    stdio.to_server.send(call(2, "crash", &json!({"code": 5}))).await.unwrap();
    assert_eq!(run.gone().await, Exit::code(5));
    let answer = timeout(LIMIT, stdio.from_server.recv()).await.expect("it comes in time");
    assert!(answer.is_some_and(|answer| answer.len() > length), "the first call was answered");
    assert_eq!(timeout(LIMIT, stdio.from_server.recv()).await.expect("it is closed"), None);
}

async fn the_newest_attachment_wins(subject: &impl Subject) {
    let mut run = Running::start(subject, "attached", 1, &[]).await;
    run.answers_ping().await;
    let mut old = run.stdio.take().unwrap();
    run.answers_ping().await;
    let last = timeout(LIMIT, old.from_server.recv()).await.expect("the old one is closed");
    assert_eq!(last, None);
    run.end().await;
}

async fn attachments_follow_each_other(subject: &impl Subject) {
    let mut run = Running::start(subject, "passed-on", 1, &[]).await;
    for lines in 1..=10 {
        run.answers_ping().await;
        let stdio = run.stdio.take().unwrap();
        assert_eq!(*stdio.written.borrow(), lines, "lines are counted from the start of the run");
    }
    run.end().await;
}

/// As lines, or as earlier output.
async fn what_nobody_dealt_with_is_told_again(subject: &impl Subject) {
    let mut run = Running::start(subject, "untold", 1, &[]).await;
    run.answers_ping().await;
    let mut stdio = run.stdio.take().unwrap();
    for id in [101, 102] {
        stdio.to_server.send(call(id, "echo", &json!({"text": "once"}))).await.unwrap();
    }
    let line = timeout(LIMIT, stdio.from_server.recv()).await.expect("it comes in time");
    assert!(line.is_some());
    drop(stdio);
    // The other daemon goes on: of some engines, a run ends with its connection.
    let _other = std::mem::replace(&mut run.engine, subject.reopen().await);
    run.news = run.engine.watch();
    run.engine.list().await.unwrap();
    let mut stdio = run.attach().await;
    let mut answers: Vec<Value> = stdio
        .earlier_output
        .iter()
        .flatten()
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    for id in [101, 102] {
        while !answers.iter().any(|answer| answer["id"] == id) {
            answers.push(receive(&mut stdio).await.expect("it is still there"));
        }
    }
    run.stdio = Some(stdio);
    run.end().await;
}

async fn an_http_server_is_reached_at_its_endpoint(subject: &impl Subject) {
    let spec = subject.http_fixture("web");
    let transport = spec.workload.local_transport();
    let Some(&Transport::StreamableHttp { port, .. }) = transport else {
        panic!("it speaks {transport:?}")
    };
    let run = Running::start_spec(subject, &spec, 1).await;
    let candidates = run.engine.endpoint(&run.key, port).await.unwrap().addrs;
    let answers = async {
        loop {
            for address in &candidates {
                if TcpStream::connect(address).await.is_ok() {
                    return;
                }
            }
            sleep(LOOK).await;
        }
    };
    timeout(LIMIT, answers).await.expect("it can be reached in time");
    run.end().await;
}

async fn what_cannot_start_leaves_nothing(subject: &impl Subject) {
    let engine = subject.reopen().await;
    let spec = subject.impossible("impossible");
    assert!(engine.prepare(&spec).await.is_err());
    let key = RunKey::new(spec.name.clone(), RunId::new(1));
    assert!(engine.start(&key, &spec).await.is_err());
    assert!(engine.list().await.unwrap().iter().all(|found| found.key != key));
}

async fn the_next_daemon_finds_what_runs(subject: &impl Subject) {
    let run = Running::start(subject, "survivor", 4, &[]).await;
    let (engine, pid) = (subject.reopen().await, run.pid);
    let found = async {
        loop {
            let found = engine.list().await.unwrap();
            let found = found.into_iter().find(|found| found.key == run.key);
            let state = found.expect("it is listed").state;
            // What it runs on may be slow to answer.
            if state != FoundState::Unknown {
                return state;
            }
            sleep(LOOK).await;
        }
    };
    let state = timeout(LIMIT, found).await.expect("it is known in time");
    assert!(matches!(state, FoundState::Alive { pid: found, .. } if found == pid), "{state:?}");
    let mut next =
        Running { news: engine.watch(), engine, key: run.key, pid, stdio: None, pings: 0 };
    next.answers_ping().await;
    next.end().await;
}

async fn standard_error_is_kept(subject: &impl Subject) {
    let mut run = Running::start(subject, "talker", 1, &["--stderr", "here I am"]).await;
    run.answers_ping().await;
    let tail = run.engine.stderr_tail(&run.key).await.unwrap();
    assert!(String::from_utf8_lossy(&tail).contains("here I am"), "{tail:?}");
    let lines = log_lines(&*run.engine, &run.key).await;
    assert!(lines.iter().any(|line| line.contains("here I am")), "{lines:?}");
    run.end().await;
}

async fn all_runs_of_a_server_share_one_log(subject: &impl Subject) {
    for (run, word) in [(1, "first words"), (2, "second words"), (3, "third words")] {
        let flags = ["--stderr", word, "--exit-at-start", "0"];
        let run = Running::start(subject, "again", run, &flags).await;
        run.gone().await;
    }
    let (engine, key) = (subject.reopen().await, key("again", 3));
    let lines = log_lines(&*engine, &key).await;
    let words = lines.iter().filter_map(|line| line.split_once(" words")).map(|(word, _)| word);
    let ends = words.map(|word| word.rsplit(' ').next().unwrap_or(word)).collect::<Vec<_>>();
    assert_eq!(ends, ["first", "second", "third"], "{lines:?}");
}

async fn a_forgotten_server_leaves_no_log(subject: &impl Subject) {
    let run = Running::start(subject, "forgotten", 1, &["--exit-at-start", "0"]).await;
    let (engine, key) = (run.engine.clone(), run.key.clone());
    run.gone().await;
    let log = log_lines(&*engine, &key).await;
    for _ in 0..2 {
        engine.release(&key.server).await.unwrap();
        assert_eq!(log_lines(&*engine, &key).await, log, "what it ran in is not its log");
    }
    for _ in 0..2 {
        engine.forget(&key.server).await.unwrap();
        assert_eq!(log_lines(&*engine, &key).await, [""; 0]);
    }
}

async fn servers_do_not_mix(subject: &impl Subject) {
    let mut one = Running::start(subject, "one", 1, &[]).await;
    let two = Running::start(subject, "two", 1, &["--exit-at-start", "7"]).await;
    assert_eq!(two.gone().await, Exit::code(7));
    one.answers_ping().await;
    one.end().await;
}

/// A run of the fixture.
struct Running {
    engine: Arc<dyn Engine>,
    news: broadcast::Receiver<News>,
    key: RunKey,
    pid: Option<u32>,
    stdio: Option<Stdio>,
    /// How often it was pinged.
    pings: u64,
}

impl Running {
    async fn start(subject: &impl Subject, name: &str, run: u64, flags: &[&str]) -> Self {
        Self::start_spec(subject, &subject.fixture(name, flags), run).await
    }

    async fn start_spec(subject: &impl Subject, spec: &ServerSpec, run: u64) -> Self {
        let engine = subject.reopen().await;
        let news = engine.watch();
        let key = RunKey::new(spec.name.clone(), RunId::new(run));
        let started = engine.start(&key, spec).await.expect("the fixture can be started");
        Self { engine, news, key, pid: started.pid, stdio: None, pings: 0 }
    }

    async fn attach(&self) -> Stdio {
        self.engine.attach(&self.key).await.expect("a run can be attached to")
    }

    async fn is_alive(&self) -> bool {
        let found = self.engine.list().await.unwrap();
        found
            .iter()
            .any(|found| found.key == self.key && matches!(found.state, FoundState::Alive { .. }))
    }

    /// Attaches if need be, and waits for an answer. Answers to earlier pings may come again: the
    /// test does not wait until the engine knows that they were consumed.
    async fn answers_ping(&mut self) {
        if self.stdio.is_none() {
            self.stdio = Some(self.attach().await);
        }
        self.pings += 1;
        let (id, stdio) = (self.pings, self.stdio.as_mut().expect("it was attached just now"));
        let ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string();
        stdio.to_server.send(ping.into()).await.unwrap();
        loop {
            let answer = receive(stdio).await.expect("it is still there");
            assert!(answer.get("result").is_some(), "{answer}");
            if answer["id"] == id {
                return;
            }
            assert!(answer["id"].as_u64() < Some(id), "{answer}");
        }
    }

    /// Waits until nothing of it is left, and returns how it ended.
    async fn gone(mut self) -> Exit {
        let mut exited = None;
        loop {
            let news = timeout(LIMIT, self.news.recv()).await.expect("its end is reported in time");
            match news.expect("no news is lost") {
                News::Exited { key, exit, .. } if key == self.key => exited = Some(exit),
                News::Gone { key, cause } if key == self.key => {
                    let exit = cause.exit().expect("it exited");
                    assert_eq!(exited, Some(exit), "the exit is reported before the end");
                    assert!(!self.is_alive().await);
                    return exit;
                }
                _ => {}
            }
        }
    }

    async fn end(self) {
        self.engine.kill(&self.key).await.unwrap();
        self.gone().await;
    }
}

/// The next line of a server, which is dealt with; none when there will be no more.
async fn receive(stdio: &mut Stdio) -> Option<Value> {
    let line = timeout(LIMIT, stdio.from_server.recv()).await.expect("it comes in time")?;
    stdio.consumed.send_modify(|consumed| *consumed += 1);
    Some(serde_json::from_slice(&line).expect("the fixture speaks JSON"))
}

/// A line that calls a tool.
fn call(id: u64, tool: &str, arguments: &Value) -> Bytes {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string().into()
}

async fn log_lines(engine: &dyn Engine, key: &RunKey) -> Vec<String> {
    let mut lines = engine.logs(&key.server, LogRange::default()).await.unwrap();
    let mut all = Vec::new();
    while let Some(line) = timeout(LIMIT, lines.recv()).await.expect("a log ends") {
        all.push(line.text);
    }
    all
}

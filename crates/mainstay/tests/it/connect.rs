//! `mainstay connect`, with a test in the daemon's place.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::env::{TestEnv, until};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn lines_are_carried_both_ways_and_nothing_else() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    open(&mut client, &mut peer);
    let long = format!(r#"{{"id":7,"method":"tools/call","params":"{}"}}"#, "x".repeat(1 << 20));
    client.say(&long);
    client.say("no json at all");
    assert_eq!(peer.line(), long);
    assert_eq!(peer.line(), "no json at all");
    peer.say(r#"{"method":"notifications/message"}"#);
    peer.say(r#"{"id":7,"result":{}}"#);
    assert_eq!(client.line(), r#"{"method":"notifications/message"}"#);
    assert_eq!(client.line(), r#"{"id":7,"result":{}}"#);
    assert_eq!(client.end(), (Some(0), Vec::new(), String::new()));
}

#[test]
fn the_last_answers_are_waited_for() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    client.say_all(r#"{"id":1,"method":"ping"}"#);
    assert_eq!(peer.line(), r#"{"id":1,"method":"ping"}"#);
    peer.say(r#"{"id":1,"result":{}}"#);
    let (code, lines, _) = client.end();
    assert_eq!((code, lines), (Some(0), vec![r#"{"id":1,"result":{}}"#.to_owned()]));
}

#[test]
fn a_broken_connection_is_made_again_and_the_session_goes_on() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    open(&mut client, &mut peer);
    let list = r#"{"id":1,"method":"tools/list"}"#;
    let call = r#"{"id":2,"method":"tools/call","params":{"name":"x"}}"#;
    for line in [list, call] {
        client.say(line);
        assert_eq!(peer.line(), line);
    }
    peer.write("half a li");
    drop(peer);
    let ended: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!((&ended["id"], &ended["result"]["isError"]), (&json!(2), &json!(true)));
    let text = ended["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("its effect is unknown"), "{text}");

    let mut peer = daemon.accept(Some("s1"), "s1");
    assert_eq!(peer.line(), list);
    peer.say(r#"{"id":1,"result":{"tools":[]}}"#);
    assert_eq!(client.line(), r#"{"id":1,"result":{"tools":[]}}"#);
    let (code, lines, stderr) = client.end();
    assert_eq!((code, lines), (Some(0), Vec::new()));
    assert!(stderr.contains("connecting again"), "{stderr}");
}

#[test]
fn a_session_that_the_daemon_forgot_is_opened_again() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    open(&mut client, &mut peer);
    drop(peer);
    let mut peer = daemon.accept(Some("s1"), "s2");
    client.say(r#"{"id":1,"method":"ping"}"#);
    assert_eq!(peer.line(), INITIALIZE);
    peer.say(INITIALIZE_RESULT);
    assert_eq!(peer.line(), INITIALIZED);
    assert_eq!(peer.line(), r#"{"id":1,"method":"ping"}"#);
    peer.say(r#"{"id":1,"result":{}}"#);
    assert_eq!(client.line(), r#"{"id":1,"result":{}}"#, "the second handshake is not seen");
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn a_server_that_was_removed_meanwhile_ends_it() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    open(&mut client, &mut peer);
    client.say(r#"{"id":1,"method":"tools/list"}"#);
    peer.line();
    drop(peer);
    let (mut peer, _) = daemon.hello();
    peer.say(r#"{"error":{"kind":"no-such-server","message":"there is no server `time`"}}"#);
    let answer: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!(answer["error"]["message"], "there is no server `time`");
    assert_eq!(client.ending().0, Some(3));
}

#[test]
fn a_message_that_is_too_long_costs_itself_only() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    client.say(&"x".repeat((16 << 20) + 1));
    let refused: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!(refused["error"]["message"], "the message is longer than 16 MiB");
    client.say("next");
    assert_eq!(peer.line(), "next");
    assert_eq!(client.end().0, Some(0));
}

const INITIALIZE: &str = r#"{"id":0,"method":"initialize","params":{}}"#;
const INITIALIZE_RESULT: &str = r#"{"id":0,"result":{"protocolVersion":"2025-06-18"}}"#;
const INITIALIZED: &str = r#"{"method":"notifications/initialized"}"#;

fn env() -> TestEnv {
    TestEnv::new().with_var("MAINSTAY_NO_START", "1")
}

#[test]
fn a_client_that_passes_on_no_variables_names_the_home() {
    let env = env();
    let daemon = Daemon::new(&env);
    for home in [env.mainstay_home().to_str().unwrap(), "../mainstay"] {
        let mut command = env.command(["connect", "time", "--home", home]);
        command.env_remove("MAINSTAY_HOME");
        let mut client = Client::spawn(command);
        let mut peer = daemon.accept(None, "s1");
        open(&mut client, &mut peer);
        assert_eq!(client.end(), (Some(0), Vec::new(), String::new()));
    }
}

/// The handshake of a client.
fn open(client: &mut Client, peer: &mut Peer) {
    client.say(INITIALIZE);
    assert_eq!(peer.line(), INITIALIZE);
    peer.say(INITIALIZE_RESULT);
    assert_eq!(client.line(), INITIALIZE_RESULT);
    client.say(INITIALIZED);
    assert_eq!(peer.line(), INITIALIZED);
}

/// What stands in the daemon's place.
struct Daemon {
    listener: UnixListener,
}

impl Daemon {
    fn new(env: &TestEnv) -> Self {
        let run_dir = env.mainstay_home().join("run");
        std::fs::create_dir_all(&run_dir).unwrap();
        let listener = UnixListener::bind(run_dir.join("daemon.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    /// The next connection, and what it asks for.
    fn hello(&self) -> (Peer, Value) {
        let (stream, _) = until("it connects", || self.listener.accept().ok());
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut peer = Peer { reader: BufReader::new(stream.try_clone().unwrap()), stream };
        peer.say(r#"{"mainstay":"0.0.0","protocol":1}"#);
        let request = serde_json::from_str(&peer.line()).unwrap();
        (peer, request)
    }

    /// The next connection, which asks for this session and is given that one.
    fn accept(&self, asked: Option<&str>, given: &str) -> Peer {
        let (mut peer, request) = self.hello();
        let expected = json!({"method": "connect", "params": {"name": "time", "session": asked}});
        assert_eq!(request, expected);
        peer.say(&format!(r#"{{"ok":{{"session":"{given}"}}}}"#));
        peer
    }
}

/// A connection, from the daemon's side.
struct Peer {
    reader: BufReader<UnixStream>,
    stream: UnixStream,
}

impl Peer {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.strip_suffix('\n').expect("a whole line").to_owned()
    }

    fn say(&mut self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }
}

/// `mainstay connect time`, from its client's side.
struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Client {
    fn start(env: &TestEnv) -> Self {
        Self::spawn(env.command(["connect", "time"]))
    }

    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines }
    }

    fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The last words, without the end of their line.
    fn say_all(&mut self, text: &str) {
        self.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("the line comes in time")
    }

    /// Ends its input and waits for its end.
    fn end(mut self) -> (Option<i32>, Vec<String>, String) {
        drop(self.stdin.take());
        self.ending()
    }

    /// Waits for its end: the exit code, the lines that nobody has read, and what it said on stderr.
    fn ending(mut self) -> (Option<i32>, Vec<String>, String) {
        until("it ended by itself", || self.child.try_wait().unwrap());
        let output = self.child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), self.lines.iter().collect(), stderr)
    }
}

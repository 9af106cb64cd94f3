//! A fake daemon, and a client of `mainstay connect`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::env::{TestEnv, until};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(20);

/// The version of the program that is tested, and of a daemon that goes with it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Listens at the daemon's socket.
pub(crate) struct Daemon {
    listener: UnixListener,
    socket: PathBuf,
}

impl Daemon {
    pub(crate) fn new(env: &TestEnv) -> Self {
        let run_dir = env.mainstay_home().join("run");
        fs::create_dir_all(&run_dir).unwrap();
        let socket = run_dir.join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, socket }
    }

    /// Ends, and removes the socket.
    pub(crate) fn leave(self) {
        fs::remove_file(&self.socket).unwrap();
    }

    /// The next connection, before the hello.
    pub(crate) fn meet(&self) -> Peer {
        let (stream, _) = until("it connects", || self.listener.accept().ok());
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Peer { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// Whether there is no other connection.
    pub(crate) fn is_idle(&self) -> bool {
        self.listener.accept().is_err()
    }

    /// The next connection, and its request.
    pub(crate) fn hello(&self) -> (Peer, Value) {
        self.hello_as(VERSION)
    }

    /// The same, as a daemon of another version.
    pub(crate) fn hello_as(&self, version: &str) -> (Peer, Value) {
        let mut peer = self.meet();
        let request = peer.greet(version);
        (peer, request)
    }

    /// The next connection, which carries HTTP from now on.
    pub(crate) fn http(&self) -> Peer {
        let (mut peer, request) = self.hello();
        assert_eq!(request, json!({"method": "http", "params": {"name": "time"}}));
        peer.say(r#"{"ok":null}"#);
        peer
    }
}

/// A connection, from the daemon's side.
pub(crate) struct Peer {
    reader: BufReader<UnixStream>,
    stream: UnixStream,
}

impl Peer {
    /// Sends the hello, and returns the request.
    pub(crate) fn greet(&mut self, version: &str) -> Value {
        self.say(&json!({"mainstay": version, "protocol": 1}).to_string());
        serde_json::from_str(&self.line()).unwrap()
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.strip_suffix('\n').expect("a whole line").to_owned()
    }

    pub(crate) fn say(&mut self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// The next HTTP request on this connection.
    pub(crate) fn request(&mut self) -> HttpRequest {
        let head: Vec<String> = std::iter::from_fn(|| {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
        })
        .collect();
        let mut request = HttpRequest { head, body: String::new() };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        request.body = String::from_utf8(body).unwrap();
        request
    }

    /// The next request, which sends this message.
    pub(crate) fn expect(&mut self, message: &str) -> HttpRequest {
        let request = self.request();
        assert_eq!(request.body.trim_end(), message);
        request
    }

    /// Answers a request with a message.
    pub(crate) fn answer(&mut self, message: &str) {
        self.respond("200 OK", "content-type: application/json\r\nmcp-session-id: s1\r\n", message);
    }

    /// Answers a notification.
    pub(crate) fn accepted(&mut self) {
        self.respond("202 Accepted", "", "");
    }

    pub(crate) fn respond(&mut self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        self.write(&format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ));
    }

    /// Begins a stream with an event from which it can be resumed.
    pub(crate) fn begin_stream(&mut self, event: &str) {
        self.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n");
        self.write("transfer-encoding: chunked\r\n\r\n");
        self.chunk(&format!("id: {event}\ndata: \n\n"));
    }

    /// An event of the stream.
    pub(crate) fn event(&mut self, event: &str, message: &str) {
        self.chunk(&format!("id: {event}\ndata: {message}\n\n"));
    }

    pub(crate) fn end_stream(&mut self) {
        self.write("0\r\n\r\n");
    }

    fn chunk(&mut self, text: &str) {
        self.write(&format!("{:x}\r\n{text}\r\n", text.len()));
    }
}

/// A request over HTTP.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    head: Vec<String>,
    pub(crate) body: String,
}

impl HttpRequest {
    pub(crate) fn is_get(&self) -> bool {
        self.head[0] == "GET /time/mcp HTTP/1.1"
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ String| line.strip_prefix(name)?.strip_prefix(": ").map(str::len);
        let line = self.head.iter().find(|line| value(line).is_some())?;
        Some(&line[name.len() + 2..])
    }
}

/// `mainstay connect time`, from its client's side.
pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Client {
    pub(crate) fn start(env: &TestEnv) -> Self {
        Self::spawn(env.command(["connect", "time"]))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines }
    }

    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The last line, which may be incomplete.
    pub(crate) fn say_all(&mut self, text: &str) {
        self.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("the line comes in time")
    }

    /// The next line, as JSON.
    pub(crate) fn message(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Closes its input and waits for its exit.
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<String>, String) {
        drop(self.stdin.take());
        self.ending()
    }

    /// Waits for its exit: the exit code, the unread lines, and standard error.
    pub(crate) fn ending(mut self) -> (Option<i32>, Vec<String>, String) {
        until("it ended by itself", || self.child.try_wait().unwrap());
        let output = self.child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), self.lines.iter().collect(), stderr)
    }
}

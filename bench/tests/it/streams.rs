//! Event streams over HTTP.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::fixture::{Fixture, LIMIT, text};

/// A client of one session, which sends each request on a connection of its own.
struct Client {
    to: SocketAddr,
    session: String,
}

/// A response that is being read.
struct Reading {
    from: BufReader<TcpStream>,
    status: u16,
    headers: String,
}

/// An event: its id and its data.
#[derive(Debug, PartialEq)]
struct Event(String, String);

impl Client {
    fn open(to: SocketAddr) -> Self {
        let mut client = Self { to, session: String::new() };
        let capabilities = json!({"elicitation": {}});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities});
        let reading = client.post(&json!({"id": 0, "method": "initialize", "params": params}));
        client.session = reading.header("mcp-session-id").unwrap();
        client
    }

    fn send(&self, method: &str, more: &str, body: &str) -> Reading {
        let mut stream = TcpStream::connect(self.to).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (session, length) = (&self.session, body.len());
        write!(
            stream,
            "{method} /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n{more}\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        Reading::new(stream)
    }

    fn post(&self, message: &Value) -> Reading {
        self.send("POST", "", &message.to_string())
    }

    fn call(&self, id: u32, tool: &str, arguments: &Value) -> Reading {
        let params = json!({"name": tool, "arguments": arguments});
        self.post(&json!({"id": id, "method": "tools/call", "params": params}))
    }
}

impl Reading {
    fn new(stream: TcpStream) -> Self {
        let mut from = BufReader::new(stream);
        let mut headers = String::new();
        while !headers.ends_with("\r\n\r\n") {
            assert!(from.read_line(&mut headers).unwrap() > 0, "{headers}");
        }
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        Self { from, status, headers }
    }

    fn header(&self, name: &str) -> Option<String> {
        let line = self.headers.lines().find(|line| line.to_lowercase().starts_with(name))?;
        Some(line.split_once(": ").unwrap().1.to_owned())
    }

    /// The next event; nothing at the end of the stream. Each is a chunk, so chunk sizes are passed
    /// over as lines that are no fields.
    fn event(&mut self) -> Option<Event> {
        let (mut id, mut data) = (String::new(), None);
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).unwrap() == 0 || line == "0\r\n" {
                return None;
            }
            let line = line.trim_end();
            if let Some(value) = line.strip_prefix("id: ") {
                value.clone_into(&mut id);
            } else if let Some(value) = line.strip_prefix("data:") {
                data = Some(value.trim().to_owned());
            } else if let Some(data) = data.take().filter(|_| line.is_empty()) {
                return Some(Event(id, data));
            }
        }
    }

    fn message(&mut self) -> Value {
        let Event(_, data) = self.event().unwrap();
        serde_json::from_str(&data).unwrap()
    }
}

#[test]
fn questions_come_on_the_stream_and_replies_by_post() {
    let (_fixture, to) = Fixture::start_http(&[]);
    let client = Client::open(to);
    let mut stream = client.call(1, "elicit", &json!({"message": "who?"}));
    assert_eq!(stream.event(), Some(Event("1-0".into(), String::new())));
    let request = stream.message();
    let result = json!({"action": "accept", "content": {"name": "Ada"}});
    let reply = client.post(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    assert_eq!(reply.status, 202);
    assert!(text(&stream.message()).contains("Ada"));
    assert_eq!(stream.event(), None);
}

#[test]
fn a_broken_stream_is_resumed_where_it_broke() {
    let (_fixture, to) = Fixture::start_http(&["--conformance"]);
    let client = Client::open(to);
    let mut stream = client.call(1, "test_reconnection", &json!({}));
    let Event(id, _) = stream.event().unwrap();
    assert_eq!(stream.event(), None, "the server hangs up");
    let mut resumed = client.send("GET", &format!("Last-Event-ID: {id}\r\n"), "");
    assert_eq!(text(&resumed.message()), "Reconnection test completed");
    assert_eq!(resumed.event(), None);
    assert_eq!(client.send("GET", "Last-Event-ID: 9-9\r\n", "").status, 400);
}

#[test]
fn updates_come_on_the_own_stream_of_subscribers_only() {
    let (_fixture, to) = Fixture::start_http(&[]);
    let (subscriber, other) = (Client::open(to), Client::open(to));
    let uri = json!({"uri": "fixture://greeting"});
    subscriber.post(&json!({"id": 1, "method": "resources/subscribe", "params": uri}));
    let mut stream = subscriber.send("GET", "", "");
    assert_eq!(stream.event().unwrap().0, "0-0");
    assert_eq!(other.call(1, "touch", &uri).status, 200);
    assert_eq!(stream.message()["params"], uri);
    let mut quiet = other.send("GET", "", "");
    quiet.event().unwrap();
    let ended = other.send("DELETE", "", "");
    assert_eq!((ended.status, quiet.event()), (204, None), "a stream ends with its session");
}

#[test]
fn a_server_may_have_no_get_stream() {
    let (_fixture, to) = Fixture::start_http(&["--no-get"]);
    let client = Client::open(to);
    let refused = client.send("GET", "", "");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("POST, DELETE".into())));
}

//! Raw HTTP, for what no SDK shows or does: heads, single events, disconnects.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// No exchange may be silent for longer.
const LIMIT: Duration = Duration::from_secs(40);

/// How often an answer is asked for again, at most.
const RESUMPTIONS: usize = 5;

pub(crate) const BOTH: &str = "application/json, text/event-stream";
pub(crate) const JSON: &str = "application/json";
pub(crate) const EVENTS: &str = "text/event-stream";

/// A session over raw HTTP.
pub(crate) struct Raw {
    pub(crate) address: String,
    pub(crate) path: String,
    pub(crate) id: String,
    pub(crate) authorization: Option<String>,
}

/// A response, whose body is read as it comes.
pub(crate) struct Response {
    pub(crate) status: u16,
    head: Vec<(String, String)>,
    body: BufReader<Body>,
}

/// One event of a stream.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<u64>,
    pub(crate) data: String,
    /// Comments that came before it.
    pub(crate) comments: usize,
}

impl Raw {
    /// Opens a session at a URL, with `initialize` and `initialized`.
    pub(crate) fn open(url: &str) -> Self {
        Self::open_as(url, None)
    }

    /// The same, with this `Authorization` in every request.
    pub(crate) fn open_as(url: &str, authorization: Option<String>) -> Self {
        Self::open_with(url, authorization, "2025-11-25")
    }

    /// The same, with this protocol version.
    pub(crate) fn open_with(url: &str, authorization: Option<String>, version: &str) -> Self {
        let (address, path) = parts(url);
        let mut session = Self { address, path, id: String::new(), authorization };
        let params = json!({
            "protocolVersion": version,
            "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
            "clientInfo": {"name": "raw", "version": "1"},
        });
        let response = session.post(BOTH, &request(0, "initialize", &params));
        assert_eq!(response.status, 200);
        response.header("mcp-session-id").expect("a session id").clone_into(&mut session.id);
        let answer = response.answer();
        assert_eq!(answer["id"], 0, "{answer}");
        assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(session.post(BOTH, &initialized).status, 202);
        session
    }

    /// Sends a message and returns when the head of the response is there.
    pub(crate) fn post(&self, accept: &str, message: &Value) -> Response {
        self.try_post(accept, message).unwrap()
    }

    fn try_post(&self, accept: &str, message: &Value) -> io::Result<Response> {
        let head = [("Content-Type", JSON), ("Accept", accept)];
        self.exchange("POST", &head, &message.to_string())
    }

    /// Sends a request and gives its result.
    pub(crate) fn ask(&self, id: u64, method: &str, params: &Value) -> Value {
        let response = self.post(BOTH, &request(id, method, params));
        assert_eq!(response.status, 200);
        let answer = response.answer();
        assert_eq!(answer["id"], id, "{answer}");
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// The answer to a request, from its first response or from as many as it takes.
    pub(crate) fn answered(&self, request: &Value) -> Value {
        self.try_answered(request).unwrap()
    }

    /// The same, or why there was no head of a first response.
    pub(crate) fn try_answered(&self, request: &Value) -> io::Result<Value> {
        let mut response = self.try_post(BOTH, request)?;
        assert_eq!(response.status, 200);
        if response.header("content-type") == Some(JSON) {
            return Ok(response.answer());
        }
        let mut last = None;
        for _ in 0..RESUMPTIONS {
            while let Ok(Some(event)) = response.try_event() {
                if !event.data.is_empty() {
                    return Ok(serde_json::from_str(&event.data).unwrap());
                }
                last = event.id.or(last);
            }
            response = self.get(Some(last.as_deref().expect("an id to resume from")));
            assert_eq!(response.status, 200);
        }
        panic!("no answer after {RESUMPTIONS} resumptions");
    }

    /// Opens the session's general stream, or resumes the one of an event.
    pub(crate) fn get(&self, last_event: Option<&str>) -> Response {
        let mut head = vec![("Accept", EVENTS)];
        head.extend(last_event.map(|id| ("Last-Event-ID", id)));
        self.exchange("GET", &head, "").unwrap()
    }

    /// Ends the session.
    pub(crate) fn delete(&self) -> u16 {
        self.exchange("DELETE", &[], "").unwrap().status
    }

    fn exchange(&self, verb: &str, head: &[(&str, &str)], body: &str) -> io::Result<Response> {
        let mut all = vec![("Host", &*self.address)];
        all.extend_from_slice(head);
        all.extend(self.authorization.iter().map(|value| ("Authorization", &**value)));
        if !self.id.is_empty() {
            all.push(("Mcp-Session-Id", &self.id));
            all.push(("MCP-Protocol-Version", "2025-11-25"));
        }
        try_exchange(&self.address, verb, &self.path, &all, body)
    }
}

/// One exchange on a connection of its own, with exactly these header fields.
pub(crate) fn exchange(
    address: &str,
    verb: &str,
    path: &str,
    head: &[(&str, &str)],
    body: &str,
) -> Response {
    try_exchange(address, verb, path, head, body).unwrap()
}

fn try_exchange(
    address: &str,
    verb: &str,
    path: &str,
    head: &[(&str, &str)],
    body: &str,
) -> io::Result<Response> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let fields: Vec<_> = head.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let (fields, length) = (fields.concat(), body.len());
    let text = format!("{verb} {path} HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes())?;
    Response::read(stream)
}

/// The address and the path of a URL.
pub(crate) fn parts(url: &str) -> (String, String) {
    let rest = url.strip_prefix("http://").expect("a URL of ours");
    let (address, path) = rest.split_once('/').expect("a URL with a path");
    (address.to_owned(), format!("/{path}"))
}

/// A JSON-RPC request.
pub(crate) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// The call of a tool.
pub(crate) fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    request(id, "tools/call", &json!({"name": tool, "arguments": arguments}))
}

impl Response {
    fn read(stream: TcpStream) -> io::Result<Self> {
        let mut reader = BufReader::new(stream);
        let first = line(&mut reader)?;
        if first.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status in `{first}`")))?;
        let mut head = Vec::new();
        loop {
            let text = line(&mut reader)?;
            let Some((name, value)) = text.split_once(':') else { break };
            head.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let frame = match field(&head, "content-length") {
            _ if field(&head, "transfer-encoding") == Some("chunked") => Frame::Chunked(0),
            Some(length) => Frame::Length(length.parse().map_err(io::Error::other)?),
            None if status == 202 || status == 204 => Frame::Length(0),
            None => Frame::UntilClose,
        };
        Ok(Self { status, head, body: BufReader::new(Body { reader, frame }) })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// The whole body.
    pub(crate) fn text(mut self) -> String {
        let mut text = String::new();
        self.body.read_to_string(&mut text).unwrap();
        text
    }

    /// The one answer, whether it came as JSON or in a stream; messages before it are passed over.
    pub(crate) fn answer(mut self) -> Value {
        if self.header("content-type").is_some_and(|kind| kind.starts_with(JSON)) {
            return serde_json::from_str(&self.text()).unwrap();
        }
        loop {
            let message = self.message().expect("an answer before the end of the stream");
            if message.get("method").is_none() {
                return message;
            }
        }
    }

    /// The next message of a stream; none at its end.
    pub(crate) fn message(&mut self) -> Option<Value> {
        loop {
            let event = self.event()?;
            if !event.data.is_empty() {
                return Some(serde_json::from_str(&event.data).unwrap());
            }
        }
    }

    /// The next event of a stream; none at its end.
    pub(crate) fn event(&mut self) -> Option<Event> {
        self.try_event().unwrap()
    }

    /// The same, or how the stream was cut.
    fn try_event(&mut self) -> io::Result<Option<Event>> {
        let mut event = Event::default();
        let mut any = false;
        loop {
            if self.body.fill_buf()?.is_empty() {
                return Ok(None);
            }
            let line = line(&mut self.body)?;
            if line.is_empty() && any {
                return Ok(Some(event));
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" => {
                    event.comments += usize::from(!line.is_empty());
                    continue;
                }
                "id" => event.id = Some(value.to_owned()),
                "retry" => event.retry = value.parse().ok(),
                "data" => event.data.push_str(value),
                _other => {}
            }
            any = true;
        }
    }
}

fn field<'a>(head: &'a [(String, String)], name: &str) -> Option<&'a str> {
    head.iter().find(|(field, _)| field == name).map(|(_, value)| &**value)
}

/// A body and how its end is marked.
struct Body {
    reader: BufReader<TcpStream>,
    frame: Frame,
}

enum Frame {
    Length(usize),
    /// What is left of the present chunk.
    Chunked(usize),
    UntilClose,
}

impl io::Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Frame::Chunked(0) = self.frame {
            let size = line(&mut self.reader)?;
            let size = size.split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            self.frame = if size == 0 { Frame::Length(0) } else { Frame::Chunked(size) };
        }
        let (Frame::Length(left) | Frame::Chunked(left)) = &mut self.frame else {
            return self.reader.read(buffer);
        };
        let most = buffer.len().min(*left);
        // Asked for nothing, a reader would still wait for something.
        let read = if most == 0 { 0 } else { self.reader.read(&mut buffer[..most])? };
        *left -= read;
        if let Frame::Chunked(0) = self.frame {
            line(&mut self.reader)?;
        }
        Ok(read)
    }
}

fn line(reader: &mut impl io::BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

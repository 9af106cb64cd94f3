//! Writing a request: pure, from its parts to its bytes.

use std::fmt;

use bytes::{BufMut, BytesMut};

use super::pool::ROOM;

/// Bodies up to this length are copied behind the head, longer ones are written from where they
/// are.
const COPIED: usize = 16 << 10;

/// Headers that say where a message begins and ends. Only the client itself writes them.
const RESERVED: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What to do.
    pub method: Method,
    /// Headers beside those of the target and those that frame the message.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body; empty if there is none.
    pub body: &'a [u8],
}

/// Headers that go with many requests: checked and written once. Its debug output shows none of
/// them: they may be secrets.
#[derive(Clone, Default)]
pub struct Headers(Box<[u8]>);

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Asks for a stream.
    Get,
    /// Sends a message.
    Post,
    /// Ends a session.
    Delete,
}

/// A header cannot be part of a request. Its value may be a secret, so the error names no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    #[error("`{}` is not a valid header name", .0.escape_debug())]
    Name(String),
    /// The value has a line break or another control character.
    #[error("the value of header `{0}` has a control character")]
    Value(String),
    /// The header would change the end of the message or its target.
    #[error("header `{0}` cannot be set")]
    Reserved(String),
}

/// A request as it goes onto the wire.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    /// The head, and the body if that is short.
    pub(super) front: BytesMut,
    /// The body if it is long.
    pub(super) rest: &'a [u8],
}

impl Headers {
    /// Writes headers, if that is what they are.
    pub fn new(headers: &[(&str, &str)]) -> Result<Self, BadHeader> {
        let mut out = BytesMut::new();
        for (name, value) in headers {
            put_header(&mut out, name, value)?;
        }
        Ok(Self(out.as_ref().into()))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Headers").finish_non_exhaustive()
    }
}

impl<'a> Outgoing<'a> {
    /// Writes a request into `front`, which is empty and later takes the answer. `preamble` is what
    /// follows the method, up to the first header of the client.
    pub(super) fn new(
        mut front: BytesMut,
        preamble: &[u8],
        written: &[&Headers],
        request: &Request<'a>,
    ) -> Result<Self, BadHeader> {
        let inline = if request.body.len() <= COPIED { request.body } else { &[] };
        let headers: usize =
            request.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let headers = headers + written.iter().map(|headers| headers.0.len()).sum::<usize>();
        let framing = 64;
        let len = preamble.len() + headers + framing + inline.len();
        front.reserve(len.max(ROOM));
        front.put_slice(request.method.as_str().as_bytes());
        front.put_slice(preamble);
        for headers in written {
            front.put_slice(&headers.0);
        }
        for (name, value) in request.headers {
            put_header(&mut front, name, value)?;
        }
        if request.method == Method::Post || !request.body.is_empty() {
            front.put_slice(b"content-length: ");
            put_number(&mut front, request.body.len());
            front.put_slice(b"\r\n");
        }
        front.put_slice(b"\r\n");
        front.put_slice(inline);
        let rest = if inline.is_empty() { request.body } else { &[] };
        Ok(Self { front, rest })
    }

    /// What is left to write after the first `done` bytes.
    pub(super) fn after(&self, done: usize) -> [&[u8]; 2] {
        match self.front.get(done..) {
            Some(front) => [front, self.rest],
            None => [&self.rest[done - self.front.len()..], &[]],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.front.len() + self.rest.len()
    }
}

impl Method {
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// Writes one header, if it is one: nothing that is written here can end its line.
pub(super) fn put_header(out: &mut BytesMut, name: &str, value: &str) -> Result<(), BadHeader> {
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(BadHeader::Name(name.to_owned()));
    }
    if RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
        return Err(BadHeader::Reserved(name.to_owned()));
    }
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(BadHeader::Value(name.to_owned()));
    }
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value.as_bytes());
    out.put_slice(b"\r\n");
    Ok(())
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn put_number(out: &mut BytesMut, number: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b"0123456789"[left % 10];
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREAMBLE: &[u8] = b" /mcp HTTP/1.1\r\nhost: a\r\n";

    fn written(method: Method, headers: &[(&str, &str)], body: &[u8]) -> Result<String, BadHeader> {
        let out =
            Outgoing::new(BytesMut::new(), PREAMBLE, &[], &Request { method, headers, body })?;
        Ok(String::from_utf8(out.after(0).concat()).unwrap())
    }

    #[test]
    fn a_request_is_its_parts() {
        let headers = [("accept", "text/event-stream"), ("x", "ä\t")];
        assert_eq!(
            written(Method::Get, &headers, b"").unwrap(),
            "GET /mcp HTTP/1.1\r\nhost: a\r\naccept: text/event-stream\r\nx: ä\t\r\n\r\n"
        );
        assert_eq!(
            written(Method::Post, &[], b"").unwrap(),
            "POST /mcp HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
        );
        assert_eq!(
            written(Method::Delete, &[], b"0123456789").unwrap(),
            "DELETE /mcp HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n0123456789"
        );
    }

    #[test]
    fn headers_can_be_written_before() {
        let written = Headers::new(&[("a", "b"), ("c", "secret")]).unwrap();
        let request = Request { method: Method::Post, headers: &[("e", "f")], body: b"x" };
        let out =
            Outgoing::new(BytesMut::new(), PREAMBLE, &[&written, &Headers::default()], &request)
                .unwrap();
        assert_eq!(
            str::from_utf8(&out.front).unwrap(),
            "POST /mcp HTTP/1.1\r\nhost: a\r\na: b\r\nc: secret\r\ne: f\r\ncontent-length: 1\r\n\r\nx"
        );
        assert_eq!(format!("{written:?}"), "Headers(..)");
        assert!(matches!(Headers::new(&[("host", "b")]), Err(BadHeader::Reserved(_))));
    }

    #[test]
    fn a_long_body_is_not_copied() {
        for (len, copied) in [(COPIED, true), (COPIED + 1, false)] {
            let body = vec![b'x'; len];
            let request = Request { method: Method::Post, headers: &[], body: &body };
            let out = Outgoing::new(BytesMut::new(), PREAMBLE, &[], &request).unwrap();
            assert_eq!(out.rest.is_empty(), copied);
            let whole = out.after(0).concat();
            assert_eq!(whole.len(), out.len());
            assert!(whole.ends_with(&body));
            for done in [1, out.front.len() - 1, out.front.len(), out.len() - 1, out.len()] {
                assert_eq!(out.after(done).concat(), whole[done..]);
            }
        }
    }

    #[test]
    fn nothing_can_be_smuggled_into_a_head() {
        let check = |name: &str, value: &str, expected: BadHeader| {
            assert_eq!(written(Method::Get, &[(name, value)], b""), Err(expected));
        };
        for value in ["a\r\nb: c", "a\nb", "a\rb", "a\0", "\u{7f}", "\u{1b}[1m"] {
            check("x", value, BadHeader::Value("x".to_owned()));
        }
        for name in ["", "a b", "a:", "a\r\nb", "ä", "a\0"] {
            check(name, "b", BadHeader::Name(name.to_owned()));
        }
        for name in ["Host", "content-length", "Transfer-Encoding", "CONNECTION"] {
            check(name, "b", BadHeader::Reserved(name.to_owned()));
        }
    }
}

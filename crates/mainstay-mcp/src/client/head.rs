//! Reading the head of a response: pure, from bytes to what they mean.
//!
//! How the body is framed follows RFC 9112. What could be read in two ways, such as two lengths, is
//! an error or costs the connection, so that no byte of one answer is ever taken for another's.

use std::mem::MaybeUninit;
use std::time::Duration;

use httparse::{Header, ParserConfig, Status};

/// How long a head may be.
pub(super) const MAX_HEAD: usize = 64 << 10;
/// How many headers it may have.
const MAX_HEADERS: usize = 100;
/// How long an idle connection is kept. Servers close theirs after 5 s or more, and one that is
/// closed during a write costs a call.
const KEEP: Duration = Duration::from_secs(2);

/// The head of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// The length of its text, with the empty line.
    pub(super) len: usize,
    pub(super) status: u16,
    pub(super) content_type: ContentType,
    pub(super) framing: Framing,
    /// How long the connection may idle afterwards; `None`: it cannot be used again.
    pub(super) keep: Option<Duration>,
}

/// What a response carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    /// `application/json`
    Json,
    /// `text/event-stream`
    EventStream,
    /// Anything else, or unknown.
    Other,
}

/// Where the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// The head of a response is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// It is not HTTP/1.
    #[error("not an HTTP/1 response: {0}")]
    NotHttp(httparse::Error),
    #[error("a response head longer than {MAX_HEAD} bytes")]
    TooLong,
    #[error("a response head with more than {MAX_HEADERS} headers")]
    TooManyHeaders,
    /// The length of the body is not a number, or there are several.
    #[error("a response without a valid content length")]
    BadLength,
    /// The body has a transfer coding that was not requested.
    #[error("a response in an unknown transfer coding")]
    UnknownCoding,
    /// The server switches to another protocol, which was not requested.
    #[error("a change of protocol that was not asked for")]
    Upgrade,
}

impl Head {
    /// Reads a head at the beginning of `text`; `None` if its end is missing.
    pub(super) fn parse(text: &[u8]) -> Result<Option<Self>, HeadError> {
        let mut room = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let parsed = ParserConfig::default().parse_response_with_uninit_headers(
            &mut response,
            text,
            &mut room,
        );
        let len = match parsed {
            Ok(Status::Complete(len)) if len <= MAX_HEAD => len,
            Ok(Status::Partial) if text.len() < MAX_HEAD => return Ok(None),
            Ok(Status::Complete(_) | Status::Partial) => return Err(HeadError::TooLong),
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooManyHeaders),
            Err(error) => return Err(HeadError::NotHttp(error)),
        };
        let status = response.code.expect("a complete response has a status");
        if status == 101 {
            return Err(HeadError::Upgrade);
        }
        let mut facts = Facts::default();
        for header in response.headers.iter() {
            facts.learn(header)?;
        }
        let framing = facts.framing(status);
        let keep = if response.version == Some(1) { facts.keep(framing) } else { None };
        Ok(Some(Self { len, status, content_type: facts.content_type(), framing, keep }))
    }

    /// Whether the response itself is still to come.
    pub(super) fn is_interim(&self) -> bool {
        (100..200).contains(&self.status)
    }
}

/// The value of a header in the text of a head that was parsed.
pub(super) fn find<'a>(text: &'a [u8], name: &str) -> Option<&'a str> {
    let mut lines = text.split(|byte| *byte == b'\n').skip(1);
    let value = lines.find_map(|line| {
        let (found, rest) = line.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b":")?;
        found.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
    })?;
    str::from_utf8(value.trim_ascii()).ok()
}

/// What the headers say, so far.
#[derive(Default)]
struct Facts {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    timeout: Option<Duration>,
    content_type: Option<ContentType>,
}

impl Facts {
    fn learn(&mut self, header: &Header<'_>) -> Result<(), HeadError> {
        let (name, value) = (header.name, header.value);
        if name.eq_ignore_ascii_case("content-length") {
            for text in value.split(|byte| *byte == b',') {
                let length = number(text.trim_ascii()).ok_or(HeadError::BadLength)?;
                if self.length.is_some_and(|known| known != length) {
                    return Err(HeadError::BadLength);
                }
                self.length = Some(length);
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err(HeadError::UnknownCoding);
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case("connection") {
            self.close |= items(value).any(|item| item.eq_ignore_ascii_case(b"close"));
        } else if name.eq_ignore_ascii_case("keep-alive") {
            self.timeout = items(value).find_map(timeout).or(self.timeout);
        } else if name.eq_ignore_ascii_case("content-type") {
            self.content_type.get_or_insert_with(|| content_type(value));
        }
        Ok(())
    }

    fn content_type(&self) -> ContentType {
        self.content_type.unwrap_or(ContentType::Other)
    }

    fn framing(&self, status: u16) -> Framing {
        match (status, self.chunked, self.length) {
            (100..200 | 204 | 304, _, _) => Framing::Length(0),
            (_, true, _) => Framing::Chunked,
            (_, false, Some(length)) => Framing::Length(length),
            (_, false, None) => Framing::UntilClose,
        }
    }

    fn keep(&self, framing: Framing) -> Option<Duration> {
        // A server that sends both may mean something else by them.
        let ambiguous = self.chunked && self.length.is_some();
        if self.close || ambiguous || framing == Framing::UntilClose {
            return None;
        }
        let Some(timeout) = self.timeout else { return Some(KEEP) };
        let keep = timeout.saturating_sub(Duration::from_secs(1)).min(KEEP);
        (!keep.is_zero()).then_some(keep)
    }
}

fn content_type(value: &[u8]) -> ContentType {
    let essence = value.split(|byte| *byte == b';').next().unwrap_or(value).trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        ContentType::Json
    } else if essence.eq_ignore_ascii_case(b"text/event-stream") {
        ContentType::EventStream
    } else {
        ContentType::Other
    }
}

fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn timeout(item: &[u8]) -> Option<Duration> {
    let (name, value) = item.split_at_checked("timeout=".len())?;
    if !name.eq_ignore_ascii_case(b"timeout=") {
        return None;
    }
    number(value).map(Duration::from_secs)
}

/// Digits only: `parse` also accepts a sign, which HTTP does not allow.
fn number(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Result<Option<Head>, HeadError> {
        Head::parse(lines.replace('\n', "\r\n").as_bytes())
    }

    fn framed(lines: &str) -> Result<Framing, HeadError> {
        parse(&format!("HTTP/1.1 200 OK\n{lines}\n")).map(|head| head.unwrap().framing)
    }

    fn kept(version: &str, lines: &str) -> Option<u64> {
        let head = parse(&format!("HTTP/{version} 200 OK\n{lines}\n")).unwrap().unwrap();
        head.keep.map(|keep| keep.as_secs())
    }

    #[test]
    fn the_framing_is_never_guessed() {
        let bad = Err(HeadError::BadLength);
        let unknown = Err(HeadError::UnknownCoding);
        for (lines, expected) in [
            ("", Ok(Framing::UntilClose)),
            ("Content-Length: 7\n", Ok(Framing::Length(7))),
            ("content-length: 7, 7\nCONTENT-LENGTH: 7\n", Ok(Framing::Length(7))),
            ("Content-Length: 7\nContent-Length: 8\n", bad),
            ("Content-Length: +7\n", bad),
            ("Content-Length: \n", bad),
            ("Content-Length: 18446744073709551616\n", bad),
            ("Transfer-Encoding: Chunked\n", Ok(Framing::Chunked)),
            ("Transfer-Encoding: chunked\nContent-Length: 7\n", Ok(Framing::Chunked)),
            ("Transfer-Encoding: gzip, chunked\n", unknown),
            ("Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n", unknown),
        ] {
            assert_eq!(framed(lines), expected, "{lines}");
        }
    }

    #[test]
    fn some_statuses_have_no_body() {
        for (status, expected) in [(100, 0), (204, 0), (304, 0), (205, 9), (500, 9)] {
            let head = parse(&format!("HTTP/1.1 {status} X\nContent-Length: 9\n\n")).unwrap();
            assert_eq!(head.unwrap().framing, Framing::Length(expected), "{status}");
        }
        assert_eq!(parse("HTTP/1.1 101 X\n\n"), Err(HeadError::Upgrade));
    }

    #[test]
    fn a_connection_is_kept_only_as_long_as_the_server_keeps_it() {
        let length = "Content-Length: 0\n";
        for (lines, expected) in [
            ("", Some(2)),
            ("Connection: keep-alive\n", Some(2)),
            ("Connection: foo, Close\n", None),
            ("Keep-Alive: timeout=5\n", Some(2)),
            ("Keep-Alive: max=9, Timeout=2\n", Some(1)),
            ("Keep-Alive: timeout=1\n", None),
            ("Keep-Alive: timeout=soon\n", Some(2)),
            ("Transfer-Encoding: chunked\n", None),
        ] {
            assert_eq!(kept("1.1", &format!("{length}{lines}")), expected, "{lines}");
        }
        assert_eq!(kept("1.0", length), None);
        assert_eq!(kept("1.1", ""), None);
        assert_eq!(kept("1.1", "Transfer-Encoding: chunked\n"), Some(2));
    }

    #[test]
    fn the_content_type_is_read_without_its_parameters() {
        for (value, expected) in [
            ("application/json", ContentType::Json),
            ("Application/JSON ; charset=utf-8", ContentType::Json),
            ("text/event-stream;charset=utf-8", ContentType::EventStream),
            ("application/json-seq", ContentType::Other),
            ("", ContentType::Other),
        ] {
            let head = parse(&format!("HTTP/1.1 200 OK\nContent-Type: {value}\n\n")).unwrap();
            assert_eq!(head.unwrap().content_type, expected, "{value}");
        }
    }

    #[test]
    fn a_header_is_found_by_its_whole_name() {
        let text = b"HTTP/1.1 200 a: b\r\nA-B: 1\r\nA:  two \r\nx:\xff\r\n\r\n";
        assert_eq!(find(text, "a"), Some("two"));
        assert_eq!(find(text, "a-b"), Some("1"));
        assert_eq!(find(text, "x"), None);
        assert_eq!(find(text, "b"), None);
    }

    #[test]
    fn a_head_has_its_limits() {
        assert_eq!(parse("HTTP/1.1 200 OK\nA: b\n"), Ok(None));
        assert!(matches!(parse("SSH-2.0-x\n"), Err(HeadError::NotHttp(_))));
        let many = format!("HTTP/1.1 200 OK\n{}\n", "A: b\n".repeat(MAX_HEADERS + 1));
        assert_eq!(parse(&many), Err(HeadError::TooManyHeaders));
        let long = format!("HTTP/1.1 200 OK\nA: {}", "b".repeat(MAX_HEAD));
        assert_eq!(parse(&long), Err(HeadError::TooLong));
        assert_eq!(parse(&format!("{long}\n\n")), Err(HeadError::TooLong));
    }
}

//! Reading a stream of server-sent events.
//!
//! The parser takes bytes as they arrive. It follows the HTML standard: lines end with CR, LF or
//! CRLF, a byte order mark at the start is skipped, comments and unknown fields are ignored, an
//! unfinished event at the end is dropped. How the bytes were cut up never matters.

use std::time::Duration;

use bytes::Bytes;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its type; `None` stands for `message`.
    pub name: Option<String>,
    /// Its data, with LF between lines.
    pub data: Bytes,
    /// The last event id of the stream at this point.
    pub id: Option<String>,
}

/// An event was longer than the parser's limit. Nothing after it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {limit} bytes")]
pub struct TooLong {
    limit: usize,
}

/// The state of reading one stream.
#[derive(Debug)]
pub struct Parser {
    limit: usize,
    /// The line begun, without its end.
    line: Vec<u8>,
    at_start: bool,
    /// The last byte was a CR, so that a LF now belongs to the same line end.
    after_cr: bool,
    name: Option<String>,
    /// The data lines so far, each with a LF.
    data: Vec<u8>,
    id: Option<String>,
    last_event_id: Option<String>,
    retry: Option<Duration>,
}

impl Parser {
    /// A parser for a new stream whose events may be up to `limit` bytes long.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            at_start: true,
            after_cr: false,
            name: None,
            data: Vec::new(),
            id: None,
            last_event_id: None,
            retry: None,
        }
    }

    /// A parser for a stream that continues after the event with this id.
    pub fn resumed(limit: usize, last_event_id: String) -> Self {
        let id = Some(last_event_id);
        Self { id: id.clone(), last_event_id: id, ..Self::new(limit) }
    }

    /// Reads on, and puts the events that are now complete into `events`, also when an error follows.
    pub fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.line.extend_from_slice(part);
            if self.line.len() + self.data.len() > self.limit {
                return Err(TooLong { limit: self.limit });
            }
            bytes = rest;
            if let Some((&end, rest)) = rest.split_first() {
                self.after_cr = end == b'\r';
                bytes = rest;
                events.extend(self.end_line());
            }
        }
        Ok(())
    }

    /// How many bytes of an unfinished event there are.
    pub fn buffered(&self) -> usize {
        self.line.len() + self.data.len()
    }

    /// From where the stream can be resumed: the id of the last event, dispatched or empty.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// How long the server wants a client to wait before it connects again.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn end_line(&mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        let mut text = line.as_slice();
        if std::mem::take(&mut self.at_start) {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        if text.is_empty() {
            return self.end_event();
        }
        let (field, value) = match text.iter().position(|&byte| byte == b':') {
            Some(colon) => (&text[..colon], &text[colon + 1..]),
            None => (text, &b""[..]),
        };
        self.take_field(field, value.strip_prefix(b" ").unwrap_or(value));
        None
    }

    fn take_field(&mut self, field: &[u8], value: &[u8]) {
        let text = || String::from_utf8_lossy(value).into_owned();
        match field {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.name = Some(text()).filter(|name| !name.is_empty()),
            // An empty id takes back the one before it.
            b"id" if !value.contains(&0) => self.id = Some(text()).filter(|id| !id.is_empty()),
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                self.retry = text().parse().ok().map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }

    fn end_event(&mut self) -> Option<Event> {
        self.last_event_id.clone_from(&self.id);
        let name = self.name.take();
        let mut data = std::mem::take(&mut self.data);
        data.pop()?;
        Some(Event { name, data: data.into(), id: self.last_event_id.clone() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 64;

    fn read<'a>(
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<Event>, Result<(), TooLong>, Option<String>) {
        let mut parser = Parser::new(LIMIT);
        let mut events = Vec::new();
        let end = parts.into_iter().try_for_each(|part| parser.feed(part, &mut events));
        (events, end, parser.last_event_id().map(str::to_owned))
    }

    /// Events as `name/id/data`.
    fn check(text: &str, expected: &[&str]) {
        let (events, end, _) = read([text.as_bytes()]);
        end.unwrap();
        let told: Vec<String> = events
            .iter()
            .map(|event| {
                let name = event.name.as_deref().unwrap_or("-");
                let id = event.id.as_deref().unwrap_or("-");
                format!("{name}/{id}/{}", str::from_utf8(&event.data).unwrap())
            })
            .collect();
        assert_eq!(told, expected, "{text:?}");
    }

    #[test]
    fn events_are_read_by_the_standard() {
        check("data: a\n\ndata:b\r\rdata:  c\r\n\r\n", &["-/-/a", "-/-/b", "-/-/ c"]);
        check("data: a\ndata\ndata: b\n\n", &["-/-/a\n\nb"]);
        check("\u{feff}data: a\n\n\u{feff}data: b\n\n", &["-/-/a"]);
        check(": hello\nevent: x\nunknown: 1\ndata: {\"a\": 1}\n\n", &["x/-/{\"a\": 1}"]);
        check("event: x\n\ndata: a\n\n", &["-/-/a"]);
        check("id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", &["-/1/a", "-/1/b", "-/-/c"]);
        check("id: a\0b\ndata: a\n\n", &["-/-/a"]);
        check("id: 1\ndata:\n\n", &["-/1/"]);
        check("data: a\n", &[]);
    }

    #[test]
    fn an_event_without_data_still_moves_the_id() {
        let (events, _, last) = read([&b"id: 7\n\nid: 8\n"[..]]);
        assert_eq!((events, last.as_deref()), (Vec::new(), Some("7")));
    }

    #[test]
    fn retry_is_a_number_of_milliseconds() {
        let mut parser = Parser::new(LIMIT);
        let huge = format!("retry: {}9\n", u64::MAX);
        for (text, expected) in
            [("retry: 250\n", 250), ("retry: -1\n", 250), ("retry\n", 250), (&huge, 250)]
        {
            parser.feed(text.as_bytes(), &mut Vec::new()).unwrap();
            assert_eq!(parser.retry(), Some(Duration::from_millis(expected)), "{text:?}");
        }
    }

    #[test]
    fn an_event_over_the_limit_is_an_error_and_stays_one() {
        let text = format!("data: a\n\ndata: {}\n\n", "x".repeat(LIMIT));
        let mut parser = Parser::new(LIMIT);
        let mut events = Vec::new();
        assert_eq!(parser.feed(text.as_bytes(), &mut events), Err(TooLong { limit: LIMIT }));
        assert_eq!(events.len(), 1);
        assert_eq!(parser.feed(b"\n\n", &mut events), Err(TooLong { limit: LIMIT }));
        assert_eq!(events.len(), 1);

        let many = "data: 12345678\n".repeat(LIMIT);
        assert_eq!(read([many.as_bytes()]).1, Err(TooLong { limit: LIMIT }));
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => "(data|id|event|retry|:|x)",
            4 => "(\r|\n|\r\n|: |:)",
            2 => "[a-zA-Z0-9 ]{0,9}",
            1 => Just("\u{feff}".to_owned()),
        ];
        prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn the_cuts_never_matter(text in stream(), size in 1_usize..7) {
            prop_assert_eq!(read(text.chunks(size)), read([text.as_slice()]));
        }

        #[test]
        fn garbage_never_panics(parts: Vec<Vec<u8>>) {
            let whole = parts.concat();
            prop_assert_eq!(read(parts.iter().map(Vec::as_slice)), read([whole.as_slice()]));
        }
    }
}

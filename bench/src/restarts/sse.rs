//! Reading a stream of events as a client does that means to resume it.
//!
//! How the bytes were cut up does not matter. An event counts when its empty line has come, and so
//! does its id: what was cut off is to come again.

use std::time::Duration;

/// What a client knows of a stream, through all its connections.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The line begun.
    line: Vec<u8>,
    event: Event,
    last_id: Option<String>,
    retry: Option<Duration>,
}

/// The event begun.
#[derive(Debug, Default)]
struct Event {
    id: Option<String>,
    data: Vec<u8>,
}

impl Events {
    /// Takes in some bytes and returns the data of the events that they complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut complete = Vec::new();
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                complete.extend(self.end_line(line.strip_suffix(b"\r").unwrap_or(&line)));
            } else {
                self.line.push(*byte);
            }
        }
        complete
    }

    /// Forgets what is incomplete: the next bytes come over another connection.
    pub(super) fn cut(&mut self) {
        self.line.clear();
        self.event = Event::default();
    }

    /// Where to resume; `None` if the server has named no event.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long the server wants a client to wait before it resumes.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn end_line(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line.is_empty() {
            return self.end_event();
        }
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        match field(line) {
            (b"id", value) => self.event.id = Some(text(value)),
            (b"data", value) => self.event.data.extend(value),
            (b"retry", value) => {
                self.retry = text(value).parse().ok().map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<Vec<u8>> {
        let Event { id, data } = std::mem::take(&mut self.event);
        self.last_id = id.or(self.last_id.take());
        (!data.is_empty()).then_some(data)
    }
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return (line, b"") };
    let value = &line[colon + 1..];
    (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_complete_with_their_empty_line() {
        let mut events = Events::default();
        let text =
            b"id: 1\nretry: 700\ndata:\n\n: comment\n\nevent: message\r\nid: 2\r\ndata: {}\r\n\r\n";
        let complete: Vec<_> = text.chunks(3).flat_map(|bytes| events.push(bytes)).collect();
        assert_eq!(complete, [b"{}".to_vec()]);
        assert_eq!(
            (events.last_id(), events.retry()),
            (Some("2"), Some(Duration::from_millis(700)))
        );
    }

    #[test]
    fn what_was_cut_off_comes_again() {
        let mut events = Events::default();
        assert!(events.push(b"id: 1\ndata: a\n\nid: 2\ndata: b").len() == 1);
        events.cut();
        assert_eq!(events.last_id(), Some("1"));
        assert_eq!(events.push(b"id: 2\ndata: b\n\n"), [b"b".to_vec()]);
        assert_eq!(events.last_id(), Some("2"));
    }
}

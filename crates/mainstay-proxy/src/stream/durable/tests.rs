use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::record::{RecordLookup, SessionRecord, StateStore, StreamKey, Written};
use crate::stream::{Found, Reader, Streams};
use crate::write_fence::WriteFence;

/// All that was noted of streams, in order.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<(u64, StreamNews)>>);

impl StateStore for Notes {
    fn save(&self, _record: SessionRecord) {}

    fn written(&self) -> Written {
        Box::pin(async {})
    }

    fn touched(&self, _now: Duration, _used: Vec<(String, Duration)>) {}

    fn move_to_disk(&self, _record: SessionRecord) -> bool {
        true
    }

    fn find(&self, _id: &str) -> RecordLookup {
        Box::pin(async { Ok(None) })
    }

    fn remove(&self, _id: &str) {}

    fn save_copy(&self, _server: &str, _copy: Vec<u8>) {}

    fn remove_server(&self, _server: &str) {}

    fn note(&self, stream: &StreamKey, news: StreamNews) -> bool {
        self.0.lock().unwrap().push((stream.number, news));
        true
    }
}

impl Notes {
    /// What a later daemon finds of the only stream there is, if anything.
    fn record(&self) -> Option<StreamRecord> {
        let notes = self.0.lock().unwrap();
        let key = StreamKey { session: SESSION.into(), number: notes.first()?.0 };
        let mut record = StreamRecord {
            key,
            request: None,
            sent: None,
            attempts: 0,
            said: Vec::new(),
            answer: None,
        };
        for (_, news) in notes.iter().cloned() {
            match news {
                StreamNews::Begun(request) => record.request = Some(request),
                StreamNews::BegunSent(request, sent) => {
                    (record.request, record.sent, record.attempts) = (Some(request), Some(sent), 1);
                }
                StreamNews::Sent(sent) => {
                    // The line of a request is noted after the run.
                    let is_known = record.sent == Some(Sent { line: None, ..sent });
                    record.attempts += u32::from(!(is_known && sent.line.is_some()));
                    record.sent = Some(sent);
                }
                StreamNews::Said(number, message) => record.said.push((number, message)),
                StreamNews::Answered(number, answer) => record.answer = Some((number, answer)),
                StreamNews::Over => return None,
            }
        }
        Some(record)
    }

    /// What was noted, in short.
    fn told(&self) -> String {
        let messages = self
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, news)| match news {
                StreamNews::Begun(_) => "begun".to_owned(),
                StreamNews::BegunSent(_, sent) => format!("begun and sent {}", sent.generation),
                StreamNews::Sent(sent) => format!("sent {}", sent.generation),
                StreamNews::Said(number, _) => format!("said {number}"),
                StreamNews::Answered(number, _) => format!("answered {number}"),
                StreamNews::Over => "over".to_owned(),
            })
            .collect::<Vec<_>>();
        messages.join(", ")
    }
}

const SESSION: &str = "0123456789abcdef0123456789abcdef";
const SENT: Sent = Sent { generation: 4, line: Some(9) };

/// The streams of one session, and what is noted of them.
fn session() -> (Streams, WriteFence, Arc<Notes>) {
    let notes = Arc::<Notes>::default();
    let write_fence = WriteFence::new(Arc::<Notes>::clone(&notes));
    (Streams::kept(SESSION, write_fence.clone()), write_fence, notes)
}

fn request() -> Bytes {
    Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#)
}

fn note(text: impl std::fmt::Display) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","method":"{text}"}}"#).into()
}

/// The numbers of what is there to read now, and whether the last is the answer.
fn rest(reader: &mut Reader) -> (Vec<u64>, bool) {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let (mut numbers, mut answered) = (Vec::new(), false);
    while let std::task::Poll::Ready(Some(item)) = reader.poll_next(&mut cx) {
        numbers.push(item.number);
        answered |= item.is_answer;
    }
    (numbers, answered)
}

#[test]
fn all_that_happened_is_written_down_when_it_begins() {
    let (streams, _, notes) = session();
    let stream = Stream::new();
    assert_eq!(stream.sent(SENT), Noted::Yes);
    stream.push(note("a"));
    let id = streams.keep(&stream, Some("7"));
    assert_eq!(notes.told(), "");
    streams.write_down(&id, &stream, request());
    stream.push(note("b"));
    stream.finish(Some(note("answer")));
    streams.forget(&id);
    assert_eq!(notes.told(), "begun and sent 4, said 1, said 2, answered 3, over");
}

#[test]
fn what_is_answered_is_not_written_down_any_more() {
    let (streams, _, notes) = session();
    let stream = Stream::new();
    let id = streams.keep(&stream, Some("7"));
    stream.finish(Some(note("answer")));
    streams.write_down(&id, &stream, request());
    streams.forget(&id);
    assert_eq!(notes.told(), "");
}

#[test]
fn nobody_reads_what_must_not_be_written_down() {
    let (streams, write_fence, notes) = session();
    streams.write_down_general();
    let stream = Stream::new();
    let mut readers = [stream.reader(Start::Unread), streams.general().reader(Start::Unread)];
    let id = streams.keep(&stream, Some("7"));
    streams.write_down(&id, &stream, request());
    write_fence.shut();
    assert_eq!(stream.sent(SENT), Noted::Never, "it must not be sent either");
    assert!(!streams.general().push(note("a")));
    stream.finish(Some(note("answer")));
    for reader in &mut readers {
        assert_eq!(rest(reader), (Vec::new(), false));
        assert!(reader.stream().is_closed());
    }
    streams.forget(&id);
    assert_eq!(notes.told(), "begun");
}

/// What happens to a stream.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Push,
    Read,
    WriteDown,
    Finish,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => Just(Deed::Push),
        2 => Just(Deed::Read),
        1 => Just(Deed::WriteDown),
        1 => Just(Deed::Finish),
    ]
}

proptest! {
    /// Whenever the daemon dies: a client that comes back at another one with the id of any event it
    /// got reads on from there, each message once.
    #[test]
    fn a_stream_goes_on_where_its_client_stopped(
        deeds in prop::collection::vec(deed(), 0..60),
        back in 0..60_u64,
    ) {
        let (streams, _, notes) = session();
        let stream = Stream::new();
        let mut reader = stream.reader(Start::Unread);
        let id = streams.keep(&stream, Some("7"));
        let (mut said, mut seen, mut answered, mut written_down) = (0, 0, false, false);
        for deed in deeds {
            match deed {
                Deed::Push if !answered => {
                    stream.push(note("n"));
                    said += 1;
                }
                Deed::Finish if !answered => {
                    stream.finish(Some(note("answer")));
                    (said, answered) = (said + 1, true);
                }
                Deed::WriteDown if !written_down => {
                    streams.write_down(&id, &stream, request());
                    written_down = !answered;
                }
                Deed::Read => {
                    let (numbers, _) = rest(&mut reader);
                    seen = numbers.last().copied().unwrap_or(seen);
                }
                Deed::Push | Deed::Finish | Deed::WriteDown => {}
            }
        }
        let record = notes.record();
        prop_assert_eq!(record.is_some(), written_down);
        if let Some(record) = record {
            let (next, ..) = session();
            let (recovered, _stream) = next.recover(record, Some("7"), None).unwrap();
            prop_assert_eq!(&recovered, &id, "the same events as before");
            let last = back.min(seen);
            match next.find(&id.at(last)) {
                Found::Request(stream, start) => {
                    let expected: Vec<u64> = (last + 1..=said).collect();
                    prop_assert_eq!(rest(&mut stream.reader(start)), (expected, answered));
                }
                Found::Over => prop_assert!(answered && last == said),
                found => prop_assert!(false, "{:?}", found),
            }
            // New streams have other numbers.
            let other = next.keep(&Stream::new(), Some("7"));
            prop_assert_ne!(other, id);
        }
    }
}

use proptest::prelude::*;

use super::*;
use crate::record::StreamKey;
use crate::tests::{TestStore, notification, request};

const SENT: Sent = Sent { generation: 4, line: Some(9) };

fn stream() -> Stream {
    Stream::request(SessionKey::dangling())
}

fn key() -> StreamKey {
    StreamKey { session: "0123456789abcdef0123456789abcdef".into(), number: 3 }
}

/// The journal; it is closed when another daemon takes over.
fn journal(store: &TestStore, is_closed: bool) -> Journal<'_> {
    Journal { store, is_closed }
}

/// The numbers of what is there to read now, then what stops the reader.
fn read_all(stream: &mut Stream, turn: u64) -> (Vec<u64>, Read) {
    let mut numbers = Vec::new();
    loop {
        match stream.read(turn) {
            Read::Item(item) => numbers.push(item.number),
            stop @ (Read::Wait | Read::End) => return (numbers, stop),
        }
    }
}

#[test]
fn the_first_thing_is_seen_before_it_is_read() {
    let store = TestStore::default();
    let journal = journal(&store, false);
    let mut stream = stream();
    let (turn, _) = stream.attach(Start::Unread);
    assert_eq!(stream.peek(turn), Peek::Wait);
    stream.push(journal, notification(1));
    stream.finish(journal, Some(notification(2)));
    assert_eq!(stream.peek(turn), Peek::Message);
    assert!(matches!(stream.read(turn), Read::Item(_)));
    assert_eq!(stream.peek(turn), Peek::Answer(notification(2)));
    assert_eq!(read_all(&mut stream, turn), (vec![2], Read::End));
    assert_eq!(stream.peek(turn), Peek::End);
}

#[test]
fn the_newest_reader_replaces_the_older() {
    let store = TestStore::default();
    let journal = journal(&store, false);
    let mut stream = Stream::general(SessionKey::dangling());
    let (old, _) = stream.attach(Start::Unread);
    stream.push(journal, notification(1));
    assert_eq!(read_all(&mut stream, old), (vec![1], Read::Wait));
    stream.push(journal, notification(2));
    let (new, _) = stream.attach(Start::Unread);
    assert_eq!(read_all(&mut stream, old), (vec![], Read::End));
    assert_eq!(read_all(&mut stream, new), (vec![2], Read::Wait));
    assert!(!stream.is_closed);
}

#[test]
fn all_that_happened_is_journaled_when_the_journal_begins() {
    let store = TestStore::default();
    let journal = journal(&store, false);
    let mut stream = stream();
    assert_eq!(stream.record_sent(journal, SENT), Recorded::Yes);
    stream.push(journal, notification("a"));
    assert_eq!(store.summary(), "");
    stream.begin_journal(journal, key(), request());
    stream.push(journal, notification("b"));
    stream.finish(journal, Some(notification("answer")));
    stream.discard(journal);
    assert_eq!(store.summary(), "begun and sent 4, message 1, message 2, answered 3, over");
}

#[test]
fn what_is_answered_is_not_journaled_any_more() {
    let store = TestStore::default();
    let journal = journal(&store, false);
    let mut stream = stream();
    stream.finish(journal, Some(notification("answer")));
    stream.begin_journal(journal, key(), request());
    stream.discard(journal);
    assert_eq!(store.summary(), "");
}

#[test]
fn nobody_reads_what_must_not_be_journaled() {
    let store = TestStore::default();
    let mut general = Stream::general(SessionKey::dangling());
    general.journal_general(&key().session, 0);
    let mut stream = stream();
    let turns = [stream.attach(Start::Unread).0, general.attach(Start::Unread).0];
    stream.begin_journal(journal(&store, false), key(), request());
    let journal = journal(&store, true);
    assert_eq!(stream.record_sent(journal, SENT), Recorded::Never, "it must not be sent either");
    assert!(!general.push(journal, notification("a")));
    stream.finish(journal, Some(notification("answer")));
    for (stream, turn) in [&mut stream, &mut general].into_iter().zip(turns) {
        assert_eq!(read_all(stream, turn), (Vec::new(), Read::End));
        assert!(stream.is_closed);
    }
    stream.discard(journal);
    assert_eq!(store.summary(), "begun");
}

#[derive(Debug, Clone)]
enum Step {
    Push,
    Read(usize),
    /// The connection is cut: the client has got all but the last few of what was read.
    Resume {
        lost: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Push),
        2 => (1..5_usize).prop_map(Step::Read),
        1 => (0..4_usize).prop_map(|lost| Step::Resume { lost }),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Whatever the interleaving, a client gets each message once, in order, the answer last.
    #[test]
    fn each_message_arrives_once_and_in_order(steps in steps()) {
        let store = TestStore::default();
        let journal = journal(&store, false);
        let mut stream = stream();
        let (mut turn, _) = stream.attach(Start::Unread);
        let (mut pushed, mut got) = (0, Vec::<Item>::new());
        for step in steps {
            match step {
                Step::Push => {
                    pushed += 1;
                    stream.push(journal, notification(pushed));
                }
                Step::Read(count) => {
                    for _ in 0..count {
                        if let Read::Item(item) = stream.read(turn) {
                            got.push(item);
                        }
                    }
                }
                Step::Resume { lost } => {
                    got.truncate(got.len().saturating_sub(lost));
                    let last = got.last().map_or(0, |item| item.number);
                    (turn, _) = stream.attach(Start::After(last));
                }
            }
        }
        stream.finish(journal, Some(notification(pushed + 1)));
        while let Read::Item(item) = stream.read(turn) {
            got.push(item);
        }
        prop_assert_eq!(got.len() as u64, pushed + 1);
        for (item, number) in got.iter().zip(1..) {
            prop_assert_eq!(item.number, number);
            prop_assert_eq!(&item.message, &notification(number));
            prop_assert_eq!(item.is_answer, number == pushed + 1);
        }
    }
}

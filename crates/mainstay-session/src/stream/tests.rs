use proptest::prelude::*;

use super::*;
use crate::record::StreamKey;
use crate::tests::{Notes, note, request};

const SENT: Sent = Sent { generation: 4, line: Some(9) };

fn stream() -> Stream {
    Stream::request(SessionKey::dangling())
}

fn key() -> StreamKey {
    StreamKey { session: "0123456789abcdef0123456789abcdef".into(), number: 3 }
}

/// The journal; it is closed when another daemon takes over.
fn journal(notes: &Notes, is_closed: bool) -> Journal<'_> {
    Journal { store: notes, is_closed }
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
    let notes = Notes::default();
    let journal = journal(&notes, false);
    let mut stream = stream();
    let (turn, _) = stream.attach(Start::Unread);
    assert_eq!(stream.peek(turn), Peek::Wait);
    stream.push(journal, note(1));
    stream.finish(journal, Some(note(2)));
    assert_eq!(stream.peek(turn), Peek::Message);
    assert!(matches!(stream.read(turn), Read::Item(_)));
    assert_eq!(stream.peek(turn), Peek::Answer(note(2)));
    assert_eq!(read_all(&mut stream, turn), (vec![2], Read::End));
    assert_eq!(stream.peek(turn), Peek::End);
}

#[test]
fn the_newest_reader_replaces_the_older() {
    let notes = Notes::default();
    let journal = journal(&notes, false);
    let mut stream = Stream::general(SessionKey::dangling());
    let (old, _) = stream.attach(Start::Unread);
    stream.push(journal, note(1));
    assert_eq!(read_all(&mut stream, old), (vec![1], Read::Wait));
    stream.push(journal, note(2));
    let (new, _) = stream.attach(Start::Unread);
    assert_eq!(read_all(&mut stream, old), (vec![], Read::End));
    assert_eq!(read_all(&mut stream, new), (vec![2], Read::Wait));
    assert!(!stream.is_closed);
}

#[test]
fn all_that_happened_is_journaled_when_the_journal_begins() {
    let notes = Notes::default();
    let journal = journal(&notes, false);
    let mut stream = stream();
    assert_eq!(stream.record_sent(journal, SENT), Recorded::Yes);
    stream.push(journal, note("a"));
    assert_eq!(notes.summary(), "");
    stream.begin_journal(journal, key(), request());
    stream.push(journal, note("b"));
    stream.finish(journal, Some(note("answer")));
    stream.discard(journal);
    assert_eq!(notes.summary(), "begun and sent 4, said 1, said 2, answered 3, over");
}

#[test]
fn what_is_answered_is_not_journaled_any_more() {
    let notes = Notes::default();
    let journal = journal(&notes, false);
    let mut stream = stream();
    stream.finish(journal, Some(note("answer")));
    stream.begin_journal(journal, key(), request());
    stream.discard(journal);
    assert_eq!(notes.summary(), "");
}

#[test]
fn nobody_reads_what_must_not_be_journaled() {
    let notes = Notes::default();
    let mut general = Stream::general(SessionKey::dangling());
    general.journal_general(&key().session, 0);
    let mut stream = stream();
    let turns = [stream.attach(Start::Unread).0, general.attach(Start::Unread).0];
    stream.begin_journal(journal(&notes, false), key(), request());
    let journal = journal(&notes, true);
    assert_eq!(stream.record_sent(journal, SENT), Recorded::Never, "it must not be sent either");
    assert!(!general.push(journal, note("a")));
    stream.finish(journal, Some(note("answer")));
    for (stream, turn) in [&mut stream, &mut general].into_iter().zip(turns) {
        assert_eq!(read_all(stream, turn), (Vec::new(), Read::End));
        assert!(stream.is_closed);
    }
    stream.discard(journal);
    assert_eq!(notes.summary(), "begun");
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
        let notes = Notes::default();
        let journal = journal(&notes, false);
        let mut stream = stream();
        let (mut turn, _) = stream.attach(Start::Unread);
        let (mut pushed, mut got) = (0, Vec::<Item>::new());
        for step in steps {
            match step {
                Step::Push => {
                    pushed += 1;
                    stream.push(journal, note(pushed));
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
        stream.finish(journal, Some(note(pushed + 1)));
        while let Read::Item(item) = stream.read(turn) {
            got.push(item);
        }
        prop_assert_eq!(got.len() as u64, pushed + 1);
        for (item, number) in got.iter().zip(1..) {
            prop_assert_eq!(item.number, number);
            prop_assert_eq!(&item.message, &note(number));
            prop_assert_eq!(item.is_answer, number == pushed + 1);
        }
    }
}

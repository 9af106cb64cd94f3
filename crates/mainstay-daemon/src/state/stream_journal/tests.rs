use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, mpsc};
use std::thread;

use bytes::Bytes;
use mainstay_proxy::{Abandoned, Sent};
use proptest::prelude::*;

use super::entry::{Change, HEADER};
use super::live_streams::{ALL_BYTES, MAX_MESSAGE_BYTES, MAX_MESSAGES};
use super::*;

fn key(session: &str, number: u64) -> StreamKey {
    StreamKey { session: session.into(), number }
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn of_size(bytes: usize) -> Bytes {
    vec![b'x'; bytes].into()
}

fn sent(generation: u64) -> Sent {
    Sent { generation, line: Some(generation << 32) }
}

/// The streams after these changes.
fn fold(changes: &[(StreamKey, StreamChange)]) -> LiveStreams {
    let mut alive = LiveStreams::default();
    for (key, change) in changes {
        if let Some(entry) = alive.entry(key, change.clone()) {
            alive.apply(entry);
        }
    }
    alive
}

fn files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        names.map(|found| found.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_next_daemon_recovers_live_streams() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, found) = StreamJournal::open(dir.path(), 7);
    assert_eq!(found, []);
    let (call, general, over) = (key("a", 5), key("a", 1), key("b", 2));
    journal.note(&call, StreamChange::Begun(text("call")));
    journal.note(&over, StreamChange::Begun(text("over")));
    journal.note(&call, StreamChange::Sent(sent(1)));
    journal.note(&call, StreamChange::Message(1, text("progress")));
    journal.note(&general, StreamChange::Message(9, text("note")));
    journal.note(&call, StreamChange::Sent(Sent { generation: 2, line: None }));
    journal.note(&over, StreamChange::Over);
    // A daemon that is killed does not close its journal.
    let (next, found) = StreamJournal::open(dir.path(), 8);
    let call = StreamRecord {
        key: call,
        request: Some(text("call")),
        sent: Some(Sent { generation: 2, line: None }),
        attempts: 2,
        messages: vec![(1, text("progress"))],
        answer: None,
        abandoned: None,
    };
    let general = StreamRecord {
        key: general,
        request: None,
        sent: None,
        attempts: 0,
        messages: vec![(9, text("note"))],
        answer: None,
        abandoned: None,
    };
    assert_eq!(found, [call.clone(), general.clone()]);
    assert_eq!(files(dir.path()), ["8"]);
    let mode = fs::metadata(dir.path().join("8")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    journal.note(&call.key, StreamChange::Answered(2, text("late")));
    next.note(&call.key, StreamChange::Sent(sent(3)));
    next.end("unknown");
    let (next, found) = StreamJournal::open(dir.path(), 9);
    let call = StreamRecord { sent: Some(sent(3)), attempts: 3, ..call };
    assert_eq!(found, [call, general], "the writes of a replaced daemon are ignored");
    next.end("a");
    assert_eq!(StreamJournal::open(dir.path(), 10).1, []);
}

#[test]
fn an_abandoned_call_is_recovered_as_such_and_earlier_versions_ignore_that() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    let call = key("a", 5);
    let token = Some("0f".into());
    let keep_until = Some(Duration::from_millis(90_500));
    journal.note(&call, StreamChange::BegunSent(text("call"), sent(1), 1));
    journal.note(
        &call,
        StreamChange::Abandoned(Abandoned { token: token.clone(), ..Abandoned::default() }),
    );
    journal.note(&call, StreamChange::Answered(1, text("late")));
    let abandoned = Abandoned { token, keep_until, ..Abandoned::default() };
    journal.note(&call, StreamChange::Abandoned(abandoned.clone()));
    let (_, found) = StreamJournal::open(dir.path(), 2);
    assert_eq!(found[0].abandoned, Some(abandoned));
    assert_eq!(found[0].answer, Some((1, text("late"))));
    assert_eq!(found[0].messages, []);
    let file = fs::read(dir.path().join("2")).unwrap();
    assert!(file.starts_with(b"mainstay streams 1\n"), "the format is the same");
    // The body of an entry of a stream: kind, session, number of the stream, number of the message.
    let message = [&[4u8][..], &1u32.to_le_bytes(), b"a", &5u64.to_le_bytes(), &0u64.to_le_bytes()];
    let message = message.concat();
    assert!(file.windows(message.len()).any(|window| window == message), "it is message 0");
}

#[test]
fn a_file_that_was_removed_is_written_again() {
    for with_directory in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("streams");
        let (journal, _) = StreamJournal::open(&dir, 1);
        let remove = || {
            if with_directory { fs::remove_dir_all(&dir) } else { fs::remove_file(dir.join("1")) }
        };
        journal.note(&key("a", 1), StreamChange::Begun(text("first")));
        remove().unwrap();
        journal.note(&key("a", 2), StreamChange::Begun(text("second")));
        assert_eq!(StreamJournal::open(&dir, 2).1.len(), 2, "a change restores everything");

        let (journal, _) = StreamJournal::open(&dir, 1);
        fs::remove_file(dir.join("2")).ok();
        journal.restore();
        remove().unwrap();
        journal.restore();
        assert_eq!(StreamJournal::open(&dir, 2).1.len(), 2, "so does a check");
    }
}

#[test]
fn a_closed_journal_records_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    journal.note(&key("a", 1), StreamChange::Message(1, text("state")));
    journal.close();
    journal.note(&key("a", 1), StreamChange::Message(2, text("not state")));
    let (_, found) = StreamJournal::open(dir.path(), 2);
    assert_eq!(found[0].messages, [(1, text("state"))]);
}

#[test]
fn a_truncated_file_is_read_up_to_its_last_complete_entry() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    journal.note(&key("a", 1), StreamChange::Message(1, text("whole")));
    journal.note(&key("a", 1), StreamChange::Message(2, text("torn")));
    let path = dir.path().join("1");
    let length = fs::metadata(&path).unwrap().len();
    File::options().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let (journal, found) = StreamJournal::open(dir.path(), 2);
    assert_eq!(found[0].messages, [(1, text("whole"))]);
    journal.note(&key("a", 1), StreamChange::Message(2, text("again")));
    let (_, found) = StreamJournal::open(dir.path(), 3);
    assert_eq!(found[0].messages, [(1, text("whole")), (2, text("again"))]);
}

#[test]
fn files_of_unknown_format_and_unfinished_files_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("3"), "mainstay streams 2\nunknown").unwrap();
    fs::write(dir.path().join("2.new"), "half").unwrap();
    let (journal, found) = StreamJournal::open(dir.path(), 4);
    assert_eq!(found, []);
    assert_eq!(files(dir.path()), ["4"]);
    journal.note(&key("a", 1), StreamChange::Message(1, text("x")));
    assert_eq!(StreamJournal::open(dir.path(), 5).1.len(), 1);
}

#[test]
fn a_file_of_streams_that_are_over_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    journal.note(&key("a", 1), StreamChange::Begun(text("stays")));
    let size = || fs::metadata(dir.path().join("1")).unwrap().len();
    let mut largest = 0;
    for number in 2..12 {
        journal.note(&key("a", number), StreamChange::Begun(of_size(1024 * 1024)));
        journal.note(&key("a", number), StreamChange::Over);
        largest = largest.max(size());
    }
    assert!(largest < 6 * 1024 * 1024 && size() < largest, "{largest}, {}", size());
    let (_, found) = StreamJournal::open(dir.path(), 2);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].request, Some(text("stays")));
}

#[test]
fn a_replaced_daemon_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (old, _) = StreamJournal::open(dir.path(), 1);
    let (_new, _) = StreamJournal::open(dir.path(), 2);
    for number in 2..12 {
        old.note(&key("a", number), StreamChange::Begun(of_size(1024 * 1024)));
        old.note(&key("a", number), StreamChange::Over);
    }
    assert_eq!(files(dir.path()), ["2"]);
}

/// From now on, nothing can be added to the file.
fn fill_disk(journal: &StreamJournal) {
    let mut state = journal.lock();
    state.writer.execute(Job::FillDisk);
    state.flush();
}

/// The disk does not respond until the result is dropped.
fn stall(journal: &StreamJournal) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel();
    journal.lock().writer.execute(Job::Stall(released));
    release
}

/// Waits until the disk responds again.
fn recover(journal: &StreamJournal) {
    journal.lock().flush_within(Duration::from_secs(10));
}

#[test]
fn a_stalled_disk_delays_only_requests_that_are_on_it_as_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    let (holder, later) = (key("a", 1), key("a", 2));
    assert!(journal.note(&holder, StreamChange::Begun(text("held"))));
    let disk = stall(&journal);
    assert!(!journal.note(&holder, StreamChange::Sent(sent(1))), "on disk it is not sent");
    assert!(!journal.note(&holder, StreamChange::Sent(sent(1))), "and still not sent");
    assert!(journal.note(&later, StreamChange::Begun(text("later"))));
    assert!(journal.note(&later, StreamChange::Sent(sent(1))), "it is not on disk");
    let state = journal.lock().alive.records();
    assert_eq!((state[0].sent, state[1].sent, state.len()), (None, Some(sent(1)), 2));
    assert!(journal.note(&later, StreamChange::Message(1, text("progress"))));
    let mut next = LiveStreams::default();
    read_newest(dir.path(), &mut next).unwrap();
    assert_eq!(next.records().len(), 1);
    assert_eq!(next.records()[0].sent, None, "so it must not be sent yet");

    drop(disk);
    // A change does not wait for a stalled disk, but finds out that it is not stalled any more.
    let is_sent = || journal.note(&holder, StreamChange::Sent(sent(2)));
    assert!((0..1000).any(|_| is_sent() || {
        thread::sleep(WRITE_TIMEOUT / 100);
        false
    }));
    assert_eq!(journal.lock().stalled, None);
    let (_, found) = StreamJournal::open(dir.path(), 2);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].sent, found[1].sent), (Some(sent(2)), Some(sent(1))));
    assert_eq!(found[1].messages, [(1, text("progress"))]);
}

/// A call that takes long is sent before it is recorded, and must never look unsent.
#[test]
fn a_request_that_was_sent_is_recorded_as_such_also_when_its_record_stalls() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    let disk = stall(&journal);
    assert!(journal.note(&key("a", 1), StreamChange::BegunSent(text("call"), sent(1), 1)));
    drop(disk);
    recover(&journal);
    let found = StreamJournal::open(dir.path(), 2).1;
    assert_eq!((found[0].sent, found[0].attempts), (Some(sent(1)), 1));
}

/// The line of a request is recorded after its run, and is part of the same attempt.
#[test]
fn a_request_that_is_refused_was_not_attempted() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    let holder = key("a", 1);
    let in_run = |generation| Sent { generation, line: None };
    assert!(journal.note(&holder, StreamChange::Begun(text("held"))));
    let disk = stall(&journal);
    assert!(!journal.note(&holder, StreamChange::Sent(in_run(1))));
    drop(disk);
    recover(&journal);
    assert_eq!(journal.lock().alive.records()[0].sent, None);
    assert!(journal.note(&holder, StreamChange::Sent(in_run(2))));
    assert!(journal.note(&holder, StreamChange::Sent(sent(2))));
    let found = StreamJournal::open(dir.path(), 2).1;
    assert_eq!((found[0].sent, found[0].attempts), (Some(sent(2)), 1));
}

#[test]
fn after_a_long_stall_the_file_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    assert!(journal.note(&key("a", 1), StreamChange::Begun(text("first"))));
    let disk = stall(&journal);
    let large = of_size(MAX_MESSAGE_BYTES - 1);
    for number in 2..12 {
        assert!(journal.note(&key("a", number), StreamChange::Begun(large.clone())));
        assert!(journal.lock().backlog.len() <= MAX_BACKLOG);
    }
    for number in 2..11 {
        assert!(journal.note(&key("a", number), StreamChange::Over));
    }
    drop(disk);
    recover(&journal);
    let (_, found) = StreamJournal::open(dir.path(), 2);
    let numbers: Vec<u64> = found.iter().map(|record| record.key.number).collect();
    assert_eq!(numbers, [1, 11]);
}

#[test]
fn closing_waits_for_a_stalled_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    let disk = stall(&journal);
    assert!(journal.note(&key("a", 1), StreamChange::Message(1, text("state"))));
    let release = thread::spawn(move || {
        thread::sleep(WRITE_TIMEOUT);
        drop(disk);
    });
    journal.close();
    release.join().unwrap();
    assert_eq!(StreamJournal::open(dir.path(), 2).1[0].messages, [(1, text("state"))]);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_leaves_no_outdated_record() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    journal.note(&key("a", 1), StreamChange::Begun(text("call")));
    fill_disk(&journal);
    // Another file cannot be created either.
    let in_the_way = dir.path().join("1.new");
    fs::create_dir(&in_the_way).unwrap();
    journal.note(&key("a", 1), StreamChange::Sent(sent(1)));
    assert_eq!(files(dir.path()), ["1.new"], "there is no record that it was not sent");
    journal.note(&key("a", 1), StreamChange::Message(1, text("more")));
    fs::remove_dir(&in_the_way).unwrap();
    journal.note(&key("a", 1), StreamChange::Message(2, text("still")));
    assert_eq!(files(dir.path()), [""; 0], "it is not retried with every change");
    tokio::time::advance(RETRY).await;
    journal.note(&key("a", 1), StreamChange::Message(3, text("again")));
    let (_, found) = StreamJournal::open(dir.path(), 2);
    assert_eq!(found[0].sent, Some(sent(1)));
    assert_eq!(found[0].messages, [(1, text("more")), (2, text("still")), (3, text("again"))]);
}

#[test]
fn a_disk_with_space_again_is_used_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = StreamJournal::open(dir.path(), 1);
    journal.note(&key("a", 1), StreamChange::Begun(text("call")));
    fill_disk(&journal);
    journal.note(&key("a", 1), StreamChange::Sent(sent(1)));
    assert_eq!(StreamJournal::open(dir.path(), 2).1[0].sent, Some(sent(1)));
}

#[test]
fn changes_of_unknown_streams_are_ignored() {
    let (call, general) = (key("a", 1), key("a", 2));
    let changes = [
        (call.clone(), StreamChange::Sent(sent(1))),
        (call.clone(), StreamChange::Answered(1, text("x"))),
        (call.clone(), StreamChange::Over),
        (general.clone(), StreamChange::Message(1, text("note"))),
        (general.clone(), StreamChange::Sent(sent(1))),
        (general.clone(), StreamChange::Answered(1, text("x"))),
        (call.clone(), StreamChange::Begun(text("call"))),
        (call.clone(), StreamChange::Answered(1, text("answer"))),
        (call.clone(), StreamChange::Message(2, text("late"))),
        (call.clone(), StreamChange::Sent(sent(2))),
        (call.clone(), StreamChange::Answered(3, text("second"))),
    ];
    let records = fold(&changes).records();
    let [general, call] = &records[..] else { panic!("{records:?}") };
    assert_eq!((&general.sent, &general.answer), (&None, &None));
    assert_eq!((&call.sent, &call.messages[..]), (&None, &[][..]));
    assert_eq!(call.answer, Some((1, text("answer"))));
}

#[test]
fn of_each_stream_the_newest_messages_are_kept() {
    let mut changes: Vec<_> = (0..2 * MAX_MESSAGES as u64)
        .map(|n| (key("a", 1), StreamChange::Message(n, text("x"))))
        .collect();
    let messages = &fold(&changes).records()[0].messages;
    assert_eq!((messages.len(), messages[0].0), (MAX_MESSAGES, MAX_MESSAGES as u64));
    changes.push((key("a", 1), StreamChange::Message(999, of_size(MAX_MESSAGE_BYTES - 1))));
    assert_eq!(fold(&changes).records()[0].messages.len(), 2);
}

#[test]
fn the_least_important_streams_are_discarded_first() {
    const PART: usize = ALL_BYTES / 4;
    let begun = |number| (key("a", number), StreamChange::Begun(of_size(PART)));
    let general = |number| (key("a", number), StreamChange::Message(1, of_size(MAX_MESSAGE_BYTES)));
    let answered = |number| (key("a", number), StreamChange::Answered(1, text("answer")));
    let left = |changes: &[(StreamKey, StreamChange)]| -> Vec<u64> {
        let alive = fold(changes);
        assert!(alive.bytes() <= ALL_BYTES);
        alive.records().iter().map(|record| record.key.number).collect()
    };
    let mut changes = vec![general(1), begun(2), begun(3), answered(3), begun(4), begun(5)];
    assert_eq!(left(&changes), [1, 2, 4, 5], "the answered one is discarded first");
    changes.push(begun(6));
    assert_eq!(left(&changes), [4, 5, 6], "then the general one, then the oldest");
    // A later message of a discarded request does not become a general stream.
    let mut alive = fold(&changes);
    alive = alive.entries().fold(LiveStreams::default(), |mut again, entry| {
        again.apply(entry);
        again
    });
    for number in [2, 3] {
        assert_eq!(alive.entry(&key("a", number), StreamChange::Message(7, text("x"))), None);
    }
    assert!(alive.entry(&key("a", 1), StreamChange::Message(7, text("x"))).is_some());
    alive.apply(Entry::Stream(key("a", 2), Change::Over));
    alive.forget_lost();
    assert_eq!(alive.entry(&key("a", 3), StreamChange::Over), None);
}

fn any_change() -> impl Strategy<Value = (StreamKey, StreamChange)> {
    let bytes = prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    let sent = (any::<u64>(), any::<Option<u64>>());
    let change = prop_oneof![
        bytes.clone().prop_map(StreamChange::Begun),
        sent.prop_map(|(generation, line)| StreamChange::Sent(Sent { generation, line })),
        (any::<u64>(), bytes.clone())
            .prop_map(|(number, text)| StreamChange::Message(number, text)),
        (any::<u64>(), bytes).prop_map(|(number, text)| StreamChange::Answered(number, text)),
        Just(StreamChange::Over),
    ];
    let key = ("[ab]", 0..3_u64).prop_map(|(session, number)| key(&session, number));
    (key, change)
}

/// The entries of these changes, and a file with them.
fn written(changes: &[(StreamKey, StreamChange)]) -> (Vec<Entry>, Vec<u8>) {
    let mut alive = LiveStreams::default();
    let (mut entries, mut file) = (Vec::new(), HEADER.to_vec());
    for (key, change) in changes {
        if let Some(entry) = alive.entry(key, change.clone()) {
            entry.encode(&mut file);
            entries.push(entry.clone());
            alive.apply(entry);
        }
    }
    let ended = Entry::Ended(Arc::from("b"));
    ended.encode(&mut file);
    entries.push(ended);
    (entries, file)
}

proptest! {
    #[test]
    fn a_truncated_file_has_the_first_entries(
        changes in prop::collection::vec(any_change(), 0..30),
        cut in any::<prop::sample::Index>(),
    ) {
        let (entries, file) = written(&changes);
        prop_assert_eq!(entry::read(&file).unwrap().collect::<Vec<_>>(), entries.clone());
        let read: Vec<Entry> = entry::read(&file[..cut.index(file.len())]).unwrap().collect();
        prop_assert!(read.len() < entries.len() && entries.starts_with(&read));
    }

    #[test]
    fn a_changed_byte_is_detected(
        changes in prop::collection::vec(any_change(), 1..10),
        place in any::<prop::sample::Index>(),
        flip in 1..=u8::MAX,
    ) {
        let (entries, mut file) = written(&changes);
        let place = HEADER.len() + place.index(file.len() - HEADER.len());
        file[place] ^= flip;
        let read: Vec<Entry> = entry::read(&file).unwrap().collect();
        prop_assert!(read.len() < entries.len() && entries.starts_with(&read));
    }

    #[test]
    fn a_rewritten_file_has_the_same_streams(
        changes in prop::collection::vec(any_change(), 0..60),
    ) {
        let alive = fold(&changes);
        let mut again = LiveStreams::default();
        alive.entries().for_each(|entry| again.apply(entry));
        prop_assert_eq!(again.records(), alive.records());
        prop_assert_eq!(again.bytes(), alive.bytes());
    }

    #[test]
    fn streams_that_are_over_are_removed(changes in prop::collection::vec(any_change(), 0..60)) {
        let mut changes = changes;
        let keys: Vec<StreamKey> = changes.iter().map(|(key, _)| key.clone()).collect();
        changes.extend(keys.into_iter().map(|key| (key, StreamChange::Over)));
        let alive = fold(&changes);
        prop_assert_eq!(alive.records(), []);
        prop_assert_eq!(alive.bytes(), 0);
    }
}

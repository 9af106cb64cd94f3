use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use bytes::Bytes;
use mainstay_proxy::UpstreamRecord;
use rusqlite::Connection;

use super::*;
use crate::aside::beside;

struct Place {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    Place { path: dir.path().join("sessions.db"), _dir: dir }
}

/// As a daemon opens them.
fn open(path: &Path) -> (Sessions, Kept) {
    Sessions::open(path, &path.with_file_name("streams"), 1)
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn record(id: &str, server: &str) -> SessionRecord {
    SessionRecord {
        id: id.to_owned(),
        server: server.to_owned(),
        params: Bytes::from_static(br#"{"protocolVersion":"2025-06-18", "x":"\u00e4"}"#),
        version: "2025-06-18".to_owned(),
        initialized: true,
        level: Some("debug".to_owned()),
        subscriptions: vec!["a://b".to_owned(), "\"".to_owned()],
        run: Some(3),
        upstream: Some(UpstreamRecord {
            run: 3,
            id: Some("up".to_owned()),
            version: "2025-06-18".to_owned(),
        }),
        created_at: at(1),
        used_at: at(2),
    }
}

/// A session of which hardly anything is known.
fn bare() -> SessionRecord {
    SessionRecord {
        initialized: false,
        level: None,
        subscriptions: vec![],
        run: None,
        upstream: None,
        ..record("b", "t")
    }
}

/// What a later daemon finds.
fn reopened(sessions: &Sessions, path: &Path) -> (Sessions, Kept) {
    sessions.close();
    open(path)
}

#[test]
fn sessions_and_copies_are_found_again() {
    let place = place();
    let (sessions, kept) = open(&place.path);
    assert_eq!(kept, Kept::default());
    let bare = bare();
    sessions.save(record("a", "s"));
    sessions.save(bare.clone());
    sessions.save_copy("s", b"old".to_vec());
    sessions.save_copy("s", b"\xff\0".to_vec());
    let (sessions, kept) = reopened(&sessions, &place.path);
    let copies = vec![("s".to_owned(), b"\xff\0".to_vec())];
    let both = vec![record("a", "s"), bare];
    assert_eq!(kept, Kept { sessions: both, copies, ..Kept::default() });

    sessions.touched(vec![("a".to_owned(), at(9)), ("unknown".to_owned(), at(9))]);
    sessions.remove("b");
    let (sessions, kept) = reopened(&sessions, &place.path);
    assert_eq!(kept.sessions, [SessionRecord { used_at: at(9), ..record("a", "s") }]);

    sessions.remove_server("s");
    let (sessions, kept) = reopened(&sessions, &place.path);
    assert_eq!(kept, Kept::default());
    sessions.close();
}

#[test]
fn only_the_user_can_read_the_file() {
    let place = place();
    let (sessions, _) = open(&place.path);
    sessions.save(record("a", "s"));
    sessions.close();
    assert_eq!(fs::metadata(&place.path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_damaged_file_is_moved_aside() {
    let place = place();
    fs::write(&place.path, "no database at all".repeat(100)).unwrap();
    let (sessions, kept) = open(&place.path);
    assert_eq!(kept, Kept { lost: true, ..Kept::default() });
    assert!(crate::aside::place(&place.path).exists());
    sessions.save(record("a", "s"));
    let (sessions, kept) = reopened(&sessions, &place.path);
    assert_eq!(kept.sessions.len(), 1);
    sessions.close();
}

#[test]
fn senseless_content_counts_as_damage() {
    let place = place();
    let (sessions, _) = open(&place.path);
    sessions.save(record("a", "s"));
    sessions.close();
    let connection = Connection::open(&place.path).unwrap();
    connection.execute("UPDATE sessions SET subscriptions = 'x'", []).unwrap();
    drop(connection);
    let (sessions, kept) = open(&place.path);
    assert_eq!(kept, Kept { lost: true, ..Kept::default() });
    assert!(crate::aside::place(&place.path).exists());
    sessions.close();
}

#[test]
fn a_file_of_a_later_program_is_left_alone() {
    let place = place();
    let connection = Connection::open(&place.path).unwrap();
    connection.pragma_update(None, "user_version", 9).unwrap();
    drop(connection);
    let before = fs::read(&place.path).unwrap();
    let (sessions, kept) = open(&place.path);
    assert_eq!(kept, Kept { lost: true, ..Kept::default() });
    sessions.save(record("a", "s"));
    sessions.close();
    assert_eq!(fs::read(&place.path).unwrap(), before);
}

const FIRST: &str = include_str!("../../tests/fixtures/sessions-v1.sql");
const SECOND: &str = include_str!("../../tests/fixtures/sessions-v2.sql");
const THIRD: &str = include_str!("../../tests/fixtures/sessions-v3.sql");

/// Makes a file as the version that the dump is of would have left it.
fn load(dump: &str, path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.execute_batch(dump).unwrap();
}

#[test]
fn a_file_of_every_schema_is_brought_forward() {
    let fixtures = [FIRST, SECOND, THIRD];
    assert_eq!(SESSIONS.newest(), i64::try_from(fixtures.len()).unwrap());
    for (dump, schema) in fixtures.into_iter().zip(1..) {
        let place = place();
        load(dump, &place.path);
        let (sessions, kept) = open(&place.path);
        let all = record("a", "s");
        let run = all.run.filter(|_| schema >= 2);
        let upstream = all.upstream.clone().filter(|_| schema >= 3);
        let old = SessionRecord { run, upstream, ..all };
        let copies = vec![("s".to_owned(), b"\xff\0".to_vec())];
        assert_eq!(kept, Kept { sessions: vec![old, bare()], copies, ..Kept::default() });
        sessions.save(record("a", "s"));
        let (sessions, kept) = reopened(&sessions, &place.path);
        assert_eq!(kept.sessions[0], record("a", "s"));
        sessions.close();
        let backup = beside(&place.path, &format!(".schema-{schema}.bak"));
        assert_eq!(backup.exists(), schema < SESSIONS.newest());
    }
}

#[test]
fn a_file_of_a_version_that_died_before_it_numbered_it_is_taken_over() {
    let place = place();
    load(FIRST, &place.path);
    load("PRAGMA user_version = 0", &place.path);
    let (sessions, kept) = open(&place.path);
    assert_eq!((kept.sessions.len(), kept.lost), (2, false));
    sessions.close();
}

#[test]
fn what_a_newer_program_changed_before_it_failed_is_undone() {
    let place = place();
    load(THIRD, &place.path);
    fs::copy(&place.path, beside(&place.path, ".schema-3.bak")).unwrap();
    load("DELETE FROM sessions; PRAGMA user_version = 4", &place.path);
    go_back(&place.path);
    let (sessions, kept) = open(&place.path);
    assert_eq!((kept.sessions.len(), kept.lost), (2, false));
    sessions.close();
}

#[test]
fn what_cannot_be_undone_stays_and_the_daemon_goes_on() {
    let place = place();
    load(THIRD, &place.path);
    load("PRAGMA user_version = 4", &place.path);
    fs::write(beside(&place.path, ".schema-3.bak"), "no database at all".repeat(100)).unwrap();
    let before = fs::read(&place.path).unwrap();
    go_back(&place.path);
    assert!(fs::read(&place.path).unwrap() == before, "the file was touched");
    assert!(open(&place.path).1.lost);
}

#[test]
fn streams_go_with_their_sessions_and_these_with_their_servers() {
    let place = place();
    let (sessions, _) = open(&place.path);
    let say = |session: &str| {
        let key = StreamKey { session: session.into(), number: 1 };
        sessions.note(&key, StreamNews::Said(1, Bytes::from_static(b"{}")));
    };
    for (id, server) in [("a", "s"), ("b", "s"), ("c", "t"), ("d", "t")] {
        sessions.save(record(id, server));
        say(id);
    }
    say("unknown");
    sessions.remove("c");
    sessions.remove_server("s");
    let (sessions, kept) = reopened(&sessions, &place.path);
    let left: Vec<&str> = kept.streams.iter().map(|stream| &*stream.key.session).collect();
    assert_eq!(left, ["d", "unknown"]);
    sessions.remove_server("t");
    let (sessions, kept) = reopened(&sessions, &place.path);
    let left: Vec<&str> = kept.streams.iter().map(|stream| &*stream.key.session).collect();
    assert_eq!(left, ["unknown"], "of sessions that an earlier daemon knew, too");
    sessions.close();
}

#[test]
fn what_the_disk_refused_is_written_later() {
    let place = place();
    let (mut database, _) = Database::open(&place.path).unwrap();
    let connection = Connection::open(&place.path).unwrap();
    connection.execute("ALTER TABLE copies RENAME TO hidden", []).unwrap();
    let mut refused = Pending::default();
    refused.change("a".to_owned(), Change::Save(Box::new(record("a", "s")))).unwrap();
    refused.save_copy("s".to_owned(), b"old".to_vec());
    database.write(&refused).unwrap_err();

    let mut pending = Pending::default();
    pending.save_copy("s".to_owned(), b"new".to_vec());
    pending.put_back(refused);
    connection.execute("ALTER TABLE hidden RENAME TO copies", []).unwrap();
    database.write(&pending).unwrap();
    drop(database);
    let (_, kept) = Database::open(&place.path).unwrap();
    assert_eq!(kept.sessions, [record("a", "s")]);
    assert_eq!(kept.copies, [("s".to_owned(), b"new".to_vec())]);
}

#[test]
fn nothing_is_kept_after_the_end() {
    let place = place();
    let (sessions, _) = open(&place.path);
    sessions.close();
    sessions.save(record("a", "s"));
    let key = StreamKey { session: "a".into(), number: 1 };
    sessions.note(&key, StreamNews::Said(1, Bytes::from_static(b"{}")));
    sessions.close();
    assert!(sessions.shared.lock().pending.is_empty());
    assert_eq!(open(&place.path).1, Kept::default());
}

/// The changes that wait for one session.
fn pending(changes: &[Change]) -> Pending {
    let mut pending = Pending::default();
    for change in changes {
        pending.change("a".to_owned(), change.clone()).unwrap();
    }
    pending
}

#[test]
fn the_newest_change_counts() {
    let save = Change::Save(Box::new(record("a", "s")));
    let used = Change::Save(Box::new(SessionRecord { used_at: at(9), ..record("a", "s") }));
    let touch = Change::Touch(at(9));
    let cases: [(&[Change], &Change); 6] = [
        (&[save.clone(), touch.clone()], &used),
        (&[touch.clone(), save.clone()], &save),
        (&[save.clone(), Change::Remove], &Change::Remove),
        (&[Change::Remove, touch.clone()], &Change::Remove),
        (&[Change::Remove, save.clone()], &save),
        (&[Change::Touch(at(3)), touch.clone()], &touch),
    ];
    for (changes, expected) in cases {
        assert_eq!(&pending(changes).sessions["a"], expected, "{changes:?}");
        // The same when the first was tried in between.
        let mut newer = pending(&changes[1..]);
        newer.put_back(pending(&changes[..1]));
        assert_eq!(&newer.sessions["a"], expected, "{changes:?}");
    }
}

#[test]
fn a_removed_server_takes_along_what_was_said_before_and_not_what_is_said_after() {
    let save = |pending: &mut Pending, id: &str, server: &str| {
        pending.change(id.to_owned(), Change::Save(Box::new(record(id, server)))).unwrap();
    };
    let mut older = Pending::default();
    save(&mut older, "a", "s");
    save(&mut older, "b", "t");
    older.save_copy("s".to_owned(), vec![]);
    let mut newer = Pending::default();
    newer.remove_server("s".to_owned());
    save(&mut newer, "c", "s");
    newer.put_back(older);
    let mut ids: Vec<_> = newer.sessions.keys().collect();
    ids.sort();
    assert_eq!(ids, ["b", "c"]);
    assert!(newer.copies.is_empty() && newer.removed_servers.contains("s"));
}

#[test]
fn too_many_changes_are_refused_and_not_forgotten_silently() {
    let mut pending = Pending::default();
    let mut number = 0_u32;
    while pending.change(number.to_string(), Change::Remove).is_ok() {
        number += 1;
    }
    assert_eq!(number, 100_000);
    assert_eq!(pending.change("0".to_owned(), Change::Remove), Ok(()));
}

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use bytes::Bytes;
use mainstay_proxy::UpstreamRecord;
use rusqlite::Connection;

use mainstay_proxy::SessionStore as _;

use super::*;
use crate::state::files::beside;

struct Place {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    Place { path: dir.path().join("sessions.db"), _dir: dir }
}

fn open(path: &Path) -> (SessionStore, RecoveredState) {
    SessionStore::open(path, &path.with_file_name("streams"), 1)
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
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
        used_at: at(2),
    }
}

/// A session without optional values.
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

/// Opens the file again, like the next daemon.
fn reopened(sessions: &SessionStore, path: &Path) -> (SessionStore, RecoveredState) {
    sessions.close();
    open(path)
}

#[test]
fn sessions_and_copies_are_read_as_they_were_saved() {
    let place = place();
    let (sessions, recovered) = open(&place.path);
    assert_eq!(recovered, RecoveredState::default());
    let bare = bare();
    sessions.save(record("a", "s"));
    sessions.save(bare.clone());
    sessions.save_copy("s", b"old".to_vec());
    sessions.save_copy("s", b"\xff\0".to_vec());
    let (sessions, recovered) = reopened(&sessions, &place.path);
    let copies = vec![("s".to_owned(), b"\xff\0".to_vec())];
    let both = vec![record("a", "s"), bare];
    assert_eq!(recovered, RecoveredState { sessions: both, copies, ..RecoveredState::default() });

    sessions.touched(at(10), vec![("a".to_owned(), at(9)), ("unknown".to_owned(), at(9))]);
    sessions.remove("b");
    let (sessions, recovered) = reopened(&sessions, &place.path);
    assert_eq!(recovered.clock, at(10));
    assert_eq!(recovered.sessions, [SessionRecord { used_at: at(9), ..record("a", "s") }]);

    sessions.remove_server("s");
    let (sessions, recovered) = reopened(&sessions, &place.path);
    assert_eq!(recovered, RecoveredState { clock: at(10), ..RecoveredState::default() });
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
    fs::write(&place.path, "not a database".repeat(100)).unwrap();
    let (sessions, recovered) = open(&place.path);
    assert_eq!(recovered, RecoveredState { lost: true, ..RecoveredState::default() });
    assert!(crate::state::files::quarantined(&place.path).exists());
    sessions.save(record("a", "s"));
    let (sessions, recovered) = reopened(&sessions, &place.path);
    assert_eq!(recovered.sessions.len(), 1);
    sessions.close();
}

#[test]
fn invalid_content_counts_as_damage() {
    let place = place();
    let (sessions, _) = open(&place.path);
    sessions.save(record("a", "s"));
    sessions.close();
    let connection = Connection::open(&place.path).unwrap();
    connection.execute("UPDATE sessions SET subscriptions = 'x'", []).unwrap();
    drop(connection);
    let (sessions, recovered) = open(&place.path);
    assert_eq!(recovered, RecoveredState { lost: true, ..RecoveredState::default() });
    assert!(crate::state::files::quarantined(&place.path).exists());
    sessions.close();
}

#[test]
fn a_file_of_a_newer_program_is_not_changed() {
    let place = place();
    let connection = Connection::open(&place.path).unwrap();
    connection.pragma_update(None, "user_version", 9).unwrap();
    drop(connection);
    let before = fs::read(&place.path).unwrap();
    let (sessions, recovered) = open(&place.path);
    assert_eq!(recovered, RecoveredState { lost: true, ..RecoveredState::default() });
    sessions.save(record("a", "s"));
    sessions.close();
    assert_eq!(fs::read(&place.path).unwrap(), before);
}

const FIRST: &str = include_str!("../../../tests/fixtures/sessions-v1.sql");
const SECOND: &str = include_str!("../../../tests/fixtures/sessions-v2.sql");
const THIRD: &str = include_str!("../../../tests/fixtures/sessions-v3.sql");
const FOURTH: &str = include_str!("../../../tests/fixtures/sessions-v4.sql");

/// Creates the file that the version of this dump would have left.
fn load(dump: &str, path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.execute_batch(dump).unwrap();
}

#[test]
fn a_file_of_every_schema_is_migrated() {
    let fixtures = [FIRST, SECOND, THIRD, FOURTH];
    assert_eq!(SESSIONS.newest(), i64::try_from(fixtures.len()).unwrap());
    for (dump, schema) in fixtures.into_iter().zip(1..) {
        let place = place();
        load(dump, &place.path);
        let (sessions, recovered) = open(&place.path);
        let all = record("a", "s");
        let run = all.run.filter(|_| schema >= 2);
        let upstream = all.upstream.clone().filter(|_| schema >= 3);
        // Their age by the session clock starts here.
        let (used_at, clock) = if schema >= 4 { (at(2), at(10)) } else { (at(0), at(0)) };
        let old = SessionRecord { run, upstream, used_at, ..all };
        let copies = vec![("s".to_owned(), b"\xff\0".to_vec())];
        let both = vec![old, SessionRecord { used_at, ..bare() }];
        assert_eq!(
            recovered,
            RecoveredState { sessions: both, copies, clock, ..RecoveredState::default() }
        );
        sessions.save(record("a", "s"));
        let (sessions, recovered) = reopened(&sessions, &place.path);
        assert!(recovered.sessions.contains(&record("a", "s")));
        sessions.close();
        let backup = beside(&place.path, &format!(".schema-{schema}.bak"));
        assert_eq!(backup.exists(), schema < SESSIONS.newest());
    }
}

#[test]
fn a_file_whose_schema_number_was_not_set_is_migrated() {
    let place = place();
    load(FIRST, &place.path);
    load("PRAGMA user_version = 0", &place.path);
    let (sessions, recovered) = open(&place.path);
    assert_eq!((recovered.sessions.len(), recovered.lost), (2, false));
    sessions.close();
}

#[test]
fn the_migration_of_a_newer_program_is_undone() {
    let place = place();
    load(FOURTH, &place.path);
    fs::copy(&place.path, beside(&place.path, ".schema-4.bak")).unwrap();
    load("DELETE FROM sessions; PRAGMA user_version = 5", &place.path);
    SESSIONS.undo_migration(&place.path).unwrap();
    let (sessions, recovered) = open(&place.path);
    assert_eq!((recovered.sessions.len(), recovered.lost), (2, false));
    sessions.close();
}

#[test]
fn a_migration_that_cannot_be_undone_is_not_fatal() {
    let place = place();
    load(FOURTH, &place.path);
    load("PRAGMA user_version = 5", &place.path);
    fs::write(beside(&place.path, ".schema-4.bak"), "not a database".repeat(100)).unwrap();
    let before = fs::read(&place.path).unwrap();
    SESSIONS.undo_migration(&place.path).unwrap_err();
    assert!(fs::read(&place.path).unwrap() == before, "the file was touched");
    assert!(open(&place.path).1.lost);
}

#[test]
fn streams_are_removed_with_their_sessions_and_servers() {
    let place = place();
    let (sessions, _) = open(&place.path);
    let add_message = |session: &str| {
        let key = StreamKey { session: session.into(), number: 1 };
        sessions.append_to_journal(&key, StreamChange::Message(1, Bytes::from_static(b"{}")));
    };
    for (id, server) in [("a", "s"), ("b", "s"), ("c", "t"), ("d", "t")] {
        sessions.save(record(id, server));
        add_message(id);
    }
    add_message("unknown");
    sessions.remove("c");
    sessions.remove_server("s");
    let (sessions, recovered) = reopened(&sessions, &place.path);
    let left: Vec<&str> = recovered.streams.iter().map(|stream| &*stream.key.session).collect();
    assert_eq!(left, ["d", "unknown"]);
    sessions.remove_server("t");
    let (sessions, recovered) = reopened(&sessions, &place.path);
    let left: Vec<&str> = recovered.streams.iter().map(|stream| &*stream.key.session).collect();
    assert_eq!(left, ["unknown"], "also streams of sessions of an earlier daemon");
    sessions.close();
}

#[test]
fn changes_that_could_not_be_written_are_written_later() {
    let place = place();
    let (mut database, _) = Database::open(&place.path, &[]).unwrap();
    let connection = Connection::open(&place.path).unwrap();
    connection.execute("ALTER TABLE copies RENAME TO hidden", []).unwrap();
    let mut refused = Pending::default();
    refused.change("a".to_owned(), Change::Save(Box::new(record("a", "s")))).unwrap();
    refused.save_copy("s".to_owned(), b"old".to_vec());
    database.write(&refused, |_| false).unwrap_err();

    let mut pending = Pending::default();
    pending.save_copy("s".to_owned(), b"new".to_vec());
    pending.put_back(refused);
    connection.execute("ALTER TABLE hidden RENAME TO copies", []).unwrap();
    database.write(&pending, |_| false).unwrap();
    drop(database);
    let (_, recovered) = Database::open(&place.path, &[]).unwrap();
    assert_eq!(recovered.sessions, [record("a", "s")]);
    assert_eq!(recovered.copies, [("s".to_owned(), b"new".to_vec())]);
}

#[test]
fn the_next_era_begins_when_records_may_have_been_lost() {
    let place = place();
    let (sessions, _) = open(&place.path);
    let era = sessions.era();
    let (sessions, _) = reopened(&sessions, &place.path);
    assert_eq!(sessions.era(), era, "all records were written");
    sessions.save(record("a", "s"));
    sessions.close();
    fs::write(&place.path, "not a database".repeat(100)).unwrap();
    let (sessions, recovered) = open(&place.path);
    assert!(recovered.lost && sessions.era() != era);
    let era = sessions.era();
    sessions.close();
    fs::remove_file(&place.path).unwrap();
    let (sessions, recovered) = open(&place.path);
    assert!(!recovered.lost && sessions.era() != era);
    sessions.close();
}

#[test]
fn a_closed_store_saves_nothing() {
    let place = place();
    let (sessions, _) = open(&place.path);
    sessions.close();
    sessions.save(record("a", "s"));
    let key = StreamKey { session: "a".into(), number: 1 };
    sessions.append_to_journal(&key, StreamChange::Message(1, Bytes::from_static(b"{}")));
    sessions.close();
    assert!(sessions.shared.lock().pending.is_empty());
    assert_eq!(open(&place.path).1, RecoveredState::default());
}

/// The pending changes of one session.
fn pending(changes: &[Change]) -> Pending {
    let mut pending = Pending::default();
    for change in changes {
        pending.change("a".to_owned(), change.clone()).unwrap();
    }
    pending
}

#[test]
fn the_newest_change_wins() {
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
        // The same if writing the first one failed.
        let mut newer = pending(&changes[1..]);
        newer.put_back(pending(&changes[..1]));
        assert_eq!(&newer.sessions["a"], expected, "{changes:?}");
    }
}

#[test]
fn the_removal_of_a_server_removes_earlier_changes_and_not_later_ones() {
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
fn changes_beyond_the_limit_are_refused() {
    let mut pending = Pending::default();
    let mut number = 0_u32;
    while pending.change(number.to_string(), Change::Remove).is_ok() {
        number += 1;
    }
    assert_eq!(number, 100_000);
    assert_eq!(pending.change("0".to_owned(), Change::Remove), Ok(()));
}

/// Looks a session up, with a time limit.
async fn found(sessions: &SessionStore, id: &str) -> Result<Option<SessionRecord>, Unreadable> {
    let limit = Duration::from_secs(10);
    tokio::time::timeout(limit, sessions.find(id)).await.expect("a lookup takes less than 10 s")
}

#[tokio::test]
async fn a_session_that_was_moved_to_disk_is_found_by_its_id() {
    let place = place();
    let (sessions, _) = open(&place.path);
    for id in ["a", "b", "c"] {
        sessions.save(record(id, "s"));
    }
    sessions.save(record("d", "t"));
    let moved = SessionRecord { used_at: at(7), ..record("a", "s") };
    sessions.move_to_disk(moved.clone());
    assert_eq!(found(&sessions, "a").await, Ok(Some(moved.clone())));
    assert_eq!(found(&sessions, "unknown").await, Ok(None));
    sessions.remove("b");
    assert_eq!(found(&sessions, "b").await, Ok(None));
    let (sessions, _) = reopened(&sessions, &place.path);
    assert_eq!(found(&sessions, "a").await, Ok(Some(moved)));
    sessions.remove_server("s");
    assert_eq!(found(&sessions, "c").await, Ok(None));
    assert!(matches!(found(&sessions, "d").await, Ok(Some(_))));
    sessions.close();
    assert_eq!(found(&sessions, "d").await, Err(Unreadable));
}

#[tokio::test]
async fn sessions_are_found_without_a_usable_file() {
    let place = place();
    let connection = Connection::open(&place.path).unwrap();
    connection.pragma_update(None, "user_version", 9).unwrap();
    drop(connection);
    let (sessions, _) = open(&place.path);
    sessions.move_to_disk(record("a", "s"));
    assert_eq!(found(&sessions, "a").await, Ok(Some(record("a", "s"))));
    sessions.close();
}

#[tokio::test]
async fn sessions_are_found_while_they_cannot_be_written() {
    let place = place();
    let (sessions, _) = open(&place.path);
    let connection = Connection::open(&place.path).unwrap();
    connection.execute("ALTER TABLE clock RENAME TO hidden", []).unwrap();
    sessions.touched(at(1), vec![]);
    sessions.move_to_disk(record("a", "s"));
    assert_eq!(found(&sessions, "a").await, Ok(Some(record("a", "s"))));
    assert_eq!(found(&sessions, "unknown").await, Ok(None));
    connection.execute("ALTER TABLE hidden RENAME TO clock", []).unwrap();
    sessions.close();
    assert_eq!(open(&place.path).1.sessions, [record("a", "s")]);
}

#[test]
fn unused_sessions_expire() {
    let place = place();
    let (sessions, _) = open(&place.path);
    let day = 24 * 60 * 60;
    let later = |id, used| SessionRecord { used_at: at(used), ..record(id, "s") };
    let unused = |id, used| SessionRecord { initialized: false, ..later(id, used) };
    for session in [later("a", 0), later("b", 2), unused("c", day), unused("d", day - 300)] {
        sessions.save(session);
    }
    sessions.touched(at(day + 1), vec![]);
    let (sessions, recovered) = reopened(&sessions, &place.path);
    let left: Vec<_> = recovered.sessions.iter().map(|session| &*session.id).collect();
    assert_eq!(left, ["b", "c"]);
    sessions.close();
}

#[test]
fn sessions_that_were_never_used_are_pruned_first() {
    let place = place();
    let (mut database, _) = Database::open(&place.path, &[]).unwrap();
    let mut many = Pending::default();
    for number in 0..200_u64 {
        let id = format!("{number:03}");
        let session =
            SessionRecord { initialized: number % 2 == 0, used_at: at(number), ..record(&id, "s") };
        many.change(id, Change::Save(Box::new(session))).unwrap();
    }
    database.write(&many, |_| false).unwrap();
    let is_in_memory = |id: &str| id == "001";
    database.prune(200, is_in_memory).unwrap();
    database.prune(96, is_in_memory).unwrap();
    drop(database);
    let (_, recovered) = Database::open(&place.path, &[]).unwrap();
    let left: Vec<_> = recovered.sessions.iter().map(|session| session.id.clone()).collect();
    let used = (22..200).step_by(2).map(|number| format!("{number:03}"));
    let expected: Vec<_> = std::iter::once("001".to_owned()).chain(used).collect();
    assert_eq!(left, expected);
}

#[test]
fn sessions_used_last_and_those_with_streams_are_loaded_at_startup() {
    let place = place();
    let (sessions, _) = open(&place.path);
    for number in 0..3_600_u64 {
        let id = format!("{number:04}");
        sessions.save(SessionRecord { used_at: at(number), ..record(&id, "s") });
    }
    sessions.save(SessionRecord { used_at: at(0), ..record("other", "t") });
    let key = StreamKey { session: "0000".into(), number: 1 };
    sessions.append_to_journal(&key, StreamChange::Message(1, Bytes::from_static(b"{}")));
    let (sessions, recovered) = reopened(&sessions, &place.path);
    let has = |id: &str| recovered.sessions.iter().any(|session| session.id == id);
    assert_eq!(recovered.sessions.len(), 3_584 + 2);
    assert!(has("3599") && has("0016") && !has("0015") && has("0000") && has("other"));
    sessions.close();
}

#[tokio::test]
async fn written_resolves_when_changes_are_on_disk() {
    let place = place();
    let (sessions, _) = open(&place.path);
    let reader = Connection::open(&place.path).unwrap();
    for count in 1..=50 {
        sessions.save(record(&format!("{count}"), "s"));
        sessions.written().await;
        let found = reader.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0));
        assert_eq!(found, Ok(count));
    }
    sessions.written().await;
    sessions.close();
    sessions.written().await;
}

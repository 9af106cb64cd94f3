use std::fs;

use jiff::Timestamp;

use super::*;

fn event(server: &str, run: u64) -> EventRecord {
    EventRecord {
        at: Timestamp::UNIX_EPOCH,
        server: Some(server.parse().unwrap()),
        run: Some(run),
        event: "started".to_owned(),
        cause: None,
        detail: String::new(),
    }
}

#[tokio::test]
async fn events_are_read_back_in_order_and_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let event_log = EventLog::open(&path).unwrap();
    let mut follower = event_log.follow();
    for run in 1..=5 {
        event_log.record(event("a", run));
        event_log.record(event("b", run * 10));
    }
    assert_eq!(follower.recv().await.unwrap(), (1, event("a", 1)));
    let runs =
        |events: Vec<Numbered>| events.iter().map(|(_, e)| e.run.unwrap()).collect::<Vec<_>>();
    assert_eq!(
        runs(event_log.read(Some("a".parse().unwrap()), Part::After(0)).await),
        [1, 2, 3, 4, 5]
    );
    assert_eq!(runs(event_log.read(None, Part::Last(3)).await), [40, 5, 50]);
    event_log.close();
    assert_eq!(earlier_runs(&path).last_runs[&"b".parse().unwrap()], RunId::new(50));
    let event_log = EventLog::open(&path).unwrap();
    event_log.record(event("a", 6));
    assert_eq!(runs(event_log.read(None, Part::Last(2)).await), [50, 6]);
    event_log.close();
}

#[tokio::test]
async fn a_damaged_log_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    fs::write(&path, "not a database".repeat(100)).unwrap();
    let event_log = EventLog::open(&path).unwrap();
    assert_eq!(event_log.read(None, Part::After(0)).await, []);
    event_log.close();
    assert!(crate::state::files::quarantined(&path).exists());
}

#[tokio::test]
async fn without_a_usable_file_events_are_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    fs::create_dir(&path).unwrap();
    EventLog::open(&path).unwrap_err();
    let event_log = EventLog::open_or_in_memory(&path).unwrap();
    event_log.record(event("a", 1));
    assert_eq!(event_log.read(None, Part::After(0)).await, [(1, event("a", 1))]);
    event_log.close();
    assert_eq!(earlier_runs(&path), EarlierRuns::default());
}

const FIRST: &str = include_str!("../../../tests/fixtures/events-v1.sql");
const SECOND: &str = include_str!("../../../tests/fixtures/events-v2.sql");

/// Creates the file that the version of this dump would have left.
fn load(dump: &str, path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.execute_batch(dump).unwrap();
}

#[tokio::test]
async fn a_log_of_every_schema_is_migrated() {
    let fixtures = [FIRST, SECOND];
    assert_eq!(EVENTS.newest(), i64::try_from(fixtures.len()).unwrap());
    for (dump, schema) in fixtures.into_iter().zip(1..) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        load(dump, &path);
        let event_log = EventLog::open(&path).unwrap();
        let known = earlier_runs(&path);
        let last = |name: &str| known.last_runs[&name.parse().unwrap()];
        assert_eq!((last("files"), last("off")), (RunId::new(4), RunId::new(1)));
        let names: Vec<_> = known.progress.keys().map(ServerName::as_str).collect();
        assert_eq!(names, if schema == 1 { &[][..] } else { &["files"] });
        event_log.record(event("files", 5));
        let events = event_log.read(None, Part::After(0)).await;
        let numbers: Vec<u64> = events.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [7, 8, 9, 10, 12, 18, 19]);
        assert_eq!(events[4].1.detail, "stopped on request after 36 ms");
        event_log.close();
        let backup = dir.path().join("events.db.schema-1.bak");
        assert_eq!(backup.exists(), schema == 1);
    }
}

#[test]
fn a_log_whose_tables_were_not_created_is_migrated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    load("PRAGMA user_version=1", &path);
    EventLog::open(&path).unwrap().close();
    assert_eq!(earlier_runs(&path), EarlierRuns::default());
}

#[test]
fn a_newer_log_is_refused_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    load("PRAGMA user_version=9", &path);
    let before = fs::read(&path).unwrap();
    let error = EventLog::open(&path).unwrap_err();
    assert!(error.to_string().contains("events.db` has schema 9"), "{error}");
    assert!(fs::read(&path).unwrap() == before);
}

#[tokio::test]
async fn only_the_newest_writer_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let old = EventLog::open(&path).unwrap();
    old.record(event("a", 1));
    // A read writes pending events first.
    old.read(None, Part::After(0)).await;
    let new = EventLog::open(&path).unwrap();
    new.record(event("a", 2));
    new.read(None, Part::After(0)).await;
    old.record(event("a", 3));
    old.close();
    let runs: Vec<_> =
        new.read(None, Part::After(0)).await.into_iter().map(|(_, event)| event.run).collect();
    assert_eq!(runs, [Some(1), Some(2)]);
    new.close();
}

#[test]
fn the_last_progress_of_a_server_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let event_log = EventLog::open(&path).unwrap();
    let name = |name: &str| name.parse::<ServerName>().unwrap();
    let progress = |failures| {
        let past = mainstay_core::UnitHistory { failures, ..Default::default() };
        Progress::of(Timestamp::UNIX_EPOCH, &past, Clocks::read(), "boot")
    };
    event_log.set_progress(&name("a"), Some(progress(1)));
    event_log.set_progress(&name("b"), Some(progress(2)));
    event_log.set_progress(&name("a"), Some(progress(3)));
    event_log.set_progress(&name("b"), None);
    event_log.close();
    assert_eq!(earlier_runs(&path).progress, HashMap::from([(name("a"), progress(3))]));
}

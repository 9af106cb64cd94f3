//! The log as its users see it.

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
    let journal = Journal::open(&path).unwrap();
    let mut follower = journal.follow();
    for run in 1..=5 {
        journal.record(event("a", run));
        journal.record(event("b", run * 10));
    }
    assert_eq!(follower.recv().await.unwrap(), (1, event("a", 1)));
    let runs =
        |events: Vec<Numbered>| events.iter().map(|(_, e)| e.run.unwrap()).collect::<Vec<_>>();
    assert_eq!(
        runs(journal.read(Some("a".parse().unwrap()), Part::After(0)).await),
        [1, 2, 3, 4, 5]
    );
    assert_eq!(runs(journal.read(None, Part::Last(3)).await), [40, 5, 50]);
    journal.close();
    assert_eq!(known(&path).last_runs[&"b".parse().unwrap()], RunId::new(50));
    let journal = Journal::open(&path).unwrap();
    journal.record(event("a", 6));
    assert_eq!(runs(journal.read(None, Part::Last(2)).await), [50, 6]);
    journal.close();
}

#[tokio::test]
async fn a_damaged_log_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    fs::write(&path, "no database at all".repeat(100)).unwrap();
    let journal = Journal::open(&path).unwrap();
    assert_eq!(journal.read(None, Part::After(0)).await, []);
    journal.close();
    assert!(crate::aside::place(&path).exists());
}

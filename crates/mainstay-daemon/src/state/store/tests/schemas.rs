//! Migrations from every released schema.
//!
//! The fixtures are dumps of files that those versions wrote. A new schema adds one, and none is ever changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use mainstay_api::Around;
use mainstay_core::{EnvVar, Workload};
use tempfile::TempDir;

use super::super::backup::place;
use super::super::schema::{Schema, pragma};
use super::super::undo::Undo;
use super::*;

pub(super) const FIRST: &str = include_str!("../../../../tests/fixtures/state-v1.sql");
const SECOND: &str = include_str!("../../../../tests/fixtures/state-v2.sql");

/// The store of a dump, in its own directory.
fn loaded(dump: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    load(dump, &path);
    (dir, path)
}

/// Creates the file that the version of this dump would have left.
pub(super) fn load(dump: &str, path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.execute_batch(dump).unwrap();
}

fn version(path: &Path) -> i64 {
    pragma(&Connection::open(path).unwrap(), "user_version").unwrap()
}

#[track_caller]
fn has_what_every_fixture_has(store: &Store) {
    assert_eq!(store.instance().unwrap(), "93246ff845138454");
    assert_eq!(store.next_daemon(0).unwrap(), 8);
    let servers = store.load().unwrap();
    let shown = |server: &Stored| {
        (server.spec.name.to_string(), server.wanted, server.created_at.to_string())
    };
    let expected = [
        ("files", Wanted::On, "2026-11-16T09:32:47.003834822Z"),
        ("off", Wanted::Off, "2026-11-16T09:32:47.094705076Z"),
        ("oldest", Wanted::Gone, "2026-02-01T08:00:00Z"),
        ("remote", Wanted::On, "2026-11-16T09:32:47.069229574Z"),
    ];
    let expected = expected.map(|(name, wanted, at)| (name.to_owned(), wanted, at.to_owned()));
    assert_eq!(servers.iter().map(shown).collect::<Vec<_>>(), expected);
    let Workload::Process(files) = &servers[0].spec.workload else { panic!("{:?}", servers[0]) };
    assert_eq!(files.command, ["mcp-files", "--root", "/srv"]);
    assert_eq!(files.env["TOKEN"], serde_json::from_str::<EnvVar>("\"abc\"").unwrap());
    assert_eq!(servers[1].spec.restart.max, 3);
    let oldest = Stored {
        wanted: Wanted::Gone,
        created_at: "2026-02-01T08:00:00Z".parse().unwrap(),
        ..stored("oldest")
    };
    let Workload::Process(process) = &servers[2].spec.workload else { panic!("{:?}", servers[2]) };
    assert_eq!(process.command, ["mcp-oldest"]);
    assert_eq!(
        (&servers[2].spec.restart, servers[2].wanted),
        (&oldest.spec.restart, oldest.wanted)
    );
    let Workload::Remote(remote) = &servers[3].spec.workload else { panic!("{:?}", servers[3]) };
    assert_eq!(remote.headers.len(), 1);
}

#[test]
fn there_is_a_fixture_of_every_schema() {
    let fixtures = [FIRST, SECOND];
    assert_eq!(INTENT.newest(), i64::try_from(fixtures.len()).unwrap());
    for (dump, schema) in fixtures.iter().zip(1..) {
        assert_eq!(version(&loaded(dump).1), schema);
    }
}

#[test]
fn a_store_of_the_first_schema_is_backed_up_and_migrated() {
    let (_dir, path) = loaded(FIRST);
    let store = Store::open(&path).unwrap();
    assert_eq!(version(&path), 2);
    assert_eq!(store.clients().unwrap(), BTreeMap::default());
    has_what_every_fixture_has(&store);

    let backup = path.with_file_name("state.db.schema-1.bak");
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(version(&backup), 1);
    let (_dir, copy) = loaded("");
    fs::copy(&backup, &copy).unwrap();
    has_what_every_fixture_has(&Store::open(&copy).unwrap());
}

#[test]
fn a_store_of_the_second_schema_is_not_migrated() {
    let (_dir, path) = loaded(SECOND);
    let store = Store::open(&path).unwrap();
    has_what_every_fixture_has(&store);
    let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
    let around = Around { home: "/home/ann".into(), env };
    let cursor = StoredClient { chosen: true, around };
    assert_eq!(store.clients().unwrap(), BTreeMap::from([("cursor".to_owned(), cursor)]));
    assert!(!place(&path, 2).exists(), "nothing was changed, so there is no backup");
}

#[test]
fn a_newer_schema_is_refused_and_not_changed() {
    let (_dir, path) = loaded(SECOND);
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 9).unwrap();
    let before = fs::read(&path).unwrap();
    for error in [Store::open(&path).unwrap_err(), Store::inspect(&path).unwrap_err()] {
        let text = error.to_string();
        assert!(
            text.contains("state.db` has schema 9, this version of Mainstay knows 2"),
            "{text}"
        );
        assert!(error.help().unwrap().contains("install the newer version again"));
    }
    assert!(fs::read(&path).unwrap() == before);

    fs::write(place(&path, 2), "").unwrap();
    let help = Store::open(&path).unwrap_err().help().unwrap();
    assert!(help.contains("state.db.schema-2.bak`"), "{help}");
}

/// The files of a newer program that was killed: a backup, and a store with a part in its write-ahead log.
fn left_by_a_newer_program() -> (TempDir, PathBuf) {
    let (dir, path) = loaded(SECOND);
    let newer = Connection::open(&path).unwrap();
    super::super::backup::keep(&newer, &path, 2).unwrap();
    newer.execute_batch("DELETE FROM servers; PRAGMA user_version = 3;").unwrap();
    let left = copied(&path);
    assert!(left.0.path().join("state.db-wal").exists());
    drop((newer, dir));
    left
}

/// Copies a store that another process has opened, with all files beside it.
fn copied(path: &Path) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(path.parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join("state.db");
    (dir, path)
}

fn servers(path: &Path) -> i64 {
    let count = "SELECT count(*) FROM servers";
    Connection::open(path).unwrap().query_row(count, [], |row| row.get(0)).unwrap()
}

#[track_caller]
fn is_undone(path: &Path) {
    has_what_every_fixture_has(&Store::open(path).unwrap());
    let undone = path.with_file_name("state.db.schema-3.undone");
    assert_eq!((version(&undone), servers(&undone)), (3, 0));
}

#[test]
fn the_migration_of_a_newer_program_is_undone() {
    let (_dir, path) = loaded(SECOND);
    INTENT.undo_migration(&path).unwrap();
    assert!(!place(&path, 2).exists(), "nothing was changed, so nothing is undone");

    let (_dir, path) = left_by_a_newer_program();
    INTENT.undo_migration(&path).unwrap();
    is_undone(&path);
}

#[test]
fn an_interrupted_undo_loses_nothing() {
    for cut in 0..=Undo::STEPS.len() {
        let (_dir, path) = left_by_a_newer_program();
        let undo = Undo::new(&path, 2, 3);
        Undo::STEPS[..cut].iter().try_for_each(|step| step(&undo)).unwrap();

        let (_dir, seen) = copied(&path);
        let is_complete = cut == Undo::STEPS.len();
        let expected = if is_complete { (2, 4) } else { (3, 0) };
        assert_eq!((version(&seen), servers(&seen)), expected, "after {cut} steps");

        INTENT.undo_migration(&path).unwrap();
        is_undone(&path);
    }
}

#[test]
fn a_migration_is_not_undone_while_a_program_has_the_file_open() {
    let (_dir, path) = left_by_a_newer_program();
    let newer = Connection::open(&path).unwrap();
    newer.execute_batch("BEGIN; SELECT * FROM servers;").unwrap();
    let undo = Undo::new(&path, 2, 3);
    undo.make().unwrap_err();
    drop(newer);
    assert_eq!((version(&path), servers(&path)), (3, 0));
}

const FAILING: &str = "SELECT no_such_thing";
const TABLE: &str = "CREATE TABLE more (a)";
const NOTHING: &str = "";

fn schema(steps: &'static [&'static str]) -> Schema {
    Schema { file: "state.db", what: "store", synchronous: "full", steps }
}

#[test]
fn a_failed_migration_does_not_change_the_file() {
    let (_dir, path) = loaded(FIRST);
    let before = fs::read(&path).unwrap();
    let schema = schema(&[NOTHING, TABLE, FAILING]);
    let error = schema.open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Sqlite { .. }), "{error}");
    assert!(fs::read(&path).unwrap() == before, "the file was touched");
    has_what_every_fixture_has(&Store::open(&path).unwrap());
}

#[test]
fn without_a_backup_the_file_is_not_migrated() {
    let (_dir, path) = loaded(FIRST);
    let before = fs::read(&path).unwrap();
    let backup = place(&path, 1);
    fs::create_dir_all(backup.join("in the way")).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Backup { .. }), "{error}");
    assert!(error.to_string().contains("state.db.schema-1.bak` could not be made"), "{error}");
    assert!(error.help().unwrap().contains("nothing was changed"));
    assert!(fs::read(&path).unwrap() == before, "the file was touched");
    assert!(!path.with_file_name("state.db.schema-1.bak.new").exists());
}

#[test]
fn only_the_newest_backups_are_kept() {
    let (_dir, path) = loaded(FIRST);
    let schemas: [&'static [&'static str]; 5] =
        [&[NOTHING; 2], &[NOTHING; 3], &[NOTHING; 4], &[NOTHING; 5], &[NOTHING; 6]];
    for steps in schemas {
        drop(schema(steps).open(&path).unwrap());
    }
    let kept = (1..=6).filter(|schema| place(&path, *schema).exists());
    assert_eq!(kept.collect::<Vec<_>>(), [3, 4, 5]);
    // The backup of a restored file replaces the earlier backup of its schema.
    fs::copy(place(&path, 3), &path).unwrap();
    drop(schema(schemas[4]).open(&path).unwrap());
    assert!(place(&path, 3).exists() && place(&path, 5).exists());
}

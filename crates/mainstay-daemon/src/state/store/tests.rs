mod crash;
mod full_disk;
mod schemas;

use std::collections::BTreeMap;
use std::fs;

use mainstay_api::Instance;
use mainstay_testkit::samples::spec;

use super::*;

/// An environment variable that controls a test.
#[expect(clippy::disallowed_methods, reason = "what is tested reads no environment")]
fn switch(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// An instance in a directory, whose state directory exists.
pub(super) fn instance_in(dir: &Path) -> Instance {
    let (state_dir, run_dir) = (dir.join("state"), dir.join("run"));
    fs::create_dir(&state_dir).unwrap();
    Instance { state_dir, run_dir, config_file: None }
}

pub(super) fn stored(name: &str) -> Stored {
    Stored { spec: spec(name), wanted: Wanted::On, created_at: Timestamp::UNIX_EPOCH }
}

#[tokio::test]
async fn intent_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let instance = store.instance().unwrap();
    assert_eq!(store.next_daemon(0).unwrap(), 1);
    store.put(vec![stored("a"), stored("b"), stored("c")]).await.unwrap();
    store.want(vec!["a".parse().unwrap()], Wanted::Off).await.unwrap();
    store.delete("b".parse().unwrap()).await.unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.instance().unwrap(), instance);
    assert_eq!(store.next_daemon(0).unwrap(), 2);
    assert_eq!(store.next_daemon(7).unwrap(), 8, "a higher number was seen elsewhere");
    assert_eq!(store.next_daemon(3).unwrap(), 9);
    let off = Stored { wanted: Wanted::Off, ..stored("a") };
    assert_eq!(store.load().unwrap(), [off, stored("c")]);
}

#[tokio::test]
async fn a_stop_timeout_from_before_there_was_a_limit_is_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    let mut server = stored("a");
    server.spec.restart.stop_timeout = LONGEST_STOP_TIMEOUT * 2;
    store.put(vec![server.clone()]).await.unwrap();
    server.spec.restart.stop_timeout = LONGEST_STOP_TIMEOUT;
    assert_eq!(store.load().unwrap(), [server]);
}

#[tokio::test]
async fn removed_and_replaced_secrets_are_in_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    let files_with = |text: &str| {
        let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let has = |path: &std::path::PathBuf| {
            fs::read(path).unwrap().windows(text.len()).any(|part| part == text.as_bytes())
        };
        files.filter(has).count()
    };
    let secret = |name: &str, value: &str| {
        let mut stored = stored(name);
        stored.spec.proxy.replay = [value.repeat(40)].into_iter().collect();
        stored
    };
    store.put(vec![secret("a", "canary-one"), secret("b", "canary-two")]).await.unwrap();
    store.put(vec![secret("c", "unrelated")]).await.unwrap();
    assert!(files_with("canary-one") > 0 && files_with("canary-two") > 0);
    store.put(vec![secret("a", "replaced")]).await.unwrap();
    assert_eq!(
        (files_with("canary-one"), files_with("canary-two")),
        (0, 2),
        "the store and its copy"
    );
    store.delete("b".parse().unwrap()).await.unwrap();
    assert_eq!(files_with("canary-two"), 0);
    assert_eq!(store.load().unwrap().len(), 2);
}

/// The file is complete without its write-ahead log, and so is its copy.
#[tokio::test]
async fn an_acknowledged_change_needs_no_write_ahead_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    store.next_daemon(0).unwrap();
    let name = |name: &str| name.parse::<ServerName>().unwrap();
    let check = |expected: &[Stored]| {
        for file in ["state.db", "state.db.backup"] {
            let alone = tempfile::tempdir().unwrap();
            let copy = alone.path().join("state.db");
            fs::copy(dir.path().join(file), &copy).unwrap();
            let copy = Store::open(&copy).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert_eq!(copy.load().unwrap(), expected, "{file}");
        }
    };
    store.put(vec![stored("a"), stored("b")]).await.unwrap();
    check(&[stored("a"), stored("b")]);
    store.want(vec![name("a")], Wanted::Off).await.unwrap();
    let off = Stored { wanted: Wanted::Off, ..stored("a") };
    check(&[off.clone(), stored("b")]);
    store.delete(name("b")).await.unwrap();
    check(&[off]);
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    fs::write(&path, "not a database, but long enough to be read as one".repeat(50)).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(fs::read_to_string(&path).unwrap().starts_with("not a database"));
}

#[test]
fn the_error_about_an_invalid_spec_names_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    drop(Store::open(&path).unwrap());
    Connection::open(&path)
        .unwrap()
        .execute("INSERT INTO servers VALUES ('x', '{}', 'on', '1970-01-01T00:00:00Z')", [])
        .unwrap();
    let error = Store::open(&path).unwrap().load().unwrap_err().to_string();
    assert!(error.contains("server `x`"), "{error}");
}

#[tokio::test]
async fn a_replaced_daemon_cannot_change_anything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let old = Store::open(&path).unwrap();
    old.next_daemon(0).unwrap();
    old.put(vec![stored("a")]).await.unwrap();
    let new = Store::open(&path).unwrap();
    old.want(vec!["a".parse().unwrap()], Wanted::Off).await.unwrap();
    assert!(old.is_current().await.unwrap());
    assert_eq!(new.next_daemon(0).unwrap(), 2);
    assert!(!old.is_current().await.unwrap() && new.is_current().await.unwrap());

    let name = || "a".parse::<ServerName>().unwrap();
    let attempts = [
        old.put(vec![stored("b")]).await,
        old.describe(vec![spec("a")]).await,
        old.want(vec![name()], Wanted::On).await,
        old.delete(name()).await,
        old.put_clients(BTreeMap::new()).await,
        old.instance().map(drop),
    ];
    for attempt in attempts {
        let error = attempt.unwrap_err();
        assert!(matches!(error, StoreError::Fenced { .. }), "{error}");
        assert!(error.help().unwrap().contains("new daemon"));
    }
    let off = Stored { wanted: Wanted::Off, ..stored("a") };
    assert_eq!(old.load().unwrap(), std::slice::from_ref(&off));
    new.put(vec![stored("b")]).await.unwrap();
    assert_eq!(new.load().unwrap(), [off, stored("b")]);
}

#[test]
fn opening_the_store_alone_does_not_fence_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    store.next_daemon(0).unwrap();
    Store::inspect(&path).unwrap();
    drop(Store::open(&path).unwrap());
    store.instance().unwrap();
}

#[test]
fn unfinished_copies_of_killed_daemons_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    drop(Store::open(&path).unwrap());
    let left = ["state.db.backup.new", "state.db.backup.new-journal", "state.db.schema-1.bak.new"];
    let others = ["state.db.backup", "state.db.schema-1.bak", "state.db.newer", "other.new"];
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    for name in left.iter().chain(&others) {
        std::fs::write(dir.path().join(name), "x").unwrap();
        let file = std::fs::File::options().write(true).open(dir.path().join(name)).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    // Another daemon may be writing this one.
    let fresh = dir.path().join("state.db.restored.new");
    std::fs::write(&fresh, "x").unwrap();
    drop(Store::open(&path).unwrap());
    let is_there = |name: &&str| dir.path().join(name).exists();
    assert_eq!(left.iter().filter(|name| is_there(name)).count(), 0);
    assert!(others.iter().all(is_there) && fresh.exists());
}

//! A real disk that is full during the migration of a store.
//!
//! The disk is a small tmpfs in its own mount namespace, in which the test runs itself. Without the permission to create
//! one, the test fails.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::schemas::{FIRST, load};
use super::*;

/// Set for the process inside the namespace: the directory of the disk.
const DISK: &str = "MAINSTAY_TEST_DISK";

/// How much is freed at a time: less than any of the writes that should fail.
const GRAIN: u64 = 4096;

/// Enough servers to fill several pages.
const SERVERS: usize = 50;

#[test]
fn a_full_disk_leaves_the_old_schema_and_all_that_is_in_it() {
    if let Some(disk) = super::switch(DISK) {
        return migrate_on(Path::new(&disk));
    }
    let dir = tempfile::tempdir().unwrap();
    let unshare: &[&str] =
        if rustix::process::geteuid().is_root() { &["-m"] } else { &["-m", "-r"] };
    let script = r#"mount -t tmpfs -o size=1m,mode=700 tmpfs "$0" && exec "$@""#;
    let output = Command::new("unshare")
        .args(unshare)
        .args(["sh", "-c", script])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args(["a_full_disk_leaves_the_old_schema_and_all_that_is_in_it", "--nocapture"])
        .env(DISK, dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "on its own disk (`unshare`, `mount`): {said}");
    assert!(said.contains("1 passed"), "{said}");
}

fn migrate_on(disk: &Path) {
    let path = disk.join("state.db");
    load(FIRST, &path);
    multiply(&path);
    let before = fs::read(&path).unwrap();
    let filler = Filler::new(disk);
    let (mut without_backup, mut with_backup) = (0, 0);
    let store = loop {
        match Store::open(&path) {
            Ok(store) => break store,
            Err(error) => {
                assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
                assert!(error.to_string().starts_with("the disk is full: `"), "{error}");
            }
        }
        assert!(fs::read(&path).unwrap() == before, "the file was touched");
        assert!(!disk.join("state.db.schema-1.bak.new").exists(), "half a backup is left");
        let made = disk.join("state.db.schema-1.bak").exists();
        *(if made { &mut with_backup } else { &mut without_backup }) += 1;
        filler.shrink();
    };
    assert!(without_backup > 0, "the backup has always succeeded");
    assert!(with_backup > 0, "the migration has always succeeded");
    assert_eq!(store.clients().unwrap(), BTreeMap::new());
    assert_eq!(store.load().unwrap().len(), SERVERS + 4);
    assert_eq!(store.instance().unwrap(), "93246ff845138454");
}

/// Adds servers, as the first version would have.
fn multiply(path: &Path) {
    let connection = Connection::open(path).unwrap();
    let sql = "INSERT INTO servers SELECT ?1, replace(spec, 'off', ?1), wanted, created_at
               FROM servers WHERE name = 'off'";
    for n in 0..SERVERS {
        connection.execute(sql, [format!("more-{n}")]).unwrap();
    }
}

/// A file that fills the disk.
struct Filler {
    path: PathBuf,
}

impl Filler {
    fn new(disk: &Path) -> Self {
        let path = disk.join("filler");
        let mut file = File::create(&path).unwrap();
        // Fails when the disk is full.
        while file.write_all(&[0; 512]).is_ok() {}
        Self { path }
    }

    fn shrink(&self) {
        let file = File::options().write(true).open(&self.path).unwrap();
        let size = file.metadata().unwrap().len();
        file.set_len(size.checked_sub(GRAIN).expect("the store fits on an empty disk")).unwrap();
    }
}

//! A real disk that is full while a store is brought forward.
//!
//! The disk is a small one in memory, in a mount namespace of its own: the test calls itself there. Without
//! the right to make one it fails and says so.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::schemas::{FIRST, load};
use super::*;

/// Tells the process where the disk is.
const DISK: &str = "MAINSTAY_TEST_DISK";

/// How much is freed at a time: less than any of the writes that are to fail.
const GRAIN: u64 = 4096;

/// As many servers fill several pages.
const SERVERS: usize = 50;

#[test]
fn a_full_disk_leaves_the_old_schema_and_all_that_is_in_it() {
    if let Some(disk) = super::switch(DISK) {
        return bring_forward_on(Path::new(&disk));
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
    assert!(output.status.success(), "with a disk of its own (`unshare`, `mount`): {said}");
    assert!(said.contains("1 passed"), "{said}");
}

fn bring_forward_on(disk: &Path) {
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
    assert!(with_backup > 0, "what follows the backup has always succeeded");
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

/// A file that takes all the room there is.
struct Filler {
    path: PathBuf,
}

impl Filler {
    fn new(disk: &Path) -> Self {
        let path = disk.join("filler");
        let mut file = File::create(&path).unwrap();
        // It is meant to fail: when there is no room left.
        while file.write_all(&[0; 512]).is_ok() {}
        Self { path }
    }

    fn shrink(&self) {
        let file = File::options().write(true).open(&self.path).unwrap();
        let size = file.metadata().unwrap().len();
        file.set_len(size.checked_sub(GRAIN).expect("there is room by now")).unwrap();
    }
}

//! The clients' own locks, as the clients make and read them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use mainstay_clients::Client;
use mainstay_clients::file::{FileError, Observer, Step, Writer};

use crate::home::{Home, read};

const PATIENCE: Duration = Duration::from_millis(300);

/// What is seen of a lock right before the file is replaced.
#[derive(Default)]
struct Seen {
    lock: PathBuf,
    names: Mutex<Option<Vec<String>>>,
}

impl Observer for Seen {
    fn before(&self, step: Step) -> io::Result<()> {
        if step == Step::Rename {
            if self.lock.is_file() {
                return Ok(());
            }
            let entries = fs::read_dir(&self.lock)?;
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            *self.names.lock().unwrap() = Some(names.collect());
        }
        Ok(())
    }
}

fn scene() -> (Home, PathBuf, PathBuf) {
    let home = Home::new();
    let file = home.write("config.json", "{}");
    let lock = home.path("config.json.lock");
    (home, file, lock)
}

/// Edits a file by the rules of a client, and answers with what was in its lock meanwhile.
fn edit(home: &Home, client: &str, file: &Path) -> Result<Option<Vec<String>>, FileError> {
    let lock = home.path("config.json.lock");
    let seen = Arc::new(Seen { lock, names: Mutex::default() });
    let writer = Writer::observed(home.state(), seen.clone()).with_lock_timeout(PATIENCE);
    let opened = writer.open(Client::by_id(client).unwrap(), file, true)?;
    let text = "{\"mcpServers\": {\"time\": {}}}";
    opened.edit("time", |_| Ok::<_, FileError>(Some(text.to_owned())))?;
    assert_eq!(read(file), text);
    let names = seen.names.lock().unwrap().take();
    Ok(names)
}

/// Makes a lock as old as a client lets it become, and older.
fn age(lock: &Path, seconds: u64) {
    let then = fs::metadata(lock).unwrap().modified().unwrap() - Duration::from_secs(seconds);
    let times = fs::FileTimes::new().set_modified(then).set_accessed(SystemTime::UNIX_EPOCH);
    fs::File::open(lock).unwrap().set_times(times).unwrap();
}

#[test]
fn claude_code_and_roo_see_an_empty_directory() {
    for client in ["claude-code", "roo-code"] {
        let (home, file, lock) = scene();
        assert_eq!(edit(&home, client, &file).unwrap(), Some(Vec::new()), "{client}");
        assert!(!lock.exists(), "{client}");
    }
}

#[test]
fn cline_sees_a_directory_with_a_marker() {
    let (home, file, lock) = scene();
    let names = edit(&home, "cline", &file).unwrap().unwrap();
    let [marker] = names.as_slice() else { panic!("{names:?}") };
    let parts: Vec<_> = marker.splitn(4, '.').collect();
    assert_eq!(parts[..2], ["owner", &std::process::id().to_string()]);
    assert!(parts[2].parse::<u64>().is_ok(), "{marker}");
    let groups: Vec<_> = parts[3].split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{marker}");
    assert!(!lock.exists());
    let left: Vec<_> =
        fs::read_dir(home.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("lock")), "{left:?}");
}

#[test]
fn a_held_lock_is_waited_for_and_then_reported() {
    for client in ["claude-code", "cline"] {
        let (home, file, lock) = scene();
        fs::create_dir(&lock).unwrap();
        fs::write(lock.join("owner.1.2.x"), "1.2.x").unwrap();
        age(&lock, 7);
        // A holder that is alive touches its lock.
        let holder = std::thread::spawn({
            let lock = lock.clone();
            let touched =
                fs::metadata(&file).unwrap().modified().unwrap() + Duration::from_secs(60);
            move || {
                std::thread::sleep(PATIENCE);
                fs::File::open(&lock).unwrap().set_modified(touched).unwrap();
            }
        });
        let error = edit(&home, client, &file).unwrap_err();
        holder.join().unwrap();
        assert!(matches!(&error, FileError::Locked { lock: at, .. } if *at == lock), "{error}");
        assert_eq!(read(&file), "{}");
        assert!(lock.join("owner.1.2.x").exists());
    }
}

#[test]
fn a_lock_left_a_moment_ago_is_waited_for() {
    for client in ["claude-code", "cline"] {
        let (home, file, lock) = scene();
        fs::create_dir(&lock).unwrap();
        fs::write(lock.join("owner.1.2.x"), "1.2.x").unwrap();
        age(&lock, 8);
        edit(&home, client, &file).unwrap();
        assert!(!lock.exists());
    }
}

#[test]
fn a_released_lock_is_taken() {
    let (home, file, lock) = scene();
    fs::create_dir(&lock).unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(PATIENCE / 4);
        fs::remove_dir(lock).unwrap();
    });
    assert_eq!(edit(&home, "claude-code", &file).unwrap(), Some(Vec::new()));
    holder.join().unwrap();
}

#[test]
fn a_lock_left_behind_is_taken_over_when_its_client_would() {
    let (home, file, lock) = scene();
    fs::create_dir(&lock).unwrap();
    age(&lock, 12);
    assert!(edit(&home, "roo-code", &file).is_err(), "Roo Code gives its locks 31 s");
    edit(&home, "claude-code", &file).unwrap();
    assert!(!lock.exists());
    fs::write(&file, "{}").unwrap();
    fs::create_dir(&lock).unwrap();
    fs::write(lock.join("owner.1.2.x"), "1.2.x").unwrap();
    age(&lock, 12);
    edit(&home, "cline", &file).unwrap();
    assert!(!lock.exists());
}

#[test]
fn something_else_at_the_lock_path_is_kept_and_ignored() {
    let (home, file, lock) = scene();
    fs::create_dir(&lock).unwrap();
    fs::write(lock.join("notes.txt"), "mine").unwrap();
    age(&lock, 60);
    // Its client cannot take a lock there either, and writes without one.
    assert_eq!(edit(&home, "claude-code", &file).unwrap(), Some(vec!["notes.txt".to_owned()]));
    assert_eq!(read(&lock.join("notes.txt")), "mine");
    fs::remove_dir_all(&lock).unwrap();
    fs::write(&file, "{}").unwrap();
    fs::write(&lock, "a file, as other tools make it").unwrap();
    age(&lock, 60);
    edit(&home, "claude-code", &file).unwrap();
    assert!(lock.is_file());
}

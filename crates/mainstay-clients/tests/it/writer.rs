//! The writer on odd files, and with steps that fail.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use mainstay_clients::Client;
use mainstay_clients::edit::{Fields, Value};
use mainstay_clients::file::{FileError, Observer, Step, Writer};
use rustix::io::Errno;

use crate::home::{Home, URL, read};

const BEFORE: &str = "{\n  \"mcpServers\": {\n    \"other\": {\"command\": \"other\"}\n  }\n}\n";
const AFTER: &str = "{\n  \"mcpServers\": {\n    \"other\": {\"command\": \"other\"},\n    \"time\": {\n      \
                     \"url\": \"http://127.0.0.1:7433/time/mcp\"\n    }\n  }\n}\n";

/// Adds our entry to a file of Cursor's.
fn add(writer: &Writer, path: &Path) -> Result<bool, FileError> {
    let client = Client::by_id("cursor").unwrap();
    writer.open(client, path, true)?.edit("time", |text| Ok(Some(added(text.unwrap_or_default()))))
}

fn added(text: &str) -> String {
    let client = Client::by_id("cursor").unwrap();
    let fields: Fields = vec![("url".to_owned(), Value::Text(URL.to_owned()))];
    let (_, reading) = client.read(text).unwrap();
    reading.upsert("time", &fields, client.owned).unwrap()
}

fn scene() -> (Home, PathBuf) {
    let home = Home::new();
    let file = home.write(".cursor/mcp.json", BEFORE);
    (home, file)
}

/// What is in the directory of a file.
fn beside(file: &Path) -> Vec<String> {
    let entries = fs::read_dir(file.parent().unwrap()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Fails, or does something else, at one step.
struct At<F>(Step, F);

impl<F: Fn() -> io::Result<()> + Send + Sync> Observer for At<F> {
    fn before(&self, step: Step) -> io::Result<()> {
        if step == self.0 { (self.1)() } else { Ok(()) }
    }
}

fn failing(home: &Home, step: Step, errno: Errno) -> Writer {
    Writer::observed(home.state(), Arc::new(At(step, move || Err(errno.into()))))
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn a_file_is_replaced_whole_with_its_mode() {
    let (home, file) = scene();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let old = inode(&file);
    assert!(add(&Writer::new(home.state()), &file).unwrap());
    assert_eq!(read(&file), AFTER);
    assert_ne!(inode(&file), old);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(beside(&file), ["mcp.json"]);
}

#[test]
fn without_a_change_nothing_is_written() {
    let (home, file) = scene();
    fs::write(&file, AFTER).unwrap();
    let old = inode(&file);
    assert!(!add(&Writer::new(home.state()), &file).unwrap());
    assert_eq!(inode(&file), old);
    assert!(!home.state().join("backups").exists());
}

#[test]
fn the_old_bytes_are_in_our_state_directory() {
    let (home, file) = scene();
    add(&Writer::new(home.state()), &file).unwrap();
    let dir = home.state().join("backups/cursor");
    let backups: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(backups.len(), 1);
    assert_eq!(read(&backups[0]), BEFORE);
    assert_eq!(fs::metadata(&backups[0]).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn links_stay_links() {
    let (home, file) = scene();
    let real = home.write("dotfiles/cursor.json", BEFORE);
    fs::remove_file(&file).unwrap();
    symlink("../dotfiles/link.json", &file).unwrap();
    symlink("cursor.json", home.path("dotfiles/link.json")).unwrap();
    add(&Writer::new(home.state()), &file).unwrap();
    assert_eq!(read(&real), AFTER);
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    assert!(fs::symlink_metadata(home.path("dotfiles/link.json")).unwrap().is_symlink());
}

#[test]
fn the_target_of_a_dangling_link_is_created() {
    let (home, file) = scene();
    fs::remove_file(&file).unwrap();
    symlink("real.json", &file).unwrap();
    add(&Writer::new(home.state()), &file).unwrap();
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    assert_eq!(read(&home.path(".cursor/real.json")), added(""));
}

#[test]
fn a_link_into_a_directory_that_is_missing_is_refused() {
    let (home, file) = scene();
    fs::remove_file(&file).unwrap();
    symlink(home.path("mnt/dotfiles/mcp.json"), &file).unwrap();
    let error = add(&Writer::new(home.state()), &file).unwrap_err();
    assert!(matches!(error, FileError::DanglingLink { .. }), "{error}");
    assert!(!home.path("mnt").exists());
}

#[test]
fn hard_links_stay_the_same_file() {
    let (home, file) = scene();
    let other = home.path(".cursor/other.json");
    fs::hard_link(&file, &other).unwrap();
    add(&Writer::new(home.state()), &file).unwrap();
    assert_eq!(read(&file), AFTER);
    assert_eq!(read(&other), AFTER);
    assert_eq!(inode(&file), inode(&other));
}

#[test]
fn where_a_rename_is_impossible_the_file_is_written_in_place() {
    for (step, errno) in [
        (Step::Create, Errno::ACCESS),
        (Step::Create, Errno::ROFS),
        (Step::CopyAttributes, Errno::PERM),
        (Step::Rename, Errno::BUSY),
        (Step::Rename, Errno::XDEV),
    ] {
        let (home, file) = scene();
        let old = inode(&file);
        add(&failing(&home, step, errno), &file).unwrap();
        assert_eq!((read(&file).as_str(), inode(&file)), (AFTER, old), "{step:?}");
        assert_eq!(beside(&file), ["mcp.json"], "{step:?}");
        assert_eq!(fs::read_dir(home.state().join("in-place")).unwrap().count(), 0, "{step:?}");
    }
}

#[test]
fn a_step_that_fails_leaves_the_file_as_it_was_and_nothing_beside_it() {
    let steps = [
        Step::Read,
        Step::BackUp,
        Step::Create,
        Step::Fill,
        Step::CopyAttributes,
        Step::Sync,
        Step::Compare,
        Step::Rename,
    ];
    for step in steps {
        let (home, file) = scene();
        let error = add(&failing(&home, step, Errno::NOSPC), &file).unwrap_err();
        assert!(matches!(error, FileError::Write { step: at, .. } if at == step), "{error}");
        assert_eq!(read(&file), BEFORE, "{step:?}");
        assert_eq!(beside(&file), ["mcp.json"], "{step:?}");
    }
}

#[test]
fn a_failed_write_in_place_is_rolled_back() {
    for step in [Step::Overwrite, Step::Truncate, Step::Sync] {
        let (home, file) = scene();
        fs::hard_link(&file, home.path(".cursor/other.json")).unwrap();
        add(&failing(&home, step, Errno::NOSPC), &file).unwrap_err();
        assert_eq!(read(&file), BEFORE, "{step:?}");
    }
}

#[test]
fn an_interrupted_write_in_place_is_completed_by_the_next() {
    let (home, file) = scene();
    fs::hard_link(&file, home.path(".cursor/other.json")).unwrap();
    // The note of a write is restored after it, as if the writer had died before its end.
    let notes = home.state().join("in-place");
    let (of, kept) = (notes.clone(), Arc::new(Mutex::new(None)));
    let keep = kept.clone();
    let look = move || {
        let path = fs::read_dir(&of)?.next().unwrap()?.path();
        *keep.lock().unwrap() = Some((path.clone(), fs::read(path)?));
        Ok(())
    };
    add(&Writer::observed(home.state(), Arc::new(At(Step::Overwrite, look))), &file).unwrap();
    let (note, bytes) = kept.lock().unwrap().take().unwrap();
    let torn = format!("{}{}", &AFTER[..60], &BEFORE[60..]);
    // It failed, and so did putting back what was there.
    let back = format!("{}{}", &BEFORE[..60], &AFTER[60..]);
    let theirs = "{\"mcpServers\": {}}";
    for (found, left) in
        [(torn.as_str(), AFTER), (back.as_str(), AFTER), (BEFORE, BEFORE), (theirs, theirs)]
    {
        fs::write(&note, &bytes).unwrap();
        fs::write(&file, found).unwrap();
        let client = Client::by_id("cursor").unwrap();
        let opened = Writer::new(home.state()).open(client, &file, true).unwrap();
        let text = opened.read(|text| Ok::<_, FileError>(text.map(str::to_owned))).unwrap();
        assert_eq!(text.as_deref(), Some(left));
        assert_eq!(fs::read_dir(&notes).unwrap().count(), 0);
    }
}

#[test]
fn read_only_files_are_refused() {
    let (home, file) = scene();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    let error = add(&Writer::new(home.state()), &file).unwrap_err();
    assert!(matches!(error, FileError::ReadOnly { .. }), "{error}");
    assert!(error.to_string().ends_with("is read-only; it was left as it is"), "{error}");
    assert_eq!(read(&file), BEFORE);
}

#[test]
fn binary_files_and_directories_are_rejected() {
    let (home, file) = scene();
    fs::write(&file, b"{\"a\": \"\xff\"}").unwrap();
    let error = add(&Writer::new(home.state()), &file).unwrap_err();
    assert!(matches!(error, FileError::NotUtf8 { at: 7, .. }), "{error}");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = add(&Writer::new(home.state()), &file).unwrap_err();
    assert!(matches!(error, FileError::NotAFile { .. }), "{error}");
}

#[test]
fn too_large_files_are_not_read() {
    let (home, file) = scene();
    // A sparse file: it takes no room, and reading it to the end would.
    fs::File::options().write(true).open(&file).unwrap().set_len(300 << 20).unwrap();
    let error = add(&Writer::new(home.state()), &file).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("larger than 16 MiB"), "{error}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 300 << 20);
}

#[test]
fn world_writable_files_are_left_alone() {
    let (home, file) = scene();
    let dir = file.parent().unwrap();
    let check = |path: &Path, mode: u32, is_refused: bool| {
        let before = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let text = read(&file);
        match add(&Writer::new(home.state()), &file) {
            Err(error) if is_refused => {
                assert!(matches!(error, FileError::WorldWritable { .. }), "{error}");
                let help = format!("`chmod o-w {}`", path.display());
                assert!(error.to_string().contains(&help), "{error}");
                assert_eq!(read(&file), text);
            }
            result => assert_eq!(result.is_err(), is_refused, "{mode:o}"),
        }
        fs::set_permissions(path, before).unwrap();
    };
    check(&file, 0o666, true);
    check(dir, 0o777, true);
    fs::remove_file(&file).unwrap();
    fs::write(&file, BEFORE).unwrap();
    check(&file, 0o664, false);
    fs::write(&file, BEFORE).unwrap();
    check(dir, 0o1777, false);
}

#[test]
fn a_new_file_and_its_directory_are_for_the_user_alone() {
    let home = Home::new();
    let file = home.path(".kiro/settings/mcp.json");
    let writer = Writer::new(home.state());
    let client = Client::by_id("kiro").unwrap();
    let change = |text: Option<&str>| Ok::<_, FileError>(Some(added(text.unwrap_or_default())));
    let error = writer.open(client, &file, false).unwrap().edit("time", change).unwrap_err();
    assert!(matches!(error, FileError::NoDirectory { .. }), "{error}");
    assert!(!home.path(".kiro").exists());
    writer.open(client, &file, true).unwrap().edit("time", change).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(home.path(".kiro")).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn an_edit_of_more_than_the_entry_is_not_written() {
    let (home, file) = scene();
    let client = Client::by_id("cursor").unwrap();
    let opened = Writer::new(home.state()).open(client, &file, true).unwrap();
    let edit = opened.edit("time", |_| Ok::<_, FileError>(Some(added("{}"))));
    let error = edit.unwrap_err();
    assert!(matches!(error, FileError::VerifyFailed { .. }), "{error}");
    assert_eq!(read(&file), BEFORE);
}

#[test]
fn concurrent_writes_are_kept() {
    let (home, file) = scene();
    let theirs = BEFORE.replace("other", "newer");
    for times in [1, 4] {
        fs::write(&file, BEFORE).unwrap();
        let left = Mutex::new(times);
        let (path, text) = (file.clone(), theirs.clone());
        let write = move || {
            let mut left = left.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                fs::write(&path, format!("{text}{}", "\n".repeat(*left)))?;
            }
            Ok(())
        };
        let writer = Writer::observed(home.state(), Arc::new(At(Step::Compare, write)));
        add(&writer, &file).unwrap();
        assert_eq!(read(&file), AFTER.replace("other", "newer"), "{times}");
    }
}

#[test]
fn a_file_that_is_being_written_is_read_again() {
    let (home, file) = scene();
    fs::write(&file, "{\"mcpServers\": {").unwrap();
    let client = Client::by_id("cursor").unwrap();
    let opened = Writer::new(home.state()).open(client, &file, true).unwrap();
    let count = |text: Option<&str>| {
        let entries = client.read(text.unwrap()).and_then(|(_, reading)| reading.entries());
        entries.map(|entries| entries.len()).map_err(|_| {
            // The client continues as soon as the first half was read.
            fs::write(&file, BEFORE).unwrap();
            FileError::NotAFile(file.clone())
        })
    };
    assert_eq!(opened.read(count).unwrap(), 1);
}

#[test]
fn a_file_that_keeps_changing_is_given_up() {
    let (home, file) = scene();
    let (count, path) = (Mutex::new(0), file.clone());
    let write = move || {
        *count.lock().unwrap() += 1;
        fs::write(&path, format!("{BEFORE}{}", "\n".repeat(*count.lock().unwrap())))
    };
    let writer = Writer::observed(home.state(), Arc::new(At(Step::Compare, write)));
    let error = add(&writer, &file).unwrap_err();
    assert!(matches!(error, FileError::KeepsChanging { tries: 5, .. }), "{error}");
    assert_eq!(read(&file), format!("{BEFORE}\n\n\n\n\n"));
    assert_eq!(beside(&file), ["mcp.json"]);
}

#[test]
fn a_file_created_meanwhile_is_not_replaced() {
    let (home, file) = scene();
    fs::remove_file(&file).unwrap();
    let path = file.clone();
    let appear = move || if path.exists() { Ok(()) } else { fs::write(&path, BEFORE) };
    let writer = Writer::observed(home.state(), Arc::new(At(Step::Rename, appear)));
    add(&writer, &file).unwrap();
    assert_eq!(read(&file), AFTER);
}

#[test]
fn temporary_files_of_a_killed_writer_are_removed() {
    let (home, file) = scene();
    let mut dead = Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    let name = |process: u32| format!(".mcp.json.mainstay-{process}-0123456789abcdef.tmp");
    home.write(&format!(".cursor/{}", name(dead.id())), "{");
    let living = name(std::process::id());
    home.write(&format!(".cursor/{living}"), "{");
    home.write(".cursor/.mcp.json.tmp", "not ours");
    add(&Writer::new(home.state()), &file).unwrap();
    assert_eq!(beside(&file), [living.as_str(), ".mcp.json.tmp", "mcp.json"]);
}

#[test]
fn a_removed_temporary_file_is_created_again() {
    let (home, file) = scene();
    let (dir, left) = (file.parent().unwrap().to_owned(), Mutex::new(2));
    let sweep = move || {
        let mut left = left.lock().unwrap();
        for entry in fs::read_dir(&dir)?.flatten().filter(|_| *left > 0) {
            if entry.file_name().to_string_lossy().contains("mainstay-") {
                fs::remove_file(entry.path())?;
            }
        }
        *left = i32::max(*left - 1, 0);
        Ok(())
    };
    let writer = Writer::observed(home.state(), Arc::new(At(Step::Rename, sweep)));
    add(&writer, &file).unwrap();
    assert_eq!((read(&file).as_str(), beside(&file)), (AFTER, vec!["mcp.json".to_owned()]));
}

#[test]
fn extended_attributes_stay() {
    let (home, file) = scene();
    let set = rustix::fs::setxattr(&file, "user.note", b"mine", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        // The file system of this machine's temporary files has none.
        return;
    }
    add(&Writer::new(home.state()), &file).unwrap();
    let mut value = Vec::with_capacity(64);
    rustix::fs::getxattr(&file, "user.note", rustix::buffer::spare_capacity(&mut value)).unwrap();
    assert_eq!(value, b"mine");
}

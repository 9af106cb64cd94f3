//! The disk of Mainstay's directories stops responding. Only root can mount and freeze a disk, so this needs root.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::Signal;
use serde_json::json;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture, kill, until};
use crate::proxy::raw::{Raw, call};

/// A disk that holds all directories of a test's Mainstay.
struct Disk {
    at: PathBuf,
    /// Unmounts the disk when its standard input ends, as it does with this process.
    mounted: Child,
}

impl Disk {
    fn mount(env: &TestEnv) -> Self {
        assert!(rustix::process::geteuid().is_root(), "to mount a disk needs root");
        let image = env.root().join("disk");
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let script = r#"mkfs.ext4 -q "$1" && mkdir "$2" && mount -o loop "$1" "$2" && chmod 700 "$2" \
            && : > "$2/mounted" && cat; fsfreeze --unfreeze "$2" 2> /dev/null; umount --lazy "$2""#;
        let at = env.mainstay_home();
        let mounted = Command::new("sh")
            .args(["-c", script, "sh"])
            .args([&image, &at])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        until("the disk is mounted", || at.join("mounted").exists().then_some(()));
        Self { at, mounted }
    }

    /// From now on, every write to the disk blocks.
    fn freeze(&self) {
        self.fsfreeze("--freeze");
    }

    fn thaw(&self) {
        self.fsfreeze("--unfreeze");
    }

    fn fsfreeze(&self, option: &str) {
        assert!(Command::new("fsfreeze").arg(option).arg(&self.at).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.mounted.stdin.take());
        self.mounted.wait().unwrap();
    }
}

/// Makes a call that takes long enough to be recorded.
fn slow_call(session: &Raw, id: u64) {
    let answer = session.answered(&call(id, "sleep", &json!({"ms": 1000})));
    assert!(answer["result"]["content"].is_array(), "{answer}");
}

/// Whether the record of requests in flight has this text.
fn is_recorded(env: &TestEnv, text: &str) -> bool {
    let files = fs::read_dir(env.mainstay_home().join("run/streams")).unwrap();
    files
        .map(|file| fs::read(file.unwrap().path()).unwrap_or_default())
        .any(|file| file.windows(text.len()).any(|window| window == text.as_bytes()))
}

#[test]
fn a_frozen_disk_blocks_no_call() {
    let env = TestEnv::new();
    let disk = Disk::mount(&env);
    let server = env.run_server("fx", &[], &[&fixture()]);
    let url = server["url"].as_str().unwrap();
    let mut bystander = Bystander::of(&env, "fx");
    let session = Raw::open(url);
    disk.freeze();
    for id in 1..4 {
        thread::scope(|scope| {
            let slow = scope.spawn(|| slow_call(&session, id));
            while !slow.is_finished() {
                bystander.is_served();
            }
        });
        Bystander::of(&env, "fx").is_served();
        assert_eq!(env.server("fx")["status"], "running");
    }
    assert!(!is_recorded(&env, "sleep"));
    disk.thaw();

    // Calls outlive the daemon again.
    slow_call(&session, 8);
    env.once_logged("the disk responds again", 1);
    thread::scope(|scope| {
        scope.spawn(|| slow_call(&session, 99));
        until("the call is recorded", || is_recorded(&env, "\"id\":99").then_some(()));
        kill(env.daemon(), Signal::KILL);
        bystander.is_served();
    });
    env.ok(["daemon", "stop"]);
}

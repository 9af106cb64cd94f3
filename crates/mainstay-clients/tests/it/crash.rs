//! Kills a process of ours at random points of its edits, over and over, while a client writes the same
//! file.
//!
//! The process is this very test program, called to be one of these tests. It adds an entry, takes
//! it out for a refresh, puts it back and removes it for good, until it dies: in every second round by its
//! own hand right before a step drawn by lot, in the others by ours at any moment. The client reads the
//! file, counts one up and writes it, by turns in place and by rename.
//!
//! Checked after each death, while the client rests:
//!
//! - the file is whole JSON, and what is in it beside our entry and the count is as it was;
//! - our entry is as we write it, or not there;
//! - the count is not less than it was when the process began its last read of the file, so nothing that
//!   was there before that read is lost; if the client takes its own lock, no count is lost at all;
//! - the process died of the kill, so no edit of it failed but for the client's writing;
//! - the next process completes what was begun, and leaves no temporary file and no entry, even if a client
//!   without a lock has written back what it had read before the entry was removed.
//!
//! A file with two names is written in place, which a death can break off: there the client rests
//! throughout, and the file is looked at after the next process has opened it.
//!
//! `MAINSTAY_EDIT_ROUNDS` sets the number of rounds (200), `MAINSTAY_EDIT_SEED` repeats a run.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mainstay_clients::file::{FileError, Observer, Step};
use mainstay_clients::ledger::{Record, State};
use mainstay_clients::{Change, Client, ClientError, Machine, Purpose, Registrar};
use mainstay_testkit::dice::Dice;
use serde_json::{Value, json};

use crate::home::{Home, URL, http, remove, server, switch};

/// Tells the process that it is one: home, state and client, and the step before which it dies.
const PART: &str = "MAINSTAY_EDIT_PART";

/// The test that such a process is called to be; any of them would do.
const KILLED: &str = "crash::a_kill_does_not_damage_a_file_that_its_client_locks";

/// One turn of all operations takes fewer steps.
const STEPS: u64 = 60;

#[test]
fn a_kill_does_not_damage_a_file_that_its_client_locks() {
    Scene::new("claude-code", ".claude.json").run(0, Play::Locked);
}

#[test]
fn a_kill_does_not_damage_a_file_without_a_lock() {
    Scene::new("cursor", ".cursor/mcp.json").run(1, Play::Unlocked);
}

#[test]
fn a_kill_does_not_damage_a_file_written_in_place() {
    let scene = Scene::new("kiro", ".kiro/settings/mcp.json");
    fs::hard_link(&scene.file, scene.home.path("second-name.json")).unwrap();
    scene.run(2, Play::Resting);
}

/// What the client does meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Play {
    Locked,
    Unlocked,
    Resting,
}

struct Scene {
    home: Home,
    client: &'static Client,
    file: PathBuf,
}

impl Scene {
    fn new(client: &str, file: &str) -> Self {
        if let Some(part) = switch(PART) {
            edit_until_killed(&part);
        }
        let home = Home::new();
        let file = home.write(file, &serde_json::to_string_pretty(&document(0)).unwrap());
        Self { home, client: Client::by_id(client).unwrap(), file }
    }

    fn run(&self, share: u64, play: Play) {
        let rounds = switch("MAINSTAY_EDIT_ROUNDS").map_or(200, |rounds| rounds.parse().unwrap());
        let seed = switch("MAINSTAY_EDIT_SEED")
            .map_or_else(|| getrandom::u64().unwrap(), |seed| seed.parse().unwrap());
        let mut dice = Dice(seed.wrapping_add(share));
        let count = AtomicU64::new(0);
        for round in 0..=rounds / 3 {
            let context = format!("round {round}, MAINSTAY_EDIT_SEED={seed}");
            let least = self.round(round, play, &mut dice, &count, &context);
            self.check(play, least, count.load(Ordering::SeqCst), &context);
        }
    }

    /// Lets a process edit until it is dead, and answers with the count at its last read.
    fn round(
        &self,
        round: u64,
        play: Play,
        dice: &mut Dice,
        count: &AtomicU64,
        context: &str,
    ) -> u64 {
        let own_hand = round.is_multiple_of(2);
        let step = if own_hand { dice.below(STEPS) } else { u64::MAX };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([KILLED, "--exact", "--nocapture"])
            .env(PART, format!("{}\n{}\n{step}", self.home.path("").display(), self.client.id))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let over = AtomicBool::new(false);
        let mut said = Vec::new();
        let mut output = child.stdout.take().unwrap();
        std::thread::scope(|scope| {
            if play != Play::Resting {
                let mut dice = Dice(dice.throw());
                scope.spawn({
                    let over = &over;
                    move || {
                        while !over.load(Ordering::SeqCst) {
                            self.write_as_the_client_does(play, &mut dice, count);
                        }
                    }
                });
            }
            if !own_hand {
                wait_for_the_first_read(&mut output, &mut said);
                std::thread::sleep(Duration::from_micros(dice.below(60_000)));
                child.kill().unwrap();
            }
            output.read_to_end(&mut said).unwrap();
            let status = child.wait().unwrap();
            over.store(true, Ordering::SeqCst);
            assert_eq!(status.signal(), Some(9), "{context}: {}", String::from_utf8_lossy(&said));
        });
        last_seen(&said)
    }

    fn write_as_the_client_does(&self, play: Play, dice: &mut Dice, count: &AtomicU64) {
        std::thread::sleep(Duration::from_micros(dice.below(60_000)));
        let lock = self.home.path(".claude.json.lock");
        if play == Play::Locked && fs::create_dir(&lock).is_err() {
            return;
        }
        // A client that finds a broken file would give up; we never show it one.
        let mut json: Value = serde_json::from_slice(&fs::read(&self.file).unwrap()).unwrap();
        let next = count.load(Ordering::SeqCst) + 1;
        json["count"] = next.into();
        let text = serde_json::to_string_pretty(&json).unwrap();
        count.store(next, Ordering::SeqCst);
        if dice.below(2) == 0 {
            fs::write(&self.file, text).unwrap();
        } else {
            let temporary = self.file.with_extension("client.tmp");
            fs::write(&temporary, text).unwrap();
            fs::rename(&temporary, &self.file).unwrap();
        }
        if play == Play::Locked {
            fs::remove_dir(&lock).unwrap();
        }
    }

    fn check(&self, play: Play, seen: u64, written: u64, context: &str) {
        let registrar = self.home.registrar();
        if play == Play::Resting {
            // An entry that was never there is not removed, but the file is opened.
            remove(&registrar, self.client.id, "nobody", Purpose::Refresh);
        }
        let count = self.check_file(context);
        assert!(count >= seen, "{context}: {count} is less than {seen}");
        assert!(play != Play::Locked || count == written, "{context}: {count} of {written}");
        complete(&registrar, self.client.id, context);
        assert_eq!(self.check_file(context), count, "{context}");
        let is_there = fs::read_to_string(&self.file).unwrap().contains(URL);
        assert!(!is_there, "{context}: the entry is still there");
        let beside = fs::read_dir(self.file.parent().unwrap()).unwrap();
        let mut names = beside.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(!names.any(|name| name.contains("mainstay-")), "{context}");
    }

    /// Checks that the file is whole, and answers with the client's count in it.
    fn check_file(&self, context: &str) -> u64 {
        let text = fs::read_to_string(&self.file).unwrap();
        let mut json: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{context}: {error}: {text}"));
        if let Some(ours) = json["mcpServers"].as_object_mut().unwrap().remove("time") {
            assert_eq!(ours["url"], URL, "{context}");
        }
        let count = json["count"].as_u64().unwrap();
        assert_eq!(json, document(count), "{context}");
        count
    }
}

/// What the client has in its file beside our entry.
fn document(count: u64) -> Value {
    let history: Vec<_> = (0..40).map(|n| format!("line {n} of what the client keeps")).collect();
    json!({
        "count": count,
        "history": history,
        "mcpServers": {"other": {"command": "other", "args": ["a", "b"], "disabled": true}},
    })
}

/// Completes what a dead process has begun, and removes the entry for good.
fn complete(registrar: &Registrar, client: &str, context: &str) {
    for record in registrar.records().unwrap() {
        match record.state {
            State::Adding { .. } | State::Away { .. } => {
                let added = registrar.add(client, &server("time"), &http());
                added.unwrap_or_else(|error| panic!("{context}: {}", error.line()));
            }
            State::Leaving | State::Present | State::Withdrawn => {}
        }
    }
    remove(registrar, client, "time", Purpose::ForGood);
    let is_gone = |record: &Record| record.state == State::Leaving;
    assert!(registrar.records().unwrap().iter().all(is_gone), "{context}");
}

fn wait_for_the_first_read(output: &mut impl Read, said: &mut Vec<u8>) {
    let mut byte = [0];
    while !said.ends_with(b"saw ") {
        output.read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
}

/// The last whole line of the process has the count at its last read.
fn last_seen(said: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(said);
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let seen = whole.lines().rev().find_map(|line| line.strip_prefix("saw "));
    seen.map_or(0, |seen| seen.parse().unwrap())
}

/// What the process does that is killed.
fn edit_until_killed(part: &str) -> ! {
    let [home, client, step] = part.split('\n').collect::<Vec<_>>()[..] else { panic!("{part}") };
    let home = Path::new(home);
    let machine = Machine { home: home.to_owned(), env: std::iter::empty().collect() };
    let file = Client::by_id(client).unwrap().locate(&machine).file;
    let doomed = Doomed { file, left: AtomicU64::new(step.parse().unwrap()) };
    let registrar =
        Registrar::observed(home.parent().unwrap().join("state"), machine, Arc::new(doomed));
    let time = server("time");
    loop {
        tolerate([registrar.force_add(client, &time, &http())]);
        tolerate(registrar.remove(client, &time, Purpose::Refresh));
        tolerate([registrar.add(client, &time, &http())]);
        tolerate(registrar.remove(client, &time, Purpose::ForGood));
    }
}

/// Only a client that keeps writing may keep us from an edit.
fn tolerate(results: impl IntoIterator<Item = Result<Change, ClientError>>) {
    for result in results {
        match result {
            Ok(_)
            | Err(ClientError::File(FileError::KeepsChanging { .. } | FileError::Locked { .. })) => {
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Tells what it sees before each read, and dies before a certain step.
struct Doomed {
    file: PathBuf,
    left: AtomicU64,
}

impl Observer for Doomed {
    fn before(&self, step: Step) -> io::Result<()> {
        if step == Step::Read {
            tell_count(&self.file);
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL)?;
        }
        Ok(())
    }
}

/// Half a file of the client's, which it is writing in place, has no count yet.
#[expect(clippy::print_stdout, reason = "the one who kills reads it")]
fn tell_count(file: &Path) {
    let text = fs::read(file).unwrap_or_default();
    if let Ok(json) = serde_json::from_slice::<Value>(&text)
        && let Some(count) = json["count"].as_u64()
    {
        println!("saw {count}");
    }
}

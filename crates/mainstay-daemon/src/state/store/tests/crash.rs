//! Kills a process at random moments of its changes to a store, over and over.
//!
//! The process is this test program, which runs this test only. It opens the store, takes it over and changes it, and
//! prints a line after each acknowledged change. The changes follow from the seed, so the expected content is known after
//! any number of them. Every tenth round begins with a store of the first schema, so that some kills happen during the
//! migration.
//!
//! Checked after each kill: the store can be opened and read, and has all acknowledged changes, with or without the one
//! that was in progress. The next process continues with this store.
//!
//! `MAINSTAY_STATE_ROUNDS` sets the number of rounds (300), `MAINSTAY_STATE_SEED` repeats a run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use mainstay_testkit::dice::Dice;

use super::schemas::{FIRST, load};
use super::*;

/// Set for the process that is killed: the store, the seed, and the number of the first change.
const PART: &str = "MAINSTAY_STATE_PART";

/// The maximum time from the start of a process, or from its first change, to its kill.
const LIFE: Duration = Duration::from_millis(12);

/// What a store must have: each server with its allowed restarts and its intent.
type Model = BTreeMap<String, (u32, Wanted)>;

#[test]
fn no_death_loses_an_acknowledged_change() {
    if let Some(part) = switch(PART) {
        change_until_killed(&part);
    }
    let rounds = switch("MAINSTAY_STATE_ROUNDS").map_or(300, |rounds| rounds.parse().unwrap());
    let seed =
        switch("MAINSTAY_STATE_SEED").map_or_else(random::seed, |seed| seed.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut scene = Scene {
        path: dir.path().join("state.db"),
        seed,
        dice: Dice(seed),
        made: 0,
        model: Model::new(),
        tally: Tally::default(),
    };
    for round in 0..rounds {
        if round % 10 == 0 {
            scene.reset();
        }
        scene.round(round);
    }
    scene.tally.print(rounds);
}

/// The summary.
#[derive(Default)]
struct Tally {
    acknowledged: u64,
    /// Changes that are in the store, but were not acknowledged.
    kept: u64,
    /// Deaths before the first change was acknowledged.
    early: u64,
}

impl Tally {
    /// The bench reads it.
    fn print(&self, rounds: u64) {
        let Self { acknowledged, kept, early } = self;
        println!("deaths {rounds} acknowledged {acknowledged} kept {kept} early {early}");
    }
}

struct Scene {
    path: std::path::PathBuf,
    seed: u64,
    dice: Dice,
    /// How many changes were made since the beginning.
    made: u64,
    model: Model,
    tally: Tally,
}

impl Scene {
    fn reset(&mut self) {
        let dir = self.path.parent().unwrap();
        for file in fs::read_dir(dir).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        load(FIRST, &self.path);
        self.model = model(&Store::open(&self.path).unwrap());
        fs::remove_file(&self.path).unwrap();
        load(FIRST, &self.path);
    }

    fn round(&mut self, round: u64) {
        let context = format!("round {round}, MAINSTAY_STATE_SEED={}", self.seed);
        let part = format!("{}\n{}\n{}", self.path.display(), self.seed, self.made);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["no_death_loses_an_acknowledged_change", "--nocapture"])
            .env(PART, part)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        lines
            .find(|line| line.ends_with("up"))
            .unwrap_or_else(|| panic!("{context}: it did not start"));
        let mut acknowledged = 0;
        if self.dice.below(2) == 0 {
            acknowledged += u64::from(lines.next().is_some());
        }
        std::thread::sleep(LIFE.mul_f64(share(&mut self.dice)));
        child.kill().unwrap();
        acknowledged += lines.count() as u64;
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{context}: {status}");
        self.check(acknowledged, &context);
    }

    fn check(&mut self, acknowledged: u64, context: &str) {
        for _ in 0..acknowledged {
            Change::nth(self.seed, self.made).apply(&mut self.model);
            self.made += 1;
        }
        let store = Store::open(&self.path).unwrap_or_else(|error| panic!("{context}: {error}"));
        let found = model(&store);
        self.tally.acknowledged += acknowledged;
        self.tally.early += u64::from(acknowledged == 0);
        if found == self.model {
            return;
        }
        let before = self.model.clone();
        Change::nth(self.seed, self.made).apply(&mut self.model);
        assert_eq!(found, self.model, "{context}: after {acknowledged}, before: {before:?}");
        self.made += 1;
        self.tally.kept += 1;
    }
}

fn model(store: &Store) -> Model {
    let servers = store.load().unwrap().into_iter();
    servers.map(|s| (s.spec.name.to_string(), (s.spec.restart.max, s.wanted))).collect()
}

/// What a command does to the store.
enum Change {
    /// `run`, or `import` with two.
    Put(Vec<String>, u32),
    /// `start` and `stop`.
    Want(String, Wanted),
    /// The end of `rm`.
    Delete(String),
}

impl Change {
    fn nth(seed: u64, n: u64) -> Self {
        let mut dice = Dice(seed ^ n.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let name = |dice: &mut Dice| format!("server-{}", dice.below(6));
        match dice.below(6) {
            0 | 1 => Self::Put(vec![name(&mut dice)], u32::try_from(n % 1000).unwrap()),
            2 => {
                Self::Put(vec![name(&mut dice), name(&mut dice)], u32::try_from(n % 1000).unwrap())
            }
            3 => Self::Want(name(&mut dice), Wanted::Off),
            4 => Self::Want(name(&mut dice), Wanted::On),
            _ => Self::Delete(name(&mut dice)),
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Self::Put(names, max) => {
                model.extend(names.iter().map(|name| (name.clone(), (*max, Wanted::On))));
            }
            Self::Want(name, wanted) => {
                if let Some((_, intent)) = model.get_mut(name) {
                    *intent = *wanted;
                }
            }
            Self::Delete(name) => drop(model.remove(name)),
        }
    }

    async fn make(&self, store: &Store) -> Result<(), StoreError> {
        match self {
            Self::Put(names, max) => {
                let one = |name: &String| {
                    let mut stored = stored(name);
                    stored.spec.restart.max = *max;
                    stored
                };
                store.put(names.iter().map(one).collect()).await
            }
            Self::Want(name, wanted) => store.want(vec![name.parse().unwrap()], *wanted).await,
            Self::Delete(name) => store.delete(name.parse().unwrap()).await,
        }
    }
}

/// The process that is killed.
fn change_until_killed(part: &str) -> ! {
    let [path, seed, first] = part.split('\n').collect::<Vec<_>>()[..] else { panic!("{part}") };
    let (seed, first) = (seed.parse().unwrap(), first.parse::<u64>().unwrap());
    let print = |line: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
    };
    print("up");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = Store::open(Path::new(path)).unwrap();
    store.next_daemon(0).unwrap();
    for n in first.. {
        runtime.block_on(Change::nth(seed, n).make(&store)).unwrap();
        print("acknowledged");
    }
    unreachable!("it is killed before it runs out of numbers")
}

/// Between 0 and 1.
fn share(dice: &mut Dice) -> f64 {
    f64::from(u32::try_from(dice.below(1001)).unwrap()) / 1000.0
}

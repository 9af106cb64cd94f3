//! After any number of starts, deaths, stops and removals nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, fixture, kill, pid_of, until};

/// The number of cycles, unless `MAINSTAY_TEST_CYCLES` is set.
const CYCLES: u64 = 25;

/// After so many the daemon has opened what it keeps open.
const WARM_UP: u64 = 4;

#[test]
fn cycles_leave_no_process_descriptor_or_file() {
    let env = TestEnv::new();
    let fixture = fixture();
    (0..WARM_UP).for_each(|number| cycle(&env, &fixture, number));
    let about = env.json(["daemon", "status", "--json"]);
    let daemon = pid_of(&about);
    let mark = format!("MAINSTAY_RUN={}/", about["instance"].as_str().unwrap());
    let (before, files) = (Footprint::of(daemon), tree(env.root()));

    (0..cycles()).for_each(|number| cycle(&env, &fixture, number));

    assert_eq!(env.json(["ls", "-a", "--json"]), json!([]));
    // A shim reports that no process of its server is left, and then exits.
    let mainstays = env.mainstays();
    until("only the daemon is left", || (env.processes() == mainstays).then_some(()));
    until("no zombie, no stray", || children_or_marked(daemon, &mark).is_empty().then_some(()));
    until("the daemon holds no more than before", || {
        let now = Footprint::of(daemon);
        (now.descriptors <= before.descriptors && now.threads <= before.threads).then_some(())
    });
    assert_eq!(tree(env.root()), files);
    for empty in ["run/runs", "run/sessions", "state/logs"] {
        assert_eq!(tree(&env.mainstay_home().join(empty)), BTreeSet::new(), "{empty}");
    }
    assert_eq!(pid_of(&env.json(["daemon", "status", "--json"])), daemon);
}

/// One cycle. Every fourth server is removed while it is running, every other fourth during its restart.
fn cycle(env: &TestEnv, fixture: &str, number: u64) {
    let name = format!("s{}", number % 3);
    let first = env.run_server(&name, &["--stable-after", "0s"], &[fixture]);
    kill(pid_of(&first), Signal::KILL);
    if number % 4 != 1 {
        env.once_running(&name, first["generation"].as_u64().unwrap() + 1);
    }
    if number % 4 > 1 {
        env.ok(["stop", &name]);
    }
    env.ok(["rm", &name]);
    assert_eq!(env.server(&name), Value::Null);
}

/// The resources of a process.
struct Footprint {
    descriptors: usize,
    threads: usize,
}

impl Footprint {
    fn of(pid: u32) -> Self {
        let count = |what| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        Self { descriptors: count("fd"), threads: count("task") }
    }
}

/// Processes, zombies included, whose parent is the daemon or that carry the mark of its runs.
fn children_or_marked(daemon: u32, mark: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = format!("\nPPid:\t{daemon}\n");
    let is_left = |pid: &u32| {
        let words = |file| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        words("status").contains(&parent)
            || words("environ").split('\0').any(|variable| variable.starts_with(mark))
    };
    pids.filter(is_left).collect()
}

/// Everything below a directory.
fn tree(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            found.insert(entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
        }
    }
    found
}

#[expect(clippy::disallowed_methods, reason = "only the environment of the tests can say how many")]
fn cycles() -> u64 {
    std::env::var("MAINSTAY_TEST_CYCLES").map_or(CYCLES, |count| count.parse().unwrap())
}

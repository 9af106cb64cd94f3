//! Mainstay in a delegated cgroup: nothing survives, although shim and guard are killed before the shim could see
//! what escaped. These tests need the right to create cgroups, as root has.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use mainstay_testkit::cgroup::{TestCgroup, cgroup_of};
use rustix::process::Signal;
use serde_json::Value;

use super::super::bystander::Bystander;
use crate::env::{TestEnv, fixture, kill, parent_of, pid_of, shim_of, until, until_dead};

/// Longer than what escaped ever waits before it writes again.
const SILENCE: Duration = Duration::from_millis(200);

/// What escapes: it has another pid every few milliseconds, and writes to a file until that is removed.
const RUNNER: &str = r#"
    f() { [ -e "$1" ] || exit 0; echo beat >> "$1"; sleep 0.01; f "$1" & exit 0; }
    f "$1"
"#;

/// A server called `loose`, from which a process escapes on request, and a well-behaved one beside it.
struct Setup {
    bystander: Bystander,
    first: Value,
    env: TestEnv,
    cgroup: TestCgroup,
}

impl Setup {
    fn new(cgroup: TestCgroup) -> Self {
        let env = TestEnv::new().in_cgroup(&cgroup);
        env.run_server("fx", &[], &[&fixture()]);
        let bystander = Bystander::of(&env, "fx");
        env.write("runner", RUNNER);
        // Each run first notes whether something of the one before it is still there.
        let script = format!(
            "if [ -e beats ]; then
                 before=$(wc -c < beats); sleep 0.1; [ $before = $(wc -c < beats) ] || touch overlap
             fi
             (until [ -e go ]; do sleep 0.01; done; touch beats
              (setsid env -i /bin/sh \"$PWD/runner\" \"$PWD/beats\" &)) < /dev/null > /dev/null 2>&1 &
             exec '{}'",
            fixture()
        );
        let first = env.run_server("loose", &[], &["/bin/sh", "-c", &script]);
        Self { bystander, first, env, cgroup }
    }

    fn beats(&self) -> PathBuf {
        self.env.work().join("beats")
    }

    fn count_beats(&self) -> u64 {
        fs::metadata(self.beats()).map_or(0, |found| found.len())
    }

    #[track_caller]
    fn until_it_beats(&self) {
        let before = self.count_beats();
        until("what escaped is alive", || (self.count_beats() > before).then_some(()));
    }

    /// Has a process escape that no shim can have recorded, and returns shim and guard, which are stopped.
    fn escape(&self) -> [u32; 2] {
        let shim = shim_of(&self.first);
        let both = [parent_of(shim), shim];
        for pid in both {
            kill(pid, Signal::STOP);
        }
        self.env.write("go", "");
        self.until_it_beats();
        fs::remove_file(self.env.work().join("go")).unwrap();
        both
    }

    /// The next run began after everything of the first had ended, and no cgroup is left.
    #[track_caller]
    fn assert_clean_afterwards(self) {
        let second = self.env.once_running("loose", 2);
        // There may be another daemon now, on another port.
        Bystander::of(&self.env, "fx").is_served();
        assert!(
            !self.env.work().join("overlap").exists(),
            "it was there when the second run began"
        );
        let before = self.count_beats();
        thread::sleep(SILENCE);
        assert_eq!(self.count_beats(), before, "what escaped from the first run is still there");
        let names = self.cgroup.children();
        assert_eq!(names.len(), 2, "one for each server: {names:?}");
        assert!(names.iter().any(|name| cgroup_of(pid_of(&second)).ends_with(name)), "{names:?}");
        self.env.ok(["rm", "loose"]);
        let names = self.cgroup.children();
        assert!(names.len() == 1 && names[0].contains("-fx-"), "{names:?}");
        self.env.ok(["daemon", "stop"]);
        assert_eq!(self.cgroup.children(), Vec::<String>::new());
    }
}

#[test]
fn nothing_survives_a_shim_and_a_guard_that_are_killed_together() {
    let mut setup = Setup::new(TestCgroup::delegated());
    let both = setup.escape();
    setup.bystander.is_served();
    for pid in both {
        kill(pid, Signal::KILL);
    }
    setup.bystander.is_served();
    setup.assert_clean_afterwards();
}

#[test]
fn nothing_survives_if_all_of_mainstay_is_killed() {
    let setup = Setup::new(TestCgroup::delegated());
    let both = setup.escape();
    setup.env.kill_mainstay();
    for pid in both {
        kill(pid, Signal::KILL);
        until_dead(pid);
    }
    setup.until_it_beats();
    setup.assert_clean_afterwards();
}

/// Also shows that the cgroup is what ends such a process.
#[test]
fn no_cgroup_is_created_without_delegation() {
    let mut setup = Setup::new(TestCgroup::undelegated());
    assert_eq!(setup.cgroup.children(), Vec::<String>::new());
    let both = setup.escape();
    for pid in both {
        kill(pid, Signal::KILL);
    }
    setup.bystander.is_served();
    setup.env.once_running("loose", 2);
    // What escaped may be found in time, or may survive.
    assert_eq!(setup.cgroup.children(), Vec::<String>::new());
}

#[test]
fn the_guard_of_a_killed_shim_removes_its_cgroup() {
    let mut setup = Setup::new(TestCgroup::delegated());
    let [guard, shim] = setup.escape();
    kill(guard, Signal::CONT);
    kill(shim, Signal::KILL);
    setup.bystander.is_served();
    setup.assert_clean_afterwards();
}

#[test]
fn each_run_has_one_cgroup_and_none_is_left() {
    let cgroup = TestCgroup::delegated();
    let env = TestEnv::new().in_cgroup(&cgroup);
    let mut bystander = super::super::bystander::with_bystander(&env);
    let outside = cgroup.children();
    let name_of = |server: &Value| {
        let found = cgroup_of(pid_of(server));
        let names: Vec<String> =
            cgroup.children().into_iter().filter(|name| !outside.contains(name)).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(found.ends_with(&format!("/{}", names[0])), "{found}: {names:?}");
        names[0].clone()
    };
    let first = env.run_server("fx", &[], &[&fixture()]);
    let of_first = name_of(&first);
    kill(pid_of(&first), Signal::KILL);
    let of_second = name_of(&env.once_running("fx", 2));
    assert_ne!(of_first, of_second);
    env.ok(["restart", "fx"]);
    let third = env.once_running("fx", 3);
    kill(env.daemon(), Signal::KILL);
    assert_eq!(pid_of(&env.once_running("fx", 3)), pid_of(&third));
    assert_ne!(name_of(&third), of_second);
    env.ok(["stop", "fx"]);
    assert_eq!(cgroup.children(), outside);
    env.ok(["start", "fx"]);
    name_of(&env.once_running("fx", 4));
    bystander.is_served();
    env.ok(["rm", "fx"]);
    assert_eq!(cgroup.children(), outside);
    env.run_failing("fails", &["--no-restart"], &["/bin/sh", "-c", "exit 1"]);
    assert_eq!(cgroup.children(), outside);
    env.ok(["daemon", "stop"]);
    assert_eq!(cgroup.children(), Vec::<String>::new());
}

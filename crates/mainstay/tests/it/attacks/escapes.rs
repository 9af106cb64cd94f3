//! Processes that escape from their server: another session, another parent, no environment. However a shim
//! dies, they are killed before the next run starts, and no other process is.

mod cgroup;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::bystander::Bystander;
use crate::env::{
    TestEnv, fixture, free_port, is_alive, kill, parent_of, pid_of, shim_of, until, until_dead,
};

/// A server called `loose`, from each run of which a process escapes, and a well-behaved one beside it.
struct Setup {
    env: TestEnv,
    bystander: Bystander,
    first: Value,
}

impl Setup {
    fn new() -> Self {
        // The next daemon listens where this one did, so that the bystander's session continues.
        let listen = format!("127.0.0.1:{}", free_port());
        let env = TestEnv::new().with_var("MAINSTAY_LISTEN", &listen);
        env.run_server("fx", &[], &[&fixture()]);
        let bystander = Bystander::of(&env, "fx");
        let (pids, overlap) = (env.work().join("pids"), env.work().join("overlap"));
        // Each run first notes whether something of the one before it is still there.
        let script = format!(
            "touch '{pids}'; while read -r pid; do
                 grep -q '^State:.[^ZX]' /proc/$pid/status && echo $pid >> '{overlap}'
             done < '{pids}'
             (setsid env -i /bin/sh -c 'echo $$ >> \"{pids}\"; exec sleep 600' &) & wait
             until [ $(wc -l < '{pids}') -ge 1 ]; do sleep 0.01; done
             exec '{}'",
            fixture(),
            pids = pids.display(),
            overlap = overlap.display(),
        );
        let first = env.run_server("loose", &[], &["/bin/sh", "-c", &script]);
        Self { env, bystander, first }
    }

    fn shim(&self) -> u32 {
        shim_of(&self.first)
    }

    /// The process above the shim, which ends what a killed shim leaves.
    fn guard(&self) -> u32 {
        parent_of(self.shim())
    }

    fn run_dir(&self) -> PathBuf {
        self.env.mainstay_home().join("run/runs/loose/1")
    }

    /// What has escaped, run by run.
    fn escaped(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.env.work().join("pids")).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits until the shim has recorded the process that escaped from its server.
    fn until_recorded(&self) -> String {
        let line = format!("\n{} ", self.escaped()[0]);
        let record = self.run_dir().join("processes");
        until("what escaped is on record", || {
            fs::read_to_string(&record).ok().filter(|text| text.contains(&line))
        })
    }

    /// The next run began after everything of the first had ended.
    #[track_caller]
    fn assert_clean_afterwards(mut self) {
        let first_escaped = self.escaped()[0];
        self.bystander.after("the next run of a server with escaped processes", || {
            self.env.once_running("loose", 2);
        });
        assert!(!is_alive(first_escaped), "what escaped from the first run is still there");
        let overlap = fs::read_to_string(self.env.work().join("overlap"));
        assert!(overlap.is_err(), "it was there when the second run began: {overlap:?}");
        self.env.ok(["rm", "loose"]);
        for pid in self.escaped() {
            assert!(!is_alive(pid), "{pid} outlived its server");
        }
    }
}

/// A process that has nothing to do with Mainstay.
struct Stranger(Child);

impl Stranger {
    fn new(mark: Option<&str>) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().current_dir("/").stdin(Stdio::null());
        Self(command.envs(mark.map(|mark| ("MAINSTAY_RUN", mark))).spawn().unwrap())
    }

    #[track_caller]
    fn is_unharmed(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "a other_program's process was ended");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn processes_that_escaped_a_killed_shim_end_before_the_next_run() {
    let mut setup = Setup::new();
    let shim = setup.shim();
    setup.bystander.during("a shim is killed", || {
        kill(shim, Signal::KILL);
        until_dead(shim);
    });
    setup.assert_clean_afterwards();
}

#[test]
fn processes_that_escaped_a_shim_killed_without_a_daemon_end_before_the_next_run() {
    let mut setup = Setup::new();
    let shim = setup.shim();
    setup.bystander.after("a shim is killed without a daemon", || {
        setup.env.kill_mainstay();
        kill(shim, Signal::KILL);
        until_dead(shim);
        setup.env.ok(["ls"]);
    });
    setup.assert_clean_afterwards();
}

#[test]
fn escaped_processes_end_before_the_next_run_even_if_all_of_mainstay_was_killed() {
    let mut setup = Setup::new();
    setup.until_recorded();
    let (shim, guard, escaped) = (setup.shim(), setup.guard(), setup.escaped()[0]);
    setup.bystander.after("daemon, holder, guard and shim are killed", || {
        setup.env.kill_mainstay();
        for pid in [guard, shim] {
            kill(pid, Signal::KILL);
            until_dead(pid);
        }
        assert!(is_alive(escaped), "nothing could end it");
        setup.env.ok(["ls"]);
    });
    setup.assert_clean_afterwards();
}

#[test]
fn a_forged_mark_does_not_get_a_process_killed() {
    let mut setup = Setup::new();
    let about = setup.env.json(["daemon", "status", "--json"]);
    let instance = about["instance"].as_str().unwrap();
    let marks = ["loose/1", "loose/2", "loose/99", "fx/1", "never/1", ""];
    let mut strangers: Vec<Stranger> =
        marks.iter().map(|run| Stranger::new(Some(&format!("{instance}/{run}")))).collect();
    let shim = setup.shim();
    setup.bystander.during("a shim is killed beside processes with forged marks", || {
        kill(shim, Signal::KILL);
        setup.env.once_running("loose", 2);
    });
    setup.bystander.after("a daemon starts beside processes with forged marks", || {
        setup.env.kill_mainstay();
        assert_eq!(setup.env.server("fx")["status"], "running");
    });
    setup.assert_clean_afterwards();
    strangers.iter_mut().for_each(Stranger::is_unharmed);
}

/// Adds a line to the record of a run, as if a process of the run had ended and its pid been used again.
fn record_also(run_dir: &Path, pid: u32, started: u64) {
    let file = run_dir.join("processes");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(file, format!("{text}{pid} {started}\n")).unwrap();
}

#[test]
fn a_recorded_pid_that_was_reused_is_left_alone() {
    let mut setup = Setup::new();
    let mut strangers = [Stranger::new(None), Stranger::new(None)];
    setup.until_recorded();
    let (shim, guard, run_dir) = (setup.shim(), setup.guard(), setup.run_dir());
    setup.bystander.after("a record names the pids of other processes", || {
        setup.env.kill_mainstay();
        // The guard is killed first, so that only the record is left.
        for pid in [guard, shim] {
            kill(pid, Signal::KILL);
            until_dead(pid);
        }
        for (other_program, started) in strangers.iter().zip([1, u64::MAX]) {
            record_also(&run_dir, other_program.0.id(), started);
        }
        setup.env.ok(["ls"]);
    });
    setup.assert_clean_afterwards();
    strangers.iter_mut().for_each(Stranger::is_unharmed);
}

#[test]
fn a_killed_guard_changes_nothing() {
    let mut setup = Setup::new();
    let guard = setup.guard();
    setup.bystander.during("a guard is killed", || {
        kill(guard, Signal::KILL);
        until_dead(guard);
    });
    let now = setup.env.server("loose");
    assert_eq!((pid_of(&now), &now["status"]), (pid_of(&setup.first), &Value::from("running")));
    setup.env.ok(["restart", "loose"]);
    setup.assert_clean_afterwards();
}

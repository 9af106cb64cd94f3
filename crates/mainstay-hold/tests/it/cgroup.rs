//! Runs in a cgroup of their own. These tests need the right to create cgroups, as root has.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use mainstay_hold::cgroup;
use mainstay_hold::launch::{Failure, Report};
use mainstay_hold::wire::ToShim;
use mainstay_testkit::cgroup::{TestCgroup, cgroup_of};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Bench, SHIM, Shim, eventually, wait_for_exit};

/// A user who is not root.
const USER: u32 = 64_322;

const LIMIT: Duration = Duration::from_secs(10);

/// A process that escapes: another session, another parent, no environment. It has another pid every few
/// milliseconds, and writes each of them to a file until that is removed.
const RUNNER: &str = r#"
    f() { [ -e "$1" ] || exit 0; echo beat >> "$1"; sleep 0.01; f "$1" & exit 0; }
    f "$1"
"#;

fn delegated(mut bench: Bench) -> (TestCgroup, Bench) {
    let cgroup = TestCgroup::delegated();
    bench.cgroup = Some(cgroup.path().to_owned());
    (cgroup, bench)
}

/// A server from which a process escapes, with the file that the process writes to.
fn loose() -> (TestCgroup, Shim, std::path::PathBuf) {
    let (cgroup, mut bench) = delegated(Bench::script(
        r#"(setsid env -i /bin/sh -c "$RUNNER" sh "$BEATS" &); echo ready; exec cat"#,
    ));
    let beats = bench.launch.cwd.join("beats");
    fs::write(&beats, "").unwrap();
    bench.launch.env.push(("RUNNER".into(), RUNNER.into()));
    bench.launch.env.push(("BEATS".into(), beats.clone().into()));
    let shim = bench.start();
    shim.attach(1).expect_output("ready\n");
    eventually("it has escaped", || size(&beats) > 20);
    (cgroup, shim, beats)
}

fn size(file: &Path) -> u64 {
    fs::metadata(file).unwrap().len()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[track_caller]
fn is_over(cgroup: &TestCgroup, beats: &Path) {
    assert_eq!(cgroup.children(), <[&str; 0]>::default(), "a cgroup is left");
    let before = size(beats);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(size(beats), before, "what escaped is alive");
}

#[test]
fn a_server_is_in_a_cgroup_of_its_own() {
    let (cgroup, bench) = delegated(Bench::script("ls /proc/self/fd; exec cat"));
    let mut shim = bench.start();
    let mut client = shim.attach(1);
    // The fourth is the directory that `ls` reads.
    client.expect_output("0\n1\n2\n3\n");
    let [name] = cgroup.children().try_into().unwrap();
    assert!(name.starts_with("mainstay-"), "{name}");
    let outside = cgroup_of(shim.process().pid);
    assert!(outside.ends_with(cgroup.path().file_name().unwrap().to_str().unwrap()), "{outside}");
    assert_eq!(cgroup_of(shim.child.id()), outside, "the guard stays outside, too");
    assert_eq!(cgroup_of(shim.server_pid), format!("{outside}/{name}"));
    client.send(&ToShim::Kill);
    let (_, _, signal, _) = client.exited();
    assert_eq!(signal, Some(9));
    client.gone();
    assert_eq!(cgroup.children(), <[&str; 0]>::default(), "it is removed before `Gone`");
    client.send(&ToShim::Dismiss);
    assert!(shim.ended().success());
    assert!(!shim.dir().join(cgroup::CGROUP).exists());
}

#[test]
fn an_orderly_end_leaves_the_server_its_grace() {
    let script = "mkdir \"$(echo $CGROUP/mainstay-*)/own\"
        trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let (cgroup, mut bench) = delegated(Bench::script(script));
    bench.launch.env.push(("CGROUP".into(), cgroup.path().into()));
    let shim = bench.start();
    let mut client = shim.attach(1);
    client.expect_output("ready\n");
    client.send(&ToShim::End { grace_ms: 600_000 });
    let (output, code, ..) = client.exited();
    assert_eq!((output.as_slice(), code), (&b"bye\n"[..], Some(7)));
    client.gone();
    assert_eq!(cgroup.children(), <[&str; 0]>::default(), "with the one that the server created");
}

#[test]
fn escaped_processes_end_with_the_run() {
    let (cgroup, shim, beats) = loose();
    let mut client = shim.attach(1);
    client.send(&ToShim::End { grace_ms: 100 });
    client.exited();
    client.gone();
    is_over(&cgroup, &beats);
}

#[test]
fn the_guard_ends_the_cgroup_of_a_killed_shim() {
    let (cgroup, mut shim, beats) = loose();
    kill(shim.process().pid);
    shim.exit_status();
    is_over(&cgroup, &beats);
}

#[test]
fn the_record_ends_the_cgroup_if_shim_and_guard_were_killed() {
    let (cgroup, shim, beats) = loose();
    let (shim_pid, guard) = (shim.process().pid, shim.child.id());
    kill(guard);
    kill(shim_pid);
    wait_for_exit(shim_pid);
    let before = size(&beats);
    eventually("it has survived", || size(&beats) > before);
    assert!(cgroup::end_recorded(shim.dir(), LIMIT).unwrap(), "there was something to kill");
    is_over(&cgroup, &beats);
    assert!(!cgroup::end_recorded(shim.dir(), LIMIT).unwrap(), "it is gone");
}

#[test]
fn a_shim_ends_the_cgroup_that_another_left_in_its_directory() {
    let (cgroup, shim, beats) = loose();
    let (shim_pid, guard) = (shim.process().pid, shim.child.id());
    kill(guard);
    kill(shim_pid);
    wait_for_exit(shim_pid);
    let mut next = Bench::script("exec cat");
    next.set_dir(shim.dir().to_owned());
    let _next = next.start();
    is_over(&cgroup, &beats);
}

#[test]
fn a_second_shim_does_not_harm_the_first() {
    let (cgroup, shim, beats) = loose();
    let (mut second, report) = shim.bench.try_start(&shim.bench.launch.encode());
    assert!(matches!(report, Report::Failed { what: Failure::Setup, .. }), "{report:?}");
    second.wait().unwrap();
    assert_eq!(cgroup.children().len(), 1);
    let before = size(&beats);
    eventually("it lives", || size(&beats) > before);
}

#[test]
fn a_server_that_does_not_start_leaves_no_cgroup() {
    let (cgroup, bench) = delegated(Bench::program("/no/such/program", &[]));
    let (mut child, report) = bench.try_start(&bench.launch.encode());
    assert!(matches!(report, Report::Failed { .. }), "{report:?}");
    child.wait().unwrap();
    assert_eq!(cgroup.children(), <[&str; 0]>::default());
}

/// Runs a server, and returns how many cgroups there were meanwhile.
fn count_cgroups(cgroup: &TestCgroup, command: Command, bench: Bench) -> usize {
    let (child, report) = bench.try_start_by(command, &bench.launch.encode());
    let Report::Started { server_pid } = report else { panic!("{report:?}") };
    let mut shim = Shim { bench, child, server_pid };
    let mut client = shim.attach(1);
    client.write(1, "still here\n");
    client.expect_output("still here\n");
    let count = cgroup.children().len();
    client.send(&ToShim::Kill);
    client.exited();
    client.gone();
    client.send(&ToShim::Dismiss);
    shim.exit_status();
    assert_eq!(cgroup.children(), <[&str; 0]>::default());
    count
}

#[test]
fn no_cgroup_is_created_where_none_was_delegated() {
    let cgroup = TestCgroup::undelegated();
    let mut bench = Bench::script("exec cat");
    bench.cgroup = Some(cgroup.path().to_owned());
    assert_eq!(count_cgroups(&cgroup, Command::new(SHIM), bench), 0);
}

#[test]
fn a_mark_on_an_ancestor_does_not_delegate() {
    let (cgroup, mut bench) = delegated(Bench::script("exec cat"));
    let scope = cgroup.path().join("scope");
    std::fs::create_dir(&scope).unwrap();
    bench.cgroup = Some(scope.clone());
    let (child, report) = bench.try_start(&bench.launch.encode());
    let Report::Started { server_pid } = report else { panic!("{report:?}") };
    let _shim = Shim { bench, child, server_pid };
    assert!(cgroup_of(server_pid).ends_with("/scope"), "{}", cgroup_of(server_pid));
}

#[test]
fn no_cgroup_is_created_beyond_the_limit() {
    let (cgroup, bench) = delegated(Bench::script("exec cat"));
    fs::write(cgroup.path().join("cgroup.max.descendants"), "0").unwrap();
    assert_eq!(count_cgroups(&cgroup, Command::new(SHIM), bench), 0);
}

/// The shim of a user, in a cgroup that belongs to the same user or to root.
fn count_cgroups_of_user(owner: u32) -> usize {
    let (cgroup, bench) = delegated(Bench::script("exec cat"));
    for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
        chown(cgroup.path().join(file), Some(owner), Some(owner)).unwrap();
    }
    let copy = bench.launch.cwd.join("shim");
    fs::copy(SHIM, &copy).unwrap();
    for path in [&bench.launch.cwd, &bench.dir] {
        chown(path, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let mut command = Command::new(copy);
    command.uid(USER).gid(USER);
    count_cgroups(&cgroup, command, bench)
}

#[test]
fn without_root_a_delegated_cgroup_is_needed() {
    assert_eq!(count_cgroups_of_user(USER), 1);
    assert_eq!(count_cgroups_of_user(0), 0);
}

//! Starting, and failing to start.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mainstay_hold::launch::{Failure, Report, Stdout};
use mainstay_hold::tree::Process;
use mainstay_hold::wire::ToShim;
use mainstay_hold::{process_record, record, socket};

use crate::support::{Bench, Client, SHIM, Shim, eventually, wait_for_exit};

fn shim_pid(dir: &Path) -> Option<u32> {
    record::shim_alive(dir).unwrap().map(|process| process.pid)
}

fn check_failure(bench: &Bench, launch: &[u8], expected: Failure, errno: i32) {
    let (mut child, report) = bench.try_start(launch);
    assert!(!child.wait().unwrap().success());
    let Report::Failed { what, errno: got, message } = report else { panic!("{report:?}") };
    assert_eq!((what, got), (expected, errno), "{message}");
    assert!(!message.is_empty());
    assert_eq!(fs::read_dir(&bench.dir).unwrap().count(), 0, "something is left behind");
}

fn file(bench: &Bench, mode: u32, text: &str) -> String {
    let path = bench.launch.cwd.join("file");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn failures_are_distinguished() {
    const ENOENT: i32 = 2;
    const EACCES: i32 = 13;
    const ENOTDIR: i32 = 20;

    let check = |bench: &Bench, expected, errno| {
        check_failure(bench, &bench.launch.encode(), expected, errno);
    };
    check(&Bench::program("no-such-program", &[]), Failure::ProgramNotFound, ENOENT);
    check(&Bench::program("/no/such/program", &[]), Failure::ProgramNotFound, ENOENT);

    let mut bench = Bench::script("cat");
    bench.launch.cwd.push("missing");
    check(&bench, Failure::Cwd, ENOENT);

    let mut bench = Bench::script("cat");
    bench.launch.cwd = file(&bench, 0o755, "").into();
    check(&bench, Failure::Cwd, ENOTDIR);

    let mut bench = Bench::script("cat");
    bench.launch.program = file(&bench, 0o644, "#!/bin/sh\n").into();
    check(&bench, Failure::NotExecutable, EACCES);

    let mut bench = Bench::script("cat");
    bench.launch.program = file(&bench, 0o755, "#!/no/such/interpreter\n").into();
    check(&bench, Failure::NotExecutable, ENOENT);

    check_failure(&Bench::script("cat"), b"not a launch at all", Failure::BadLaunch, 0);
    check_failure(&Bench::script("cat"), b"", Failure::BadLaunch, 0);
}

#[test]
fn a_run_directory_has_one_shim() {
    let shim = Bench::script("cat").start();
    let (mut child, report) = shim.bench.try_start(&shim.bench.launch.encode());
    assert!(!child.wait().unwrap().success());
    assert!(matches!(report, Report::Failed { what: Failure::Setup, .. }), "{report:?}");
    assert_eq!(shim_pid(shim.dir()), Some(shim.process().pid));
    assert_eq!(shim.connect().hello().server_pid, shim.server_pid);
}

#[test]
fn the_server_gets_its_directory_and_exactly_its_environment() {
    let mut bench = Bench::script("pwd; exec env");
    bench.launch.env.push(("HOLD_B".into(), "a b=c".into()));
    let shim = bench.start();
    let (output, code, ..) = shim.attach(1).exited();
    assert_eq!(code, Some(0));
    let output = String::from_utf8(output).unwrap();
    let mut lines = output.lines();
    assert_eq!(lines.next(), shim.bench.launch.cwd.to_str());
    // The shell adds some of its own; nothing else may be there.
    let mut seen: Vec<&str> = lines
        .filter(|line| !["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|own| line.starts_with(own)))
        .collect();
    seen.sort_unstable();
    let mut given: Vec<String> = shim
        .bench
        .launch
        .env
        .iter()
        .map(|(name, value)| format!("{}={}", name.display(), value.display()))
        .collect();
    given.sort_unstable();
    assert_eq!(seen, given);
}

#[test]
fn the_hello_has_the_pids_of_shim_and_server() {
    let shim = Bench::script("cat").start();
    let hello = shim.connect().hello();
    assert_eq!((hello.shim_pid, hello.server_pid), (shim.process().pid, shim.server_pid));
    assert_eq!((hello.out_start, hello.out_end, hello.written, hello.exited), (0, 0, 0, false));
    assert_eq!(shim_pid(shim.dir()), Some(shim.process().pid));
    let socket = fs::metadata(shim.dir().join("shim.sock")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_long_path_works() {
    let mut bench = Bench::script("cat");
    let dir = bench.dir.join("d".repeat(150)).join("e".repeat(150));
    fs::create_dir_all(&dir).unwrap();
    bench.set_dir(dir);
    let mut shim = bench.start();
    let mut client = shim.attach(1);
    client.write(1, "hello\n");
    client.expect_output("hello\n");
    client.send(&ToShim::Kill);
    client.exited();
    client.gone();
    assert_eq!(record::read(shim.dir()).unwrap().unwrap().signal, Some(9));
    client.send(&ToShim::Dismiss);
    assert!(shim.ended().success());
}

#[test]
fn the_server_dies_with_a_killed_shim() {
    let mut shim = Bench::program("sleep", &["1000"]).start();
    shim.process().kill().unwrap();
    wait_for_exit(shim.server_pid);
    shim.child.wait().unwrap();
    assert_eq!(record::shim_alive(shim.dir()).unwrap(), None);
    assert_eq!(record::read(shim.dir()).unwrap(), None);
}

/// Starts a process that is not a child of the server, in a session of its own, without an environment.
const ESCAPE: &str = "(setsid env -i sleep 600 & ) & wait; exec cat";

/// The recorded processes, once there are this many.
fn recorded(dir: &Path, count: usize) -> BTreeSet<Process> {
    eventually("all processes are on record", || process_record::read(dir).unwrap().len() == count);
    process_record::read(dir).unwrap().into_iter().collect()
}

/// A shim whose server lets a process escape, and that process.
fn escaped() -> (Shim, Process) {
    let shim = Bench::script(ESCAPE).start();
    // The shells that started it may be recorded as well.
    let is_it = |process: &Process| {
        let command = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        command.starts_with(b"sleep")
    };
    let find = || process_record::read(shim.dir()).unwrap().into_iter().find(is_it);
    eventually("what escaped is on record", || find().is_some());
    let escaped = find().expect("it was just there");
    (shim, escaped)
}

#[test]
fn the_guard_kills_processes_that_escaped_a_killed_shim() {
    let (mut shim, escaped) = escaped();
    let dir = shim.dir().to_owned();
    assert_eq!(record::guard_alive(&dir).unwrap().unwrap().pid, shim.child.id());
    shim.process().kill().unwrap();
    shim.child.wait().unwrap();
    assert_eq!(record::guard_alive(&dir).unwrap(), None);
    assert!(!escaped.is_alive(), "it outlived the guard");
}

#[test]
fn escaped_processes_are_recorded_if_shim_and_guard_are_killed() {
    let (mut shim, escaped) = escaped();
    let process = shim.process();
    shim.child.kill().unwrap();
    shim.child.wait().unwrap();
    shim.introduce(1).round_trip();
    process.kill().unwrap();
    wait_for_exit(process.pid);
    assert!(escaped.is_alive());
    let known: BTreeSet<Process> = process_record::read(shim.dir()).unwrap().into_iter().collect();
    eventually("nothing is left", || process_record::kill(&mut known.clone()).unwrap().is_empty());
    assert!(known.iter().all(|process| !process.is_alive()));
}

#[test]
fn a_removed_run_directory_is_restored_on_request() {
    let shim = Bench::script("cat").start();
    let mut client = shim.introduce(1);
    client.round_trip();
    for removed in ["", socket::SHIM, record::PID] {
        let path = shim.dir().join(removed);
        if removed.is_empty() {
            fs::remove_dir_all(shim.dir()).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        client.send(&ToShim::Restore);
        client.round_trip();
        let whole = ["guard.pid", "processes", "shim.pid", "shim.sock"];
        assert_eq!(contents(shim.dir()), whole, "without {removed}");
        shim.introduce(1).round_trip();
    }
    let untouched = fs::symlink_metadata(shim.dir().join(socket::SHIM)).unwrap().ino();
    client.send(&ToShim::Restore);
    client.round_trip();
    let same = fs::symlink_metadata(shim.dir().join(socket::SHIM)).unwrap().ino();
    assert_eq!(same, untouched, "an intact one stays as it is");
}

#[test]
fn a_removed_run_directory_is_restored_for_the_next_daemon() {
    let shim = Bench::script("cat").start();
    let mut client = shim.introduce(1);
    client.round_trip();
    fs::remove_dir_all(shim.dir()).unwrap();
    client.round_trip();
    drop(client);
    eventually("it can be found", || shim.dir().join(socket::SHIM).exists());
    shim.introduce(2).round_trip();
}

#[test]
fn a_run_that_no_daemon_can_find_any_more_ends_with_the_last_connection() {
    let mut shim = Bench::script("cat").start();
    let mut client = shim.introduce(1);
    client.round_trip();
    fs::remove_dir_all(shim.dir()).unwrap();
    fs::write(shim.dir(), "no directory").unwrap();
    client.round_trip();
    drop(client);
    wait_for_exit(shim.server_pid);
    shim.exit_status();
}

/// The names in a directory.
fn contents(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_process_that_a_quiet_server_starts_later_is_recorded_when_it_is_used() {
    let shim = Bench::script("read line; (setsid env -i sleep 600 & ) & wait; echo done; exec cat")
        .start();
    recorded(shim.dir(), 1);
    let mut client = shim.attach(1);
    client.write(1, "go\n");
    client.expect_output("done\n");
    for process in recorded(shim.dir(), 2) {
        drop(process.kill());
    }
}

/// Socket and pid link as another shim would leave them.
fn pretend_another_shim(dir: &Path) {
    for name in [socket::SHIM, record::PID] {
        let _none = fs::remove_file(dir.join(name));
    }
    fs::write(dir.join(socket::SHIM), "").unwrap();
    symlink("4711 1 another", dir.join(record::PID)).unwrap();
}

/// Lets a shim end after its directory was changed, and returns what is left in it.
fn left_after(change: impl FnOnce(&Path)) -> Vec<String> {
    let mut shim = Bench::script("cat").start();
    let mut client = shim.introduce(1);
    change(shim.dir());
    client.send(&ToShim::Dismiss);
    client.send(&ToShim::Kill);
    client.exited();
    client.gone();
    assert!(shim.exit_status().success());
    contents(shim.dir())
}

#[test]
fn files_of_the_next_shim_are_left_alone() {
    let same_directory = left_after(pretend_another_shim);
    assert_eq!(same_directory, ["exit", "guard.pid", "processes", "shim.pid", "shim.sock"]);
    let recreated = left_after(|dir| {
        fs::remove_dir_all(dir).unwrap();
        fs::create_dir(dir).unwrap();
        pretend_another_shim(dir);
    });
    assert_eq!(recreated, ["shim.pid", "shim.sock"], "the record of the old run is not of the new");
}

#[test]
fn connections_are_bounded() {
    let shim = Bench::script("cat").start();
    let mut clients: Vec<Client> = (0..16).map(|_| shim.introduce(1)).collect();
    let mut one_more = shim.connect();
    one_more.hello();
    assert!(one_more.refused().contains("too many"));
    clients.pop();
    clients[0].round_trip();
    shim.connect().hello();
}

#[test]
fn garbage_closes_only_its_connection() {
    let shim = Bench::script("cat").start();
    let mut client = shim.attach(1);
    let mut vandal = shim.connect();
    vandal.hello();
    vandal.send_bytes(&[0xff; 100]);
    assert!(vandal.refused().contains("too long"));
    client.write(1, "hello\n");
    client.expect_output("hello\n");
}

#[test]
fn stdout_of_an_http_server_goes_to_the_log() {
    let mut bench = Bench::script("echo out; echo err >&2; exit 4");
    bench.launch.stdout = Stdout::Log;
    let shim = bench.start();
    let mut client = shim.attach(1);
    let (output, code, _, tail) = client.exited();
    assert_eq!((output.len(), code), (0, Some(4)));
    assert!(tail.contains("out\n") && tail.contains("err\n"), "{tail}");
    client.gone();
    let log = shim.bench.log();
    assert!(log.contains("out\n") && log.contains("err\n"), "{log}");
}

/// As in a container, where the session is often led by a process outside.
#[test]
fn a_session_with_a_leader_in_another_namespace_is_left() {
    let mut bench = Bench::script("exit 0");
    // `unshare` keeps its end of the report's pipe until the shim has ended.
    bench.launch.linger = Duration::ZERO;
    let mut namespace = Command::new("/usr/bin/unshare");
    namespace.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        namespace.args(["--user", "--map-root-user"]);
    }
    namespace.arg(SHIM);
    let (mut child, report) = bench.try_start_by(namespace, &bench.launch.encode());
    assert!(matches!(report, Report::Started { .. }), "{report:?}");
    assert!(child.wait().unwrap().success());
}

/// The daemon leaked a descriptor without close-on-exec.
#[test]
fn a_leaked_descriptor_reaches_neither_shim_nor_server() {
    let leaked = rustix::io::dup(fs::File::open("/dev/zero").unwrap()).unwrap();
    let shim = Bench::script("echo up >&2; read line").start();
    drop(leaked);
    // A program that is still being loaded has its libraries open.
    eventually("the program of the server runs", || shim.bench.log().contains("up\n"));
    let open = |pid: u32| {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(Result::unwrap);
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    };
    let of_shim = open(shim.process().pid);
    assert!(!of_shim.iter().any(|target| target == Path::new("/dev/zero")), "{of_shim:?}");
    let of_server = open(shim.server_pid);
    assert_eq!(of_server.len(), 3, "{of_server:?}");
}

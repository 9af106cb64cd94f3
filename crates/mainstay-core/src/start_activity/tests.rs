//! From evidence to words.

use super::command::{short_name, tool};
use super::*;

const INTERVAL: Duration = Duration::from_secs(5);

fn command(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A process that has done nothing; the first one is the server's own.
fn process(pid: u32, parent: u32, text: &str) -> StartProcess {
    StartProcess { pid, parent, command: command(text), ..StartProcess::default() }
}

/// A process that has run since the last observation.
fn runs(mut process: StartProcess) -> StartProcess {
    process.switches = 7;
    process
}

/// What is said after two observations of a start: first of idle processes, then of these.
#[expect(clippy::disallowed_methods, reason = "virtual time needs some origin")]
fn observed(input: StartInput, processes: Vec<StartProcess>) -> (StartKind, String) {
    let start = Instant::now();
    let mut watch = StartWatch::new(start);
    let idle = |it: &StartProcess| process(it.pid, it.parent, &it.command.join(" "));
    let first = StartEvidence { input, processes: processes.iter().map(idle).collect() };
    watch.observe(start + INTERVAL, &first);
    let now = start + 2 * INTERVAL;
    let activity = watch.observe(now, &StartEvidence { input, processes }).unwrap();
    (activity.kind, activity.describe(now).to_string())
}

#[track_caller]
fn check(input: StartInput, processes: Vec<StartProcess>, kind: StartKind, text: &str) {
    assert_eq!(observed(input, processes), (kind, text.to_owned()));
}

const UNREAD: StartInput = StartInput::Unread(154);

#[test]
fn a_child_that_does_nothing_is_named() {
    let tree = vec![process(1, 0, "sh -c x"), process(2, 1, "sleep 600")];
    check(
        UNREAD,
        tree.clone(),
        StartKind::WaitingForChild,
        "its child `sleep` is running, and no thread has run for 5 s; it has not read `initialize` (154 bytes unread)",
    );
    // A launcher, such as `npx`, has the server as its child.
    check(
        StartInput::Read,
        tree,
        StartKind::NotAnswering,
        "it has read `initialize`, but does not answer, and no thread ran for 5 s",
    );
}

#[test]
fn a_download_needs_a_connection_and_a_process_that_runs() {
    let tree = |npm: StartProcess| vec![process(1, 0, "sh -c x"), npm];
    let npm = || process(2, 1, "npm install --token=secret");
    let connected = || StartProcess { connections: 2, ..npm() };
    check(
        UNREAD,
        tree(runs(connected())),
        StartKind::Downloading,
        "its child `npm install` is downloading (2 connections)",
    );
    check(
        UNREAD,
        tree(runs(npm())),
        StartKind::WaitingForChild,
        "its child `npm install` is running; it has not read `initialize` (154 bytes unread)",
    );
    let (kind, text) = observed(UNREAD, tree(connected()));
    assert_eq!(kind, StartKind::WaitingForChild, "{text}");
    let uvx = StartProcess { connections: 1, ..process(1, 0, "/usr/bin/uvx server") };
    check(UNREAD, vec![runs(uvx)], StartKind::Downloading, "it is downloading (1 connection)");
}

#[test]
fn a_compiler_and_work_are_told_apart() {
    let busy = |process: StartProcess| StartProcess { cpu: INTERVAL, ..runs(process) };
    let tree = |leaf: StartProcess| vec![process(1, 0, "npm exec x"), leaf];
    let rustc = busy(process(2, 1, "/usr/bin/rustc --crate-name x"));
    check(UNREAD, tree(rustc), StartKind::Compiling, "its child `rustc` is compiling");
    check(
        UNREAD,
        tree(busy(process(2, 1, "python3 /x/setup.py"))),
        StartKind::Working,
        "its child `setup.py` is working; it has not read `initialize` (154 bytes unread)",
    );
    check(
        StartInput::Read,
        vec![busy(process(1, 0, "server"))],
        StartKind::Working,
        "it is working; it has read `initialize`",
    );
    // It wakes up now and then.
    let timer = StartProcess { cpu: Duration::from_millis(20), ..runs(process(1, 0, "server")) };
    check(
        UNREAD,
        vec![timer],
        StartKind::NotReading,
        "it has not read `initialize` (154 bytes unread)",
    );
    let disk = StartProcess { waits_for_disk: true, ..process(1, 0, "server") };
    assert_eq!(observed(UNREAD, vec![disk]).0, StartKind::Working);
}

#[test]
fn a_file_lock_and_a_stopped_process_are_named() {
    let locked = |pid, parent| StartProcess {
        waits_for: Some(WaitsFor::Lock),
        ..process(pid, parent, "uv tool run")
    };
    check(
        UNREAD,
        vec![locked(1, 0)],
        StartKind::WaitingForLock,
        "it waits for a file lock that another process has",
    );
    check(
        UNREAD,
        vec![process(1, 0, "sh -c x"), locked(2, 1)],
        StartKind::WaitingForLock,
        "its child `uv tool` waits for a file lock that another process has",
    );
    let stopped = |pid, parent| StartProcess {
        is_suspended: true,
        waits_for: Some(WaitsFor::Lock),
        ..process(pid, parent, "server")
    };
    check(
        UNREAD,
        vec![stopped(1, 0)],
        StartKind::Suspended,
        "its process is stopped (SIGSTOP or a debugger)",
    );
    check(
        UNREAD,
        vec![process(1, 0, "sh -c x"), stopped(2, 1)],
        StartKind::Suspended,
        "its child `server` is stopped (SIGSTOP or a debugger)",
    );
}

#[test]
fn what_it_has_read_is_named() {
    let waits = |waits_for| StartProcess { waits_for, ..process(1, 0, "server") };
    check(
        UNREAD,
        vec![waits(Some(WaitsFor::Thread))],
        StartKind::NotReading,
        "it has not read `initialize` (154 bytes unread), and none of its threads ran for 5 s; it waits for another thread",
    );
    check(
        StartInput::Read,
        vec![waits(Some(WaitsFor::Network))],
        StartKind::NotAnswering,
        "it has read `initialize`, but does not answer, and no thread ran for 5 s; it waits for the network",
    );
    check(
        StartInput::Unknown,
        vec![waits(None)],
        StartKind::Running,
        "none of its threads ran for 5 s",
    );
    let (kind, text) = observed(StartInput::Unknown, vec![runs(waits(None))]);
    assert_eq!((kind, text.as_str()), (StartKind::Running, "its process is running"));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "virtual time needs some origin")]
fn nothing_is_said_without_processes_and_time_adds_up() {
    let start = Instant::now();
    let mut watch = StartWatch::new(start);
    assert_eq!(watch.observe(start + INTERVAL, &StartEvidence::default()), None);
    let processes = vec![process(1, 0, "server")];
    let evidence = StartEvidence { input: UNREAD, processes };
    // Nothing is known about threads before the second observation.
    let first = watch.observe(start + INTERVAL, &evidence).unwrap();
    assert_eq!(first.quiet_since, None);
    for n in 2..10 {
        watch.observe(start + n * INTERVAL, &evidence);
    }
    let last = watch.observe(start + 10 * INTERVAL, &evidence).unwrap();
    assert_eq!(last.quiet_since, Some(start + INTERVAL));
}

#[test]
fn a_huge_tree_is_cut() {
    let count = u32::try_from(10 * MAX_PROCESSES).unwrap();
    let tree = (1..=count).map(|pid| process(pid, pid - 1, "fork")).collect();
    assert_eq!(observed(UNREAD, tree).0, StartKind::WaitingForChild);
}

#[test]
fn commands_are_named_without_arguments() {
    for (text, name) in [
        ("npm install", "npm install"),
        ("/usr/bin/npm --prefix x", "npm"),
        ("node /usr/lib/node_modules/npm/bin/npm-cli.js install", "npm install"),
        ("python3.12 -m pip install x", "pip install"),
        ("python3 -u server.py", "python3"),
        ("python /srv/server.py --key=secret", "server.py"),
        ("sh -c secret", "sh"),
        ("git clone https://token@host/x", "git clone"),
        ("curl https://user:secret@host", "curl"),
        ("server secret", "server"),
        ("git SECRET", "git"),
        ("", ""),
    ] {
        assert_eq!(short_name(&command(text)), name, "{text}");
    }
    // npm writes its title into one word.
    assert_eq!(short_name(&["npm exec @x/server".to_owned()]), "npm exec");
    assert_eq!(tool(&["npm exec @x/server".to_owned()]), Some(Tool::Downloads));
    assert_eq!(short_name(&[]), "?");
}

//! How runs end, and what is left of them.

use std::fs;
use std::time::Duration;

use mainstay_hold::limits::LINGER;
use mainstay_hold::record;
use mainstay_hold::tree;
use mainstay_hold::wire::ToShim;

use crate::support::{Bench, Client, Shim, eventually, wait_for_exit};

/// Children in sessions of their own, an orphan among them, before the server serves.
const FAMILY: &str = "setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &); echo ready;";

fn check_exit(script: &str, code: Option<i32>, signal: Option<i32>) {
    let mut shim = Bench::script(script).start();
    let mut client = shim.attach(1);
    let (output, got_code, got_signal, tail) = client.exited();
    assert_eq!((got_code, got_signal), (code, signal), "{script}");
    assert_eq!((output.as_slice(), tail.as_str()), (&b"out\n"[..], "err\n"));
    client.gone();
    let record = record::read(shim.dir()).unwrap().unwrap();
    assert_eq!((record.code, record.signal, record.survivors), (code, signal, 0));
    assert_eq!(record.stderr_tail, b"err\n");
    client.send(&ToShim::Dismiss);
    assert!(shim.ended().success());
}

#[test]
fn exit_code_and_signal_are_reported() {
    check_exit("echo out; echo err >&2; exit 0", Some(0), None);
    check_exit("echo out; echo err >&2; exit 42", Some(42), None);
    check_exit("echo out; echo err >&2; kill -TERM $$", None, Some(15));
    check_exit("echo out; echo err >&2; kill -KILL $$", None, Some(9));
}

#[test]
fn a_server_that_exits_leaves_no_descendant() {
    let shim = Bench::script(&format!("{FAMILY} read line; exit 3")).start();
    let mut client = shim.attach(1);
    client.expect_output("ready\n");
    eventually("the family is there", || shim.bench.processes().len() >= 4);
    client.write(1, "go\n");
    let (_, code, ..) = client.exited();
    assert_eq!(code, Some(3));
    client.gone();
    assert_eq!(shim.bench.processes(), []);
    assert!(tree::living_descendants(shim.process().pid).unwrap().is_empty());
}

#[test]
fn ending_a_run_ends_the_whole_tree() {
    let shim = Bench::script(&format!("{FAMILY} exec cat")).start();
    let mut client = shim.attach(1);
    client.expect_output("ready\n");
    eventually("the family is there", || shim.bench.processes().len() >= 4);
    client.send(&ToShim::End { grace_ms: 600_000 });
    client.send(&ToShim::End { grace_ms: 600_000 });
    client.exited();
    client.gone();
    assert_eq!(shim.bench.processes(), []);
    assert!(tree::living_descendants(shim.process().pid).unwrap().is_empty());
}

#[test]
fn a_server_that_ignores_the_request_is_killed_after_the_grace() {
    let shim = Bench::script("trap '' TERM; echo ready; while :; do sleep 1000; done").start();
    let mut client = shim.attach(1);
    client.expect_output("ready\n");
    client.send(&ToShim::End { grace_ms: 600_000 });
    client.send(&ToShim::End { grace_ms: 50 });
    let (_, code, signal, _) = client.exited();
    assert_eq!((code, signal), (None, Some(9)));
    client.gone();
    assert_eq!(shim.bench.processes(), []);
}

#[test]
fn a_server_may_use_its_grace() {
    let script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let shim = Bench::script(script).start();
    let mut client = shim.attach(1);
    client.expect_output("ready\n");
    client.send(&ToShim::End { grace_ms: 600_000 });
    let (output, code, ..) = client.exited();
    assert_eq!((output.as_slice(), code), (&b"bye\n"[..], Some(7)));
}

#[test]
fn a_watcher_gets_the_end_and_may_dismiss_in_advance() {
    let mut shim = Bench::script("exec cat").start();
    let mut watcher = shim.introduce(1);
    watcher.send(&ToShim::Dismiss);
    let mut killer = shim.introduce(1);
    killer.send(&ToShim::Kill);
    let (_, _, signal, _) = watcher.exited();
    assert_eq!(signal, Some(9));
    watcher.gone();
    assert!(shim.ended().success());
}

/// A server that answers one line with this many bytes and exits, with its data connection.
fn last_answer(length: usize, linger: Duration) -> (Shim, Client) {
    let mut bench = Bench::script(&format!("read line; head -c {length} /dev/zero; exit 6"));
    bench.launch.linger = linger;
    let shim = bench.start();
    let mut data = shim.attach(1);
    data.write(1, "go\n");
    (shim, data)
}

#[test]
fn the_last_output_is_delivered_before_a_dismissed_shim_ends() {
    let (mut shim, mut slow) = last_answer(900_000, LINGER);
    let mut watcher = shim.introduce(1);
    let mut other = shim.introduce(1);
    watcher.send(&ToShim::Watch);
    watcher.exited();
    watcher.gone();
    watcher.send(&ToShim::Dismiss);
    drop(watcher);
    // The first answer may come in the same turn as the dismissal, the second one cannot.
    other.round_trip();
    other.round_trip();
    let (output, code, ..) = slow.exited();
    assert_eq!((output.len(), code), (900_000, Some(6)));
    slow.gone();
    assert!(shim.ended().success());
}

#[test]
fn a_dismissal_ends_with_the_daemon_that_gave_it() {
    let (shim, _slow) = last_answer(900_000, LINGER);
    let mut watcher = shim.introduce(1);
    watcher.send(&ToShim::Dismiss);
    watcher.exited();
    watcher.gone();
    let mut next = shim.attach(2);
    let (output, code, ..) = next.exited();
    assert_eq!((output.len(), code), (900_000, Some(6)));
    next.gone();
    // It stays until it is dismissed again.
    next.round_trip();
    next.round_trip();
}

#[test]
fn a_dismissed_shim_waits_no_longer_than_it_lingers() {
    let (mut shim, _deaf) = last_answer(900_000, Duration::ZERO);
    let mut watcher = shim.introduce(1);
    watcher.send(&ToShim::Dismiss);
    watcher.exited();
    watcher.gone();
    assert!(shim.ended().success());
}

#[test]
fn a_dismissed_shim_does_not_wait_for_a_data_connection_that_has_ended() {
    let (mut shim, data) = last_answer(900_000, LINGER);
    let mut watcher = shim.introduce(1);
    watcher.send(&ToShim::Dismiss);
    watcher.exited();
    watcher.gone();
    drop(data);
    assert!(shim.ended().success());
}

#[test]
fn a_run_ends_without_a_daemon() {
    let mut bench = Bench::script("echo last words >&2; exit 9");
    bench.launch.linger = Duration::ZERO;
    let mut shim = bench.start();
    assert!(shim.ended().success());
    let record = record::read(shim.dir()).unwrap().unwrap();
    assert_eq!((record.code, record.signal, record.oom), (Some(9), None, false));
    assert_eq!(record.stderr_tail, b"last words\n");
    assert!(record.at_unix_ms > 0);
}

#[test]
fn undelivered_output_waits_for_the_next_daemon() {
    let shim = Bench::script("seq 1 20000; exit 0").start();
    wait_for_exit(shim.server_pid);
    eventually("the record is there", || record::read(shim.dir()).unwrap().is_some());
    let (mut client, hello) = shim.greet(1);
    assert!(hello.exited);
    client.send(&ToShim::Attach { from: 0 });
    let (output, code, ..) = client.exited();
    assert_eq!(code, Some(0));
    assert!(output.ends_with(b"\n19999\n20000\n"));
    client.gone();
}

#[test]
fn output_left_in_the_pipe_of_a_dead_server_is_delivered() {
    let mut bench = Bench::script("head -c 100000 /dev/zero; exit 0");
    bench.launch.output_ring = 40_000;
    let shim = bench.start();
    wait_for_exit(shim.server_pid);
    let mut client = shim.attach(1);
    let (output, code, ..) = client.exited();
    assert_eq!((output.len(), code), (100_000, Some(0)));
    client.gone();
}

#[test]
fn orphans_are_reaped_while_the_server_runs() {
    let shim = Bench::script("(sleep 1000 & echo $!); exec cat").start();
    let mut client = shim.attach(1);
    let mut text = Vec::new();
    while !text.ends_with(b"\n") {
        text.extend(client.output(1));
    }
    let orphan: u32 = String::from_utf8(text).unwrap().trim().parse().unwrap();
    let found = tree::living_descendants(shim.process().pid).unwrap();
    assert!(found.iter().any(|process| process.pid == orphan));
    let pid = rustix::process::Pid::from_raw(orphan.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("no zombie is left", || !fs::exists(format!("/proc/{orphan}")).unwrap());
    client.write(1, "still here\n");
    client.expect_output("still here\n");
}

#[test]
fn output_of_descendants_does_not_delay_the_end() {
    let shim = Bench::script("(trap '' TERM HUP; sleep 1000) & echo started; exit 2").start();
    let mut client = shim.attach(1);
    let (output, code, ..) = client.exited();
    assert_eq!((output.as_slice(), code), (&b"started\n"[..], Some(2)));
    client.gone();
    assert_eq!(shim.bench.processes(), []);
}

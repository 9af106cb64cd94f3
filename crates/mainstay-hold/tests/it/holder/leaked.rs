//! A copy of a daemon's socket has leaked to another process; a holder is cut off from its daemon.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use super::support::{Bench, Caller, kill};
use crate::support::{eventually, wait_for_exit};

/// `Ending` with request 1: the holder would close all listeners.
const ENDING: &str = "050100000000000000";

/// Half of a message.
const GARBAGE: &str = "08ff";

/// `Replace` by a program.
fn replace(exe: &Path) -> String {
    let exe = exe.to_str().unwrap().as_bytes();
    let length = u32::try_from(exe.len()).unwrap().to_le_bytes();
    let bytes = [&[8][..], &length, exe, &[0]].concat();
    bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[test]
fn packets_of_another_process_with_the_daemons_socket_are_ignored() {
    let (bench, holder) = Bench::serving();
    let (_, daemon, _) = bench.who();
    let address = bench.address();
    let unwanted = bench.program("unwanted", "unwanted", "");
    let too_long = "00".repeat(40_000);
    for packet in [ENDING, GARBAGE, "", &replace(&unwanted), &too_long] {
        assert_eq!(bench.tell(&format!("leak {packet}")), "sent");
    }
    // The holder answers in order, so it has seen all of that.
    assert_eq!(bench.address(), address);
    assert_eq!(bench.who(), ("v1".into(), daemon, holder));
    assert!(!bench.log().iter().any(|line| line.starts_with("unwanted")), "{:?}", bench.log());

    // The daemon itself is obeyed.
    assert_eq!(bench.tell(&format!("send {}", replace(&unwanted))), "sent");
    bench.logged("unwanted ready");
}

/// In 0.1.0 the daemon took its holder for dead and started a second one.
#[test]
fn a_daemon_that_sends_garbage_is_replaced_and_starts_no_second_holder() {
    let (bench, holder) = Bench::serving();
    let (_, daemon, _) = bench.who();
    assert_eq!(bench.tell(&format!("send {GARBAGE}")), "sent");
    wait_for_exit(daemon);
    bench.logged_times("v1 ready", 2);
    let (_, next, same) = bench.who();
    assert_eq!(same, holder);
    assert_ne!(next, daemon);
    assert!(!bench.log().iter().any(|line| line.starts_with("v1 holder")), "{:?}", bench.log());
}

/// The holder cannot kill it, because it is stopped; the daemon must end by itself.
#[test]
fn a_daemon_that_is_disconnected_by_a_living_holder_ends() {
    let (bench, holder) = Bench::serving();
    let (_, daemon, _) = bench.who();
    kill(holder, Signal::STOP);
    assert_eq!(bench.tell("shut-down"), "done");
    bench.logged("v1 disconnected");
    kill(holder, Signal::CONT);
    wait_for_exit(daemon);
    bench.logged_times("v1 ready", 2);
    assert_eq!(bench.who().2, holder);
    assert!(!bench.log().iter().any(|line| line.starts_with("v1 holder")), "{:?}", bench.log());
}

#[test]
fn a_second_holder_is_refused_while_the_first_one_runs() {
    let (bench, holder) = Bench::serving();
    let address = bench.address();
    assert_eq!(bench.tell("second-holder"), "AddrInUse");
    assert_eq!(bench.who().2, holder);
    assert_eq!(bench.address(), address);
}

fn program_of(pid: u32) -> std::path::PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

#[test]
fn a_holder_executes_the_new_program_and_holds_what_it_held() {
    let (mut bench, holder) = Bench::serving();
    let address = bench.address();
    bench.tell("bind tcp 127.0.0.2:0");
    let before = program_of(holder);
    let installed = bench.path("new-holder");
    fs::copy(&before, &installed).unwrap();
    let caller = Caller::begin(address);
    bench.program("new", "new", "");
    assert_eq!(bench.tell(&format!("replace {}", bench.path("new").display())), "asked");
    bench.logged("new holder re-executed: Ok(())");
    assert_eq!(program_of(holder), installed);
    let (label, daemon, told) = bench.who();
    assert_eq!((&*label, told), ("new", holder), "its pid is the same");
    assert_eq!(bench.address(), address);
    let lock = fs::read_to_string(bench.path("state/lock")).unwrap();
    assert_eq!(lock.trim(), holder.to_string());
    bench.start("run");
    assert_eq!(bench.exit_code(), Some(10), "the instance stayed locked");

    // It still works: it reads the last output, reaps, restarts and ends.
    assert!(bench.try_tell("die").is_err());
    bench.logged_times("new ready", 2);
    let words = bench.logged("new words");
    assert!(words.contains("it exited with 7") && words.contains("I was told to"), "{words}");
    eventually("no zombie is left", || !Path::new(&format!("/proc/{daemon}")).exists());
    let calls = caller.end();
    assert_eq!(calls.refused, [], "{calls:?}");
    kill(holder, Signal::TERM);
    assert_eq!(bench.exit_code(), Some(0));
    assert!(bench.try_tell("who").is_err());
}

#[test]
fn a_holder_that_cannot_execute_the_new_program_continues() {
    let (bench, holder) = Bench::serving();
    let before = program_of(holder);
    fs::write(bench.path("new-holder"), "not a program").unwrap();
    bench.program("new", "new", "");
    assert_eq!(bench.tell(&format!("replace {}", bench.path("new").display())), "asked");
    let why = bench.logged("new holder re-executed");
    assert!(why.contains("Permission denied"), "{why}");
    assert_eq!(program_of(holder), before);
    assert!(bench.try_tell("die").is_err());
    bench.logged_times("new ready", 2);
    assert_eq!(bench.who().2, holder);
}

/// The new program exits instead of serving as a holder.
#[test]
fn a_holder_that_dies_as_the_new_program_is_replaced_by_its_daemon() {
    let (mut bench, holder) = Bench::serving();
    let address = bench.address();
    let installed = bench.path("new-holder");
    fs::copy("/bin/false", &installed).unwrap();
    bench.program("new", "new", "");
    assert_eq!(bench.tell(&format!("replace {}", bench.path("new").display())), "asked");
    bench.logged("new holder ");
    let (label, _, second) = bench.who();
    assert_eq!(label, "new");
    assert_ne!(second, holder);
    assert_eq!(bench.exit_code(), Some(1));
    assert_eq!(bench.address(), address);
}

//! One daemon after another.

use std::fs;
use std::path::Path;

use super::support::{Bench, Caller};
use crate::support::wait_for_exit;

/// A holder whose daemon asks for this successor, with a fallback if one is to be had.
fn ask(flaw: &str, fallback: bool) -> Bench {
    let (bench, _) = Bench::serving();
    ask_in(&bench, flaw, fallback);
    bench
}

fn ask_in(bench: &Bench, flaw: &str, fallback: bool) {
    let new = bench.program("new", "new", flaw);
    let kept = fallback.then(|| bench.program("kept", "kept", ""));
    let paths: Vec<_> =
        [Some(new), kept].into_iter().flatten().map(|path| path.display().to_string()).collect();
    assert_eq!(bench.tell(&format!("replace {}", paths.join(" "))), "asked");
}

fn is_script_of(path: &Path, label: &str) -> bool {
    fs::read_to_string(path).unwrap().contains(&format!("'{label}'"))
}

#[test]
fn a_good_successor_takes_over_without_a_gap() {
    let (bench, _) = Bench::serving();
    let address = bench.address();
    let (_, old, _) = bench.who();
    let caller = Caller::begin(address);
    ask_in(&bench, "", false);
    bench.logged("new ready");
    wait_for_exit(old);
    let calls = caller.end();
    assert_eq!((calls.refused.len(), calls.cut), (0, 0), "{calls:?}");
    assert_eq!(bench.address(), address);
    let log = bench.log();
    let position = |text: &str| log.iter().position(|line| line.starts_with(text)).unwrap();
    assert!(position("v1 yielded") > position("new up"), "{log:?}");
    assert!(log[position("new up")].ends_with("standby=true"), "{log:?}");

    assert!(bench.try_tell("die").is_err());
    bench.logged_times("new ready", 2);
}

#[test]
fn repeated_hand_overs_lose_no_connection() {
    let (bench, _) = Bench::serving();
    let address = bench.address();
    let caller = Caller::begin(address);
    bench.program("new", "new", "");
    for round in 1..=10 {
        let new = bench.path("new").display().to_string();
        assert_eq!(bench.tell(&format!("replace {new}")), "asked");
        bench.logged_times("new ready", round);
    }
    let calls = caller.end();
    assert_eq!((calls.refused.len(), calls.cut), (0, 0), "{calls:?}");
}

#[test]
fn the_death_of_a_standby_is_reported() {
    let bench = ask("dies in standby", true);
    let why = bench.logged("v1 not replaced");
    assert!(why.contains("it exited with 1: | new says: no standby"), "{why}");
    assert_eq!(bench.who().0, "v1");
    assert!(is_script_of(&bench.path("new"), "new"), "left to the command that asked");
}

#[test]
fn a_successor_that_cannot_be_started_is_reported() {
    let (bench, _) = Bench::serving();
    assert_eq!(bench.tell("replace /does/not/exist"), "asked");
    let why = bench.logged("v1 not replaced");
    assert!(why.contains("`/does/not/exist` cannot be started"), "{why}");
}

#[test]
fn a_successor_that_is_never_prepared_is_killed_in_time() {
    let bench = ask("never prepared", false);
    assert_eq!(bench.tell(&format!("replace {}", bench.path("v1").display())), "asked");
    let busy = bench.logged("v1 not replaced");
    assert!(busy.ends_with("another reload or update is in progress"), "{busy}");
    let why = bench.logged_times("v1 not replaced", 2).remove(1);
    assert!(why.contains("it was not prepared within 10 s"), "{why}");
    assert_eq!(bench.who().0, "v1");
}

#[test]
fn an_old_daemon_that_does_not_hand_over_is_killed() {
    let mut bench = Bench::new();
    fs::remove_file(bench.path("v1")).unwrap();
    bench.program("v1", "v1", "deaf");
    bench.start("run");
    bench.logged("first ready");
    ask_in(&bench, "", false);
    bench.logged("new ready");
    assert_eq!(bench.who().0, "new");
}

/// The holder dies after `HandOver` and before `Serve`.
#[test]
fn a_holder_that_dies_during_a_hand_over_leaves_a_serving_daemon() {
    let mut bench = Bench::new();
    fs::remove_file(bench.path("v1")).unwrap();
    bench.program("v1", "v1", "fells its holder");
    let first = bench.start("run");
    bench.logged("first ready");
    let address = bench.address();
    let (_, old, _) = bench.who();
    let caller = Caller::begin(address);
    ask_in(&bench, "", false);
    bench.logged("v1 holder");
    wait_for_exit(old);
    bench.logged_times("v1 ready", 2);
    let (label, next, holder) = bench.who();
    assert_eq!(label, "v1", "the successor went with its holder");
    assert!(next != old && holder != first);
    let calls = caller.end();
    assert_eq!(calls.refused, [], "{calls:?}");
    assert_eq!(bench.address(), address);
    let log = bench.log();
    assert!(!log.iter().any(|line| line.starts_with("new ready")), "{log:?}");
}

#[test]
fn a_failed_successor_is_rolled_back_to_the_fallback() {
    let bench = ask("dies", true);
    let why = bench.logged("kept replacement_failed");
    assert!(why.contains("it exited with 1: | new says: I die"), "{why}");
    bench.logged("kept ready");
    assert!(is_script_of(&bench.path("new"), "kept") && !bench.path("kept").exists());
    assert!(bench.try_tell("die").is_err());
    bench.logged_times("kept ready", 2);
}

#[test]
fn a_failed_successor_without_a_fallback_is_rolled_back_to_the_former_program() {
    let bench = ask("fails", false);
    let why = bench.logged("v1 replacement_failed");
    assert!(why.contains("no good"), "{why}");
    bench.logged_times("v1 ready", 2);
}

#[test]
fn a_successor_that_is_never_ready_is_rolled_back_in_time() {
    let bench = ask("never ready", true);
    let why = bench.logged("kept replacement_failed");
    assert!(why.contains("it was not ready within 10 s"), "{why}");
    bench.logged("kept ready");
}

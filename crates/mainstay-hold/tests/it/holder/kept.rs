//! Daemons die, listeners stay; holders die, daemons stay.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::support::{Bench, Caller, kill, kill_and_wait};
use crate::support::{eventually, wait_for_exit};

/// How long a daemon must serve for its death to be a first one.
const STABLE: Duration = Duration::from_secs(1);

#[test]
fn connections_are_not_refused_while_daemons_are_killed() {
    let (bench, holder) = Bench::serving();
    let address = bench.address();
    let caller = Caller::begin(address);
    let mut ready = 1;
    for _ in 0..5 {
        for _ in 0..4 {
            let (_, daemon, told) = bench.who();
            assert_eq!(told, holder);
            kill_and_wait(daemon);
            ready += 1;
            bench.logged_times("v1 ready", ready);
        }
        // The row of short lives is over when one has lasted.
        thread::sleep(STABLE);
    }
    let calls = caller.end();
    assert_eq!(calls.refused, [], "{calls:?}");
    assert!(calls.answered > 20, "{calls:?}");
    assert_eq!(bench.address(), address, "port 0 stays what it was");
    let words = bench.logged("v1 words");
    assert!(words.contains("it was killed by signal 9"), "{words}");
}

#[test]
fn a_connection_waits_for_the_next_daemon() {
    let (bench, _) = Bench::serving();
    let address = bench.address();
    let (_, daemon, _) = bench.who();
    kill(daemon, Signal::STOP);
    let stream = TcpStream::connect(address).unwrap();
    (&stream).write_all(b"who\n").unwrap();
    kill_and_wait(daemon);
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    let (_, next, _) = bench.who();
    assert!(answer.starts_with(&format!("v1 {next} ")), "{answer}");
}

#[test]
fn a_daemon_that_keeps_dying_is_started_until_it_lives() {
    let (bench, holder) = Bench::serving();
    let address = bench.address();
    fs::remove_file(bench.path("v1")).unwrap();
    bench.program("v1", "v1", "dies");
    assert!(bench.try_tell("die").is_err());
    bench.logged_times("v1 up", 6);
    let words = fs::read_to_string(bench.path("run/last-words")).unwrap();
    assert!(words.contains("it exited with 1") && words.contains("v1 says: I die"), "{words}");
    let waiting = TcpStream::connect(address).expect("the listener stays open");

    fs::remove_file(bench.path("v1")).unwrap();
    bench.program("v1", "v1", "");
    (&waiting).write_all(b"who\n").unwrap();
    let mut answer = String::new();
    BufReader::new(waiting).read_line(&mut answer).unwrap();
    let (_, next, same) = bench.who();
    assert!(answer.starts_with(&format!("v1 {next} ")), "{answer}");
    assert_eq!(same, holder);
    eventually("the report is removed", || !bench.path("run/last-words").exists());
}

#[test]
fn a_daemon_that_closes_its_socket_is_replaced() {
    let (bench, _) = Bench::serving();
    let (_, daemon, _) = bench.who();
    assert!(bench.try_tell("hang-up").is_err(), "it is killed in the middle");
    wait_for_exit(daemon);
    bench.logged_times("v1 ready", 2);
}

#[test]
fn a_killed_holder_is_replaced_with_everything_it_held() {
    let (mut bench, first) = Bench::serving();
    let address = bench.address();
    let (_, daemon, _) = bench.who();
    let caller = Caller::begin(address);
    kill(first, Signal::KILL);
    assert_eq!(bench.exit_code(), None);
    bench.logged("v1 holder");
    let (_, same, second) = bench.who();
    assert_eq!(same, daemon);
    assert_ne!(second, first);
    let lock = fs::read_to_string(bench.path("state/lock")).unwrap();
    assert_eq!(lock.trim(), second.to_string());
    bench.start("run");
    assert_eq!(bench.exit_code(), Some(10), "the lock was never free");

    // The new one can do all that the old one could.
    assert!(bench.try_tell("die").is_err());
    bench.logged_times("v1 ready", 2);
    let words = bench.logged("v1 words");
    assert!(words.contains("v1 says: I was told to"), "its standard error is read again: {words}");
    kill_and_wait(second);
    bench.logged_times("v1 holder", 2);
    let (_, _, third) = bench.who();
    assert_eq!(bench.address(), address);
    let calls = caller.end();
    assert_eq!(calls.refused, [], "{calls:?}");

    kill(third, Signal::TERM);
    wait_for_exit(third);
    assert_eq!(bench.try_tell("who").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_daemon_inherits_three_streams_and_no_more() {
    let mut bench = Bench::new();
    let script = fs::read_to_string(bench.path("v1")).unwrap();
    let list = format!("ls /proc/self/fd > '{}'\nexec", bench.path("fds").display());
    fs::write(bench.path("v1"), script.replace("exec", &list)).unwrap();
    bench.start("run");
    bench.logged("first ready");
    for spec in ["tcp 127.0.0.3:0", "tcp 127.0.0.4:0"] {
        bench.tell(&format!("bind {spec}"));
    }
    assert!(bench.try_tell("die").is_err());
    bench.logged_times("v1 ready", 2);
    // The fourth is the directory itself, which `ls` reads.
    let open = fs::read_to_string(bench.path("fds")).unwrap();
    assert_eq!(open.lines().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

#[test]
fn listeners_may_exceed_one_message() {
    let (bench, _) = Bench::serving();
    let specs: Vec<_> =
        (0..300).map(|n| format!("tcp 127.1.{}.{}:0", n / 250, n % 250 + 1)).collect();
    let bind = |spec: &String| bench.tell(&format!("bind {spec}"));
    let bound: Vec<_> = specs.iter().map(bind).collect();
    let check = || {
        for address in &bound {
            let stream = TcpStream::connect(address).unwrap();
            (&stream).write_all(b"who\n").unwrap();
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).unwrap();
            assert!(answer.starts_with("v1 "), "{address}: {answer}");
        }
    };
    check();
    let (_, daemon, holder) = bench.who();
    kill_and_wait(daemon);
    check();
    kill_and_wait(holder);
    bench.logged("v1 holder");
    check();
    assert!(bench.try_tell("die").is_err());
    check();
    let again: Vec<_> = specs.iter().map(bind).collect();
    assert_eq!(again, bound);
}

//! First starts, ends, and notifications to a service manager.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::Signal;

use super::support::{Bench, kill};
use crate::support::wait_for_exit;

#[test]
fn an_end_on_purpose_closes_listeners_first() {
    let (mut bench, _) = Bench::serving();
    let address = bench.address();
    let (_, daemon, _) = bench.who();
    let dir = bench.dir.clone();
    let asked = std::thread::spawn(move || {
        let stream = mainstay_hold::socket::connect(&dir.join("run"), "s").unwrap();
        std::io::Write::write_all(&mut &stream, b"stop\n").unwrap();
        stream
    });
    bench.logged("v1 ending");
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "while the daemon has it open");
    assert_eq!(bench.try_tell("who").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(fs::exists(format!("/proc/{daemon}")).unwrap());
    bench.let_go();
    assert_eq!(bench.exit_code(), Some(0));
    drop(asked.join().unwrap());
    bench.start("run");
    bench.logged_times("first ready", 2);
}

#[test]
fn a_signal_ends_daemon_and_holder() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut bench, holder) = Bench::serving();
        let (_, daemon, _) = bench.who();
        kill(holder, signal);
        assert_eq!(bench.exit_code(), Some(0));
        wait_for_exit(daemon);
        assert_eq!(bench.try_tell("who").unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn a_second_signal_kills() {
    let (mut bench, holder) = Bench::serving();
    let (_, daemon, _) = bench.who();
    kill(daemon, Signal::STOP);
    kill(holder, Signal::TERM);
    kill(holder, Signal::INT);
    assert_eq!(bench.exit_code(), Some(0));
    wait_for_exit(daemon);
}

#[test]
fn in_the_foreground_streams_are_shared() {
    let mut bench = Bench::new();
    let holder = bench.start("foreground");
    bench.logged("first ready");
    assert!(bench.try_tell("die").is_err());
    bench.logged_times("v1 ready", 2);
    assert_eq!(fs::read_to_string(bench.path("stderr")).unwrap(), "v1 says: I was told to\n");
    kill(holder, Signal::TERM);
    assert_eq!(bench.exit_code(), Some(0));
}

/// A failed first start is reported, and leaves nothing.
fn check_first(flaw: &str, expected: &str) {
    let mut bench = Bench::new();
    fs::remove_file(bench.path("v1")).unwrap();
    bench.program("v1", "v1", flaw);
    bench.start("run");
    assert_eq!(bench.exit_code(), Some(11));
    assert_eq!(bench.logged("first failed"), format!("first failed: {expected}"));
    assert_eq!(bench.logged_times("v1 up", 1).len(), 1, "it is tried once");
}

#[test]
fn a_failed_first_start_is_reported_with_its_reason() {
    check_first("fails", "no good");
    check_first("dies", "it exited with 1: | v1 says: I die");
}

#[test]
fn a_second_holder_reports_the_pid_of_the_first() {
    let (mut bench, holder) = Bench::serving();
    assert_eq!(fs::read_to_string(bench.path("state/lock")).unwrap().trim(), holder.to_string());
    bench.start("run");
    assert_eq!(bench.exit_code(), Some(10));
    assert_eq!(bench.logged_times("v1 up", 1).len(), 1);
}

#[test]
fn a_waiting_holder_takes_over_when_the_lock_is_free() {
    let (mut bench, first) = Bench::serving();
    let second = bench.start("wait");
    kill(first, Signal::TERM);
    bench.logged_times("first ready", 2);
    assert_eq!(bench.who().2, second);
}

/// The holder of a service was killed; the service was started again, and waits for the daemon to end.
#[test]
fn a_waiting_service_passes_signals_to_the_serving_holder() {
    let (mut bench, first) = Bench::serving();
    let path = bench.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let (_, daemon, _) = bench.who();
    kill(first, Signal::KILL);
    bench.logged("v1 holder");
    let (_, same, second) = bench.who();
    assert_eq!(same, daemon);
    let waiting = bench.start_with("wait", &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    assert!(notification(&manager).starts_with("READY=1\nSTATUS=waiting"));
    kill(waiting, Signal::TERM);
    assert_eq!(notification(&manager), "STOPPING=1");
    assert_eq!(bench.exit_code(), Some(0));
    for ended in [daemon, second] {
        wait_for_exit(ended);
    }
    assert_eq!(bench.try_tell("who").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        bench.logged_times("first ready", 1).len(),
        1,
        "the one that waited started nothing"
    );
}

#[test]
fn a_waiting_holder_without_a_manager_ends_alone() {
    let (mut bench, first) = Bench::serving();
    let waiting = bench.start("wait");
    // When it has begun to wait cannot be seen; before, the signal ends it in another way.
    kill(waiting, Signal::TERM);
    wait_for_exit(waiting);
    assert_eq!(bench.who().2, first);
}

/// The next notification to a service manager.
fn notification(manager: &UnixDatagram) -> String {
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut text = [0; 256];
    let count = manager.recv(&mut text).unwrap();
    String::from_utf8(text[..count].to_vec()).unwrap()
}

#[test]
fn released_ports_are_free_and_taken_ports_are_refused() {
    let (bench, _) = Bench::serving();
    let address = bench.tell("bind tcp 127.0.0.2:0");
    assert_eq!(bench.tell(&format!("bind tcp {address}")), "AddrInUse");
    assert_eq!(bench.tell("release tcp 127.0.0.2:0"), "released");
    let refused = TcpStream::connect(&address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(bench.tell(&format!("bind tcp {address}")), address);
    assert_eq!(bench.tell("bind tcp 192.0.2.1:80"), "AddrNotAvailable");
}

#[test]
fn a_service_manager_is_notified_of_every_step() {
    let mut bench = Bench::new();
    let path = bench.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let next = || notification(&manager);
    let socket = path.to_str().unwrap().to_owned();
    let env = [("NOTIFY_SOCKET", &*socket), ("WATCHDOG_USEC", "60000000")];
    let holder = bench.start_with("run", &env);
    assert_eq!(next(), format!("READY=1\nMAINPID={holder}"));
    bench.logged("v1 ready");
    let (_, daemon, _) = bench.who();
    let environ = fs::read(format!("/proc/{daemon}/environ")).unwrap();
    let environ = String::from_utf8_lossy(&environ);
    assert!(!environ.contains("NOTIFY_SOCKET=") && !environ.contains("WATCHDOG_"), "{environ}");
    assert_eq!(bench.tell("pulse"), "pulsed");
    assert_eq!(next(), "WATCHDOG=1");

    bench.start_with("wait", &env);
    assert!(next().starts_with("READY=1\nSTATUS=waiting"));
    kill(holder, Signal::TERM);
    assert_eq!(next(), "STOPPING=1");
}

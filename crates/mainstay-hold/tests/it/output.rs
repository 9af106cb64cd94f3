//! Output: kept, delivered, consumed, held back.

use std::fmt::Write as _;
use std::fs;

use mainstay_hold::wire::{FromShim, ToShim};

use crate::support::{Bench, Shim, eventually};

const RING: usize = 64 * 1024;

fn numbers(to: u32) -> String {
    (1..=to).fold(String::new(), |mut text, number| {
        writeln!(text, "{number}").unwrap();
        text
    })
}

/// The memory of the shim that no other process shares, in KiB.
fn private_memory(shim: &Shim) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", shim.process().pid)).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_next_daemon_gets_what_the_last_one_missed() {
    let mut bench = Bench::script("seq 1 100000; exec sleep 1000");
    bench.launch.output_ring = u32::try_from(RING).unwrap();
    let shim = bench.start();
    let expected = numbers(100_000).into_bytes();
    let mut got = Vec::new();
    let mut daemon = 0;
    while got.len() < expected.len() {
        daemon += 1;
        let (mut client, hello) = shim.greet(daemon);
        let from = got.len() as u64;
        assert!(hello.out_start <= from && from <= hello.out_end, "{hello:?} {from}");
        client.send(&ToShim::Attach { from });
        for _ in 0..3 {
            if got.len() < expected.len() {
                client.offset = Some(got.len() as u64);
                got.extend(client.output(1));
                // What is consumed lags behind what was received, as in a real daemon.
                client.send(&ToShim::Consumed { offset: (got.len() / 2) as u64 });
                client.send(&ToShim::Consumed { offset: got.len().saturating_sub(1_000) as u64 });
            }
        }
    }
    assert!(got == expected, "lost or doubled bytes");
    assert!(daemon > 1, "there was only one daemon");
}

#[test]
fn a_flooding_server_waits_for_its_daemon() {
    let mut bench = Bench::program("yes", &[]);
    bench.launch.output_ring = u32::try_from(RING).unwrap();
    let shim = bench.start();
    let mut client = shim.attach(1);
    let first = client.output(RING);
    assert_eq!(first.len(), RING);
    client.send(&ToShim::Tail);
    assert_eq!(client.next(), FromShim::Tail { stderr: Vec::new() }, "no more than the ring");

    client.send(&ToShim::Consumed { offset: 1_000 });
    assert_eq!(client.output(1_000).len(), 1_000);
    for _ in 0..100 {
        let offset = client.offset.unwrap();
        client.send(&ToShim::Consumed { offset });
        client.output(RING);
    }
    let memory = private_memory(&shim);
    assert!(memory < 2_048, "{memory} KiB");
}

#[test]
fn a_daemon_that_does_not_read_costs_bounded_memory() {
    let shim = Bench::program("yes", &[]).start();
    let _deaf = shim.attach(1);
    let mut asker = shim.introduce(1);
    for _ in 0..2_000 {
        asker.send(&ToShim::Tail);
    }
    for _ in 0..2_000 {
        assert_eq!(asker.next(), FromShim::Tail { stderr: Vec::new() });
    }
    let memory = private_memory(&shim);
    assert!(memory < 4_096, "{memory} KiB");
}

#[test]
fn a_flood_of_stderr_delays_nothing_and_the_log_is_bounded() {
    let mut bench = Bench::script("yes flood >&2 & exec cat");
    bench.launch.log.max_bytes = 100_000;
    let shim = bench.start();
    let log = &shim.bench.launch.log.path;
    let files = ["", ".1", ".2"].map(|number| format!("{}{number}", log.display()));
    let mut client = shim.attach(1);
    for id in 1..=200 {
        client.write(id, "ping\n");
        client.expect_output("ping\n");
    }
    eventually("the log has been rotated", || fs::exists(&files[2]).unwrap());
    client.send(&ToShim::Kill);
    let (.., tail) = client.exited();
    assert_eq!(tail.len(), 16 * 1024);
    client.gone();
    for file in &files {
        let len = fs::metadata(file).unwrap().len();
        assert!(len <= 100_000, "{file}: {len}");
    }
    assert!(!fs::exists(format!("{}.3", log.display())).unwrap());
    assert!(shim.bench.log().ends_with("\n--- run 7 killed by signal 9 ---\n"));
}

#[test]
fn the_log_has_start_output_and_end_of_the_run() {
    let shim = Bench::script("echo one >&2; read -r line; printf 'no newline' >&2; exit 1").start();
    let mut client = shim.attach(1);
    client.send(&ToShim::Log { text: b"from the daemon".to_vec() });
    client.write(1, "go on\n");
    let (_, code, _, tail) = client.exited();
    assert_eq!((code, tail.as_str()), (Some(1), "one\nno newline"));
    client.gone();
    let log = shim.bench.log();
    let first = log.lines().next().unwrap();
    let start = format!("--- run 7 started, pid {}, ", shim.server_pid);
    assert!(first.starts_with(&start) && first.ends_with("Z ---"), "{log}");
    assert!(log.contains("\nfrom the daemon\n"), "{log}");
    assert!(log.ends_with("no newline\n--- run 7 exited 1 ---\n"), "{log}");
}

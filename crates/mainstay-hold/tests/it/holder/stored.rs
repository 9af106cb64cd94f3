//! Connections stay open when their daemon is killed.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use super::support::{Bench, kill, kill_and_wait};

/// A connection that the daemon has stored with a state.
fn stored(bench: &Bench, state: &str) -> BufReader<TcpStream> {
    connection(bench, &format!("store {state}"))
}

fn connection(bench: &Bench, command: &str) -> BufReader<TcpStream> {
    let mut connection = BufReader::new(TcpStream::connect(bench.address()).unwrap());
    connection.get_mut().write_all(format!("{command}\n").as_bytes()).unwrap();
    assert_eq!(line(&mut connection), "stored\n");
    connection
}

fn line(connection: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    connection.read_line(&mut line).unwrap();
    line
}

#[test]
fn connections_go_to_the_daemon_after_one_that_was_killed() {
    let (bench, _) = Bench::serving();
    let [mut idle, mut responding, mut busy] =
        ["01", "00", "03aabb"].map(|state| stored(&bench, state));
    let (_, daemon, _) = bench.who();
    kill_and_wait(daemon);
    assert_eq!(line(&mut responding), "", "no daemon can continue it, so it is closed");
    assert_eq!(line(&mut idle), "interrupted at [1]\n");
    assert_eq!(line(&mut busy), "interrupted at [3, 170, 187]\n");
    assert_eq!(line(&mut busy), "", "it belongs to the next daemon, which closes it");
}

#[test]
fn bytes_read_from_a_connection_survive_the_death_of_the_daemon() {
    let (bench, _) = Bench::serving();
    // The slot is used again, and keeps nothing.
    drop(stored(&bench, "02aaaaaaaaaaaaaa"));
    assert_eq!(bench.tell("forget"), "forgotten");
    let mut reading = stored(&bench, "02bbcccccccc");
    let mut teller = TcpStream::connect(bench.address()).unwrap();
    teller.write_all(b"read-and-die 0102\n").unwrap();
    assert_eq!(line(&mut reading), "interrupted at [2, 187, 1, 2]\n");
}

#[test]
fn connections_wait_while_daemons_keep_dying() {
    let (bench, _) = Bench::serving();
    let mut busy = stored(&bench, "03");
    std::fs::remove_file(bench.path("v1")).unwrap();
    bench.program("v1", "v1", "dies");
    let (_, daemon, _) = bench.who();
    kill_and_wait(daemon);
    bench.logged_times("v1 up", 4);
    std::fs::remove_file(bench.path("v1")).unwrap();
    bench.program("v1", "v1", "");
    assert_eq!(line(&mut busy), "interrupted at [3]\n");
}

#[test]
fn forgotten_connections_are_closed_with_their_daemon() {
    let (bench, _) = Bench::serving();
    let mut connections = [stored(&bench, "01"), stored(&bench, "02")];
    assert_eq!(bench.tell("forget"), "forgotten");
    // The slots are used again.
    let mut third = stored(&bench, "01");
    for connection in &mut connections {
        assert_eq!(line(connection), "");
    }
    let (_, daemon, _) = bench.who();
    kill_and_wait(daemon);
    assert_eq!(line(&mut third), "interrupted at [1]\n");
}

#[test]
fn a_daemon_that_hands_over_or_ends_leaves_no_connection() {
    let (bench, holder) = Bench::serving();
    let mut given_way = stored(&bench, "01");
    let v2 = bench.program("v2", "v2", "");
    bench.tell(&format!("replace {}", v2.display()));
    bench.logged("v2 ready");
    assert_eq!(line(&mut given_way), "", "it was not passed on");

    let mut ended = stored(&bench, "02");
    kill(holder, Signal::TERM);
    assert_eq!(line(&mut ended), "");
}

#[test]
fn connections_that_were_passed_on_outlive_a_daemon_that_cannot_start() {
    let (bench, _) = Bench::serving();
    let mut idle = connection(&bench, "pass-on ");
    let mut responding = connection(&bench, "pass-on aa");
    let (new, kept) = (bench.program("new", "new", "dies"), bench.program("kept", "kept", ""));
    bench.tell(&format!("replace {} {}", new.display(), kept.display()));
    bench.logged("kept ready");
    assert_eq!(line(&mut idle), "interrupted at [1]\n");
    assert_eq!(line(&mut responding), "interrupted at [2, 170]\n");
}

#[test]
fn a_daemon_that_fails_after_it_has_taken_over_connections_leaves_them_to_the_next() {
    let (bench, _) = Bench::serving();
    let mut idle = connection(&bench, "pass-on ");
    let (new, kept) = (bench.program("new", "new", "dies late"), bench.program("kept", "kept", ""));
    bench.tell(&format!("replace {} {}", new.display(), kept.display()));
    bench.logged("kept ready");
    assert_eq!(line(&mut idle), "interrupted at [1]\n");
}

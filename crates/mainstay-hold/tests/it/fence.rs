//! Daemons replace each other, and who was replaced is not obeyed.

use mainstay_hold::wire::{Frame as _, ToShim};

use crate::support::Bench;

/// Everything that a daemon may ask for. None of it may be granted to one that was replaced.
fn all_requests() -> Vec<ToShim> {
    vec![
        ToShim::Attach { from: 0 },
        ToShim::Watch,
        ToShim::Write { id: 1, line: b"x\n".to_vec() },
        ToShim::Consumed { offset: 0 },
        ToShim::End { grace_ms: 0 },
        ToShim::Kill,
        ToShim::Log { text: b"from the past".to_vec() },
        ToShim::Tail,
        ToShim::Dismiss,
    ]
}

#[test]
fn a_daemon_sends_its_number_first() {
    let shim = Bench::script("cat").start();
    for request in all_requests() {
        let mut nobody = shim.connect();
        nobody.hello();
        nobody.send(&request);
        assert!(nobody.refused().contains("must send its number first"), "{request:?}");
    }
    let mut twice = shim.introduce(1);
    twice.send(&ToShim::Daemon { number: 1 });
    assert!(twice.refused().contains("sent its number before"));

    let mut client = shim.attach(1);
    client.write(1, "unharmed\n");
    client.expect_output("unharmed\n");
}

#[test]
fn the_hello_has_the_highest_daemon_number() {
    let shim = Bench::script("cat").start();
    assert_eq!(shim.connect().hello().newest_daemon, 0);
    for (number, newest) in [(5, 5), (4, 5), (9, 9)] {
        let mut daemon = shim.introduce(number);
        if number == newest {
            daemon.round_trip();
        }
        assert_eq!(shim.connect().hello().newest_daemon, newest);
    }
}

#[test]
fn optional_frames_before_the_number_are_skipped() {
    let shim = Bench::script("cat").start();
    let mut client = shim.connect();
    client.hello();
    client.send_bytes(&[4, 0, 0, 0, 200, 1, 2, 3]);
    client.send(&ToShim::Daemon { number: 1 });
    client.send_bytes(&[1, 0, 0, 0, 255]);
    client.round_trip();
    client.send_bytes(&[1, 0, 0, 0, 127]);
    assert!(client.refused().contains("type 127 is unknown"));
}

#[test]
fn every_request_of_a_replaced_daemon_is_refused() {
    let shim = Bench::script("cat").start();
    let mut fifth = shim.attach(5);
    fifth.round_trip();
    for request in all_requests() {
        let mut older = shim.introduce(4);
        // The shim may have hung up already.
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        drop(older.try_send_bytes(&bytes));
        assert!(older.refused().contains("daemon 4 was replaced by daemon 5"), "{request:?}");
    }
    fifth.write(1, "unharmed\n");
    fifth.expect_output("unharmed\n");

    drop(fifth);
    let mut older = shim.introduce(4);
    assert!(older.refused().contains("replaced by daemon 5"), "the fence outlives the connection");
    assert!(!shim.bench.log().contains("from the past"));
}

#[test]
fn a_higher_number_ends_every_connection_of_a_lower_one() {
    let shim = Bench::script("cat").start();
    let mut old = [shim.attach(1), shim.introduce(1), shim.introduce(1)];
    old[1].send(&ToShim::Watch);
    for client in &mut old {
        client.round_trip();
    }
    let mut silent = shim.connect();
    silent.hello();

    let mut new = shim.introduce(2);
    for client in &mut old {
        assert!(client.refused().contains("daemon 1 was replaced by daemon 2"));
    }
    // A connection without a number is refused when it sends it.
    silent.send(&ToShim::Daemon { number: 2 });
    silent.round_trip();
    new.round_trip();
}

#[test]
fn an_equal_number_replaces_the_data_connection_only() {
    let shim = Bench::script("cat").start();
    let mut first = shim.attach(5);
    first.write(1, "a\n");
    first.expect_output("a\n");
    let mut beside = shim.introduce(5);

    let mut again = shim.attach(5);
    again.expect_output("a\n");
    assert!(first.refused().contains("daemon 5 has attached"));
    again.write(2, "b\n");
    again.expect_output("b\n");
    beside.round_trip();
}

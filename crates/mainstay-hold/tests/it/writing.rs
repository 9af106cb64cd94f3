//! Lines to the server.

use mainstay_hold::wire::{Frame as _, FromShim, ToShim};

use crate::support::{Bench, eventually};

#[test]
fn lines_are_echoed_and_acknowledged() {
    let shim = Bench::script("cat").start();
    let mut client = shim.attach(1);
    let (mut frames, mut expected) = (Vec::new(), String::new());
    for id in 1..=2_000 {
        let line = format!("line {id}\n");
        ToShim::Write { id, line: line.as_bytes().to_vec() }.encode(&mut frames);
        expected.push_str(&line);
    }
    client.send_bytes(&frames);
    let mut output = client.written(2_000);
    output.extend(client.output(expected.len() - output.len()));
    assert_eq!(String::from_utf8(output).unwrap(), expected);
    assert_eq!(shim.connect().hello().written, 2_000);
}

#[test]
fn a_long_line_passes_in_both_directions() {
    let shim = Bench::script("cat").start();
    let mut client = shim.attach(1);
    let line = format!("{}\n", "x".repeat(5 << 20));
    client.write(1, &line);
    let mut output = Vec::new();
    while output.len() < line.len() {
        output.extend(client.output(1));
        let offset = output.len() as u64;
        client.send(&ToShim::Consumed { offset });
    }
    assert!(output == line.as_bytes());
}

#[test]
fn ids_must_be_consecutive() {
    let shim = Bench::script("cat").start();
    let mut client = shim.attach(1);
    client.write(1, "a\n");
    client.write(3, "c\n");
    assert!(client.refused().contains("line 2 is next"));

    let (mut client, hello) = shim.greet(1);
    assert_eq!(hello.written, 1);
    client.send(&ToShim::Attach { from: 0 });
    client.write(2, "b\n");
    client.expect_output("a\nb\n");
}

#[test]
fn half_a_line_is_never_written() {
    let shim = Bench::script("cat").start();
    let mut first = shim.attach(1);
    first.write(1, "one\n");
    first.written(1);
    let mut half = Vec::new();
    ToShim::Write { id: 2, line: b"never seen\n".to_vec() }.encode(&mut half);
    first.send_bytes(&half[..half.len() - 3]);
    drop(first);

    let (mut second, hello) = shim.greet(2);
    assert_eq!(hello.written, 1);
    second.send(&ToShim::Attach { from: 0 });
    second.write(2, "two\n");
    second.expect_output("one\ntwo\n");
}

#[test]
fn only_the_attached_daemon_writes_and_consumes() {
    let shim = Bench::script("cat").start();
    for frame in [ToShim::Write { id: 1, line: b"x\n".to_vec() }, ToShim::Consumed { offset: 0 }] {
        let mut client = shim.introduce(1);
        client.send(&frame);
        assert!(client.refused().contains("only the attached daemon"));
    }
    let mut client = shim.attach(1);
    client.send(&ToShim::Consumed { offset: 1 });
    assert!(client.refused().contains("only 0 bytes were sent"));
    let mut client = shim.introduce(1);
    client.send(&ToShim::Attach { from: 1 });
    assert!(client.refused().contains("output ends at 0"));
}

#[test]
fn lines_that_the_server_does_not_read_are_not_acknowledged() {
    let shim = Bench::script("exec <&-; echo closed; exec sleep 1000").start();
    let mut client = shim.attach(1);
    client.expect_output("closed\n");
    client.write(1, "nobody reads this\n");
    client.send(&ToShim::Tail);
    assert_eq!(client.next(), FromShim::Tail { stderr: Vec::new() });
    assert_eq!(shim.connect().hello().written, 0);
}

#[test]
fn a_server_that_does_not_read_costs_bounded_memory() {
    let shim = Bench::program("sleep", &["1000"]).start();
    let mut client = shim.attach(1);
    let line = vec![b'x'; 64 * 1024];
    let writer = std::thread::spawn(move || {
        // 64 MiB do not fit anywhere, so this waits until the run is over.
        for id in 1..=1_024 {
            let mut frame = Vec::new();
            ToShim::Write { id, line: line.clone() }.encode(&mut frame);
            if client.try_send_bytes(&frame).is_err() {
                return;
            }
        }
    });
    eventually("the queue is full", || shim.connect().hello().written > 16);
    let (mut control, hello) = shim.greet(1);
    let taken = hello.written;
    assert!(taken < 20, "{taken} lines were taken");
    control.send(&ToShim::Dismiss);
    control.send(&ToShim::Kill);
    let (.., signal, _) = control.exited();
    assert_eq!(signal, Some(9));
    control.gone();
    writer.join().unwrap();
}

#[test]
fn lines_that_were_never_read_are_known_at_the_end() {
    // `read` takes one byte at a time, up to the end of the line.
    let shim = Bench::script("read one; echo got $one; exec sleep 1000").start();
    let mut client = shim.attach(1);
    for id in 1..=3 {
        client.write(id, &format!("line{id}\n"));
    }
    let mut output = client.written(3);
    output.extend(client.output("got line1\n".len() - output.len()));
    assert_eq!(output, b"got line1\n");
    let mut control = shim.introduce(1);
    control.send(&ToShim::CountUnread);
    assert_eq!(control.next(), FromShim::Unread { read_through: 1, bytes: 12 });
    control.send(&ToShim::Kill);
    let (.., signal, _) = client.exited();
    assert_eq!(signal, Some(9));
    client.gone();
    assert_eq!(client.read_through, Some(1));
}

#[test]
fn what_a_server_reads_during_its_end_counts_as_read() {
    let script = "trap '' TERM; read one; echo got $one; cat >/dev/null; echo rest";
    let shim = Bench::script(script).start();
    let mut client = shim.attach(1);
    for id in 1..=3 {
        client.write(id, &format!("line{id}\n"));
    }
    client.send(&ToShim::End { grace_ms: 10_000 });
    let (_, code, ..) = client.exited();
    assert_eq!(code, Some(0));
    client.gone();
    assert_eq!(client.read_through, Some(3));
}

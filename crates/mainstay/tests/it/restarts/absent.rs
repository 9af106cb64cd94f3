//! Requests while no daemon is running.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::setup::{NAME, Setup, say};
use crate::env::{is_alive, kill, pid_of, until, until_dead};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, call};

/// How long no daemon is running.
const AWAY: Duration = Duration::from_millis(300);

#[test]
fn requests_without_a_daemon_are_answered_by_the_next() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    // Either it continues, or another one is started.
    for (round, back) in [(1, Signal::CONT), (2, Signal::KILL)] {
        let daemon = setup.env.daemon();
        kill(daemon, Signal::STOP);
        let mut counted = thread::scope(|scope| {
            let over_http = scope.spawn(|| say(&session, round, "count", &json!({})));
            let by_command = scope.spawn(|| setup.env.call(NAME, "count", "{}"));
            thread::sleep(AWAY);
            assert!(!over_http.is_finished() && !by_command.is_finished());
            kill(daemon, back);
            [over_http, by_command].map(|request| request.join().unwrap())
        });
        counted.sort();
        assert_eq!(counted, [2 * round - 1, 2 * round].map(|count| count.to_string()));
    }
    setup.assert_server_kept();
}

#[test]
fn a_stopping_daemon_refuses_new_requests_and_answers_others() {
    let setup = Setup::new(&[], &[]);
    let (daemon, holder) = setup.mainstay();
    let server = pid_of(&setup.server);
    kill(server, Signal::STOP);
    let mut early = setup.raw().post(BOTH, &call(1, "echo", &json!({"text": "early"})));
    early.event().expect("it is under way");

    let mut stop = setup.env.command(["daemon", "stop"]);
    let mut stop = stop.stderr(Stdio::null()).spawn().unwrap();
    let refused = until("the late are sent away", || TcpStream::connect(setup.address()).err());
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let refused = until("those at the socket too", || UnixStream::connect(setup.socket()).err());
    assert!(
        matches!(refused.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound),
        "{refused}"
    );
    assert!(is_alive(daemon), "it waits for the answer");
    kill(server, Signal::CONT);
    let answer = early.answer();
    assert_eq!((&answer["id"], text_of(&answer["result"], 0)), (&json!(1), "early".to_owned()));
    assert!(stop.wait().unwrap().success());
    for ended in [daemon, holder, server] {
        until_dead(ended);
    }
}

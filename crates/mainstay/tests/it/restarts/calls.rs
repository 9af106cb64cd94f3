//! Raw HTTP calls and streams that are open when the daemon ends.

use std::fs;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::setup::{Blow, NAME, SLOW, Setup, lines, say};
use crate::env::{TestEnv, fixture, free_port, kill, pid_of, until, until_dead};
use crate::fake_daemon::Client;
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, JSON, Raw, Response, call, request};

#[test]
fn slow_calls_are_answered_once_after_a_kill() {
    answered_once(Blow::Kill);
}

#[test]
fn slow_calls_are_answered_once_after_a_reload() {
    answered_once(Blow::Reload);
}

/// A safe call and one with an effect.
fn answered_once(blow: Blow) {
    let env = TestEnv::new();
    let (counted, effects) = (env.work().join("count"), env.work().join("effects"));
    let setup = Setup::in_env(env, &[], &["--count-file", counted.to_str().unwrap()]);
    let session = setup.raw();
    let reads = json!({"ms": SLOW});
    let writes = json!({"path": effects, "line": "x", "ms": SLOW});
    let begun = [call(1, "sleep_readonly", &reads), call(2, "append", &writes)];
    let begun = begun.map(|call| session.post(BOTH, &call)).map(Begun::new);
    until("the server has both", || (lines(&counted) == 2).then_some(()));

    blow.strike(&setup.env);
    let answers = begun.map(|begun| begun.resumed(&session));
    for (answer, (id, text)) in answers.iter().zip([(1, "slept 2500 ms"), (2, "appended")]) {
        assert_eq!((&answer["id"], text_of(&answer["result"], 0)), (&json!(id), text.to_owned()));
        assert_eq!(answer["result"]["content"].as_array().unwrap().len(), 1, "nothing was lost");
    }
    assert_eq!(fs::read_to_string(&effects).unwrap(), "x\n");
    assert_eq!(lines(&counted), 2, "each was executed once");
    assert_eq!(say(&session, 3, "echo", &json!({"text": "after"})), "after");
    assert_eq!(setup.env.server(NAME)["sessions"], 1);
    setup.assert_server_kept();
}

#[test]
fn calls_of_any_length_are_answered_through_a_reload() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    for round in 0..3 {
        thread::scope(|scope| {
            let calls = (1..=40).map(|n| {
                let (session, id, ms) = (&session, 100 * round + n, 10 * n);
                let call = call(id, "sleep_readonly", &json!({"ms": ms}));
                (id, ms, scope.spawn(move || session.answered(&call)))
            });
            let calls: Vec<_> = calls.collect();
            Blow::Reload.strike(&setup.env);
            for (id, ms, call) in calls {
                let answer = call.join().unwrap();
                let expected = json!({"content": [{"type": "text", "text": format!("slept {ms} ms")}], "isError": false});
                assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &expected), "{answer}");
            }
        });
    }
    setup.assert_server_kept();
}

#[test]
fn output_without_a_daemon_is_delivered_once() {
    let env = TestEnv::new();
    let counted = env.work().join("count");
    let setup = Setup::in_env(env, &[], &["--count-file", counted.to_str().unwrap()]);
    let [missed, next, last] = [1, 2, 3].map(|n| format!("fixture://numbers/{n}"));
    let (session, other) = (setup.raw(), setup.raw());
    for (id, uri) in [(1, &missed), (2, &next), (3, &last)] {
        session.ask(id, "resources/subscribe", &json!({"uri": uri}));
    }
    let listening = Begun::new(session.get(None));
    let (daemon, holder) = setup.mainstay();
    let server = pid_of(&setup.server);
    kill(server, Signal::STOP);
    let touching = Begun::new(other.post(BOTH, &call(1, "touch", &json!({"uri": missed}))));
    kill(holder, Signal::STOP);
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    kill(server, Signal::CONT);
    until("the server has dealt with it", || (lines(&counted) == 1).then_some(()));
    kill(holder, Signal::CONT);

    let mut resumed = session.get(Some(&listening.id));
    assert_eq!(resumed.status, 200);
    let uri =
        |received: Option<Value>| received.expect("the stream continues")["params"]["uri"].clone();
    assert_eq!(uri(resumed.message()), missed);
    assert_eq!(text_of(&touching.resumed(&other)["result"], 0), "touched");
    for (id, touched) in [(2, &next), (3, &last)] {
        say(&other, id, "touch", &json!({"uri": touched}));
        assert_eq!(uri(resumed.message()), **touched, "and nothing else");
    }
    assert_eq!(lines(&counted), 3);
    setup.assert_server_kept();
}

/// They are not recorded, so a reload waits for them.
#[test]
fn calls_of_the_command_line_are_answered_before_a_reload() {
    let env = TestEnv::new();
    let counted = env.work().join("count");
    let setup = Setup::in_env(env, &[], &["--count-file", counted.to_str().unwrap()]);
    let arguments = json!({"ms": SLOW});
    thread::scope(|scope| {
        let by_hand = scope.spawn(|| setup.env.call(NAME, "sleep", &arguments.to_string()));
        until("the server has it", || (lines(&counted) == 1).then_some(()));
        Blow::Reload.strike(&setup.env);
        assert_eq!(by_hand.join().unwrap(), format!("slept {SLOW} ms"));
    });
    assert_eq!(lines(&counted), 1, "it was executed once");
}

/// Many of them cannot resume a stream that is cut.
#[test]
fn clients_of_all_versions_keep_their_connections_at_reloads() {
    let env = TestEnv::new();
    let counted = env.work().join("count");
    let setup = Setup::in_env(env, &[], &["--count-file", counted.to_str().unwrap()]);
    let versions = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
    let sessions = versions.map(|version| Raw::open_with(&setup.url, None, version));
    let uri = "fixture://numbers/1";
    for session in &sessions {
        session.ask(10, "resources/subscribe", &json!({"uri": uri}));
    }
    let listening = sessions.each_ref().map(|session| session.get(None));
    let begun = sessions.iter().flat_map(|session| {
        [(1, BOTH), (2, JSON)].map(|(id, accept)| {
            let call = call(id, "sleep", &json!({"ms": SLOW}));
            (id, session.post(accept, &call))
        })
    });
    let begun: Vec<_> = begun.collect();
    until("the server has all", || (lines(&counted) == begun.len()).then_some(()));
    Blow::Reload.strike(&setup.env);
    Blow::Reload.strike(&setup.env);
    for (id, response) in begun {
        let answer = response.answer();
        assert_eq!(answer["id"], id);
        assert_eq!(text_of(&answer["result"], 0), format!("slept {SLOW} ms"));
    }
    assert_eq!(lines(&counted), 8, "each was executed once");
    say(&sessions[0], 3, "touch", &json!({"uri": uri}));
    for mut stream in listening {
        let received = stream.message().expect("the stream continues");
        assert_eq!(received["method"], "notifications/resources/updated");
    }
    setup.assert_server_kept();
}

#[test]
fn an_http_server_is_kept_and_executes_nothing_twice() {
    for blow in Blow::ALL {
        http_server_kept(blow);
    }
}

/// The server's answer arrives on a connection of the old daemon, which stays for it at a reload. If it is lost with a
/// killed daemon, the client gets an error.
fn http_server_kept(blow: Blow) {
    let env = TestEnv::new();
    let effects = env.work().join("effects");
    let port = free_port().to_string();
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let address = format!("127.0.0.1:{port}");
    let setup = Setup::in_env(env, &options, &["--http", &address]);
    let session = setup.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    let arguments = json!({"path": effects, "line": "x", "ms": SLOW});
    let begun = Begun::new(session.post(BOTH, &call(2, "append", &arguments)));
    until("it has its effect", || (lines(&effects) == 1).then_some(()));

    blow.strike(&setup.env);
    let answer = begun.resumed(&session);
    assert_eq!(answer["id"], 2);
    let text = text_of(&answer["result"], 0);
    match blow {
        Blow::Kill => assert!(text.contains("its effect is unknown"), "{answer}"),
        Blow::Reload => assert_eq!(text, "appended"),
    }
    assert_eq!(say(&session, 3, "count", &json!({})), "2", "{blow:?}: its memory is kept");
    assert_eq!(lines(&effects), 1, "{blow:?}");
    setup.assert_server_kept();
}

/// Only the old daemon can finish them. The new one serves everything else at once.
#[test]
fn calls_of_an_http_server_are_finished_by_the_old_daemon_after_reloads() {
    let env = TestEnv::new();
    let effects = env.work().join("effects");
    let port = free_port().to_string();
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let setup = Setup::in_env(env, &options, &["--http", &format!("127.0.0.1:{port}")]);
    setup.env.run_server("other", &[], &[&fixture()]);
    let versions = ["2025-06-18", "2025-11-25"];
    let sessions = versions.map(|version| Raw::open_with(&setup.url, None, version));
    let mut line = Client::spawn(setup.env.command(["connect", NAME]));
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "line", "version": "1"}});
    line.say(&request(1, "initialize", &params).to_string());
    assert_eq!(line.message()["id"], 1);
    line.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
    let slow = |id, ms| call(id, "append", &json!({"path": effects, "line": "x", "ms": ms}));
    line.say(&slow(2, 3 * SLOW).to_string());
    let started = |count| {
        until("the server has them", || (lines(&effects) == count).then_some(()));
    };
    thread::scope(|scope| {
        let answer = |session: &Raw, accept, call: &Value| {
            let answer = session.post(accept, call).answer();
            assert_eq!(text_of(&answer["result"], 0), "appended", "{answer}");
        };
        let mut open = Vec::new();
        for session in &sessions {
            open.push(scope.spawn(move || answer(session, BOTH, &slow(2, 3 * SLOW))));
            open.push(scope.spawn(move || answer(session, JSON, &slow(3, 3 * SLOW))));
        }
        started(5);
        let old = setup.env.daemon();
        Blow::Reload.strike(&setup.env);
        assert!(open.iter().all(|call| !call.is_finished()), "the reload does not wait for them");
        for session in &sessions {
            // One that is a few milliseconds old when the daemon is replaced.
            open.push(scope.spawn(move || answer(session, BOTH, &slow(4, SLOW))));
        }
        started(7);
        let second = setup.env.daemon();
        Blow::Reload.strike(&setup.env);
        assert_eq!(say(&sessions[0], 5, "count", &json!({})), "1");
        for call in open {
            call.join().unwrap();
        }
        let answer = line.message();
        assert_eq!((&answer["id"], text_of(&answer["result"], 0)), (&json!(2), "appended".into()));
        until_dead(old);
        until_dead(second);
    });
    assert_eq!(lines(&effects), 7, "each was executed once");
    setup.assert_server_kept();
    let log = fs::read_to_string(setup.env.mainstay_home().join("state/daemon.log")).unwrap();
    assert!(!log.contains("hangs") && !log.contains("not ours"), "old daemons supervise: {log}");
}

/// The old daemon passes the answer to the daemon after the next.
#[test]
fn a_call_of_an_http_server_survives_the_death_of_the_new_daemon() {
    let env = TestEnv::new();
    let effects = env.work().join("effects");
    let port = free_port().to_string();
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let setup = Setup::in_env(env, &options, &["--http", &format!("127.0.0.1:{port}")]);
    let session = setup.raw();
    let arguments = json!({"path": effects, "line": "x", "ms": 3 * SLOW});
    let begun = Begun::new(session.post(BOTH, &call(2, "append", &arguments)));
    until("it has its effect", || (lines(&effects) == 1).then_some(()));
    Blow::Reload.strike(&setup.env);
    Blow::Kill.strike(&setup.env);
    let answer = begun.resumed(&session);
    assert_eq!((&answer["id"], text_of(&answer["result"], 0)), (&json!(2), "appended".into()));
    assert_eq!(lines(&effects), 1);
}

/// A batch has no event id, and its requests are not recorded.
#[test]
fn a_batch_is_waited_for() {
    let setup = Setup::new(&[], &[]);
    let session = Raw::open_with(&setup.url, None, "2025-03-26");
    let batch =
        json!(
            [call(1, "sleep", &json!({"ms": SLOW / 2})), call(2, "sleep", &json!({"ms": SLOW})),]
        );
    let response = session.post(JSON, &batch);
    Blow::Reload.strike(&setup.env);
    let answers: Value = serde_json::from_str(response.text().trim()).unwrap();
    assert_eq!(answers.as_array().map(Vec::len), Some(2), "{answers}");
}

/// A stream that has begun.
struct Begun {
    /// It stays open until it is resumed.
    stream: Response,
    id: String,
}

impl Begun {
    fn new(mut stream: Response) -> Self {
        assert_eq!(stream.status, 200);
        let id = stream.event().and_then(|event| event.id).expect("an id to resume from");
        Self { stream, id }
    }

    /// The one message that comes after it was resumed.
    fn resumed(self, session: &Raw) -> Value {
        drop(self.stream);
        let mut resumed = session.get(Some(&self.id));
        assert_eq!(resumed.status, 200);
        let message = resumed.message().expect("an answer");
        assert_eq!(resumed.message(), None, "the stream ends with it");
        message
    }
}

//! Crash loops and isolated sessions across restarts of the daemon.

use rustix::process::Signal;
use serde_json::json;

use super::setup::{Blow, NAME, Setup, lines, say};
use crate::env::{TestEnv, fixture, is_alive, kill, pid_of, until_dead};
use crate::fake_daemon::Client;
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, call};

#[test]
fn the_next_daemon_continues_the_restart_counter() {
    let env = TestEnv::new();
    let starts = env.work().join("starts");
    let script = format!("echo x >>starts; test ! -e broken || exit 3; exec {}", fixture());
    let options = ["--restart-max", "3", "--restart-initial", "1s", "--restart-cap", "1s"];
    let setup = Setup::run(env, &options, &["sh", "-c", &script]);
    setup.env.write("broken", "");
    kill(pid_of(&setup.server), Signal::KILL);
    let before = setup.env.once(NAME, "failed twice", |server| server["restarts"] == 2);
    Blow::Kill.strike(&setup.env);
    let after = setup.env.server(NAME);
    assert!(after["restarts"].as_u64() >= before["restarts"].as_u64(), "{after:#}");

    let gave_up = setup.env.once(NAME, "gave up", |server| server["status"] == "error");
    assert_eq!(gave_up["restarts"], 3);
    let reason = gave_up["reason"].as_str().unwrap();
    assert!(reason.contains("gave up after 3 restarts"), "{reason}");
    assert_eq!(lines(&starts), 4, "the first start and three restarts");
    for blow in Blow::ALL {
        blow.strike(&setup.env);
        let still = setup.env.server(NAME);
        for field in ["status", "reason", "restarts", "restarts_total"] {
            assert_eq!(still[field], gave_up[field], "{blow:?}: {field}");
        }
    }
    assert_eq!(lines(&starts), 4, "no daemon starts from zero");
}

/// The run of one session is recovered with it.
#[test]
fn an_isolated_session_keeps_its_own_run() {
    let setup = Setup::new(&["--isolate"], &[]);
    let session = setup.raw();
    let own = say(&session, 1, "pid", &json!({}));
    assert_ne!(own, pid_of(&setup.server).to_string());
    say(&session, 2, "remember", &json!({"key": "k", "value": "v"}));
    for (round, blow) in (1..).zip(Blow::ALL) {
        blow.strike(&setup.env);
        assert_eq!(say(&session, 10 * round, "recall", &json!({"key": "k"})), "v", "{blow:?}");
        assert_eq!(say(&session, 10 * round + 1, "pid", &json!({})), own, "{blow:?}");
    }
    assert_eq!(setup.env.server(NAME)["sessions"], 1);
    setup.assert_server_kept();
}

/// The run of an ended session is kept for a minute, but not by the next daemon, nor if the server stops.
#[test]
fn the_run_of_an_ended_session_is_stopped() {
    let setup = Setup::new(&["--isolate"], &[]);
    let ends = |end: &dyn Fn()| {
        let session = setup.raw();
        let own: u32 = say(&session, 1, "pid", &json!({})).parse().unwrap();
        assert_eq!(session.delete(), 204);
        assert_eq!(session.post(BOTH, &call(2, "pid", &json!({}))).status, 404);
        setup.env.once(NAME, "has no session", |server| server["sessions"] == 0);
        assert!(is_alive(own), "it is kept");
        end();
        until_dead(own);
    };
    for blow in Blow::ALL {
        ends(&|| blow.strike(&setup.env));
    }
    ends(&|| drop(setup.env.ok(["stop", NAME])));
    setup.env.ok(["start", NAME]);
    ends(&|| drop(setup.env.ok(["rm", NAME])));
}

#[test]
fn the_run_of_an_ended_connect_is_kept_and_not_used_again() {
    let setup = Setup::new(&["--isolate"], &[]);
    let connects = || {
        let mut client = Client::spawn(setup.env.command(["connect", NAME]));
        let info = json!({"name": "tester", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
        let initialize =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        client.say(&initialize.to_string());
        assert!(client.message()["result"].is_object());
        client.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client.say(&call(2, "pid", &json!({})).to_string());
        let pid = text_of(&client.message()["result"], 0);
        assert_eq!(client.end().0, Some(0));
        pid.parse::<u32>().unwrap()
    };
    let (first, second) = (connects(), connects());
    assert_ne!(first, second);
    setup.env.once(NAME, "has no session", |server| server["sessions"] == 0);
    assert!(is_alive(first) && is_alive(second));
    setup.env.ok(["stop", NAME]);
    until_dead(first);
    until_dead(second);
}

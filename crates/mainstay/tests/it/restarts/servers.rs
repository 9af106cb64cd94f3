//! What becomes of servers that are no plain case.

use rustix::process::Signal;
use serde_json::json;

use super::scene::{Blow, NAME, Scene, lines, say};
use crate::env::{TestEnv, fixture, kill, pid_of};

#[test]
fn a_crash_loop_is_counted_on_by_the_next_daemon() {
    let env = TestEnv::new();
    let starts = env.work().join("starts");
    let script = format!("echo x >>starts; test ! -e broken || exit 3; exec {}", fixture());
    let options = ["--restart-max", "3", "--restart-initial", "1s", "--restart-cap", "1s"];
    let scene = Scene::run(env, &options, &["sh", "-c", &script]);
    scene.env.write("broken", "");
    kill(pid_of(&scene.server), Signal::KILL);
    let before = scene.env.once(NAME, "failed twice", |server| server["restarts"] == 2);
    Blow::Kill.strike(&scene.env);
    let after = scene.env.server(NAME);
    assert!(after["restarts"].as_u64() >= before["restarts"].as_u64(), "{after:#}");

    let gave_up = scene.env.once(NAME, "gave up", |server| server["status"] == "error");
    assert_eq!(gave_up["restarts"], 3);
    let reason = gave_up["reason"].as_str().unwrap();
    assert!(reason.contains("gave up after 3 restarts"), "{reason}");
    assert_eq!(lines(&starts), 4, "the first start and three restarts");
    for blow in Blow::ALL {
        blow.strike(&scene.env);
        let still = scene.env.server(NAME);
        for field in ["status", "reason", "restarts", "restarts_total"] {
            assert_eq!(still[field], gave_up[field], "{blow:?}: {field}");
        }
    }
    assert_eq!(lines(&starts), 4, "no daemon begins anew");
}

/// The run that belongs to one session is taken up with it.
#[test]
fn an_isolated_session_keeps_its_own_run() {
    let scene = Scene::new(&["--isolate"], &[]);
    let session = scene.raw();
    let own = say(&session, 1, "pid", &json!({}));
    assert_ne!(own, pid_of(&scene.server).to_string());
    say(&session, 2, "remember", &json!({"key": "k", "value": "v"}));
    for (round, blow) in (1..).zip(Blow::ALL) {
        blow.strike(&scene.env);
        assert_eq!(say(&session, 10 * round, "recall", &json!({"key": "k"})), "v", "{blow:?}");
        assert_eq!(say(&session, 10 * round + 1, "pid", &json!({})), own, "{blow:?}");
    }
    assert_eq!(scene.env.server(NAME)["sessions"], 1);
    scene.assert_server_kept();
}

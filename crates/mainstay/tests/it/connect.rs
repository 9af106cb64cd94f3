//! `mainstay connect`, with a test in the daemon's place.

use std::os::unix::process::CommandExt as _;

use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::stand_in::{Client, Daemon, Peer};

#[test]
fn lines_are_carried_both_ways_and_nothing_else() {
    let (_env, _daemon, mut client, mut peer) = opened();
    let long = format!(r#"{{"id":7,"method":"tools/call","params":"{}"}}"#, "x".repeat(1 << 20));
    client.say(&long);
    client.say("no json at all");
    assert_eq!(peer.line(), long);
    assert_eq!(peer.line(), "no json at all");
    peer.say(r#"{"method":"notifications/message"}"#);
    peer.say(r#"{"id":7,"result":{}}"#);
    assert_eq!(client.line(), r#"{"method":"notifications/message"}"#);
    assert_eq!(client.line(), r#"{"id":7,"result":{}}"#);
    assert_eq!(client.end(), (Some(0), Vec::new(), String::new()));
}

#[test]
fn the_last_answers_are_waited_for() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    client.say_all(r#"{"id":1,"method":"ping"}"#);
    assert_eq!(peer.line(), r#"{"id":1,"method":"ping"}"#);
    peer.say(r#"{"id":1,"result":{}}"#);
    let (code, lines, _) = client.end();
    assert_eq!((code, lines), (Some(0), vec![r#"{"id":1,"result":{}}"#.to_owned()]));
}

#[test]
fn a_broken_connection_is_made_again_and_the_session_goes_on() {
    let (_env, daemon, mut client, mut peer) = opened();
    let list = r#"{"id":1,"method":"tools/list"}"#;
    let call = r#"{"id":2,"method":"tools/call","params":{"name":"x"}}"#;
    for line in [list, call] {
        client.say(line);
        assert_eq!(peer.line(), line);
    }
    peer.write("half a li");
    drop(peer);
    let mut peer = daemon.accept(Some("s1"), "s1");
    let ended = client.message();
    assert_eq!((&ended["id"], &ended["result"]["isError"]), (&json!(2), &json!(true)));
    let text = ended["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("its effect is unknown"), "{text}");
    assert_eq!(peer.line(), list);
    peer.say(r#"{"id":1,"result":{"tools":[]}}"#);
    assert_eq!(client.line(), r#"{"id":1,"result":{"tools":[]}}"#);
    let (code, lines, stderr) = client.end();
    assert_eq!((code, lines), (Some(0), Vec::new()));
    assert!(stderr.contains("connecting again"), "{stderr}");
}

#[test]
fn what_outlived_the_daemon_is_answered_through_the_next_one() {
    let (_env, daemon, mut client, mut peer) = opened();
    let list = r#"{"id":1,"method":"tools/list"}"#;
    let call = r#"{"id":"a b","method":"tools/call","params":{"name":"x"}}"#;
    for line in [list, call] {
        client.say(line);
        assert_eq!(peer.line(), line);
    }
    drop(peer);
    let mut peer = daemon.accept_pending(Some("s1"), "s1", &["\"a b\"", "1"]);
    client.say(r#"{"id":3,"method":"ping"}"#);
    assert_eq!(peer.line(), r#"{"id":3,"method":"ping"}"#, "nothing is said again");
    for line in
        [r#"{"id":"a b","result":{}}"#, r#"{"id":3,"result":{}}"#, r#"{"id":1,"result":{}}"#]
    {
        peer.say(line);
        assert_eq!(client.line(), line);
    }
    let (code, lines, _) = client.end();
    assert_eq!((code, lines), (Some(0), Vec::new()));
}

#[test]
fn a_daemon_that_is_gone_for_a_while_is_waited_for() {
    let (env, daemon, mut client, peer) = opened();
    daemon.leave();
    drop(peer);
    let call = r#"{"id":1,"method":"tools/call","params":{"name":"x"}}"#;
    client.say(call);

    let daemon = Daemon::new(&env);
    // One that is killed before it has said a word, and one that is before it has answered.
    drop(daemon.meet());
    drop(daemon.hello());
    let mut peer = daemon.accept(Some("s1"), "s1");
    assert_eq!(peer.line(), call);
    peer.say(r#"{"id":1,"result":{}}"#);
    assert_eq!(client.line(), r#"{"id":1,"result":{}}"#);
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn started_as_an_editor_does_it_ends_with_its_input_and_not_before() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut command = env.command(["connect", "time"]);
    command.process_group(0);
    let mut client = Client::spawn(command);
    let mut peer = daemon.accept(None, "s1");
    open(&mut client, &mut peer);
    daemon.leave();
    drop(peer);
    client.say(r#"{"id":1,"method":"notifications/none"}"#);
    assert!(client.is_alive());
    let (code, lines, stderr) = client.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(lines.len(), 1, "what it asked for last is answered: {lines:?}");
}

#[test]
fn a_daemon_of_another_version_is_told_once_in_a_life() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let attach = || {
        let (mut peer, _) = daemon.hello_as("99.0.0");
        peer.say(r#"{"ok":{"session":"s1"}}"#);
        peer
    };
    open(&mut client, &mut attach());
    let _second = attach();
    let (code, _, stderr) = client.end();
    assert_eq!(code, Some(0));
    let told = stderr.lines().filter(|line| line.contains("99.0.0")).collect::<Vec<_>>();
    let [told] = told[..] else { panic!("{stderr}") };
    assert!(told.contains("older than the daemon (99.0.0)"), "{told}");
}

#[test]
fn a_session_that_the_daemon_forgot_is_opened_again() {
    let (_env, daemon, mut client, peer) = opened();
    drop(peer);
    let mut peer = daemon.accept(Some("s1"), "s2");
    client.say(r#"{"id":1,"method":"ping"}"#);
    assert_eq!(peer.line(), INITIALIZE);
    peer.say(INITIALIZE_RESULT);
    assert_eq!(peer.line(), INITIALIZED);
    assert_eq!(peer.line(), r#"{"id":1,"method":"ping"}"#);
    peer.say(r#"{"id":1,"result":{}}"#);
    assert_eq!(client.line(), r#"{"id":1,"result":{}}"#, "the second handshake is not seen");
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn a_server_that_was_removed_meanwhile_ends_it() {
    let (_env, daemon, mut client, mut peer) = opened();
    client.say(r#"{"id":1,"method":"tools/list"}"#);
    peer.line();
    drop(peer);
    let (mut peer, _) = daemon.hello();
    peer.say(r#"{"error":{"kind":"no-such-server","message":"there is no server `time`"}}"#);
    let answer: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!(answer["error"]["message"], "there is no server `time`");
    assert_eq!(client.ending().0, Some(3));
}

#[test]
fn a_message_that_is_too_long_costs_itself_only() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    client.say(&"x".repeat((16 << 20) + 1));
    let refused: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!(refused["error"]["message"], "the message is longer than 16 MiB");
    client.say("next");
    assert_eq!(peer.line(), "next");
    assert_eq!(client.end().0, Some(0));
}

const INITIALIZE: &str = r#"{"id":0,"method":"initialize","params":{}}"#;
const INITIALIZE_RESULT: &str = r#"{"id":0,"result":{"protocolVersion":"2025-06-18"}}"#;
const INITIALIZED: &str = r#"{"method":"notifications/initialized"}"#;

fn env() -> TestEnv {
    TestEnv::new().with_var("MAINSTAY_NO_START", "1")
}

#[test]
fn a_client_that_passes_on_no_variables_names_the_home() {
    let env = env();
    let daemon = Daemon::new(&env);
    for home in [env.mainstay_home().to_str().unwrap(), "../mainstay"] {
        let mut command = env.command(["connect", "time", "--home", home]);
        command.env_remove("MAINSTAY_HOME");
        let mut client = Client::spawn(command);
        let mut peer = daemon.accept(None, "s1");
        open(&mut client, &mut peer);
        assert_eq!(client.end(), (Some(0), Vec::new(), String::new()));
    }
}

/// A daemon and a client whose session is open. The environment ends with the test.
fn opened() -> (TestEnv, Daemon, Client, Peer) {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut client = Client::start(&env);
    let mut peer = daemon.accept(None, "s1");
    open(&mut client, &mut peer);
    (env, daemon, client, peer)
}

/// The handshake of a client.
fn open(client: &mut Client, peer: &mut Peer) {
    client.say(INITIALIZE);
    assert_eq!(peer.line(), INITIALIZE);
    peer.say(INITIALIZE_RESULT);
    assert_eq!(client.line(), INITIALIZE_RESULT);
    client.say(INITIALIZED);
    assert_eq!(peer.line(), INITIALIZED);
}

//! `mainstay connect` with a fake daemon.

use std::os::unix::process::CommandExt as _;

use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::fake_daemon::{Client, Daemon, HttpRequest, Peer};

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}"#;
const LISTED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#;
const CALLED: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"content":[]}}"#;

#[test]
fn only_messages_are_passed_in_both_directions() {
    let mut setup = Setup::open();
    let padding = "x".repeat(1 << 20);
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{padding}"}}}}"#
    );
    setup.client.say(&long);
    let request = setup.post.expect(&long);
    assert_eq!(request.header("mcp-session-id"), Some("s1"));
    assert_eq!(request.header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(request.header("mainstay-repeated"), None);
    setup.post.begin_stream("7-0");
    let (progress, answer) = (
        r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
    );
    setup.post.event("7-1", progress);
    assert_eq!(setup.client.line(), progress);

    // The response to a message has begun, so the next one is sent, on another connection.
    setup.client.say("no json at all");
    let mut second = setup.daemon.http();
    second.expect("no json at all");
    let refused = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}"#;
    second.respond("400 Bad Request", "content-type: application/json\r\n", refused);
    assert_eq!(setup.client.line(), refused);

    setup.post.event("7-2", answer);
    setup.post.end_stream();
    assert_eq!(setup.client.line(), answer);
    let news = r#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
    setup.listening.event("0-1", news);
    assert_eq!(setup.client.line(), news);
    setup.client.say_all("");
    let delete = setup.post.request();
    assert_eq!(delete.header("mcp-session-id"), Some("s1"));
    setup.post.respond("204 No Content", "", "");
    assert_eq!(setup.client.ending(), (Some(0), Vec::new(), String::new()));
}

#[test]
fn pending_answers_are_delivered_before_exit() {
    let mut setup = Setup::open();
    setup.client.say_all(LIST);
    setup.post.expect(LIST);
    setup.post.answer(LISTED);
    assert_eq!(setup.client.line(), LISTED);
    let (code, lines, _) = setup.client.ending();
    assert_eq!((code, lines), (Some(0), Vec::new()));
}

#[test]
fn a_request_whose_response_was_lost_is_sent_again_marked_as_repeated() {
    let mut setup = Setup::open();
    setup.client.say(LIST);
    setup.post.expect(LIST);
    let (_env, daemon, mut client) = setup.cut();
    let mut listening = Vec::new();
    let (mut post, repeated) = next_post(&daemon, &mut listening);
    assert_eq!(repeated.body.trim_end(), LIST);
    assert_eq!(repeated.header("mainstay-repeated"), Some("lost"));
    assert_eq!(repeated.header("last-event-id"), None);
    post.answer(LISTED);
    assert_eq!(client.line(), LISTED);

    client.say(CALL);
    let called = post.expect(CALL);
    assert_eq!(called.header("mainstay-repeated"), None);
    post.begin_stream("3-0");
    let question = r#"{"jsonrpc":"2.0","id":9,"method":"elicitation/create"}"#;
    post.event("3-1", question);
    assert_eq!(client.line(), question);
    drop(post);
    let (mut post, repeated) = next_post(&daemon, &mut listening);
    assert_eq!(repeated.body.trim_end(), CALL);
    assert_eq!(repeated.header("mainstay-repeated"), Some("asked"));
    assert_eq!(repeated.header("last-event-id"), Some("3-1"));
    post.begin_stream("3-1");
    post.event("3-2", CALLED);
    post.end_stream();
    assert_eq!(client.line(), CALLED);
}

#[test]
fn connect_waits_for_an_absent_daemon() {
    let (env, daemon, mut client) = Setup::open().cut();
    daemon.leave();
    client.say(CALL);

    let daemon = Daemon::new(&env);
    // One daemon is killed before its hello, and one before its answer.
    drop(daemon.meet());
    drop(daemon.hello());
    let (mut post, request) = next_post(&daemon, &mut Vec::new());
    assert_eq!((request.body.trim_end(), request.header("mainstay-repeated")), (CALL, None));
    post.answer(CALLED);
    assert_eq!(client.line(), CALLED);
}

#[test]
fn connect_ends_with_its_input() {
    let env = env();
    let daemon = Daemon::new(&env);
    let mut command = env.command(["connect", "time"]);
    command.process_group(0);
    let (_env, daemon, mut client) = Setup::opened(env, daemon, Client::spawn(command)).cut();
    daemon.leave();
    client.say(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert!(client.is_alive());
    let (code, _, stderr) = client.end();
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn another_version_is_reported_once_per_process() {
    let env = env();
    let daemon = Daemon::new(&env);
    let client = Client::start(&env);
    // It ends before it has answered, and is started again.
    drop(daemon.hello_as("99.0.0"));
    let (mut peer, _) = daemon.hello_as("99.0.0");
    peer.say(r#"{"ok":null}"#);
    let (code, _, stderr) = client.end();
    assert_eq!(code, Some(0));
    let reported = stderr.lines().filter(|line| line.contains("99.0.0")).collect::<Vec<_>>();
    let [reported] = reported[..] else { panic!("{stderr}") };
    assert!(reported.contains("older than the daemon (99.0.0)"), "{reported}");
}

#[test]
fn connect_waits_for_the_reload_of_an_outdated_daemon() {
    let env = env();
    let daemon = Daemon::new(&env);
    let client = Client::start(&env);
    let (mut peer, _) = daemon.hello();
    let message = "the request cannot be understood: unknown variant `http`";
    peer.say(&json!({"error": {"kind": "invalid", "message": message}}).to_string());
    // It was updated meanwhile.
    let (_env, _daemon, client) = Setup::opened(env, daemon, client).cut();
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn a_session_unknown_to_the_daemon_is_opened_again() {
    let mut setup = Setup::open();
    setup.client.say(LIST);
    setup.post.expect(LIST);
    let refused = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no session"}}"#;
    setup.post.respond("404 Not Found", "content-type: application/json\r\n", refused);
    let initialize = setup.post.expect(INITIALIZE);
    assert_eq!(initialize.header("mcp-session-id"), None);
    let headers = "content-type: application/json\r\nmcp-session-id: s2\r\n";
    setup.post.respond("200 OK", headers, INITIALIZE_RESULT);
    assert_eq!(setup.post.expect(INITIALIZED).header("mcp-session-id"), Some("s2"));
    setup.post.accepted();
    assert_eq!(setup.post.expect(LIST).header("mcp-session-id"), Some("s2"));
    setup.post.answer(LISTED);
    assert_eq!(setup.client.line(), LISTED, "the second handshake is not seen");
}

#[test]
fn connect_ends_when_its_server_is_removed() {
    let mut setup = Setup::open();
    setup.client.say(LIST);
    setup.post.expect(LIST);
    let (_env, daemon, client) = setup.cut();
    let (mut peer, _) = daemon.hello();
    peer.say(r#"{"error":{"kind":"no-such-server","message":"there is no server `time`"}}"#);
    let answer: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!(answer["error"]["message"], "there is no server `time`");
    assert_eq!(client.ending().0, Some(3));
}

#[test]
fn only_the_message_that_is_too_long_fails() {
    let mut setup = Setup::open();
    setup.client.say(&"x".repeat((16 << 20) + 1));
    let refused: Value = serde_json::from_str(&setup.client.line()).unwrap();
    assert_eq!(refused["error"]["message"], "the message is longer than 16 MiB");
    setup.client.say(LIST);
    setup.post.expect(LIST);
}

#[test]
fn a_request_that_is_cancelled_before_it_was_sent_is_not_sent() {
    let mut setup = Setup::open();
    setup.client.say(LIST);
    setup.post.expect(LIST);
    setup.client.say(CALL);
    let cancelled = |id: u32| {
        let params = json!({"requestId": id});
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()
    };
    setup.client.say(&cancelled(2));
    let ping = r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#;
    setup.client.say(ping);
    // This is answered as soon as it is read, and all that is before it.
    setup.client.say(&"x".repeat((16 << 20) + 1));
    assert!(setup.client.line().contains("the message is longer than 16 MiB"));
    setup.post.answer(LISTED);
    assert_eq!(setup.client.line(), LISTED);
    // The cancellation itself does no harm.
    let mut next = setup.post.request();
    if next.body.trim_end() == cancelled(2) {
        setup.post.respond("202 Accepted", "", "");
        next = setup.post.request();
    }
    assert_eq!(next.body.trim_end(), ping);
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
const INITIALIZE_RESULT: &str = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn env() -> TestEnv {
    TestEnv::new().with_var("MAINSTAY_NO_START", "1")
}

#[test]
fn the_home_option_replaces_the_variable() {
    for home in ["absolute", "relative"] {
        let env = env();
        let daemon = Daemon::new(&env);
        let absolute = env.mainstay_home();
        let home = if home == "absolute" { absolute.to_str().unwrap() } else { "../mainstay" };
        let mut command = env.command(["connect", "time", "--home", home]);
        command.env_remove("MAINSTAY_HOME");
        let setup = Setup::opened(env, daemon, Client::spawn(command));
        let ended = setup.client.end();
        assert_eq!(ended, (Some(0), Vec::new(), String::new()));
    }
}

/// A client whose session is open.
struct Setup {
    daemon: Daemon,
    client: Client,
    /// The connection for the next message.
    post: Peer,
    /// The connection for what belongs to no request.
    listening: Peer,
    env: TestEnv,
}

impl Setup {
    fn open() -> Self {
        let env = env();
        let daemon = Daemon::new(&env);
        let client = Client::start(&env);
        Self::opened(env, daemon, client)
    }

    /// The handshake of a client.
    fn opened(env: TestEnv, daemon: Daemon, mut client: Client) -> Self {
        let mut post = daemon.http();
        client.say(INITIALIZE);
        post.expect(INITIALIZE);
        post.answer(INITIALIZE_RESULT);
        assert_eq!(client.line(), INITIALIZE_RESULT);
        let get = post.request();
        assert!(get.is_get() && get.header("mcp-session-id") == Some("s1"), "{get:?}");
        post.begin_stream("0-0");
        client.say(INITIALIZED);
        let listening = post;
        let mut post = daemon.http();
        post.expect(INITIALIZED);
        post.accepted();
        Self { daemon, client, post, listening, env }
    }

    /// Closes all connections.
    fn cut(self) -> (TestEnv, Daemon, Client) {
        (self.env, self.daemon, self.client)
    }
}

/// The next connection that carries a message, and the message. Those that listen are kept open.
fn next_post(daemon: &Daemon, listening: &mut Vec<Peer>) -> (Peer, HttpRequest) {
    loop {
        let mut peer = daemon.http();
        let request = peer.request();
        if !request.is_get() {
            return (peer, request);
        }
        peer.begin_stream("0-0");
        listening.push(peer);
    }
}

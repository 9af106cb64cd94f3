//! Log messages, and other things that a server says unasked.

use mainstay_proxy::NO_MESSAGE;
use serde_json::json;

use super::{Client, Server, World};

async fn sets_level(client: &Client, server: &mut Server, level: &str, told: bool) {
    let asked = client.asks("logging/setLevel", &json!({"level": level}));
    if told {
        let request = server.reads_request("logging/setLevel").await;
        assert_eq!(request["params"]["level"], level);
        server.answers(&request, &json!({})).await;
    }
    assert_eq!(crate::soon(asked.answer()).await["result"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn the_server_is_told_the_level_that_serves_all() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    sets_level(&one, &mut server, "warning", true).await;
    sets_level(&two, &mut server, "debug", true).await;
    sets_level(&one, &mut server, "error", false).await;
    sets_level(&two, &mut server, "error", true).await;
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_caller_hears_what_its_level_admits() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    sets_level(&client, &mut server, "warning", true).await;
    let mut asked = client.calls("poke");
    let call = server.reads_call("poke").await;
    for (level, text) in [("info", "low"), ("error", "high"), ("debug", "low")] {
        server.logs(level, text).await;
    }
    assert_eq!(asked.hears().await["params"]["data"], "high");
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
    assert!(client.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn what_may_be_about_another_session_is_heard_by_nobody() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    let mut asked = one.calls("poke");
    let call = server.reads_call("poke").await;
    server.logs("info", "for one").await;
    assert_eq!(asked.hears().await["params"]["data"], "for one");
    server.returns(&call, "done").await;
    asked.text().await;
    // It speaks of the call that it has just answered.
    server.logs("info", "still for one").await;
    let (_first, _second) = (one.calls("poke"), two.calls("poke"));
    server.reads_call("poke").await;
    server.reads_call("poke").await;
    server.logs("info", "for one or two").await;
    server.says(&json!({"method": "notifications/odd", "params": {"for": "two"}})).await;
    assert!(one.hears_nothing().await && two.hears_nothing().await);
    for expected in ["still for one", "for one or two", "notifications/odd"] {
        let logged = crate::soon(server.other_output.recv()).await.unwrap();
        assert!(String::from_utf8_lossy(&logged).contains(expected), "{logged:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_only_client_hears_everything() {
    let world = World::new();
    let server = world.serves().await;
    let client = world.client().await;
    server.logs("debug", "idle").await;
    assert_eq!(client.hears().await["params"]["data"], "idle");
    server.says(&json!({"method": "notifications/odd"})).await;
    assert_eq!(client.hears().await["method"], "notifications/odd");
}

#[tokio::test(start_paused = true)]
async fn junk_goes_to_the_log() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    for line in ["listening on stdio", "", r#"{"level":"info"}"#, "[1,2]"] {
        server.writes(line).await;
    }
    let batch = r#"[{"jsonrpc":"2.0","method":"notifications/odd"},{"no":1}]"#;
    server.writes(batch).await;
    assert_eq!(client.hears().await["method"], "notifications/odd");
    for line in ["listening on stdio", "", r#"{"level":"info"}"#, "1", "2", r#"{"no":1}"#] {
        let logged = crate::soon(server.other_output.recv()).await.unwrap();
        assert_eq!(logged, format!("{NO_MESSAGE}{line}"));
    }
}

#[tokio::test(start_paused = true)]
async fn clients_are_heard_by_the_server_but_roots_are_never_merged() {
    let world = World::new();
    let mut server = world.serves().await;
    let one = world.client().await;
    let changed = json!({"method": "notifications/roots/list_changed"});
    one.posts(&changed);
    assert_eq!(server.reads().await["method"], changed["method"]);
    let two = world.client().await;
    two.posts(&changed);
    assert!(server.reads_nothing().await);
    two.posts(&json!({"method": "notifications/odd"}));
    assert_eq!(server.reads().await["method"], "notifications/odd");
}

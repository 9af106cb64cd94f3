//! Runs that die, and what their successors are told and asked.

use std::sync::Arc;
use std::time::Duration;

use mainstay_proxy::Availability;
use serde_json::{Value, json};

use super::{World, settings};
use crate::soon;

#[tokio::test(start_paused = true)]
async fn a_safe_call_is_replayed_and_an_unsafe_one_answered() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let (safe, harmful) = (client.calls("peek"), client.calls("poke"));
    server.reads_call("peek").await;
    server.reads_call("poke").await;
    drop(server);
    world.is_coming(None);
    let text = harmful.text().await;
    assert!(text.starts_with("failed: the server stopped during this call; its effect is unknown"));
    assert!(text.contains("exited 3 after 2 h") && text.contains("out of paper"), "{text}");
    let mut server = world.serves().await;
    let call = server.reads_call("peek").await;
    server.returns(&call, "seen").await;
    assert_eq!(safe.text().await, "seen");
    assert!(server.reads_nothing().await);
    assert_eq!(world.notes.causes(), ["effect-unknown", "replayed"]);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_makes_the_reader_panic_ends_its_run_alone() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let harmful = client.calls("poke");
    server.reads_call("poke").await;
    server.says(&json!({"jsonrpc": "2.0", "method": "mainstay/test-panic"})).await;
    let run = server.run.clone().unwrap();
    soon(run.closed()).await;
    drop(server);
    world.is_coming(None);
    assert!(harmful.text().await.contains("effect is unknown"));
    let mut server = world.serves().await;
    let safe = client.calls("peek");
    let call = server.reads_call("peek").await;
    server.returns(&call, "seen").await;
    assert_eq!(safe.text().await, "seen");
}

#[tokio::test(start_paused = true)]
async fn a_safe_call_is_replayed_once_only() {
    let world = World::new();
    let client = {
        let _server = world.serves().await;
        world.client().await
    };
    let mut server = world.serves().await;
    let asked = client.calls("peek");
    for _ in 0..2 {
        server.reads_call("peek").await;
        server = world.serves().await;
    }
    assert!(asked.text().await.starts_with("failed: the server stopped twice"));
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_written_goes_to_the_next_run() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let (first, second) = (client.calls("first"), client.calls("second"));
    server.reads_call("first").await;
    assert_eq!(server.takes().await["params"]["name"], "second");
    drop(server);
    let mut server = world.serves().await;
    assert!(first.text().await.contains("effect is unknown"));
    let call = server.reads_call("second").await;
    server.returns(&call, "done").await;
    assert_eq!(second.text().await, "done");
}

/// The lines to a server that reads nothing are full, so a request waits outside.
#[tokio::test(start_paused = true)]
async fn a_call_for_which_there_was_no_room_goes_to_the_next_run_unless_it_is_given_up() {
    let world = World::new();
    let server = world.serves().await;
    let client = world.client().await;
    let calls: Vec<_> = (0..12).map(|_| client.calls("poke")).collect();
    let given_up = client.calls("never");
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop((given_up, server));
    let mut server = world.serves().await;
    for _ in &calls {
        let call = server.reads_call("poke").await;
        server.returns(&call, "done").await;
    }
    for call in calls {
        assert_eq!(call.text().await, "done");
    }
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn many_unsafe_calls_that_die_together_are_all_told_so() {
    let world = World::new();
    let mut server = world.serves().await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(world.client().await);
    }
    // More than may be held at a time.
    let calls: Vec<_> = (0..4200).map(|n| clients[n % 5].calls("poke")).collect();
    for _ in &calls {
        server.reads_call("poke").await;
    }
    drop(server);
    for call in calls {
        let text = call.text().await;
        assert!(text.contains("its effect is unknown"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn progress_never_falls_across_a_replay() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let mut asked = client.calls_with_token("peek", &json!(3));
    let call = server.reads_call("peek").await;
    for progress in [1.0, 5.0] {
        server.tells_progress(&call, progress).await;
        assert_eq!(asked.hears().await["params"]["progress"], progress);
    }
    drop(server);
    let mut server = world.serves().await;
    let call = server.reads_call("peek").await;
    for progress in [1.0, 5.0, 5.5] {
        server.tells_progress(&call, progress).await;
    }
    for _ in ["1.0", "5.0"] {
        let value = asked.hears().await["params"]["progress"].as_f64().unwrap();
        assert!(value > 5.0 && value < 5.001, "{value}");
    }
    assert_eq!(asked.hears().await["params"], json!({"progressToken": 3, "progress": 5.5}));
    server.returns(&call, "").await;
    asked.text().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_run_is_told_level_and_subscriptions_before_anything_else() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    for (client, level, uri) in [(&one, "warning", "a:"), (&two, "info", "b:")] {
        let set = client.asks("logging/setLevel", &json!({"level": level}));
        let request = server.reads_request("logging/setLevel").await;
        server.answers(&request, &json!({})).await;
        soon(set.answer()).await;
        let subscribed = client.asks("resources/subscribe", &json!({"uri": uri}));
        let request = server.reads_request("resources/subscribe").await;
        server.answers(&request, &json!({})).await;
        soon(subscribed.answer()).await;
    }
    drop(server);
    world.is_coming(None);
    let held = one.calls("poke");
    let mut server = world.serves().await;
    let level = server.reads_request("logging/setLevel").await;
    assert_eq!(level["params"], json!({"level": "info"}));
    for uri in ["a:", "b:"] {
        let request = server.reads_request("resources/subscribe").await;
        assert_eq!(request["params"], json!({"uri": uri}));
    }
    let call = server.reads_call("poke").await;
    server.returns(&call, "").await;
    held.text().await;
    for (client, uri) in [(&one, "a:"), (&two, "b:")] {
        expect_updated(&client.hears().await, uri);
        assert!(client.hears_nothing().await);
    }
}

#[tokio::test(start_paused = true)]
async fn updates_go_to_those_who_subscribed() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    for client in [&one, &two] {
        let subscribed = client.asks("resources/subscribe", &json!({"uri": "a:"}));
        let request = server.reads_request("resources/subscribe").await;
        server.answers(&request, &json!({})).await;
        soon(subscribed.answer()).await;
    }
    // Another one still wants it, so the server is not told.
    let left = one.asks("resources/unsubscribe", &json!({"uri": "a:"}));
    soon(left.answer()).await;
    let updated = json!({"method": "notifications/resources/updated", "params": {"uri": "a:"}});
    server.says(&updated).await;
    expect_updated(&two.hears().await, "a:");
    assert!(one.hears_nothing().await && server.reads_nothing().await);
    let left = two.asks("resources/unsubscribe", &json!({"uri": "a:"}));
    let request = server.reads_request("resources/unsubscribe").await;
    server.answers(&request, &json!({})).await;
    soon(left.answer()).await;
    drop(server);
    assert!(world.serves().await.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn the_first_result_of_a_new_run_says_so_once_per_session() {
    let world = World::with(mainstay_proxy::Settings { quiet_restart: false, ..settings() });
    let mut old = world.serves().await;
    let client = world.client().await;
    let late = client.calls("old");
    let old_call = old.reads_call("old").await;
    // The new run is there while the old one still answers.
    let mut new = world.serves().await;
    // An error cannot carry the note, and does not use it up.
    let failing = client.calls("poke");
    let call = new.reads_call("poke").await;
    new.says(&json!({"id": call["id"], "error": {"code": 7, "message": "no"}})).await;
    assert_eq!(soon(failing.answer()).await["error"]["code"], 7);
    assert!(text_of(&client, &mut new).await.contains("whatever it kept in memory is lost"));
    old.returns(&old_call, "old").await;
    assert_eq!(late.text().await, "old");
    assert_eq!(text_of(&client, &mut new).await, "done");
    let newcomer = world.client().await;
    assert_eq!(text_of(&newcomer, &mut new).await, "done");
}

async fn text_of(client: &super::Client, server: &mut super::Server) -> String {
    let asked = client.calls("poke");
    let call = server.reads_call("poke").await;
    server.returns(&call, "done").await;
    asked.text().await
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_server_answers_what_is_open() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let (safe, harmful) = (client.calls("peek"), client.calls("poke"));
    server.reads_call("peek").await;
    server.reads_call("poke").await;
    let unwritten = client.calls("poke");
    server.takes().await;
    drop(server);
    world.proxy.set_availability(Availability::Removed);
    assert!(harmful.text().await.contains("its effect is unknown"));
    for asked in [safe, unwritten] {
        assert_eq!(asked.text().await, "failed: the MCP server `time` was removed");
    }
    assert!(client.hears_the_end().await);
    client.posts(&json!({"method": "notifications/initialized"}));
    assert_eq!((world.proxy.session_count(), world.notes.records().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_restored_session_goes_on_with_a_new_run() {
    let before = World::new();
    let mut server = before.serves().await;
    let client = before.client().await;
    let subscribed = client.asks("resources/subscribe", &json!({"uri": "a:"}));
    let request = server.reads_request("resources/subscribe").await;
    server.answers(&request, &json!({})).await;
    soon(subscribed.answer()).await;

    let world = before.killed();
    let id = before.notes.records().remove(0).id;
    let session = world.servers.session(super::NAME, &id).unwrap();
    let client = super::Client::new(session);
    let held = client.calls("poke");
    let mut server = world.serves().await;
    let request = server.reads_request("resources/subscribe").await;
    assert_eq!(request["params"], json!({"uri": "a:"}));
    let call = server.reads_call("poke").await;
    server.returns(&call, "done").await;
    assert_eq!(held.text().await, "done");
    expect_updated(&client.hears().await, "a:");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_opened_before_is_not_opened_again() {
    let before = World::new();
    let first = before.serves().await;
    let hello = first.run.as_ref().unwrap().run.hello.as_ref().clone();

    let world = World::new();
    let arrival = mainstay_proxy::RunInfo { known: Some(hello), epoch: 2, ..world.arrival() };
    let (mut server, link) = super::Server::new();
    let run = world
        .proxy
        .attach_run(mainstay_proxy::UpstreamTransport::Lines(link), arrival)
        .await
        .unwrap();
    world.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
    let client = world.client().await;
    let asked = client.calls("poke");
    let call = server.reads_call("poke").await;
    // An answer to the daemon before this one.
    server.says(&json!({"id": 1_u64 << 32, "result": {}})).await;
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
}

#[tokio::test(start_paused = true)]
async fn no_task_outlives_its_run() {
    {
        let world = World::new();
        let mut server = world.serves().await;
        let client = world.client().await;
        let asked = client.calls("poke");
        server.reads_call("poke").await;
        drop((asked, server));
        world.proxy.set_availability(Availability::Removed);
    }
    crate::no_task_is_left().await;
}

fn expect_updated(message: &Value, uri: &str) {
    assert_eq!(message["method"], "notifications/resources/updated", "{message}");
    assert_eq!(message["params"], json!({"uri": uri}));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_the_end_of_a_run_hears_of_it() {
    let world = World::new();
    let mut server = world.serves().await;
    let run = server.run.take().unwrap();
    let waiting = tokio::spawn({
        let run = run.clone();
        async move { run.closed().await }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!waiting.is_finished());
    drop(server);
    soon(waiting).await.unwrap();
}

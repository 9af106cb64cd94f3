//! More sessions than are kept in memory, and sessions whose clients have left.

use std::time::Duration;

use mainstay_proxy::Lookup;
use mainstay_proxy::Session;
use serde_json::json;
use tokio::time::sleep;

use super::{Client, NAME, Server, World};
use crate::soon;

/// More sessions than stay in memory.
const SESSIONS: usize = 4_200;

async fn returns(world: &World, session: &str) -> Result<Session, Lookup> {
    soon(world.servers.find(NAME, session, None)).await
}

/// A client that sends only `initialize`.
async fn probe(world: &World) -> String {
    let client = Client::new(world.servers.open(NAME).unwrap());
    soon(client.begins(&json!({})).answer()).await;
    client.leaves()
}

#[tokio::test(start_paused = true)]
async fn clients_that_left_are_found_again_whatever_came_after_them() {
    let world = World::new();
    let mut server = world.serves().await;
    let stays = world.client().await;
    let mut gone = Vec::new();
    for _ in 0..SESSIONS {
        gone.push(world.client().await.leaves());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(world.proxy.session_count() <= 4_096);
    for id in [&gone[0], &gone[SESSIONS / 2], &gone[SESSIONS - 1]] {
        let client = Client::new(returns(&world, id).await.unwrap());
        let asked = client.calls("poke");
        let call = server.reads_call("poke").await;
        server.returns(&call, "done").await;
        assert_eq!(asked.text().await, "done");
    }
    assert!(world.servers.session(NAME, stays.session.id()).is_ok(), "it never left");
    assert_eq!(returns(&world, &"0".repeat(32)).await.unwrap_err(), Lookup::NoSuchSession);
    assert_eq!(returns(&world, "none of ours").await.unwrap_err(), Lookup::NoSuchSession);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_it_is_loaded_stays_ended() {
    let world = World::new();
    let _server = world.serves().await;
    let id = world.client().await.leaves();
    sleep(Duration::from_millis(1)).await;
    for _ in 0..SESSIONS {
        world.client().await.leaves();
    }
    assert!(world.servers.session(NAME, &id).is_err(), "it has left memory");
    let mut slow = std::pin::pin!(world.servers.find(NAME, &id, None));
    tokio::select! {
        biased;
        _ = &mut slow => panic!("its record is not there at once"),
        () = std::future::ready(()) => {}
    }
    assert!(returns(&world, &id).await.is_ok());
    world.servers.close(NAME, &id).unwrap();
    assert_eq!(soon(slow).await.unwrap_err(), Lookup::NoSuchSession);
    assert_eq!(returns(&world, &id).await.unwrap_err(), Lookup::NoSuchSession);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_unused_sessions_moves_no_used_one() {
    let world = World::new();
    let _server = world.serves().await;
    let client = world.client().await.leaves();
    sleep(Duration::from_secs(60)).await;
    let first = probe(&world).await;
    sleep(Duration::from_millis(1)).await;
    for _ in 0..SESSIONS {
        probe(&world).await;
    }
    assert!(world.servers.session(NAME, &client).is_ok());
    assert!(world.servers.session(NAME, &first).is_err(), "it has left memory");
    assert!(returns(&world, &first).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_loaded_session_is_notified_of_what_it_may_have_missed() {
    let world = World::new();
    let capabilities = json!({"tools": {}, "resources": {"subscribe": true}});
    let mut server = world.serves_with(&capabilities).await;
    for method in ["tools/list", "resources/list", "resources/templates/list"] {
        let request = server.reads_request(method).await;
        let key = method.split('/').nth(1).map_or("", |part| match part {
            "templates" => "resourceTemplates",
            _ => method.split('/').next().unwrap(),
        });
        server.answers(&request, &json!({ key: [] })).await;
    }
    let client = world.client().await;
    let asked = client.asks("resources/subscribe", &json!({"uri": "a://b"}));
    let request = server.reads_request("resources/subscribe").await;
    server.answers(&request, &json!({})).await;
    soon(asked.answer()).await;
    let gone = client.leaves();
    sleep(Duration::from_secs(1)).await;
    for _ in 0..SESSIONS {
        world.client().await.leaves();
    }
    assert!(world.servers.session(NAME, &gone).is_err(), "it has left memory");
    let client = Client::new(returns(&world, &gone).await.unwrap());
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(client.hears().await["method"].as_str().unwrap().to_owned());
    }
    told.sort();
    assert_eq!(
        told,
        [
            "notifications/resources/list_changed",
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        ]
    );
    let request = server.reads_request("resources/subscribe").await;
    assert_eq!(request["params"]["uri"], "a://b");
}

#[tokio::test(start_paused = true)]
async fn sessions_end_when_their_clients_stay_away() {
    const MINUTE: Duration = Duration::from_secs(60);
    let world = World::new();
    let _server = world.serves().await;
    let (unused, used) = (probe(&world).await, world.client().await.leaves());
    let listens = Client::new(world.servers.open(NAME).unwrap());
    soon(listens.begins(&json!({})).answer()).await;
    let is_there = |id: &str| {
        world.proxy.sweep();
        world.servers.session(NAME, id).is_ok()
    };
    sleep(MINUTE * 4).await;
    assert!(is_there(&unused));
    sleep(MINUTE).await;
    assert!(!is_there(&unused) && is_there(&used));
    sleep(MINUTE * 60 * 23).await;
    assert!(is_there(&used));
    sleep(MINUTE * 60).await;
    assert!(!is_there(&used));
    assert!(is_there(listens.session.id()), "a client that listens is present");
    assert_eq!(world.notes.records().len(), 1);
}

/// Asserts that a message of the server goes only to its log.
async fn goes_only_to_the_log(server: &mut Server, what: &str) {
    let logged = soon(server.other_output.recv()).await.unwrap();
    assert!(String::from_utf8_lossy(&logged).contains(what), "{logged:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_left_does_not_keep_the_only_one_from_hearing_its_server() {
    let world = World::new();
    let mut server = world.serves().await;
    let gone = world.client().await.leaves();
    let capable = json!({"roots": {}, "sampling": {}, "elicitation": {}});
    let client = world.client_with(&capable).await;
    server.logs("info", "of either").await;
    // The other client has just left, and the message may be for it.
    goes_only_to_the_log(&mut server, "of either").await;
    sleep(Duration::from_secs(30)).await;
    server.logs("info", "idle").await;
    assert_eq!(client.hears().await["params"]["data"], "idle");
    for (id, method) in
        ["roots/list", "sampling/createMessage", "elicitation/create"].into_iter().enumerate()
    {
        server.says(&json!({"id": id, "method": method})).await;
        let question = client.hears().await;
        assert_eq!(question["method"], method);
        client.posts(&json!({"id": question["id"], "result": {}}));
        assert_eq!(server.reads().await["id"], id);
    }
    let changed = json!({"method": "notifications/roots/list_changed"});
    client.posts(&changed);
    assert_eq!(server.reads().await["method"], changed["method"]);

    // The other client is back for a moment, and is active again.
    let back = Client::new(returns(&world, &gone).await.unwrap());
    let asked = back.calls("poke");
    let call = server.reads_call("poke").await;
    server.returns(&call, "done").await;
    asked.text().await;
    back.leaves();
    server.logs("info", "about the call of the other").await;
    goes_only_to_the_log(&mut server, "about the call").await;
    sleep(Duration::from_secs(30)).await;
    server.logs("info", "idle again").await;
    assert_eq!(client.hears().await["params"]["data"], "idle again");
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_stream_is_the_only_one_as_long_as_it_is() {
    let world = World::new();
    let server = world.serves().await;
    let gone = world.client().await.leaves();
    sleep(Duration::from_secs(60)).await;
    server.logs("info", "while it was away").await;
    sleep(Duration::from_secs(1)).await;
    let client = Client::new(returns(&world, &gone).await.unwrap());
    assert_eq!(client.hears().await["params"]["data"], "while it was away");
}

#[tokio::test(start_paused = true)]
async fn sessions_that_were_only_opened_never_count() {
    let world = World::new();
    let server = world.serves().await;
    let client = world.client().await;
    probe(&world).await;
    server.logs("info", "idle").await;
    assert_eq!(client.hears().await["params"]["data"], "idle");
}

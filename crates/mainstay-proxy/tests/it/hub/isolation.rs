//! Servers of which each session has a run of its own.

use std::sync::Arc;

use mainstay_proxy::front::Session as _;
use mainstay_proxy::{Arrival, Outlook, Settings};
use serde_json::json;

use super::{Client, NAME, Server, World, settings};
use mainstay_proxy::front::Core as _;

fn isolated() -> World {
    World::with(Settings { isolate: true, ..settings() })
}

/// A run of its own for the session of that number.
async fn provides(world: &World, number: usize) -> Server {
    let (id, outlook) = world.notes.own(number);
    let arrival = Arrival { session: Some(id), ..world.arrival() };
    let (mut server, run) = world.enters(&json!({}), arrival).await;
    outlook.send_replace(Outlook::Up(Arc::clone(&run)));
    server.run = Some(run);
    server
}

/// A client that has a run of its own.
async fn joins(world: &World, number: usize) -> (Client, Server) {
    let client = Client::new(world.hubs.open(NAME).unwrap());
    let asked = client.begins(&json!({"elicitation": {}}));
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let server = provides(world, number).await;
    assert!(crate::soon(asked.answer()).await["result"].is_object());
    (client, server)
}

#[tokio::test(start_paused = true)]
async fn a_run_is_initialized_on_the_terms_of_its_client() {
    let world = isolated();
    let client = Client::new(world.hubs.open(NAME).unwrap());
    let asked = client.begins(&json!({"elicitation": {}}));
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let (id, outlook) = world.notes.own(0);
    assert_eq!(id, client.session.id());
    let arrival = Arrival { session: Some(id), ..world.arrival() };
    let (mut server, link) = Server::new();
    let entering = world.hub.enter(mainstay_proxy::Link::Lines(link), arrival);
    let welcoming = async {
        let request = server.reads_request("initialize").await;
        assert_eq!(request["params"]["clientInfo"]["name"], "tester");
        assert_eq!(request["params"]["capabilities"], json!({"elicitation": {}}));
        server.answers(&request, &super::server::hello(&json!({}))).await;
    };
    let (run, ()) = tokio::join!(entering, welcoming);
    outlook.send_replace(Outlook::Up(run.unwrap()));
    assert_eq!(crate::soon(asked.answer()).await["result"]["serverInfo"]["name"], "fake");
}

#[tokio::test(start_paused = true)]
async fn each_session_speaks_to_its_own_run_only() {
    let world = isolated();
    let (one, mut first) = joins(&world, 0).await;
    let (two, mut second) = joins(&world, 1).await;
    let (a, mut b) = (one.calls("a"), two.calls("b"));
    let for_a = first.reads_call("a").await;
    let for_b = second.reads_call("b").await;
    // Both are busy, and still it is clear who is asked.
    let question = json!({"id": 1, "method": "elicitation/create"});
    second.says(&question).await;
    assert_eq!(b.hears().await["method"], "elicitation/create");
    first.logs("info", "for one").await;
    first.returns(&for_a, "one").await;
    second.returns(&for_b, "two").await;
    assert_eq!([a.text().await, b.text().await], ["one", "two"]);
    assert!(first.reads_nothing().await && two.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn the_death_of_one_run_is_felt_by_its_session_only() {
    let world = isolated();
    let (one, mut first) = joins(&world, 0).await;
    let (two, mut second) = joins(&world, 1).await;
    let (a, b) = (one.calls("peek"), two.calls("poke"));
    first.reads_call("peek").await;
    let for_b = second.reads_call("poke").await;
    drop(first);
    second.returns(&for_b, "two").await;
    assert_eq!(b.text().await, "two");
    let mut first = provides(&world, 0).await;
    let call = first.reads_call("peek").await;
    first.returns(&call, "one").await;
    assert_eq!(a.text().await, "one");
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_with_its_session() {
    let world = isolated();
    let (one, _server) = joins(&world, 0).await;
    assert!(world.hub.close(one.session.id()));
    assert!(world.notes.own.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_a_run_that_nobody_tells_of() {
    let world = isolated();
    let (one, server) = joins(&world, 0).await;
    let (_, outlook) = world.notes.own(0);
    drop(server);
    outlook.send_replace(Outlook::Coming { due: None, why: Arc::default() });
    let begun = tokio::time::Instant::now();
    let asked = one.calls("poke");
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    world.notes.own.lock().unwrap().clear();
    drop(outlook);
    assert!(asked.text().await.ends_with("was removed"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(1));
}

/// The session has ended while its run was being started.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_nobodys_is_heard_by_nobody() {
    let world = isolated();
    let (one, _server) = joins(&world, 0).await;
    let arrival = Arrival { session: Some("gone".to_owned()), ..world.arrival() };
    let (mut orphan, _run) = world.enters(&json!({}), arrival).await;
    orphan.logs("info", "secret").await;
    orphan.says(&json!({"id": 1, "method": "elicitation/create"})).await;
    assert_eq!(orphan.reads().await["error"]["code"], -32601);
    assert!(one.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_session_hears_what_may_have_changed_between_its_runs() {
    let world = isolated();
    let (client, mut server) = joins(&world, 0).await;
    let asked = client.asks("resources/subscribe", &json!({"uri": "a://b"}));
    let request = server.reads_request("resources/subscribe").await;
    server.answers(&request, &json!({})).await;
    assert!(crate::soon(asked.answer()).await["result"].is_object());
    drop(server);
    let _next = provides(&world, 0).await;
    let told = client.hears().await;
    assert_eq!(told["method"], "notifications/resources/updated");
    assert_eq!(told["params"]["uri"], "a://b");
}

const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

/// Has the next run of a session answer a call.
async fn is_served_by_another_run(world: &World, id: &str) {
    let client = Client::new(world.hubs.session(NAME, id).unwrap());
    let asked = client.calls("peek");
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let place = world.notes.own.lock().unwrap().iter().position(|(own, _)| own == id);
    let mut server = provides(world, place.expect("it wants a run again")).await;
    let call = server.reads_call("peek").await;
    server.returns(&call, "anew").await;
    assert_eq!(asked.text().await, "anew");
}

fn runs(world: &World) -> usize {
    world.hub.sweep();
    world.notes.own.lock().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn the_run_of_an_absent_client_stops_and_its_session_continues() {
    let world = isolated();
    let (stays, _server) = joins(&world, 0).await;
    let (one, _other) = joins(&world, 1).await;
    one.posts(&json!({"method": "notifications/initialized"}));
    let id = one.leaves();
    tokio::time::sleep(MINUTE * 29).await;
    assert_eq!(runs(&world), 2);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(runs(&world), 1);
    assert!(world.notes.own(0).0 == stays.session.id(), "whoever listens is present");
    is_served_by_another_run(&world, &id).await;
}

#[tokio::test(start_paused = true)]
async fn only_so_many_absent_clients_keep_their_runs() {
    let world = isolated();
    let mut gone = Vec::new();
    for _ in 0..20 {
        // With one more run, the run of another session stops.
        let place = world.notes.own.lock().unwrap().len().min(16);
        let (client, server) = joins(&world, place).await;
        client.posts(&json!({"method": "notifications/initialized"}));
        gone.push((client.leaves(), server));
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!(runs(&world), 16);
    let ids: Vec<_> = world.notes.own.lock().unwrap().iter().map(|(id, _)| id.clone()).collect();
    assert!(gone[4..].iter().all(|(id, _)| ids.contains(id)), "the longest absent lost theirs");
    is_served_by_another_run(&world, &gone[0].0).await;
    assert_eq!(runs(&world), 16);
}

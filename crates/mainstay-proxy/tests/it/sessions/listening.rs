//! What servers that speak HTTP say outside of requests.

use std::sync::Arc;
use std::time::Duration;

use mainstay_proxy::Availability;
use serde_json::json;

use super::site::{Site, Turn};
use super::{Client, NAME, World};
use crate::soon;

async fn site() -> Site {
    let site = Site::new().await;
    site.lets_listen();
    site
}

/// A client that asks to listen, which the server has not answered yet.
async fn listening() -> (World, Site, Client) {
    let (world, site) = (World::new(), site().await);
    world.is_served_by(&site).await;
    let client = world.client().await;
    client.listens();
    (world, site, client)
}

async fn listens(site: &mut Site) -> Turn {
    let mut turn = site.turn().await;
    assert_eq!(turn.header("accept"), Some("text/event-stream"));
    turn.streams().await;
    turn
}

/// The server says something, and this client hears it.
async fn is_heard(turn: &mut Turn, client: &Client, what: &str) {
    let method = format!("notifications/{what}");
    turn.sends(Some(what), &json!({"jsonrpc": "2.0", "method": method})).await;
    assert_eq!(client.hears().await["method"], method);
}

#[tokio::test]
async fn each_client_hears_its_own_session_and_the_next_run_too() {
    let (world, mut first) = (World::new(), site().await);
    world.is_served_by(&first).await;
    let [one, two] = [world.client().await, world.client().await];
    one.listens();
    let mut for_one = listens(&mut first).await;
    two.listens();
    let mut for_two = listens(&mut first).await;
    assert_eq!([for_one.session(), for_two.session()], ["s2", "s3"]);
    is_heard(&mut for_one, &one, "one").await;
    is_heard(&mut for_two, &two, "two").await;
    drop((first, for_one, for_two));
    let mut second = site().await;
    world.is_served_by(&second).await;
    let mut turns = [listens(&mut second).await, listens(&mut second).await];
    for turn in &mut turns {
        assert_eq!(turn.header("last-event-id"), None);
        turn.sends(None, &json!({"jsonrpc": "2.0", "method": "notifications/next"})).await;
    }
    for client in [&one, &two] {
        assert_eq!(client.hears().await["method"], "notifications/next");
    }
}

#[tokio::test]
async fn a_stream_that_was_cut_is_asked_for_from_where_it_ended() {
    let (_world, mut site, client) = listening().await;
    let mut turn = listens(&mut site).await;
    is_heard(&mut turn, &client, "e1").await;
    drop(turn);
    // Nothing comes before the next cut.
    for _ in 0..2 {
        let turn = listens(&mut site).await;
        assert_eq!(turn.header("last-event-id"), Some("e1"));
    }
    let mut turn = listens(&mut site).await;
    assert_eq!(turn.header("last-event-id"), Some("e1"));
    is_heard(&mut turn, &client, "e2").await;
}

#[tokio::test]
async fn a_stream_that_cannot_be_taken_up_is_begun_anew() {
    let (_world, mut site, client) = listening().await;
    let mut turn = listens(&mut site).await;
    is_heard(&mut turn, &client, "e1").await;
    drop(turn);
    for status in [503, 400] {
        let turn = site.turn().await;
        assert_eq!(turn.header("last-event-id"), Some("e1"));
        turn.responds(status, "", "no such event").await;
    }
    let mut turn = listens(&mut site).await;
    assert_eq!(turn.header("last-event-id"), None);
    is_heard(&mut turn, &client, "e2").await;
}

#[tokio::test]
async fn a_stream_that_another_daemon_is_still_reading_is_asked_for_again() {
    let (_world, mut site, client) = listening().await;
    for _ in 0..2 {
        site.turn().await.responds(409, "", "only one stream is allowed for each session").await;
    }
    let mut turn = listens(&mut site).await;
    is_heard(&mut turn, &client, "e1").await;
}

#[tokio::test]
async fn news_of_the_same_run_cut_no_stream() {
    let (world, mut site) = (World::new(), site().await);
    let run = world.is_served_by(&site).await;
    let client = world.client().await;
    client.listens();
    let mut turn = listens(&mut site).await;
    is_heard(&mut turn, &client, "before").await;
    world.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
    tokio::task::yield_now().await;
    is_heard(&mut turn, &client, "after").await;
}

#[tokio::test]
async fn a_client_that_listens_while_the_server_is_down_hears_it_later() {
    let (world, mut site) = (World::new(), site().await);
    world.is_served_by(&site).await;
    world.is_coming(None);
    let client = world.client().await;
    client.listens();
    world.is_served_by(&site).await;
    let mut turn = listens(&mut site).await;
    is_heard(&mut turn, &client, "hello").await;
}

#[tokio::test]
async fn questions_and_their_answers_pass_too() {
    let (world, mut site) = (World::new(), site().await);
    world.is_served_by(&site).await;
    let client = world.client_with(&json!({"roots": {}})).await;
    client.listens();
    let mut turn = listens(&mut site).await;
    turn.sends(None, &json!({"jsonrpc": "2.0", "id": 5, "method": "roots/list"})).await;
    let question = client.hears().await;
    assert_eq!(question["method"], "roots/list");
    client.posts(&json!({"id": question["id"], "result": {"roots": []}}));
    let answer = site.turn().await;
    assert_eq!(answer.message, json!({"jsonrpc": "2.0", "id": 5, "result": {"roots": []}}));
    turn.sends(None, &json!({"jsonrpc": "2.0", "id": 6, "method": "sampling/createMessage"})).await;
    assert_eq!(site.turn().await.message["error"]["code"], -32601);
}

#[tokio::test]
async fn listening_ends_with_the_session() {
    let (world, mut site, client) = listening().await;
    let turn = listens(&mut site).await;
    assert!(world.proxy.close(client.session.id()));
    turn.ends().await;
    site.did("DELETE - s2").await;
    let opened = site.past().len();
    world.client().await;
    assert_eq!(site.past().len(), opened + 2, "{:?}", site.past());
}

#[tokio::test]
async fn nothing_is_left_of_a_session_whose_server_offers_nothing_to_hear() {
    let (world, site) = (World::new(), Site::new().await);
    world.is_served_by(&site).await;
    let client = world.client().await;
    client.listens();
    site.did("GET - s2").await;
    assert!(world.proxy.close(client.session.id()));
    site.did("DELETE - s2").await;
    drop(site);
    crate::no_task_is_left().await;
}

#[tokio::test]
async fn a_session_that_was_lost_is_opened_again_to_listen() {
    let (_world, mut site, _client) = listening().await;
    site.turn().await.responds(404, "", "").await;
    let turn = soon(listens(&mut site)).await;
    assert_eq!(turn.session(), "s3");
}

/// Lets time pass, but for the network.
async fn passes(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_client_that_left_has_no_upstream_listener_and_resumes_when_it_is_back() {
    let (world, mut site, client) = listening().await;
    let mut turn = listens(&mut site).await;
    is_heard(&mut turn, &client, "e1").await;
    let id = client.leaves();
    // So that the listener has noticed.
    tokio::time::sleep(Duration::from_millis(10)).await;
    passes(Duration::from_secs(31)).await;
    turn.ends().await;

    let client = Client::new(world.servers.session(NAME, &id).unwrap());
    client.listens();
    let mut turn = listens(&mut site).await;
    assert_eq!(turn.header("last-event-id"), Some("e1"));
    is_heard(&mut turn, &client, "e2").await;
}

#[tokio::test]
async fn clients_that_left_are_not_introduced_to_the_next_run() {
    let (world, mut first) = (World::new(), site().await);
    world.is_served_by(&first).await;
    for _ in 0..20 {
        let gone = world.client().await;
        gone.listens();
        listens(&mut first).await;
        gone.leaves();
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    passes(Duration::from_secs(31)).await;
    let client = world.client().await;
    drop(first);
    let mut second = site().await;
    world.is_served_by(&second).await;
    let asked = client.calls("poke");
    second.call("poke").await.returns("done").await;
    assert_eq!(asked.text().await, "done");
    let opened = second.past().iter().filter(|done| done.contains("POST initialize")).count();
    assert_eq!(opened, 2, "ours and that of the client: {:?}", second.past());
}

#[tokio::test]
async fn requests_take_precedence_over_background_sessions() {
    let (world, mut first) = (World::new(), site().await);
    world.is_served_by(&first).await;
    let client = world.client().await;
    let mut others = Vec::new();
    for _ in 0..20 {
        let other = world.client().await;
        other.listens();
        others.push((listens(&mut first).await, other));
    }
    let mut second = site().await;
    let run = soon(world.proxy.attach_run(second.link(), world.arrival())).await.unwrap();
    second.leaves_sessions_to_the_test();
    world.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
    let mut ahead = Vec::new();
    for _ in 0..4 {
        ahead.push(second.turn().await);
    }
    let _asked = client.calls("poke");
    let turn = second.turn().await;
    assert_eq!(turn.message["method"], "initialize");
    // The others are still at it, so this is the one that the request needs.
    let hello = super::server::hello(&json!({}));
    let answer = json!({"jsonrpc": "2.0", "id": turn.message["id"], "result": hello});
    turn.says(&answer).await;
    second.call("poke").await;
}

//! Servers of which each session has a run of its own.

use std::sync::Arc;
use std::time::Duration;

use mainstay_proxy::{Availability, RunInfo, Settings};
use serde_json::json;

use super::lists::Library;
use super::{Client, NAME, Server, World, settings};

fn isolated() -> World {
    World::with(Settings { isolate: true, ..settings() })
}

/// A run of its own for the session of that number.
async fn provides(world: &World, number: usize) -> Server {
    let id = world.notes.own(number);
    let arrival = RunInfo { session: Some(id.clone()), ..world.arrival() };
    let (mut server, run) = world.enters(&json!({}), arrival).await;
    world.proxy.set_session_availability(&id, Availability::Up(Arc::clone(&run.run)));
    server.run = Some(run);
    server
}

/// A client that has a run of its own.
async fn joins(world: &World, number: usize) -> (Client, Server) {
    let client = Client::new(world.servers.open(NAME).unwrap());
    let asked = client.begins(&json!({"elicitation": {}}));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let server = provides(world, number).await;
    assert!(crate::soon(asked.answer()).await["result"].is_object());
    (client, server)
}

#[tokio::test(start_paused = true)]
async fn a_run_is_initialized_on_the_terms_of_its_client() {
    let world = isolated();
    let client = Client::new(world.servers.open(NAME).unwrap());
    let asked = client.begins(&json!({"elicitation": {}}));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let id = world.notes.own(0);
    assert_eq!(id, client.session.id());
    let arrival = RunInfo { session: Some(id.clone()), ..world.arrival() };
    let (mut server, link) = Server::new();
    let entering = world.proxy.attach_run(mainstay_proxy::UpstreamTransport::Lines(link), arrival);
    let welcoming = async {
        let request = server.reads_request("initialize").await;
        assert_eq!(request["params"]["clientInfo"]["name"], "tester");
        assert_eq!(request["params"]["capabilities"], json!({"elicitation": {}}));
        server.answers(&request, &super::server::hello(&json!({}))).await;
    };
    let (run, ()) = tokio::join!(entering, welcoming);
    let run = run.unwrap();
    world.proxy.set_session_availability(&id, Availability::Up(Arc::clone(&run.run)));
    assert_eq!(crate::soon(asked.answer()).await["result"]["serverInfo"]["name"], "fake");
}

#[tokio::test(start_paused = true)]
async fn no_run_is_started_for_a_session_that_has_ended() {
    let world = isolated();
    let client = Client::new(world.servers.open(NAME).unwrap());
    world.servers.close(NAME, client.session.id()).unwrap();
    let _late = client.begins(&json!({}));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(world.notes.own.lock().unwrap().is_empty());
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

/// As with `restart`, which ends all runs of the server.
#[tokio::test(start_paused = true)]
async fn a_safe_call_is_sent_again_when_the_shared_run_has_ended_too() {
    let world = isolated();
    let library = Library::opens(&world, &[&["read", "write"]]).await;
    let (client, mut server) = joins(&world, 0).await;
    let (read, write) = (client.calls("read"), client.calls("write"));
    server.reads_call("read").await;
    server.reads_call("write").await;
    library.closes(&world).await;
    drop(server);
    let mut server = provides(&world, 0).await;
    let call = server.reads_call("read").await;
    server.returns(&call, "again").await;
    assert_eq!(read.text().await, "again");
    assert!(write.text().await.contains("its effect is unknown"));
}

#[tokio::test(start_paused = true)]
async fn the_tools_of_another_program_do_not_make_a_call_safe() {
    let world = isolated();
    let library = Library::opens(&world, &[&["read"]]).await;
    world.proxy.set(Settings { isolate: true, ..settings() });
    let (client, mut server) = joins(&world, 0).await;
    let read = client.calls("read");
    server.reads_call("read").await;
    library.closes(&world).await;
    drop(server);
    let _server = provides(&world, 0).await;
    assert!(read.text().await.contains("its effect is unknown"));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_waits_gets_a_run_of_its_own_when_isolation_is_turned_on() {
    let world = World::new();
    let server = world.serves().await;
    let client = world.client().await;
    let asked = client.calls("peek");
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.proxy.set(Settings { isolate: true, ..settings() });
    drop(server);
    world.is_coming(None);
    let mut server = provides(&world, 0).await;
    let call = server.reads_call("peek").await;
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_a_run_that_nobody_tells_of() {
    let world = isolated();
    let (one, server) = joins(&world, 0).await;
    let id = world.notes.own(0);
    drop(server);
    let coming = Availability::Coming { due: None, why: Arc::default() };
    world.proxy.set_session_availability(&id, coming);
    let begun = tokio::time::Instant::now();
    let asked = one.calls("poke");
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.notes.own.lock().unwrap().clear();
    world.proxy.set_session_availability(&id, Availability::Removed);
    assert!(asked.text().await.ends_with("was removed"));
    assert!(begun.elapsed() < Duration::from_secs(1));
}

/// The session has ended while its run was being started.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_nobodys_is_heard_by_nobody() {
    let world = isolated();
    let (one, _server) = joins(&world, 0).await;
    let arrival = RunInfo { session: Some("gone".to_owned()), ..world.arrival() };
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

const MINUTE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

/// Has the next run of a session answer a call.
async fn is_served_by_another_run(world: &World, id: &str) {
    let client = Client::new(world.servers.session(NAME, id).unwrap());
    calls_another_run(world, &client).await;
}

async fn calls_another_run(world: &World, client: &Client) {
    let asked = client.calls("peek");
    tokio::time::sleep(MOMENT).await;
    let id = client.session.id();
    let place = world.notes.own.lock().unwrap().iter().position(|own| own == id);
    let mut server = provides(world, place.expect("it wants a run again")).await;
    let call = server.reads_call("peek").await;
    server.returns(&call, "anew").await;
    assert_eq!(asked.text().await, "anew");
}

/// The sessions that have a run, including ended ones.
fn owners(world: &World) -> Vec<String> {
    world.notes.own.lock().unwrap().iter().cloned().collect()
}

/// The number of runs after the daemon has checked them.
fn runs(world: &World) -> usize {
    world.proxy.sweep();
    owners(world).len()
}

/// A client that has sent `initialized`.
async fn uses(world: &World, number: usize) -> (Client, Server) {
    let (client, server) = joins(world, number).await;
    client.posts(&json!({"method": "notifications/initialized"}));
    (client, server)
}

#[tokio::test(start_paused = true)]
async fn a_run_is_kept_for_a_minute_after_its_session_has_ended() {
    let world = isolated();
    let (one, _server) = uses(&world, 0).await;
    let id = one.session.id().to_owned();
    assert!(world.proxy.close(&id));
    assert!(!world.proxy.close(&id), "the session has ended");
    assert!(world.servers.session(NAME, &id).is_err());
    assert!(world.notes.records().is_empty(), "the next daemon does not find it");
    tokio::time::sleep(MINUTE.saturating_sub(MOMENT * 10)).await;
    assert_eq!(owners(&world), [&*id]);
    // Another session gets another run.
    let (two, _other) = uses(&world, 1).await;
    assert_eq!(owners(&world), [&*id, two.session.id()]);
    // No sweep is needed.
    tokio::time::sleep(MOMENT * 10).await;
    assert_eq!(owners(&world), [two.session.id()]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_exits_after_the_end_of_its_session_is_given_up() {
    let world = isolated();
    let (one, _server) = joins(&world, 0).await;
    let id = world.notes.own(0);
    assert!(world.proxy.close(one.session.id()));
    let coming = Availability::Coming { due: None, why: Arc::default() };
    world.proxy.set_session_availability(&id, coming);
    tokio::time::sleep(MOMENT).await;
    assert!(owners(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_not_up_ends_with_its_session() {
    let world = isolated();
    let client = Client::new(world.servers.open(NAME).unwrap());
    let _asked = client.begins(&json!({}));
    tokio::time::sleep(MOMENT).await;
    assert_eq!(owners(&world), [client.session.id()]);
    assert!(world.proxy.close(client.session.id()));
    assert!(owners(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_with_a_session_that_expires() {
    let world = isolated();
    // It never sends more than `initialize`.
    let (client, _server) = joins(&world, 0).await;
    client.leaves();
    tokio::time::sleep(MINUTE * 5).await;
    assert_eq!(runs(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_was_replaced_stops_no_run() {
    let world = isolated();
    let (one, _server) = joins(&world, 0).await;
    assert!(world.proxy.close(one.session.id()));
    world.servers.freeze();
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(runs(&world), 1, "the next daemon decides");
}

#[tokio::test(start_paused = true)]
async fn the_run_of_an_absent_client_stops_and_its_session_continues() {
    let world = isolated();
    let (one, _server) = uses(&world, 0).await;
    let id = one.leaves();
    tokio::time::sleep(MINUTE * 29).await;
    assert_eq!(runs(&world), 1);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(runs(&world), 0);
    is_served_by_another_run(&world, &id).await;
}

#[tokio::test(start_paused = true)]
async fn an_open_stream_keeps_no_run_and_every_message_does() {
    let world = isolated();
    let (client, _server) = uses(&world, 0).await;
    tokio::time::sleep(MINUTE * 20).await;
    client.posts(&json!({"method": "notifications/roots/list_changed"}));
    tokio::time::sleep(MINUTE * 20).await;
    assert_eq!(runs(&world), 1, "a notification counts");
    assert!(crate::soon(client.asks("ping", &json!({})).answer()).await["result"].is_object());
    tokio::time::sleep(MINUTE * 29).await;
    assert_eq!(runs(&world), 1, "a request counts");
    tokio::time::sleep(MINUTE).await;
    assert_eq!(runs(&world), 0);
    // The same stream goes on with the next run.
    calls_another_run(&world, &client).await;
    assert_eq!(runs(&world), 1);
    assert!(client.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_call_keeps_a_run() {
    let world = isolated();
    let (client, mut server) = uses(&world, 0).await;
    let asked = client.calls("slow");
    let call = server.reads_call("slow").await;
    tokio::time::sleep(MINUTE * 120).await;
    assert_eq!(runs(&world), 1);
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
    tokio::time::sleep(MINUTE * 29).await;
    assert_eq!(runs(&world), 1, "the time counts from the answer");
    tokio::time::sleep(MINUTE).await;
    assert_eq!(runs(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_listens_for_updates_keeps_its_run() {
    let world = isolated();
    let (client, mut server) = uses(&world, 0).await;
    let asked = client.asks("resources/subscribe", &json!({"uri": "a://b"}));
    let request = server.reads_request("resources/subscribe").await;
    server.answers(&request, &json!({})).await;
    assert!(crate::soon(asked.answer()).await["result"].is_object());
    tokio::time::sleep(MINUTE * 120).await;
    assert_eq!(runs(&world), 1);
    client.leaves();
    assert_eq!(runs(&world), 0, "nobody listens any more");
}

#[tokio::test(start_paused = true)]
async fn only_so_many_absent_clients_keep_their_runs() {
    let world = isolated();
    let mut gone = Vec::new();
    for _ in 0..20 {
        // With one more run, the run of another session stops.
        let place = owners(&world).len().min(16);
        let (client, server) = uses(&world, place).await;
        gone.push((client.leaves(), server));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(runs(&world), 16);
    let ids = owners(&world);
    assert!(gone[4..].iter().all(|(id, _)| ids.contains(id)), "the longest absent lost theirs");
    is_served_by_another_run(&world, &gone[0].0).await;
    assert_eq!(runs(&world), 16);
}

#[tokio::test(start_paused = true)]
async fn runs_of_ended_sessions_count_as_absent_and_stop_first() {
    let world = isolated();
    let mut servers = Vec::new();
    let mut ended = Vec::new();
    for _ in 0..20 {
        let (client, server) = uses(&world, owners(&world).len()).await;
        servers.push(server);
        assert!(world.proxy.close(client.session.id()));
        ended.push(client.leaves());
        tokio::time::sleep(MOMENT).await;
    }
    assert_eq!(owners(&world), ended[4..], "the first to end lost theirs");
    let (absent, server) = uses(&world, 16).await;
    servers.push(server);
    let id = absent.leaves();
    assert_eq!(runs(&world), 16);
    assert!(!owners(&world).contains(&ended[4]));
    assert!(owners(&world).contains(&id), "its session continues");
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_run_is_no_longer_its_own_continues_with_the_shared_one() {
    let world = isolated();
    let (client, mut own) = joins(&world, 0).await;
    let call = client.calls("a");
    own.reads_call("a").await;
    world.proxy.set(settings());
    assert!(world.notes.own.lock().unwrap().is_empty(), "it is stopped, although it is used");
    let mut shared = world.serves().await;
    let next = client.calls("b");
    let request = shared.reads_call("b").await;
    shared.returns(&request, "shared").await;
    assert_eq!(next.text().await, "shared");
    drop(own);
    assert!(call.text().await.contains("its effect is unknown"));
}

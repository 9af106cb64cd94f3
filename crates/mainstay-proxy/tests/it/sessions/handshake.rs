//! A client's `initialize`, with and without a server.

use std::time::Duration;

use mainstay_proxy::OpenError;
use mainstay_proxy::front::ProtocolVersion;
use mainstay_proxy::{Availability, Settings};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::stdio_client::StdioClient;
use super::{Client, NAME, World, settings};

#[tokio::test(start_paused = true)]
async fn a_client_gets_what_the_server_says_of_itself_in_its_own_version() {
    let world = World::new();
    let _server = world.serves_with(&json!({"logging": {}, "prompts": {}})).await;
    let client = Client::new(world.servers.open(NAME).unwrap());
    let told = client.initializes(&json!({})).await;
    assert_eq!(told["protocolVersion"], "2025-06-18");
    assert_eq!(told["capabilities"], json!({"logging": {}, "prompts": {"listChanged": true}}));
    assert_eq!(told["serverInfo"]["name"], "fake");
    assert_eq!(client.session.version(), Some(ProtocolVersion::V2025_06_18));
    let record = &world.notes.records()[0];
    assert_eq!((&*record.version, record.initialized), ("2025-06-18", true));
}

#[tokio::test(start_paused = true)]
async fn while_the_server_is_down_the_last_copy_serves() {
    let world = World::new();
    drop(world.serves().await);
    for down in [World::is_down, |world: &World| world.is_coming(None)] {
        down(&world);
        let begun = Instant::now();
        let client = Client::new(world.servers.open(NAME).unwrap());
        assert_eq!(client.initializes(&json!({})).await["serverInfo"]["name"], "fake");
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gives_up_is_not_initialized() {
    let world = World::new();
    let client = Client::new(world.servers.open(NAME).unwrap());
    let asked = client.begins(&json!({}));
    sleep(Duration::from_millis(1)).await;
    let id = client.session.id().to_owned();
    drop(asked);
    sleep(Duration::from_millis(1)).await;
    assert!(!world.proxy.has(&id) && world.notes.records().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_copy_of_an_earlier_daemon_serves_too() {
    let before = World::new();
    let _server = before.serves().await;
    sleep(Duration::from_millis(1)).await;
    let copy = before.notes.copy.lock().unwrap().clone().unwrap();
    let world = World::restored(settings(), Some(&copy));
    let client = Client::new(world.servers.open(NAME).unwrap());
    assert_eq!(client.initializes(&json!({})).await["serverInfo"]["name"], "fake");
}

#[tokio::test(start_paused = true)]
async fn without_a_copy_a_client_waits_for_the_hold_and_a_minute_at_least() {
    for (hold, waited) in [(0, 60), (45, 60), (90, 90)] {
        let hold = Duration::from_secs(hold);
        let world = World::with(Settings { hold, ..settings() });
        let begun = Instant::now();
        let in_vain = Client::new(world.servers.open(NAME).unwrap()).begins(&json!({}));
        let error = &in_vain.answer().await["error"];
        assert_eq!(error["data"], json!({"mainstay": "hold-expired"}));
        assert_eq!(begun.elapsed(), Duration::from_secs(waited));
        assert_eq!(world.notes.causes(), ["hold-expired"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_takes_long_is_waited_for() {
    let world = World::new();

    let client = Client::new(world.servers.open(NAME).unwrap());
    let asked = client.begins(&json!({}));
    sleep(Duration::from_secs(40)).await;
    let _server = world.serves().await;
    assert_eq!(crate::soon(asked.answer()).await["result"]["serverInfo"]["name"], "fake");
}

#[tokio::test(start_paused = true)]
async fn without_a_copy_a_client_does_not_wait_for_a_start_that_is_due_too_late() {
    let world = World::new();
    world.is_coming(Some(Duration::from_secs(61)));
    let begun = Instant::now();
    let asked = Client::new(world.servers.open(NAME).unwrap()).begins(&json!({}));
    let error = &crate::soon(asked.answer()).await["error"];
    assert_eq!(error["data"], json!({"mainstay": "refused"}));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_for_progress_is_told_what_the_server_is_doing() {
    let world = World::new();
    let client = Client::new(world.servers.open(NAME).unwrap());
    let mut asked = client.asks(
        "initialize",
        &json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "tester", "version": "1"}, "_meta": {"progressToken": "t"},
        }),
    );
    for (line, progress, message) in [
        (None, 1, "starting time"),
        (Some("fetching\u{7} x"), 2, "starting time: fetching x"),
        (Some("fetching\u{7} x"), 7, "starting time: fetching x"),
        (Some("built"), 8, "starting time: built"),
    ] {
        *world.notes.last_line.lock().unwrap() = line.map(str::to_owned);
        let expected = json!({"progressToken": "t", "progress": progress, "message": message});
        assert_eq!(asked.hears().await["params"], expected);
    }
    let _server = world.serves().await;
    assert!(crate::soon(asked.answer()).await["result"].is_object());
}

#[tokio::test(start_paused = true)]
async fn without_a_copy_a_server_that_is_down_is_said_to_be() {
    let world = World::new();
    world.is_down();
    let begun = Instant::now();
    let asked = Client::new(world.servers.open(NAME).unwrap()).begins(&json!({}));
    let answer = crate::soon(asked.answer()).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("exited 3 after 2 h"));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_welcomed_by_a_server_that_was_removed() {
    let world = World::new();
    let _server = world.serves().await;
    let client = Client::new(world.servers.open(NAME).unwrap());
    world.proxy.set_availability(Availability::Removed);
    let answer = crate::soon(client.begins(&json!({})).answer()).await;
    assert_eq!(answer["error"]["data"], json!({"mainstay": "removed"}));
    assert!(world.notes.records().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_second_initialize_begins_the_session_anew_and_the_server_hears_nothing_of_it() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    client.initializes(&json!({"roots": {}})).await;
    assert!(server.reads_nothing().await);
    let records = world.notes.records();
    let [record] = &records[..] else { panic!("{records:?}") };
    assert!(record.params.windows(5).any(|text| text == b"roots"));
}

#[tokio::test(start_paused = true)]
async fn there_may_be_only_so_many_sessions() {
    let world = World::new();
    for _ in 0..20_000 {
        world.servers.open(NAME).unwrap();
    }
    assert_eq!(world.servers.open(NAME).unwrap_err(), OpenError::TooManySessions);
    assert_eq!(world.servers.open("other").unwrap_err(), OpenError::NoSuchServer);
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_refused() {
    let world = World::new();
    let _server = world.serves().await;
    let client = Client::new(world.servers.open(NAME).unwrap());
    let answer = crate::soon(client.asks("initialize", &json!({})).answer()).await;
    assert_eq!(answer["error"]["code"], -32602);
    assert_eq!(client.session.version(), None);
}

#[tokio::test(start_paused = true)]
async fn an_initialize_that_is_given_up_ends() {
    let world = World::new();
    let client = Client::new(world.servers.open(NAME).unwrap());
    let asked = client.begins(&json!({}));
    sleep(Duration::from_secs(1)).await;
    client.cancels(&asked);
    assert!(crate::soon(asked.ends()).await);
    assert_eq!(client.session.version(), None);
}

#[tokio::test(start_paused = true)]
async fn before_initialize_nothing_reaches_the_server() {
    let world = World::new();
    let mut server = world.serves().await;
    let mut stdio_client = StdioClient::resumes(&world, world.servers.open(NAME).unwrap().id());
    for (method, code) in [
        ("server/discover", json!(-32601)),
        ("tools/call", json!(-32600)),
        ("tools/list", json!(-32600)),
        ("logging/setLevel", json!(-32600)),
        ("vendor/method", json!(-32600)),
        ("ping", json!(null)),
    ] {
        stdio_client.says(&json!({"method": "notifications/vendor"})).await;
        stdio_client.asks(1, method, &json!({"name": "x", "level": "info"})).await;
        let answer = stdio_client.reads().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &code), "{method}");
    }
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn what_a_client_sends_while_it_is_initialized_is_queued() {
    let world = World::new();
    let mut stdio_client = StdioClient::new(&world);
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    stdio_client.asks(0, "initialize", &params).await;
    stdio_client.asks(1, "ping", &json!({})).await;
    assert_eq!(stdio_client.reads().await["id"], 1);
    stdio_client.says(&json!({"method": "notifications/initialized"})).await;
    stdio_client.calls(2, "x").await;
    assert!(stdio_client.reads_nothing().await);
    let mut server = world.serves().await;
    let call = server.reads_call("x").await;
    server.returns(&call, "done").await;
    assert!(stdio_client.reads().await["result"]["serverInfo"].is_object());
    assert_eq!(stdio_client.reads().await["result"]["content"][0]["text"], "done");
}

#[tokio::test(start_paused = true)]
async fn the_probe_for_newer_servers_is_never_passed_on() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let answer = crate::soon(client.asks("server/discover", &json!({})).answer()).await;
    assert_eq!(answer["error"]["code"], -32601);
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_on_disk_before_its_client_knows_it_unless_the_disk_is_stalled() {
    let world = World::new();
    let _server = world.serves().await;
    let limit = Duration::from_millis(100);
    for stalled in [false, true] {
        world.notes.stalled.send_replace(stalled);
        let begun = Instant::now();
        world.client().await;
        assert_eq!(begun.elapsed() >= limit, stalled);
        assert!(begun.elapsed() < 2 * limit);
    }
    let begun = Instant::now();
    let client = Client::new(world.servers.open(NAME).unwrap());
    let asked = client.begins(&json!({}));
    tokio::time::sleep(limit / 2).await;
    world.notes.stalled.send_replace(false);
    crate::soon(asked.answer()).await;
    assert_eq!(begun.elapsed(), limit / 2, "it waits no longer than the disk");
}

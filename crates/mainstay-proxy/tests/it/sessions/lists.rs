//! Lists: copies, pages, changes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::client::text;
use super::{Client, HOLD, Server, World};
use crate::soon;

/// A server that answers lists by itself, and calls of its tools with their name.
pub(super) struct Library {
    work: JoinHandle<()>,
}

impl Library {
    /// It is up. Each of the pages has these tools.
    pub(super) async fn opens(world: &World, pages: &'static [&'static [&'static str]]) -> Self {
        let capabilities = json!({"tools": {}, "resources": {}});
        let mut server = world.serves_with(&capabilities).await;
        let work = tokio::spawn(async move {
            loop {
                let request = server.reads().await;
                if let Some(result) = reply(pages, &request) {
                    server.answers(&request, &result).await;
                }
            }
        });
        // Until all is read.
        sleep(Duration::from_millis(1)).await;
        Self { work }
    }

    pub(super) async fn closes(self, world: &World) {
        self.work.abort();
        world.is_coming(None);
        sleep(Duration::from_millis(1)).await;
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.work.abort();
    }
}

fn reply(pages: &[&[&str]], request: &Value) -> Option<Value> {
    match request["method"].as_str()? {
        "tools/list" => {
            let cursor = request["params"]["cursor"].as_str().map_or(0, |at| at.parse().unwrap());
            let tool = |name: &&str| json!({"name": name, "annotations": {"readOnlyHint": name.starts_with("read")}});
            let tools: Vec<Value> = pages[cursor].iter().map(tool).collect();
            Some(match pages.get(cursor + 1) {
                Some(_) => json!({"tools": tools, "nextCursor": (cursor + 1).to_string()}),
                None => json!({"tools": tools}),
            })
        }
        "resources/list" => Some(json!({"resources": named(pages, "uri")})),
        "resources/templates/list" => {
            Some(json!({"resourceTemplates": named(pages, "uriTemplate")}))
        }
        "tools/call" => {
            Some(super::server::tool_result(request["params"]["name"].as_str().unwrap()))
        }
        _ => None,
    }
}

fn named(pages: &[&[&str]], key: &str) -> Vec<Value> {
    pages.concat().iter().map(|name| json!({"name": name, key: format!("x:{name}")})).collect()
}

async fn tools(client: &Client, cursor: Option<&Value>) -> Value {
    let params = cursor.map_or(json!({}), |cursor| json!({"cursor": cursor}));
    soon(client.asks("tools/list", &params).answer()).await
}

fn names(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().expect("a list");
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn lists_come_from_the_server_and_while_it_is_down_from_the_copy() {
    let world = World::new();
    let library = Library::opens(&world, &[&["add", "read"]]).await;
    let client = world.client().await;
    assert_eq!(names(&tools(&client, None).await), ["add", "read"]);
    library.closes(&world).await;
    let begun = Instant::now();
    assert_eq!(names(&tools(&client, None).await), ["add", "read"]);
    world.is_down();
    assert_eq!(names(&tools(&client, None).await), ["add", "read"]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn without_a_copy_a_list_is_held_like_any_request() {
    let world = World::new();
    let _server = world.serves().await;
    let client = world.client().await;
    world.is_coming(None);
    let begun = Instant::now();
    let answer = client.asks("tools/list", &json!({})).answer().await;
    assert_eq!(answer["error"]["data"], json!({"mainstay": "hold-expired"}));
    assert_eq!(begun.elapsed(), HOLD);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_dies_on_its_way_comes_from_the_copy_of_the_next_run() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let asked = client.asks("tools/list", &json!({}));
    server.reads_request("tools/list").await;
    drop(server);
    let _library = Library::opens(&world, &[&["add"]]).await;
    assert_eq!(names(&soon(asked.answer()).await), ["add"]);
}

#[tokio::test(start_paused = true)]
async fn an_identical_restart_changes_nothing() {
    let world = World::new();
    let library = Library::opens(&world, &[&["add", "read"]]).await;
    let client = world.client().await;
    library.closes(&world).await;
    // The same items in another order, and cut into pages.
    let library = Library::opens(&world, &[&["read"], &["add"]]).await;
    assert!(client.hears_nothing().await);
    drop(library);
}

#[tokio::test(start_paused = true)]
async fn clients_are_told_once_of_each_list_that_differs() {
    let world = World::new();
    let library = Library::opens(&world, &[&["add"]]).await;
    let [one, two] = [world.client().await, world.client().await];
    library.closes(&world).await;
    let _library = Library::opens(&world, &[&["add", "read"]]).await;
    for client in [&one, &two] {
        // Resources and their templates share a notification.
        for kind in ["tools", "resources"] {
            let changed = format!("notifications/{kind}/list_changed");
            assert_eq!(client.hears().await["method"], changed);
        }
        assert!(client.hears_nothing().await);
        assert_eq!(names(&tools(client, None).await), ["add", "read"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_of_an_earlier_daemon_is_told_of_a_change_too() {
    let before = World::new();
    let _library = Library::opens(&before, &[&["add"]]).await;
    let _client = before.client().await;
    let copy = before.notes.copy.lock().unwrap().clone().unwrap();
    let record = before.notes.records().remove(0);

    let world = World::restored(super::settings(), Some(&copy));
    let id = record.id.clone();
    world.proxy.restore(record, |_| false);
    let session = world.servers.session(super::NAME, &id).unwrap();
    let client = Client::new(session);
    let _library = Library::opens(&world, &[&["add", "read"]]).await;
    assert_eq!(client.hears().await["method"], "notifications/tools/list_changed");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_the_server_announces_is_passed_on_and_the_copy_made_anew() {
    let world = World::new();
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    expect_listing(&mut server, "add").await;
    let [one, two] = [world.client().await, world.client().await];
    server.says(&json!({"method": "notifications/tools/list_changed"})).await;
    expect_listing(&mut server, "read").await;
    for client in [&one, &two] {
        assert_eq!(client.hears().await["method"], "notifications/tools/list_changed");
        assert!(client.hears_nothing().await);
    }
    drop(server);
    world.is_coming(None);
    assert_eq!(names(&tools(&one, None).await), ["read"]);
}

/// Some servers add their tools one by one after the handshake, and announce each.
#[tokio::test(start_paused = true)]
async fn announcements_of_a_restarted_server_are_not_passed_on_if_its_lists_are_as_before() {
    let world = World::new();
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    expect_listing(&mut server, "add").await;
    let client = world.client().await;
    for _ in 0..3 {
        drop(server);
        world.is_coming(None);
        server = world.serves_with(&json!({"tools": {}})).await;
        let request = server.reads_request("tools/list").await;
        server.answers(&request, &json!({"tools": []})).await;
        for _ in 0..4 {
            server.says(&json!({"method": "notifications/tools/list_changed"})).await;
        }
        expect_listing(&mut server, "add").await;
        sleep(Duration::from_secs(1)).await;
    }
    server.says(&json!({"method": "notifications/tools/list_changed"})).await;
    expect_listing(&mut server, "add").await;
    assert!(client.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_got_a_list_before_it_was_complete_is_told_of_the_change() {
    let world = World::new();
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    expect_listing(&mut server, "add").await;
    let client = world.client().await;
    server.says(&json!({"method": "notifications/tools/list_changed"})).await;
    sleep(Duration::from_millis(1)).await;
    let asked = client.asks("tools/list", &json!({}));
    expect_listing(&mut server, "half").await;
    assert_eq!(names(&soon(asked.answer()).await), ["half"]);
    expect_listing(&mut server, "add").await;
    assert_eq!(client.hears().await["method"], "notifications/tools/list_changed");
    assert!(client.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn an_announcement_is_passed_on_if_the_list_cannot_be_read() {
    let world = World::new();
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    expect_listing(&mut server, "add").await;
    let client = world.client().await;
    server.says(&json!({"method": "notifications/tools/list_changed"})).await;
    let request = server.reads_request("tools/list").await;
    server.answers(&request, &json!({})).await;
    assert_eq!(client.hears().await["method"], "notifications/tools/list_changed");
    assert!(client.hears_nothing().await);
}

/// The server is asked for its tools, and has this one.
async fn expect_listing(server: &mut Server, tool: &str) {
    let request = server.reads_request("tools/list").await;
    server.answers(&request, &json!({"tools": [{"name": tool}]})).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_never_comes_does_not_stop_the_next() {
    let world = World::new();
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    let never = server.reads_request("tools/list").await;
    let client = world.client().await;
    server.says(&json!({"method": "notifications/tools/list_changed"})).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.reads().await["params"]["requestId"], never["id"]);
    expect_listing(&mut server, "add").await;
    sleep(Duration::from_millis(1)).await;
    world.is_coming(None);
    assert_eq!(names(&tools(&client, None).await), ["add"]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_vanished_is_said_to_have() {
    let world = World::new();
    let library = Library::opens(&world, &[&["add", "read"]]).await;
    let client = world.client().await;
    library.closes(&world).await;
    let library = Library::opens(&world, &[&["read"]]).await;
    let told = client.calls("add").text().await;
    assert!(told.starts_with("failed: the tool `add` is no longer offered by `time`"), "{told}");
    assert_eq!(client.calls("read").text().await, "read");
    library.closes(&world).await;
    let _library = Library::opens(&world, &[&["read", "add"]]).await;
    assert_eq!(client.calls("add").text().await, "add");
}

#[tokio::test(start_paused = true)]
async fn pages_go_on_across_a_restart() {
    let world = World::new();
    let pages: &[&[&str]] = &[&["a"], &["b"], &["c"]];
    let library = Library::opens(&world, pages).await;
    let client = world.client().await;
    let first = tools(&client, None).await;
    assert_eq!(names(&first), ["a"]);
    library.closes(&world).await;
    let second = tools(&client, Some(&first["result"]["nextCursor"])).await;
    assert_eq!(names(&second), ["b"]);
    let _library = Library::opens(&world, pages).await;
    let third = tools(&client, Some(&second["result"]["nextCursor"])).await;
    assert_eq!(names(&third), ["c"]);
    assert_eq!(third["result"]["nextCursor"], Value::Null);
    let unknown = tools(&client, Some(&json!("nonsense"))).await;
    assert_eq!(unknown["error"]["code"], -32602);
}

#[tokio::test(start_paused = true)]
async fn tools_that_only_read_are_replayed() {
    let world = World::new();
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    let list = server.reads_request("tools/list").await;
    server.answers(&list, &reply(&[&["read", "write"]], &list).unwrap()).await;
    sleep(Duration::from_millis(1)).await;
    let client = world.client().await;
    let (read, write) = (client.calls("read"), client.calls("write"));
    server.reads_call("read").await;
    server.reads_call("write").await;
    drop(server);
    let mut server = world.serves().await;
    let call = server.reads_call("read").await;
    server.returns(&call, "done").await;
    assert_eq!(read.text().await, "done");
    assert!(text(&soon(write.answer()).await).contains("its effect is unknown"));
}

/// It may be another program than the one whose tools are known.
#[tokio::test(start_paused = true)]
async fn a_run_whose_tools_are_not_known_has_none_that_only_read() {
    let world = World::new();
    let library = Library::opens(&world, &[&["read"]]).await;
    let client = world.client().await;
    library.closes(&world).await;
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    let read = client.calls("read");
    let mut read_lines = [server.reads().await, server.reads().await];
    read_lines.sort_by_key(|line| line["method"] != "tools/list");
    assert_eq!(read_lines.each_ref().map(|line| &line["method"]), ["tools/list", "tools/call"]);
    drop(server);
    assert!(text(&soon(read.answer()).await).contains("its effect is unknown"));
}

//! Servers that speak streamable HTTP: answers, streams, sessions that are lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::World;
use super::client::Asked;
use super::site::{Site, Turn};
use crate::soon;

async fn served() -> (World, Site) {
    let (world, site) = (World::new(), Site::new().await);
    world.is_served_by(&site).await;
    (world, site)
}

#[tokio::test]
async fn each_client_has_a_session_on_its_own_terms() {
    let (world, mut site) = served().await;
    let [one, two] = [world.client().await, world.client().await];
    for (client, session) in [(&one, "s2"), (&two, "s3")] {
        let asked = client.calls("poke");
        let call = site.call("poke").await;
        assert_eq!(call.session(), session);
        assert_eq!(call.header("mcp-protocol-version"), Some("2025-11-25"));
        // The request is passed on as it is.
        assert_eq!(call.message["id"], 2);
        call.returns("done").await;
        assert_eq!(asked.text().await, "done");
    }
}

#[tokio::test]
async fn an_event_stream_brings_messages_and_then_the_answer() {
    let (world, mut site) = served().await;
    let client = world.client_with(&json!({"elicitation": {}})).await;
    let mut asked = client.calls_with_token("poke", &json!("t"));
    let mut call = site.call("poke").await;
    call.streams().await;
    let progress = |token: &str, value: f64| {
        let params = json!({"progressToken": token, "progress": value});
        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    };
    for (token, value) in [("t", 1.0), ("t", 1.0), ("other", 9.0), ("t", 2.0)] {
        call.sends(None, &progress(token, value)).await;
    }
    call.sends(None, &json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create"})).await;
    call.sends(None, &json!({"jsonrpc": "2.0", "id": 99, "result": {}})).await;
    let mut values = Vec::new();
    for _ in 0..4 {
        values.push(asked.hears().await["params"]["progress"].clone());
    }
    // The value that does not rise is raised by a step.
    let raised = values.remove(1).as_f64().unwrap();
    assert!(raised > 1.0 && raised < 1.001, "{raised}");
    assert_eq!(values, [1.0, 9.0, 2.0]);
    let question = asked.hears().await;
    assert_eq!(question["method"], "elicitation/create");
    client.posts(&json!({"id": question["id"], "result": {"action": "accept"}}));
    let answer = site.turn().await;
    assert_eq!(answer.message, json!({"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}));
    assert_eq!(answer.session(), call.session());
    answer.responds(202, "", "").await;
    let result = call.result("done");
    call.sends(None, &result).await;
    assert_eq!(asked.text().await, "done");
}

#[tokio::test]
async fn a_lost_session_is_opened_again_in_whatever_words_it_was_lost() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let rpc = |code: i64, message: &str| {
        let error = json!({"code": code, "message": message});
        json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string()
    };
    let losses = [
        (404, rpc(-32001, "Session not found")),
        (404, String::new()),
        (400, rpc(-32000, "Bad Request: No valid session ID provided")),
        (401, "Unauthorized: Session not found".to_owned()),
        (200, rpc(-32600, "Invalid Request: Session not found")),
        (200, rpc(-32002, "Server not initialized")),
        (422, "Unexpected message, expect initialize request".to_owned()),
    ];
    for (status, body) in losses {
        let asked = client.calls("poke");
        let lost = site.call("poke").await;
        let before = lost.session().to_owned();
        lost.responds(status, "content-type: application/json\r\n", &body).await;
        let call = site.call("poke").await;
        assert_ne!(call.session(), before, "{status} {body}");
        call.returns("done").await;
        assert_eq!(asked.text().await, "done");
    }
}

#[tokio::test]
async fn a_session_may_also_be_lost_in_a_stream() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let asked = client.calls("poke");
    let mut lost = site.call("poke").await;
    lost.streams().await;
    let error = json!({"code": -32600, "message": "Session not found"});
    let id = lost.message["id"].clone();
    lost.sends(None, &json!({"jsonrpc": "2.0", "id": id, "error": error})).await;
    let call = site.call("poke").await;
    assert_ne!(call.session(), lost.session());
    call.returns("done").await;
    assert_eq!(asked.text().await, "done");
}

#[tokio::test]
async fn a_server_that_forgets_every_session_is_given_up() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let asked = client.calls("poke");
    for _ in 0..4 {
        site.call("poke").await.responds(404, "", "").await;
    }
    assert!(asked.text().await.contains("forgets every session"));
    assert_eq!(world.notes.causes(), ["session-lost"]);
}

#[tokio::test]
async fn a_stream_that_was_cut_is_taken_up_where_it_ended() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    site.lets_listen();
    let mut asked = client.calls_with_token("poke", &json!(1));
    let mut call = site.call("poke").await;
    call.streams().await;
    let params = json!({"progressToken": 1, "progress": 1.0});
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
    call.sends(Some("e1"), &progress).await;
    asked.hears().await;
    let result = call.result("done");
    drop(call);
    for _ in 0..2 {
        let mut resumed = site.turn().await;
        assert_eq!(resumed.header("last-event-id"), Some("e1"));
        resumed.streams().await;
    }
    let mut resumed = site.turn().await;
    resumed.streams().await;
    resumed.sends(Some("e2"), &result).await;
    assert_eq!(asked.text().await, "done");
}

#[tokio::test]
async fn a_stream_that_was_cut_for_good_is_a_loss() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let (safe, harmful) = (client.calls("peek"), client.calls("poke"));
    for _ in 0..2 {
        let mut call = site.turn().await;
        call.streams().await;
        call.sends(None, &json!({"jsonrpc": "2.0", "method": "notifications/odd"})).await;
    }
    assert!(harmful.text().await.contains("its effect is unknown"));
    site.call("peek").await.returns("done").await;
    assert_eq!(safe.text().await, "done");
}

#[tokio::test]
async fn a_server_that_hangs_up_again_and_again_is_asked_a_few_times() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    site.lets_listen();
    let asked = client.calls("poke");
    let events = "content-type: text/event-stream\r\n";
    site.call("poke").await.begins(events, "id: 1\nretry: 1\ndata:\n\n").await;
    for _ in 0..5 {
        let resumed = site.turn().await;
        assert_eq!(resumed.header("last-event-id"), Some("1"));
        resumed.begins(events, "").await;
    }
    let text = asked.text().await;
    assert!(text.contains("its effect is unknown"), "{text}");
    assert_eq!(world.notes.causes(), ["effect-unknown"]);
}

/// The event that announces the pause has no data, so the server is to be asked again much later.
#[tokio::test]
async fn a_stream_is_over_when_its_run_is() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    site.lets_listen();
    let events = "content-type: text/event-stream\r\n";
    for open in [true, false] {
        let asked = client.calls("poke");
        let mut call = site.call("poke").await;
        if open {
            call.streams().await;
            world.is_coming(None);
            assert!(asked.text().await.contains("its effect is unknown"));
            call.ends().await;
        } else {
            call.begins(events, "id: 1\nretry: 30000\ndata:\n\n").await;
            world.is_served_by(&site).await;
            assert!(asked.text().await.contains("its effect is unknown"));
        }
        world.is_served_by(&site).await;
    }
}

#[tokio::test]
async fn half_an_answer_is_a_loss() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    for (tool, expected) in [("peek", "done"), ("poke", "failed: the server stopped during")] {
        let asked = client.calls(tool);
        let half = "content-type: application/json\r\ncontent-length: 999\r\n";
        site.call(tool).await.begins(half, r#"{"jsonrpc":"2.0","#).await;
        if tool == "peek" {
            site.call(tool).await.returns("done").await;
        }
        assert!(asked.text().await.starts_with(expected));
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_waited_for() {
    let (world, site) = served().await;
    let client = world.client().await;
    drop(site);
    let asked = client.calls("poke");
    soon(async {
        while world.notes.unreachable.load(Ordering::Relaxed) < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut site = Site::new().await;
    world.is_served_by(&site).await;
    let call = site.call("poke").await;
    assert_eq!(call.session(), "s2");
    call.returns("done").await;
    assert_eq!(asked.text().await, "done");
    assert_eq!(world.notes.causes(), ["held"]);
}

#[tokio::test]
async fn a_new_run_is_told_the_terms_of_each_session() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    for (method, params) in [
        ("logging/setLevel", json!({"level": "error"})),
        ("resources/subscribe", json!({"uri": "a:"})),
    ] {
        let asked = client.asks(method, &params);
        expect(&mut site, method, &params).await;
        soon(asked.answer()).await;
    }
    drop(site);
    let mut site = Site::new().await;
    world.is_served_by(&site).await;
    expect(&mut site, "logging/setLevel", &json!({"level": "error"})).await;
    expect(&mut site, "resources/subscribe", &json!({"uri": "a:"})).await;
    assert_eq!(client.hears().await["params"], json!({"uri": "a:"}));
}

/// The site is asked this, and says that all is well.
async fn expect(site: &mut Site, method: &str, params: &Value) {
    let turn = site.turn().await;
    assert_eq!((&turn.message["method"], &turn.message["params"]), (&json!(method), params));
    let id = turn.message["id"].clone();
    turn.says(&json!({"jsonrpc": "2.0", "id": id, "result": {}})).await;
}

#[tokio::test]
async fn a_request_that_was_given_up_is_cancelled_in_its_session() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let asked = client.calls("poke");
    let call = site.call("poke").await;
    client.cancels(&asked);
    assert!(asked.ends_unanswered().await);
    let cancelled = site.turn().await;
    assert_eq!(cancelled.message["method"], "notifications/cancelled");
    assert_eq!(cancelled.message["params"]["requestId"], call.message["id"]);
    assert_eq!(cancelled.session(), call.session());
    cancelled.responds(202, "", "").await;
    call.ends().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_a_server_only_for_a_while() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let asked = client.calls("poke");
    let mut call = site.call("poke").await;
    call.streams().await;
    let params = json!({"level": "info", "data": "x".repeat(100_000)});
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
    let text = json!([{"type": "text", "text": "done"}]);
    let answer = json!({"jsonrpc": "2.0", "id": call.message["id"], "result": {"content": text}});
    // More than all buffers hold.
    let sent = async {
        for _ in 0..200 {
            call.sends(None, &log).await;
        }
        call.sends(None, &answer).await;
    };
    tokio::time::timeout(Duration::from_secs(30), sent).await.expect("it is not stopped for long");
    assert_eq!(asked.text().await, "done");
}

/// The server gets a call while the reader of its answer is polled.
async fn polled_until_called(site: &mut Site, asked: &mut Asked) -> Turn {
    tokio::select! {
        call = site.call("poke") => call,
        _ = asked.hears_before_answer() => panic!("an answer from nowhere"),
    }
}

#[tokio::test]
async fn a_request_is_performed_by_the_reader_that_waits_for_its_answer() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let mut asked = client.calls_when_polled("poke");
    let call = polled_until_called(&mut site, &mut asked).await;
    call.returns("done").await;
    assert!(!asked.is_answered(), "nobody has read the response");
    assert_eq!(soon(asked.hears_before_answer()).await, None);
    assert_eq!(asked.text().await, "done");
}

#[tokio::test]
async fn a_request_is_given_up_with_the_reader_that_performs_it() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let mut asked = client.calls_when_polled("poke");
    let call = polled_until_called(&mut site, &mut asked).await;
    drop(asked);
    let cancelled = site.turn().await;
    assert_eq!(cancelled.message["method"], "notifications/cancelled");
    cancelled.responds(202, "", "").await;
    call.ends().await;
}

#[tokio::test]
async fn a_request_that_takes_long_continues_without_its_reader() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let mut asked = client.calls_when_polled("poke");
    let call = polled_until_called(&mut site, &mut asked).await;
    asked.is_committed();
    call.returns("done").await;
    soon(async {
        while !asked.is_answered() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(asked.text().await, "done");
}

#[tokio::test]
async fn the_end_of_a_session_is_its_end_at_the_server_too() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let asked = client.calls("poke");
    let call = site.call("poke").await;
    let opened = site.past().len();
    assert!(world.proxy.close(client.session.id()));
    site.did("DELETE - s2").await;
    assert!(asked.ends_unanswered().await);
    call.ends().await;
    // Nothing was opened only to be told that something is over.
    world.client().await;
    assert_eq!(site.past().len(), opened + 3, "{:?}", site.past());
}

#[tokio::test]
async fn errors_are_passed_on_and_nonsense_is_said_to_be() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let error = json!({"code": -32602, "message": "no such tool"});
    for status in [200, 400] {
        let asked = client.calls("poke");
        let call = site.call("poke").await;
        let answer = json!({"jsonrpc": "2.0", "id": call.message["id"], "error": error});
        call.responds(status, "content-type: application/json\r\n", &answer.to_string()).await;
        assert_eq!(soon(asked.answer()).await["error"], error);
    }
    // Whoever refuses a request may not have read its id.
    let nameless = json!({"jsonrpc": "2.0", "id": null, "error": error});
    for status in [200, 406] {
        let asked = client.calls("poke");
        let json = "content-type: application/json\r\n";
        site.call("poke").await.responds(status, json, &nameless.to_string()).await;
        assert_eq!(soon(asked.answer()).await["error"], error);
    }
    let asked = client.calls("poke");
    let mut call = site.call("poke").await;
    call.streams().await;
    call.sends(None, &nameless).await;
    assert_eq!(soon(asked.answer()).await["error"], error);
    for (status, body) in [(500, "oops"), (200, "oops"), (202, "")] {
        let asked = client.calls("poke");
        site.call("poke").await.responds(status, "", body).await;
        assert!(asked.text().await.starts_with("failed: the MCP server `time` failed"));
    }
}

/// The clock stands still, so that it jumps to the end of the client's patience.
#[tokio::test]
async fn a_server_that_does_not_welcome_a_client_is_not_waited_for() {
    let (world, mut site) = served().await;
    site.leaves_sessions_to_the_test();
    let client = super::Client::new(world.servers.open(super::NAME).unwrap());
    let asked = client.begins(&json!({}));
    let _silent = site.turn().await;
    tokio::time::pause();
    assert_eq!(soon(asked.answer()).await["result"]["serverInfo"]["name"], "fake");
}

#[tokio::test]
async fn a_gateway_that_finds_no_server_is_asked_again() {
    let (world, mut site) = served().await;
    let client = world.client().await;
    let asked = client.calls("poke");
    site.refuses_sessions(2);
    site.call("poke").await.responds(404, "", "").await;
    let call = site.call("poke").await;
    call.returns("done").await;
    assert_eq!(asked.text().await, "done");
}

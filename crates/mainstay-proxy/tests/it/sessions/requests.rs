//! Single requests: ids, tokens, and giving up.

use serde_json::{Value, json};

use super::{Client, Server, World};

/// A server that is up, and a client of it.
async fn served() -> (World, Server, Client) {
    let world = World::new();
    let server = world.serves().await;
    let client = world.client().await;
    (world, server, client)
}

#[tokio::test(start_paused = true)]
async fn ids_come_back_as_they_were_written() {
    let (_world, mut server, client) = served().await;
    for id in ["0", "-7", "1.50", "18446744073709551615", r#""""#, r#""a\u0041\n""#] {
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"prompts/get"}}"#);
        let mut asked = client.sends(serde_json::from_str(id).unwrap(), &message);
        let request = server.reads_request("prompts/get").await;
        server.answers(&request, &json!({})).await;
        let item = crate::soon(asked.reader.next()).await.unwrap();
        let expected = format!(r#"{{"id":{id},"jsonrpc":"2.0","result":{{}}}}"#);
        assert!(item.is_answer && item.message == expected, "{item:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_passed_on_as_it_was_written() {
    let (_world, mut server, client) = served().await;
    let message = "{\"jsonrpc\":\"2.0\", \"method\":\"x/y\",\n \"params\":{\"b\":1.0,\"a\":\"\\u00e4\"},\"id\":1}";
    let _asked = client.sends(json!(1), message);
    let line = server.reads_text().await;
    let (begin, id) = line.split_once(r#""id":"#).unwrap();
    assert_eq!(begin, message.replace('\n', " ").split_once(r#""id":"#).unwrap().0);
    assert!(id.trim_end_matches('}').parse::<u64>().unwrap() >= 1 << 32, "{id}");
}

#[tokio::test(start_paused = true)]
async fn requests_of_two_sessions_with_the_same_id_are_told_apart() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    let (first, second) = (one.calls("a"), two.calls("b"));
    let a = server.reads_call("a").await;
    let b = server.reads_call("b").await;
    assert_ne!(a["id"], b["id"]);
    server.returns(&b, "for two").await;
    server.returns(&a, "for one").await;
    assert_eq!([first.text().await, second.text().await], ["for one", "for two"]);
}

#[tokio::test(start_paused = true)]
async fn answers_to_nobody_and_second_answers_are_dropped() {
    let (_world, mut server, client) = served().await;
    let asked = client.calls("a");
    let call = server.reads_call("a").await;
    for nobody in [json!(7), json!("7"), json!(null), json!(u64::MAX), json!(-1)] {
        server.says(&json!({"id": nobody, "error": {"code": 1, "message": "x"}})).await;
    }
    server.returns(&call, "one").await;
    server.returns(&call, "two").await;
    assert_eq!(asked.text().await, "one");
    let next = client.calls("b");
    let call = server.reads_call("b").await;
    server.returns(&call, "three").await;
    assert_eq!(next.text().await, "three");
}

#[tokio::test(start_paused = true)]
async fn two_sessions_may_use_the_same_progress_token() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    let token = json!("t");
    let (mut first, mut second) =
        (one.calls_with_token("a", &token), two.calls_with_token("b", &token));
    let a = server.reads_call("a").await;
    let b = server.reads_call("b").await;
    server.tells_progress(&b, 2.0).await;
    server.tells_progress(&a, 1.0).await;
    for (asked, expected) in [(&mut first, 1.0), (&mut second, 2.0)] {
        let told = asked.hears().await;
        assert_eq!(told["params"], json!({"progressToken": "t", "progress": expected}));
    }
    server.returns(&a, "").await;
    server.returns(&b, "").await;
    first.text().await;
    second.text().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_cancelled_is_cancelled_at_the_server_under_our_id() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    let (first, second) = (one.calls("a"), two.calls("b"));
    let a = server.reads_call("a").await;
    let b = server.reads_call("b").await;
    two.cancels(&second);
    assert!(second.ends_unanswered().await);
    expect_cancelled(&server.reads().await, &b);
    server.returns(&b, "too late").await;
    server.returns(&a, "in time").await;
    assert_eq!(first.text().await, "in time");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_future_is_dropped_is_cancelled_at_the_server() {
    let (_world, mut server, client) = served().await;
    let asked = client.calls("a");
    let call = server.reads_call("a").await;
    drop(asked);
    expect_cancelled(&server.reads().await, &call);
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_cancels_what_it_had_open() {
    let world = World::new();
    let mut server = world.serves().await;
    let [one, two] = [world.client().await, world.client().await];
    let (first, second) = (one.calls("a"), two.calls("b"));
    let a = server.reads_call("a").await;
    let b = server.reads_call("b").await;
    assert!(world.proxy.close(one.session.id()));
    assert!(first.ends_unanswered().await && one.hears_the_end().await);
    expect_cancelled(&server.reads().await, &a);
    server.returns(&b, "still here").await;
    assert_eq!(second.text().await, "still here");
    // Whatever its client still says, it does not come back.
    one.posts(&json!({"method": "notifications/initialized"}));
    assert_eq!((world.proxy.session_count(), world.notes.records().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_used_twice_under_one_id_is_answered_twice() {
    let (_world, mut server, client) = served().await;
    let params = |tool: &str| json!({"name": tool});
    let first = client.asks_as(json!(5), "tools/call", &params("a"));
    let second = client.asks_as(json!(5), "tools/call", &params("b"));
    let a = server.reads_call("a").await;
    let b = server.reads_call("b").await;
    server.returns(&a, "one").await;
    assert_eq!(first.text().await, "one");
    // The newer one is still known under the id.
    client.cancels(&second);
    assert!(second.ends_unanswered().await);
    expect_cancelled(&server.reads().await, &b);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_was_too_long_fails_one_request() {
    let (_world, mut server, client) = served().await;
    let (first, second) = (client.calls("a"), client.calls("b"));
    let a = server.reads_call("a").await;
    let b = server.reads_call("b").await;
    server.writes(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\n\"}}}}", a["id"])).await;
    assert!(first.text().await.starts_with("failed: the MCP server `time` failed"));
    server.returns(&b, "unharmed").await;
    assert_eq!(second.text().await, "unharmed");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_valid_json_fails_its_request() {
    let (_world, mut server, client) = served().await;
    let (first, second) = (client.calls("a"), client.calls("b"));
    let a = server.reads_call("a").await;
    let b = server.reads_call("b").await;
    server
        .writes(&format!(
            "{{\"jsonrpc\":\"2.0\", \"id\": {}, \"result\":{{\"x\":\"\0\"}}}}",
            a["id"]
        ))
        .await;
    let text = first.text().await;
    assert!(text.starts_with("failed: the MCP server `time` failed"), "{text}");
    assert!(text.contains("not valid JSON"), "{text}");
    server.writes("{\"id\": 7 no json").await;
    server.returns(&b, "unharmed").await;
    assert_eq!(second.text().await, "unharmed");
}

fn expect_cancelled(line: &Value, request: &Value) {
    assert_eq!(line["method"], "notifications/cancelled", "{line}");
    assert_eq!(line["params"]["requestId"], request["id"], "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_limit_of_its_session_or_server_is_refused_before_it_is_sent() {
    const IN_SESSION: usize = 1024;
    const OF_SERVER: usize = 8192;
    let world = World::new();
    let mut server = world.serves().await;
    let busy = world.client().await;
    let refused = async |client: &super::Client| {
        let answer = crate::soon(client.calls("refused").answer()).await;
        let error = &answer["error"];
        assert_eq!(error["data"]["mainstay"], "too-many-requests", "{answer}");
        assert!(error["message"].as_str().unwrap().contains("not sent to the server"));
    };
    // An id that is used again counts again.
    let mut open: Vec<_> = (0..IN_SESSION)
        .map(|n| busy.asks_as(json!(n / 2), "tools/call", &json!({"name": "slow"})))
        .collect();
    for _ in 0..IN_SESSION {
        server.reads_call("slow").await;
    }
    refused(&busy).await;
    let other = world.client().await;
    let asked = other.calls("other");
    let call = server.reads_call("other").await;
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");

    let mut clients = Vec::new();
    while open.len() < OF_SERVER {
        let client = world.client().await;
        open.extend((0..IN_SESSION).map(|_| client.calls("slow")));
        clients.push(client);
        for _ in 0..IN_SESSION {
            server.reads_call("slow").await;
        }
    }
    refused(&other).await;
    // A caller that has left releases its share immediately.
    drop(open.pop());
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let _asked = other.calls("last");
    let read = loop {
        let line: Value = serde_json::from_str(&server.reads_text().await).unwrap();
        if line["method"] == "tools/call" {
            break line;
        }
    };
    assert_eq!(read["params"]["name"], "last");
}

/// What a server says that could not read a line.
fn unreadable(code: i64) -> Value {
    json!({"id": null, "error": {"code": code, "message": "cannot parse that"}})
}

#[tokio::test(start_paused = true)]
async fn an_error_for_an_unreadable_line_answers_the_only_request() {
    for code in [-32700, -32600] {
        let world = World::new();
        let mut server = world.serves().await;
        let client = world.client().await;
        let asked = client.calls("a");
        server.reads_call("a").await;
        server.says(&unreadable(code)).await;
        let answer = crate::soon(asked.answer()).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert_eq!(answer["error"]["message"], "cannot parse that");
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_suffers_for_an_error_that_may_be_for_another() {
    let (_world, mut server, client) = served().await;
    let (first, second) = (client.calls("a"), client.calls("b"));
    let (a, b) = (server.reads_call("a").await, server.reads_call("b").await);
    server.says(&unreadable(-32700)).await;
    server.returns(&a, "for a").await;
    assert_eq!(first.text().await, "for a");
    // Some servers answer notifications, too.
    server.says(&unreadable(-32601)).await;
    server.returns(&b, "for b").await;
    assert_eq!(second.text().await, "for b");
}

#[tokio::test(start_paused = true)]
async fn large_requests_are_limited_by_bytes_and_do_not_block_small_ones() {
    let world = World::new();
    let mut server = world.serves().await;
    let busy = world.client().await;
    let text = "x".repeat(15 << 20);
    let large = |id: u32| {
        let params = format!(r#"{{"name":"slow","arguments":{{"text":"{text}"}}}}"#);
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":"#);
        busy.sends(json!(id), &format!("{head}{params}}}"))
    };
    let mut open: Vec<_> = (1..=4).map(large).collect();
    let refused = crate::soon(large(5).answer()).await;
    assert_eq!(refused["error"]["data"]["mainstay"], "too-many-requests", "{refused}");
    for _ in 0..4 {
        server.reads_call("slow").await;
    }
    let other = world.client().await;
    for client in [&busy, &other] {
        let asked = client.calls("small");
        let call = server.reads_call("small").await;
        server.returns(&call, "done").await;
        assert_eq!(asked.text().await, "done");
    }
    // A caller that has left releases its share immediately.
    open.pop();
    assert_eq!(server.reads().await["method"], "notifications/cancelled");
    let _asked = large(6);
    server.reads_call("slow").await;
}

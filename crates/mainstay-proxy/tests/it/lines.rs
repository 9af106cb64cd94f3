//! Sessions over lines. The clock is paused, so a test that hangs fails at once.

use mainstay_proxy::{Upstream, UpstreamError};
use serde_json::{Value, json};

use crate::fake::{Fake, asks};
use crate::{HELLO, alive_tasks, identity, no_task_is_left, raw, soon};

#[tokio::test(start_paused = true)]
async fn the_handshake() {
    let (mut fake, link) = Fake::new(4);
    let opening = tokio::spawn(async move { Upstream::initialize(link, &identity(), 2).await });
    let expected = json!({
        "jsonrpc": "2.0", "id": 2_u64 << 32, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "mainstay", "version": "0.1" },
        },
    });
    assert_eq!(fake.reads().await, expected);
    fake.says("starting up").await;
    fake.answers(2 << 32, HELLO).await;
    assert_eq!(
        fake.reads().await,
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
    );

    let (_upstream, hello) = soon(opening).await.unwrap().unwrap();
    assert_eq!(hello.protocol_version, "2025-11-25");
    assert_eq!(hello.server_name.as_deref(), Some("fake"));
    assert_eq!(hello.server_version.as_deref(), Some("1.2"));
    assert_eq!(hello.result.get(), HELLO);
    assert_eq!(fake.junk.recv().await.unwrap(), "starting up");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_given_up_is_not_cancelled_but_lets_go_of_the_link() {
    let (mut fake, link) = Fake::new(4);
    let opening = tokio::spawn(async move { Upstream::initialize(link, &identity(), 0).await });
    fake.reads_request("initialize").await;
    opening.abort();
    assert_eq!(soon(fake.stdin.recv()).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_or_refuses_fails_the_handshake() {
    let (mut fake, link) = Fake::new(4);
    let opening = tokio::spawn(async move { Upstream::initialize(link, &identity(), 0).await });
    fake.reads_request("initialize").await;
    drop(fake);
    let error = soon(opening).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the server went away before it answered `initialize`");

    let (mut fake, link) = Fake::new(4);
    let opening = tokio::spawn(async move { Upstream::initialize(link, &identity(), 0).await });
    fake.reads_request("initialize").await;
    fake.says(r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no","data":[1]}}"#)
        .await;
    match soon(opening).await.unwrap().unwrap_err() {
        UpstreamError::Rpc { method, code, message, data } => {
            assert_eq!((method.as_str(), code, message.as_str()), ("initialize", -32602, "no"));
            assert_eq!(data.unwrap().get(), "[1]");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn answers_find_their_requests_in_any_order() {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let first = asks(&upstream, "a");
    let first_id = fake.reads_request("a").await;
    let second = asks(&upstream, "b");
    let second_id = fake.reads_request("b").await;
    fake.answers(second_id, r#"{"n": 2.0}"#).await;
    assert_eq!(soon(second).await.unwrap().unwrap(), r#"{"n": 2.0}"#);
    fake.answers(first_id, "{ }").await;
    assert_eq!(soon(first).await.unwrap().unwrap(), "{ }");
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_answers_is_taken_apart() {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let first = asks(&upstream, "a");
    fake.reads_request("a").await;
    let second = asks(&upstream, "b");
    fake.reads_request("b").await;
    fake.says(
        r#"[{"jsonrpc":"2.0","id":1,"result":"b"}, 7, {"jsonrpc":"2.0","id":0,"result":"a"}]"#,
    )
    .await;
    assert_eq!(soon(first).await.unwrap().unwrap(), r#""a""#);
    assert_eq!(soon(second).await.unwrap().unwrap(), r#""b""#);
    assert_eq!(soon(fake.junk.recv()).await.unwrap(), "7");
}

#[tokio::test(start_paused = true)]
async fn every_open_request_fails_when_the_link_ends() {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let answered = asks(&upstream, "a");
    let id = fake.reads_request("a").await;
    let open: Vec<_> = ["b", "c"].map(|method| asks(&upstream, method)).into();
    fake.reads().await;
    fake.reads().await;
    fake.answers(id, "1").await;
    drop(fake);
    assert_eq!(soon(answered).await.unwrap().unwrap(), "1");
    for request in open {
        let error = soon(request).await.unwrap().unwrap_err();
        assert!(matches!(error, UpstreamError::Closed { .. }), "{error:?}");
    }
    soon(upstream.closed()).await;
    let error = soon(upstream.ping()).await.unwrap_err();
    assert_eq!(error.to_string(), "the server went away before `ping` was sent");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_never_sent_is_told_from_one_that_was() {
    let (mut fake, upstream) = Fake::resumed(1, 0);
    let sent = asks(&upstream, "a");
    fake.reads_request("a").await;
    // One more fills the line; of those behind it, some have got into the session and some not.
    let waiting: Vec<_> = (0..100).map(|_| asks(&upstream, "b")).collect();
    let last = asks(&upstream, "c");
    while fake.stdin.is_empty() {
        tokio::task::yield_now().await;
    }
    drop(fake);
    assert!(!soon(sent).await.unwrap().unwrap_err().retry_is_safe());
    let mut sent = 0;
    for request in waiting {
        match soon(request).await.unwrap().unwrap_err() {
            UpstreamError::Closed { sent: true, .. } => sent += 1,
            UpstreamError::Closed { sent: false, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sent, 1, "only what was handed to the link may have been read");
    assert!(soon(last).await.unwrap().unwrap_err().retry_is_safe());
}

#[tokio::test]
async fn the_last_handle_takes_the_session_along() {
    let (fake, upstream) = Fake::resumed(4, 0);
    let other = upstream.clone();
    drop(upstream);
    assert_eq!(alive_tasks(), 1);
    drop(other);
    no_task_is_left().await;
    drop(fake);
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_the_end_counts_although_stdin_is_closed() {
    // The session may notice the one or the other first, by chance.
    for _ in 0..20 {
        let (mut fake, upstream) = Fake::resumed(4, 0);
        let request = asks(&upstream, "a");
        let id = fake.reads_request("a").await;
        let Fake { stdin, stdout, junk: _junk } = fake;
        drop(stdin);
        let ping = asks(&upstream, "ping");
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
        stdout.try_send(answer.into()).unwrap();
        let error = soon(ping).await.unwrap().unwrap_err();
        assert!(matches!(error, UpstreamError::Closed { .. }), "{error:?}");
        assert_eq!(soon(request).await.unwrap().unwrap(), "1");
        soon(upstream.closed()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_given_up_is_cancelled_and_its_late_answer_dropped() {
    let (mut fake, upstream) = Fake::resumed(4, 5);
    let request = asks(&upstream, "slow");
    let id = fake.reads_request("slow").await;
    request.abort();
    assert_eq!(
        fake.reads().await,
        json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id },
        })
    );
    fake.answers(id, "1").await;
    let ping = asks(&upstream, "ping");
    let id = fake.reads_request("ping").await;
    fake.answers(id, "{}").await;
    assert_eq!(soon(ping).await.unwrap().unwrap(), "{}");
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_that_overtakes_its_request_counts() {
    // The session may notice the one or the other first, by chance.
    for _ in 0..20 {
        let (mut fake, upstream) = Fake::resumed(4, 0);
        tokio::select! {
            biased;
            _ = upstream.request("slow", None) => unreachable!("nobody answers"),
            () = std::future::ready(()) => {}
        }
        drop(upstream);
        let mut sent = Vec::new();
        while let Some(line) = soon(fake.stdin.recv()).await {
            let message: Value = serde_json::from_slice(&line).unwrap();
            sent.push(message["method"].as_str().unwrap().to_owned());
        }
        assert!(sent.is_empty() || sent == ["slow", "notifications/cancelled"], "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_outlives_the_last_handle() {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let request = asks(&upstream, "slow");
    drop(upstream);
    fake.reads_request("slow").await;
    request.abort();
    assert_eq!(fake.reads().await["method"], "notifications/cancelled");
    assert_eq!(soon(fake.stdin.recv()).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_request_given_up_while_it_waits_is_never_sent() {
    let (mut fake, upstream) = Fake::resumed(1, 0);
    // The first fills the line, so the second waits behind it, wherever it has come to when it is
    // given up.
    for steps in 0..20 {
        let first = asks(&upstream, "first");
        tokio::task::yield_now().await;
        let second = asks(&upstream, "second");
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        second.abort();
        soon(second).await.unwrap_err();
        let third = asks(&upstream, "third");
        for (request, method) in [(first, "first"), (third, "third")] {
            let id = fake.reads_request(method).await;
            fake.answers(id, "1").await;
            soon(request).await.unwrap().unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_writes_before_it_reads_blocks_nobody() {
    let (mut fake, upstream) = Fake::resumed(1, 0);
    let requests: Vec<_> = (0..200).map(|_| asks(&upstream, "a")).collect();
    for _ in 0..2000 {
        fake.says(r#"{"jsonrpc":"2.0","id":"q","method":"ping"}"#).await;
    }
    let mut answered = 0;
    while answered < requests.len() {
        let message = fake.reads().await;
        if let (Some(id), true) = (message["id"].as_u64(), message["method"] == "a") {
            fake.answers(id, "1").await;
            answered += 1;
        }
    }
    for request in requests {
        soon(request).await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_the_server_are_answered() {
    let (mut fake, _upstream) = Fake::resumed(4, 0);
    fake.says(r#"{"jsonrpc":"2.0","id":"p-1","method":"ping"}"#).await;
    assert_eq!(fake.reads().await, json!({ "jsonrpc": "2.0", "id": "p-1", "result": {} }));
    fake.says(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#).await;
    fake.says(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list"}"#).await;
    let refusal = fake.reads().await;
    assert_eq!((&refusal["id"], &refusal["error"]["code"]), (&json!(4), &json!(-32601)));
}

#[tokio::test(start_paused = true)]
async fn junk_goes_its_own_way_and_is_dropped_when_too_much() {
    let (mut fake, upstream) = Fake::resumed(2, 0);
    let request = asks(&upstream, "a");
    let id = fake.reads_request("a").await;
    for junk in [&b"INFO up"[..], b"{\"a\":\"\xff\"}", b"42", b"{\"level\":\"info\"}", b"[", b""] {
        fake.says(junk).await;
    }
    fake.answers(id, "1").await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "1");
    assert_eq!(fake.junk.recv().await.unwrap(), "INFO up");
    assert_eq!(fake.junk.recv().await.unwrap(), &b"{\"a\":\"\xff\"}"[..]);
    assert!(fake.junk.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_resumed_session_takes_no_answer_meant_for_an_earlier_daemon() {
    let (mut fake, upstream) = Fake::resumed(4, 7);
    let request = asks(&upstream, "a");
    assert_eq!(fake.reads_request("a").await, 7 << 32);
    fake.answers(6 << 32, r#""old""#).await;
    fake.answers(7 << 32, r#""new""#).await;
    assert_eq!(soon(request).await.unwrap().unwrap(), r#""new""#);
}

#[tokio::test(start_paused = true)]
async fn arguments_on_several_lines_become_one() {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let call = async {
        upstream
            .call("echo", raw("{\r\n  \"text\": \"a\\nb\"\n}"))
            .await
            .map(|result| result.to_string())
    };
    let serve = async {
        let request = fake.reads().await;
        assert_eq!(request["params"], json!({ "name": "echo", "arguments": { "text": "a\nb" } }));
        fake.answers(0, r#"{"content":[],"isError":true}"#).await;
    };
    let (result, ()) = soon(async { tokio::join!(call, serve) }).await;
    assert_eq!(result.unwrap(), r#"{"content":[],"isError":true}"#);
}

/// Serves pages of a list of tools until the client has enough.
async fn list(pages: impl Fn(u64, &Value) -> String) -> Result<Vec<String>, String> {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let serve = async {
        while let Some(line) = fake.stdin.recv().await {
            let request: Value = serde_json::from_slice(&line).unwrap();
            let id = request["id"].as_u64().unwrap();
            fake.answers(id, &pages(id, &request["params"])).await;
        }
    };
    let ask = async move { upstream.tools().await };
    let (tools, ()) = soon(async { tokio::join!(ask, serve) }).await;
    match tools {
        Ok(tools) => Ok(tools.iter().map(ToString::to_string).collect()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_the_tools_are_read() {
    let pages = |_, params: &Value| match params["cursor"].as_str() {
        None => r#"{"tools":[{"name": "a"},{"name": "b"}],"nextCursor":"2"}"#.to_owned(),
        Some("2") => r#"{"tools":[],"nextCursor":"3"}"#.to_owned(),
        Some(_) => r#"{"tools":[{"name": "c"}],"nextCursor":null}"#.to_owned(),
    };
    assert_eq!(
        list(pages).await.unwrap(),
        [r#"{"name": "a"}"#, r#"{"name": "b"}"#, r#"{"name": "c"}"#]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_never_ends_is_an_error() {
    let same = |_, _: &Value| r#"{"tools":[],"nextCursor":"x"}"#.to_owned();
    assert_eq!(
        list(same).await.unwrap_err(),
        "the server answered `tools/list` with a cursor that it had given before"
    );
    let endless = |id, _: &Value| format!(r#"{{"tools":[],"nextCursor":"{id}"}}"#);
    assert_eq!(
        list(endless).await.unwrap_err(),
        "the server answered `tools/list` with more than 1000 pages"
    );
    let error = list(|_, _| "{}".to_owned()).await.unwrap_err();
    assert!(error.contains("`tools/list` with a result without tools"), "{error}");
}

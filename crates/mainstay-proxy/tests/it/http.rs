//! Sessions over streamable HTTP.

use std::time::Duration;

use mainstay_proxy::{Hello, Upstream, UpstreamError};
use serde_json::json;

use crate::site::{Site, asks, link, opens, silent};
use crate::{HELLO, soon};

#[tokio::test]
async fn the_handshake() {
    let site = Site::new().await;
    let opening = opens(&[site.addr()]);

    let turn = site.turn().await;
    assert!(turn.head.starts_with("post /mcp http/1.1\r\n"), "{}", turn.head);
    assert_eq!(turn.header("host"), Some(site.addr().to_string().as_str()));
    assert_eq!(turn.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(turn.header("content-type"), Some("application/json"));
    assert_eq!(turn.header("mcp-session-id"), None);
    assert_eq!(turn.header("mcp-protocol-version"), None);
    assert_eq!(turn.message()["method"], "initialize");
    turn.gives("\r\nMcp-Session-Id: s-1", HELLO).await;

    let turn = site.turn().await;
    assert_eq!(turn.message(), json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    assert_eq!(turn.header("mcp-session-id"), Some("s-1"));
    assert_eq!(turn.header("mcp-protocol-version"), Some("2025-11-25"));
    turn.answers("202 Accepted", "").await;

    let (upstream, hello) = soon(opening).await.unwrap().unwrap();
    assert_eq!(hello.http_session.as_deref(), Some("s-1"));
    assert_eq!(hello.result.get(), HELLO);

    let request = asks(&upstream);
    let turn = site.turn().await;
    assert_eq!(turn.header("mcp-session-id"), Some("s-1"));
    assert_eq!(turn.message()["id"], json!((1_u64 << 32) + 1));
    turn.gives("", "{ }").await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "{ }");
}

#[tokio::test]
async fn a_server_that_is_coming_up_is_asked_again() {
    let (socket, addr) = silent();
    let mut opening = opens(&[addr]);
    // Nobody listens, so however long this takes, it does not end.
    tokio::time::timeout(Duration::from_millis(120), &mut opening).await.unwrap_err();

    let site = Site { listener: socket.listen(8).unwrap() };
    drop(site.turn().await);
    for status in ["404 Not Found", "502 Bad Gateway", "503 Service Unavailable"] {
        site.turn().await.answers(status, "").await;
    }
    let mut turn = site.turn().await;
    turn.writes("HTTP/1.1 200 OK\r\nMcp-Session-Id: lost\r\n").await;
    turn.writes("Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{").await;
    drop(turn);

    let turn = site.turn().await;
    assert_eq!(turn.header("mcp-session-id"), None);
    turn.gives("", HELLO).await;
    site.turn().await.answers("200 OK", "").await;
    let (_, hello) = soon(opening).await.unwrap().unwrap();
    assert_eq!(hello.http_session, None);
}

#[tokio::test]
async fn another_error_ends_the_handshake() {
    let site = Site::new().await;
    let opening = opens(&[site.addr()]);
    site.turn().await.answers("400 Bad Request", &"no ".repeat(200)).await;
    let error = soon(opening).await.unwrap().unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("the server answered `initialize` with HTTP status 400: no no"),
        "{text}"
    );
    match error {
        UpstreamError::Http { status: 400, body, .. } => assert_eq!(body.chars().count(), 300),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_in_chunks() {
    let site = Site::new().await;
    let upstream = site.resumed(None);
    let request = asks(&upstream);
    let mut turn = site.turn().await;
    turn.writes(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
    .await;
    let id = turn.message()["id"].to_string();
    for part in [r#"{"jsonrpc":"2.0","id":"#, &id, r#","result":[1]}"#] {
        turn.writes(&format!("{:x}\r\n{part}\r\n", part.len())).await;
    }
    turn.writes("0\r\n\r\n").await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "[1]");
}

#[tokio::test]
async fn an_answer_in_a_stream_after_other_messages() {
    let site = Site::new().await;
    let upstream = site.resumed(Some("s"));
    let request = asks(&upstream);
    let mut turn = site.turn().await;
    turn.streams(": hi\n\nevent: message\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\r\n\r\n")
        .await;
    turn.writes("data: {\"jsonrpc\":\"2.0\",\"id\":7,\ndata: \"method\":\"ping\"}\n\n").await;

    let answer = site.turn().await;
    assert_eq!(answer.message(), json!({ "jsonrpc": "2.0", "id": 7, "result": {} }));
    assert_eq!(answer.header("mcp-session-id"), Some("s"));
    answer.answers("202 Accepted", "").await;

    turn.writes("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":0}\n\ndata: junk\n\n").await;
    let id = turn.message()["id"].to_string();
    turn.writes(&format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"res")).await;
    turn.writes("ult\":[2]}\n\n").await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "[2]");
}

#[tokio::test]
async fn a_stream_cut_after_an_event_id_is_resumed() {
    let site = Site::new().await;
    let upstream = site.resumed(Some("s"));
    let request = asks(&upstream);
    let mut turn = site.turn().await;
    let id = turn.message()["id"].to_string();
    turn.streams("id: e-1\nretry: 1\ndata:\n\n").await;
    drop(turn);

    for _ in 0..2 {
        let mut turn = site.turn().await;
        assert!(turn.head.starts_with("get /mcp http/1.1\r\n"), "{}", turn.head);
        assert_eq!(turn.header("accept"), Some("text/event-stream"));
        assert_eq!(turn.header("last-event-id"), Some("e-1"));
        assert_eq!(turn.header("mcp-session-id"), Some("s"));
        turn.streams(": nothing yet\n\n").await;
    }
    let mut turn = site.turn().await;
    turn.streams(&format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":3}}\n\n")).await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "3");
}

#[tokio::test]
async fn a_stream_that_cannot_be_resumed_leaves_the_outcome_unknown() {
    let site = Site::new().await;
    let upstream = site.resumed(None);
    let request = asks(&upstream);
    site.turn().await.streams("id: e-1\nretry: 1\ndata:\n\n").await;
    site.turn().await.answers("405 Method Not Allowed", "").await;
    let error = soon(request).await.unwrap().unwrap_err();
    assert!(matches!(error, UpstreamError::Closed { sent: true, .. }), "{error:?}");

    let request = asks(&upstream);
    site.turn().await.streams(": bye\n\n").await;
    let error = soon(request).await.unwrap().unwrap_err();
    assert!(matches!(error, UpstreamError::Closed { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_goes_away_is_told_from_one_that_is_not_there() {
    let site = Site::new().await;
    let upstream = site.resumed(None);
    let request = asks(&upstream);
    drop(site.turn().await);
    let error = soon(request).await.unwrap().unwrap_err();
    assert!(matches!(error, UpstreamError::Closed { sent: true, .. }), "{error:?}");

    let (_socket, addr) = silent();
    let (_, hello) = initialized().await;
    let upstream = Upstream::resume(link(&[addr]), &hello, 1);
    let error = soon(upstream.ping()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot connect to {addr} to send `ping`"));
    assert!(matches!(error, UpstreamError::Connect { .. }), "{error:?}");
}

#[tokio::test]
async fn a_request_given_up_is_cancelled() {
    let site = Site::new().await;
    let upstream = site.resumed(Some("s"));
    let request = asks(&upstream);
    let turn = site.turn().await;
    request.abort();
    let cancel = site.turn().await;
    assert_eq!(cancel.message()["method"], "notifications/cancelled");
    assert_eq!(cancel.message()["params"]["requestId"], turn.message()["id"]);
    assert_eq!(cancel.header("mcp-session-id"), Some("s"));
}

#[tokio::test]
async fn a_session_that_the_server_forgot_is_closed() {
    let site = Site::new().await;
    let upstream = site.resumed(Some("s"));
    let request = asks(&upstream);
    site.turn().await.answers("404 Not Found", "Session not found").await;
    let error = soon(request).await.unwrap().unwrap_err();
    assert!(matches!(error, UpstreamError::SessionLost { .. }), "{error:?}");
    soon(upstream.closed()).await;
}

#[tokio::test]
async fn answers_that_break_the_protocol() {
    let site = Site::new().await;
    let upstream = site.resumed(None);
    let json = "200 OK\r\nContent-Type: application/json";
    for (head, body, expected) in [
        ("202 Accepted", "", "HTTP status 202 and no content type instead of JSON or events"),
        ("200 OK\r\nContent-Type: text/html", "<p>", "HTTP status 200 and text/html instead of"),
        (json, "{}", "no answer to it: {}"),
        (json, r#"{"jsonrpc":"2.0","id":9,"result":1}"#, "no answer to it: {\"jsonrpc\""),
        (
            json,
            r#"{"jsonrpc":"2.0","id":4294967300,"error":3}"#,
            "something that is no error object: 3",
        ),
    ] {
        let request = asks(&upstream);
        site.turn().await.answers(head, body).await;
        let error = soon(request).await.unwrap().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("the server answered `tools/list` with {expected}")),
            "{error}"
        );
    }

    let request = asks(&upstream);
    site.turn().await.writes("SSH-2.0-OpenSSH_9.6\r\n").await;
    let error = soon(request).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("something that is no HTTP"), "{error}");
}

#[tokio::test]
async fn a_session_lost_while_its_answer_was_awaited_leaves_the_outcome_unknown() {
    let site = Site::new().await;
    let upstream = site.resumed(Some("s"));
    let request = asks(&upstream);
    site.turn().await.streams("id: e-1\nretry: 1\ndata:\n\n").await;
    site.turn().await.answers("404 Not Found", "").await;
    let error = soon(request).await.unwrap().unwrap_err();
    assert!(matches!(error, UpstreamError::Closed { sent: true, .. }), "{error:?}");
    soon(upstream.closed()).await;
}

/// A session with a server that is gone again.
async fn initialized() -> (Upstream, Hello) {
    let site = Site::new().await;
    let opening = opens(&[site.addr()]);
    site.turn().await.gives("", HELLO).await;
    site.turn().await.answers("202 Accepted", "").await;
    soon(opening).await.unwrap().unwrap()
}

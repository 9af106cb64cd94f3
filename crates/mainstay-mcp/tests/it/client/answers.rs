//! Answers in all their shapes.

use mainstay_mcp::client::{BodyError, ContentType, Method, Request};
use tokio::io::AsyncWriteExt;
use tokio::join;

use super::{HELLO, Host, answers, call, post, request, sends, whole};
use crate::soon;

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n\
                       3\r\nllo\r\n0\r\nTrailer: t\r\n\r\n";

#[tokio::test]
async fn a_request_arrives_as_it_was_made() {
    let host = Host::new().await;
    let client = host.client();
    let headers = [("mcp-session-id", "s-1"), ("accept", "text/event-stream")];
    let get = Request { method: Method::Get, headers: &headers, body: b"" };
    let (text, response) = join!(
        async {
            let mut stream = host.accept().await;
            let text = request(&mut stream).await;
            soon(stream.write_all(HELLO.as_bytes())).await.unwrap();
            text
        },
        sends(&client, get),
    );
    assert_eq!(
        text,
        format!(
            "GET /mcp HTTP/1.1\r\nhost: {}\r\nmcp-session-id: s-1\r\n\
             accept: text/event-stream\r\n\r\n",
            host.addr()
        )
    );
    assert_eq!(whole(&mut response.unwrap()).await.unwrap(), "hello");
}

#[tokio::test]
async fn the_head_can_be_asked() {
    let host = Host::new().await;
    let client = host.client();
    let text = "HTTP/1.1 401 No\r\nContent-Type: application/json; charset=utf-8\r\n\
                MCP-Session-Id:  abc \r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n";
    let (_stream, response) = join!(host.answers(text), sends(&client, post(b"{}")));
    let response = response.unwrap();
    assert_eq!((response.status(), response.content_type()), (401, ContentType::Json));
    assert_eq!(response.header("mcp-session-id"), Some("abc"));
    assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    assert_eq!(response.header("retry-after"), None);
    assert!(!response.is_open());
}

/// Every answer, in two pieces cut at every place, and then the next one on the same connection.
#[tokio::test]
async fn an_answer_may_be_cut_anywhere() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n";
    for text in [HELLO, CHUNKED, &format!("{interim}{HELLO}")] {
        let host = Host::new().await;
        let client = host.client();
        let (mut stream, first) = join!(host.answers(HELLO), call(&client));
        assert_eq!(first, (200, "hello".into()));
        for cut in 1..text.len() {
            let serve = async {
                answers(&mut stream, &text[..cut]).await;
                tokio::task::yield_now().await;
                soon(stream.write_all(&text.as_bytes()[cut..])).await.unwrap();
            };
            let ((), answer) = join!(serve, call(&client));
            assert_eq!(answer, (200, "hello".into()), "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn some_answers_have_no_body() {
    let host = Host::new().await;
    let client = host.client();
    let (mut stream, answer) =
        join!(host.answers("HTTP/1.1 202 X\r\nContent-Length: 0\r\n\r\n"), call(&client));
    assert_eq!(answer, (202, "".into()));
    for status in [204, 304] {
        let text = format!("HTTP/1.1 {status} X\r\n\r\n");
        let ((), answer) = join!(answers(&mut stream, &text), call(&client));
        assert_eq!(answer, (status, "".into()));
    }
}

#[tokio::test]
async fn an_answer_may_end_with_its_connection() {
    for version in ["1.0", "1.1"] {
        let host = Host::new().await;
        let client = host.client();
        let serve = async {
            // Dropping the connection ends it.
            drop(host.answers(&format!("HTTP/{version} 200 OK\r\n\r\nhello")).await);
        };
        let ((), answer) = join!(serve, call(&client));
        assert_eq!(answer, (200, "hello".into()));
    }
}

#[tokio::test]
async fn a_stream_is_read_as_it_comes() {
    let host = Host::new().await;
    let client = host.client();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    let (stream, response) = join!(host.answers(head), sends(&client, post(b"{}")));
    let (mut stream, mut response) = (stream, response.unwrap());
    assert_eq!(response.content_type(), ContentType::EventStream);
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        soon(stream.write_all(chunk.as_bytes())).await.unwrap();
        assert_eq!(soon(response.chunk()).await.unwrap().unwrap(), event);
    }
    assert!(response.is_open());
    soon(stream.write_all(b"0\r\n\r\n")).await.unwrap();
    assert_eq!(soon(response.chunk()).await.unwrap(), None);
    assert_eq!(soon(response.chunk()).await.unwrap(), None);
    let ((), next) = join!(answers(&mut stream, HELLO), call(&client));
    assert_eq!(next, (200, "hello".into()));
}

#[tokio::test]
async fn a_chunk_that_was_given_up_can_be_asked_for_again() {
    let host = Host::new().await;
    let client = host.client();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
    let (stream, response) = join!(host.answers(head), sends(&client, post(b"{}")));
    let (mut stream, mut response) = (stream, response.unwrap());
    tokio::select! {
        biased;
        chunk = response.chunk() => panic!("{chunk:?}"),
        () = tokio::task::yield_now() => {}
    }
    soon(stream.write_all(b"late")).await.unwrap();
    assert_eq!(soon(response.chunk()).await.unwrap().unwrap(), "late");
}

#[tokio::test]
async fn long_bodies_go_both_ways() {
    let host = Host::new().await;
    let client = host.client();
    let body = "0123456789abcdef".repeat(1 << 15);
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let serve = async {
        let mut stream = host.accept().await;
        let got = request(&mut stream).await;
        soon(stream.write_all(text.as_bytes())).await.unwrap();
        (got, stream)
    };
    let exchange = async {
        let mut response = sends(&client, post(body.as_bytes())).await.unwrap();
        whole(&mut response).await.unwrap()
    };
    let ((got, _stream), answer) = join!(serve, exchange);
    assert!(got.ends_with(&body));
    assert!(answer == body);
}

#[tokio::test]
async fn a_body_longer_than_asked_for_is_refused() {
    let unknown = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello";
    for text in [HELLO, CHUNKED, unknown] {
        for (limit, fits) in [(5, true), (4, false)] {
            let host = Host::new().await;
            let client = host.client();
            let serve = async { drop(host.answers(text).await) };
            let ((), response) = join!(serve, sends(&client, post(b"{}")));
            let got = soon(response.unwrap().bytes(limit)).await;
            match got {
                Ok(body) => assert!(fits && body == "hello", "{text:?}"),
                Err(BodyError::TooLong { limit: 4 }) => assert!(!fits, "{text:?}"),
                Err(error) => panic!("{text:?}: {error}"),
            }
        }
    }
}

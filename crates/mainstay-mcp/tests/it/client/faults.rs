//! Servers that fail, and what is known of the request then.

use std::io;

use mainstay_mcp::client::{BodyError, Method, Request, SendError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::join;
use tokio::net::TcpSocket;

use super::{HELLO, Host, answers, call, chain, client, post, request, sends, whole};
use crate::soon;

/// What a client makes of an answer after which the server closes the connection.
async fn fails(text: &str) -> SendError {
    let host = Host::new().await;
    let client = host.client();
    let serve = async { drop(host.answers(text).await) };
    let ((), answer) = join!(serve, sends(&client, post(b"{}")));
    let error = answer.unwrap_err();
    assert!(error.sent(), "{error}");
    error
}

#[tokio::test]
async fn a_refused_connection_sends_nothing() {
    // Bound but not listening, so that nobody else can have it.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = socket.local_addr().unwrap();
    let error = sends(&client(&[addr]), post(b"{}")).await.unwrap_err();
    assert!(!error.sent());
    let SendError::Connect { tried, source } = error else { panic!("{error:?}") };
    assert_eq!((tried, source.kind()), (vec![addr], io::ErrorKind::ConnectionRefused));
}

#[tokio::test]
async fn a_bad_header_sends_nothing() {
    let host = Host::new().await;
    let headers = [("last-event-id", "1\r\nx: y")];
    let request = Request { method: Method::Get, headers: &headers, body: b"" };
    let error = sends(&host.client(), request).await.unwrap_err();
    assert!(matches!(error, SendError::BadHeader(_)) && !error.sent(), "{error:?}");
}

#[tokio::test]
async fn a_server_that_goes_without_a_whole_head_may_have_seen_the_request() {
    for text in ["", "H", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n"] {
        let error = fails(text).await;
        assert!(matches!(error, SendError::Cut(_)), "{text:?}: {error:?}");
    }
    let error = fails("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert!(matches!(error, SendError::Cut(_)), "{error:?}");
}

#[tokio::test]
async fn a_used_connection_that_dies_after_the_request_was_read_is_not_replaced() {
    let host = Host::new().await;
    let client = host.client();
    let (mut stream, _) = join!(host.answers(HELLO), call(&client));
    let serve = async {
        request(&mut stream).await;
        drop(stream);
    };
    let ((), answer) = join!(serve, sends(&client, post(b"{}")));
    assert!(answer.unwrap_err().sent());
}

#[tokio::test]
async fn what_is_no_http_is_said_to_be_none() {
    for (text, expected) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", "not an HTTP/1 response: "),
        ("\x15\x03\x01\x02", "not an HTTP/1 response: "),
        ("HTTP/1.1 101 Upgrade\r\n\r\n", "a change of protocol"),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "a response without a valid content"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: br\r\n\r\n", "a response in an unknown"),
    ] {
        let error = fails(text).await;
        let found = chain(&error);
        assert!(found.contains(&format!("something else than HTTP: {expected}")), "{found}");
    }
}

#[tokio::test]
async fn a_head_without_end_is_not_read_for_ever() {
    for (first, again) in [
        ("HTTP/1.1 200 OK\r\n", "A: 0123456789abcdef0123456789abcdef"),
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
    ] {
        let host = Host::new().await;
        let client = host.client();
        let serve = async {
            let mut stream = host.answers(first).await;
            while stream.write_all(again.as_bytes()).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        let ((), answer) = join!(soon(serve), sends(&client, post(b"{}")));
        let error = answer.unwrap_err();
        assert!(chain(&error).contains("longer than 65536 bytes"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn a_body_cut_short_is_an_error() {
    for text in [
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
    ] {
        let host = Host::new().await;
        let client = host.client();
        let serve = async { drop(host.answers(text).await) };
        let ((), response) = join!(serve, sends(&client, post(b"{}")));
        let mut response = response.unwrap();
        for _ in 0..2 {
            let error = whole(&mut response).await.unwrap_err();
            assert!(matches!(error, BodyError::Cut(_)), "{text:?}: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_garbled_body_is_an_error() {
    let host = Host::new().await;
    let client = host.client();
    let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n";
    let (_stream, response) = join!(host.answers(text), sends(&client, post(b"{}")));
    let error = whole(&mut response.unwrap()).await.unwrap_err();
    assert!(matches!(error, BodyError::Garbled(_)), "{error:?}");
}

/// More than the kernel takes while nobody reads.
fn endless() -> Vec<u8> {
    vec![b'x'; 64 << 20]
}

const TOO_LARGE: &str = "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno";

#[tokio::test]
async fn a_refusal_is_heard_although_the_request_was_not_written() {
    let host = Host::new().await;
    let client = host.client();
    let body = endless();
    let serve = async {
        let mut stream = host.accept().await;
        soon(stream.read(&mut [0; 100])).await.unwrap();
        let text = format!("HTTP/1.1 100 Continue\r\n\r\n{TOO_LARGE}");
        soon(stream.write_all(text.as_bytes())).await.unwrap();
        stream
    };
    let (stream, response) = join!(serve, sends(&client, post(&body)));
    let mut response = response.unwrap();
    assert_eq!((response.status(), whole(&mut response).await.unwrap()), (413, "no".into()));
    drop(stream);
    let (_fresh, answer) = join!(host.answers(HELLO), call(&client));
    assert_eq!(answer, (200, "hello".into()));
}

#[tokio::test]
async fn a_refusal_is_heard_although_the_connection_was_reset() {
    let host = Host::new().await;
    let client = host.client();
    let body = endless();
    let serve = async {
        let mut stream = host.accept().await;
        soon(stream.read(&mut [0; 100])).await.unwrap();
        soon(stream.write_all(TOO_LARGE.as_bytes())).await.unwrap();
        // Closed with something unread, it is reset.
        drop(stream);
    };
    let ((), response) = join!(serve, sends(&client, post(&body)));
    assert_eq!(response.unwrap().status(), 413);
}

#[tokio::test]
async fn a_connection_reset_while_writing_may_have_been_seen() {
    let host = Host::new().await;
    let client = host.client();
    let body = endless();
    let serve = async {
        let mut stream = host.accept().await;
        soon(stream.read(&mut [0; 100])).await.unwrap();
        drop(stream);
    };
    let ((), answer) = join!(serve, sends(&client, post(&body)));
    let error = answer.unwrap_err();
    assert!(matches!(error, SendError::Cut(Some(_))) && error.sent(), "{error:?}");
}

#[tokio::test]
async fn an_early_answer_that_is_no_refusal_waits_for_the_request() {
    let host = Host::new().await;
    let client = host.client();
    let body = endless();
    let serve = async {
        let mut stream = host.accept().await;
        let mut first = [0; 1];
        soon(stream.read_exact(&mut first)).await.unwrap();
        soon(stream.write_all(HELLO.as_bytes())).await.unwrap();
        let head = "OST /mcp HTTP/1.1\r\nhost: \r\naccept: application/json\r\n\
                    content-length: \r\n\r\n";
        let variable = host.addr().to_string().len() + body.len().to_string().len();
        let rest = (head.len() + variable + body.len()) as u64;
        let (mut rest_of_it, mut nowhere) = ((&mut stream).take(rest), tokio::io::sink());
        let read = soon(tokio::io::copy(&mut rest_of_it, &mut nowhere)).await;
        assert_eq!(read.unwrap(), rest);
        stream
    };
    let (stream, answer) = join!(serve, sends(&client, post(&body)));
    let mut stream = stream;
    assert_eq!(whole(&mut answer.unwrap()).await.unwrap(), "hello");
    let ((), next) = join!(answers(&mut stream, HELLO), call(&client));
    assert_eq!(next, (200, "hello".into()));
}

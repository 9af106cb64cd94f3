//! Which connection a request takes, and what becomes of it.

use std::time::Duration;

use mainstay_mcp::client::{Client, Target};
use tokio::io::AsyncWriteExt;
use tokio::join;
use tokio::net::TcpSocket;
use tokio::time::advance;

use super::{HELLO, Host, answers, call, client, is_closed, post, request, sends};
use crate::{no_task_is_left, soon};

const CHUNKED_HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Serves one call on a new connection with this answer, and checks that it is closed afterwards.
async fn check_closed(text: &str) {
    let host = Host::new().await;
    let client = host.client();
    let (mut stream, _) = join!(host.answers(text), call(&client));
    is_closed(&mut stream).await;
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let host = Host::new().await;
    let client = host.client();
    let (mut stream, _) = join!(host.answers(HELLO), call(&client));
    for _ in 0..3 {
        let clone = client.clone();
        let ((), answer) = join!(answers(&mut stream, HELLO), call(&clone));
        assert_eq!(answer, (200, "hello".into()));
    }
}

#[tokio::test]
async fn a_connection_is_free_before_its_answer_is_read() {
    let host = Host::new().await;
    let client = host.client();
    let (mut stream, first) = join!(host.answers(HELLO), sends(&client, post(b"{}")));
    let ((), second) = join!(answers(&mut stream, HELLO), call(&client));
    assert_eq!(second, (200, "hello".into()));
    assert_eq!(soon(first.unwrap().bytes(5)).await.unwrap(), "hello");
}

#[tokio::test]
async fn requests_at_the_same_time_have_connections_of_their_own() {
    let host = Host::new().await;
    let client = host.client();
    let serve = async {
        let (mut one, mut two) = (host.accept().await, host.accept().await);
        answers(&mut two, HELLO).await;
        answers(&mut one, HELLO).await;
        (one, two)
    };
    let (_streams, one, two) = join!(serve, call(&client), call(&client));
    assert_eq!(one, two);
}

#[tokio::test]
async fn a_connection_that_cannot_be_used_again_is_closed() {
    check_closed("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\na").await;
    check_closed("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na").await;
    check_closed("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nKeep-Alive: timeout=1\r\n\r\na").await;
    check_closed("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nand more").await;
    check_closed(&format!("{CHUNKED_HEAD}1\r\na\r\n0\r\n\r\nHTTP/1.1 200")).await;
}

#[tokio::test]
async fn what_nobody_asked_for_is_no_answer() {
    let host = Host::new().await;
    let client = host.client();
    let (mut stream, _) = join!(host.answers(HELLO), call(&client));
    let late = "HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n";
    soon(stream.write_all(late.as_bytes())).await.unwrap();
    let (_fresh, answer) = join!(host.answers(HELLO), call(&client));
    assert_eq!(answer, (200, "hello".into()));
    is_closed(&mut stream).await;
}

#[tokio::test]
async fn an_answer_dropped_before_its_end_closes_its_connection() {
    let host = Host::new().await;
    let client = host.client();
    let text = format!("{CHUNKED_HEAD}5\r\nhello\r\n");
    let (stream, response) = join!(host.answers(&text), sends(&client, post(b"{}")));
    let mut stream = stream;
    let mut response = response.unwrap();
    assert_eq!(soon(response.chunk()).await.unwrap().unwrap(), "hello");
    drop(response);
    is_closed(&mut stream).await;
}

#[tokio::test]
async fn an_answer_that_is_finished_frees_its_connection() {
    let host = Host::new().await;
    let client = host.client();
    let text = format!("{CHUNKED_HEAD}5\r\nhello\r\n");
    let (stream, response) = join!(host.answers(&text), sends(&client, post(b"{}")));
    let (mut stream, mut response) = (stream, response.unwrap());
    assert_eq!(soon(response.chunk()).await.unwrap().unwrap(), "hello");
    let end = async { soon(stream.write_all(b"1\r\n!\r\n0\r\n\r\n")).await.unwrap() };
    join!(soon(response.finish(1)), end);
    let ((), answer) = join!(answers(&mut stream, HELLO), call(&client));
    assert_eq!(answer, (200, "hello".into()));
}

#[tokio::test]
async fn an_answer_too_long_to_finish_closes_its_connection() {
    let host = Host::new().await;
    let client = host.client();
    let text = format!("{CHUNKED_HEAD}5\r\nhello\r\n");
    let (stream, response) = join!(host.answers(&text), sends(&client, post(b"{}")));
    let mut stream = stream;
    soon(response.unwrap().finish(4)).await;
    is_closed(&mut stream).await;
}

#[tokio::test]
async fn a_request_given_up_closes_its_connection() {
    let host = Host::new().await;
    let client = host.client();
    let serve = async {
        let mut stream = host.accept().await;
        request(&mut stream).await;
        stream
    };
    let mut stream = tokio::select! {
        answer = client.send(post(b"{}")) => panic!("{answer:?}"),
        stream = serve => stream,
    };
    is_closed(&mut stream).await;
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_not_used() {
    let host = Host::new().await;
    let client = host.client();
    for _ in 0..3 {
        let (stream, answer) = join!(host.answers(HELLO), call(&client));
        assert_eq!(answer, (200, "hello".into()));
        drop(stream);
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_in_time() {
    for (header, keep) in [("", 2000), ("Keep-Alive: timeout=2\r\n", 1000)] {
        let host = Host::new().await;
        let client = host.client();
        let text = format!("HTTP/1.1 200 OK\r\n{header}Content-Length: 0\r\n\r\n");
        let (mut stream, _) = join!(host.answers(&text), call(&client));
        advance(Duration::from_millis(keep - 1)).await;
        let ((), _) = join!(answers(&mut stream, &text), call(&client));
        // Time moves on by itself while the test waits.
        let freed = tokio::time::Instant::now();
        is_closed(&mut stream).await;
        assert!(freed.elapsed() >= Duration::from_millis(keep), "{:?}", freed.elapsed());
        no_task_is_left().await;
    }
}

#[tokio::test]
async fn a_client_that_is_gone_leaves_nothing_behind() {
    let host = Host::new().await;
    let client = host.client();
    let (mut stream, _) = join!(host.answers(HELLO), call(&client));
    drop(client);
    is_closed(&mut stream).await;
    no_task_is_left().await;
}

#[tokio::test]
async fn the_next_address_is_tried_and_remembered() {
    let host = Host::new().await;
    // Bound but not listening, so that nobody else can have it.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addrs = [silent.local_addr().unwrap(), host.addr()];
    let client = client(&addrs);
    let (stream, _) = join!(host.answers(HELLO), call(&client));
    drop(stream);
    let first = silent.listen(1).unwrap();
    let (_stream, answer) = join!(host.answers(HELLO), call(&client));
    assert_eq!(answer, (200, "hello".into()));
    drop(first);
}

#[tokio::test]
async fn a_server_may_have_a_url_and_headers() {
    let host = Host::new().await;
    let url = format!("http://localhost:{}/a?b=c", host.addr().port());
    let target = Target::remote(&url, [("authorization", "Bearer x")]).unwrap();
    let client = Client::new(target);
    let serve = async {
        let mut stream = host.accept().await;
        let text = request(&mut stream).await;
        soon(stream.write_all(HELLO.as_bytes())).await.unwrap();
        (text, stream)
    };
    let ((text, _stream), answer) = join!(serve, call(&client));
    assert_eq!(answer, (200, "hello".into()));
    let port = host.addr().port();
    let expected = format!(
        "POST /a?b=c HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Bearer x\r\n\
         accept: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    assert_eq!(text, expected);
}

/// Each runtime has connections of its own, so that one may end before the other.
#[test]
fn a_runtime_that_ended_takes_only_its_connections_with_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (hosting, first, second) = (runtime(), runtime(), runtime());
    let host = hosting.block_on(Host::new());
    let client = host.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            hosting.block_on(async {
                let one = host.answers(HELLO).await;
                let two = host.answers(HELLO).await;
                stopped.await.ok();
                drop((one, two));
            });
        });
        for runtime in [first, second] {
            let mut response = runtime.block_on(sends(&client, post(b"{}"))).unwrap();
            assert_eq!(runtime.block_on(soon(response.bytes(5))).unwrap(), "hello");
        }
        drop(stop);
    });
}

/// Answers every request with its own body.
async fn echoes(host: Host) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (mut stream, _) = host.listener.accept().await.unwrap();
        connections.spawn(async move {
            loop {
                let text = request(&mut stream).await;
                let body = text.split("\r\n\r\n").nth(1).unwrap();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let answer = head + body;
                soon(stream.write_all(answer.as_bytes())).await.unwrap();
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_gets_its_own_answers() {
    let host = Host::new().await;
    let client = host.client();
    let server = tokio::spawn(echoes(host));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let client = client.clone();
        tasks.spawn(async move {
            for turn in 0..20 {
                let body = format!("{task}/{turn}");
                let mut response = sends(&client, post(body.as_bytes())).await.unwrap();
                assert_eq!(soon(response.bytes(99)).await.unwrap(), body);
            }
        });
    }
    while let Some(done) = soon(tasks.join_next()).await {
        done.unwrap();
    }
    server.abort();
}

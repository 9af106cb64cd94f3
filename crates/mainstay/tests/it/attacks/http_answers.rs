//! An HTTP server whose answers break the rules of HTTP, of event streams or of MCP, or never end. Its client
//! gets an error, the server stays usable, and clients of other servers notice nothing.

use std::io::{BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::bystander::with_bystander;
use super::flood::{connections, resident};
use crate::env::TestEnv;
use crate::proxy::raw::{BOTH, JSON, Raw, call, parts};
use crate::proxy::remote::read;

/// What comes after the text of an answer.
#[derive(Clone, Copy)]
enum Then {
    /// The end of the connection.
    Close,
    /// This text, until the reader closes the connection.
    Repeat(&'static str),
    /// Nothing, and the connection stays open.
    Stay,
}
use Then::{Close, Repeat, Stay};

/// Answers after which the client gets an answer of its own. `OK` is the first line, `JSON` and `SSE` the header
/// of that type, `ANSWER` the right answer, `LEN` its length, `ELSEWHERE` an address that must not be called.
const ENDED: [(&str, Then); 38] = [
    // Heads.
    ("", Close),
    ("\0\0\0\0", Close),
    ("SSH-2.0-OpenSSH_9.2\r\n", Close),
    ("HTTP/1.1\r\n\r\n", Close),
    ("HTTP/1.1 99999 OK\r\n\r\n", Close),
    ("HTTP/2.0 200 OK\r\nJSON\r\nContent-Length: LEN\r\n\r\nANSWER", Close),
    ("OK\r\nJSON\r\nno colon\r\n\r\nANSWER", Close),
    ("OK\r\nJSON\r\nX: \0\r\n\r\nANSWER", Close),
    ("OK\r\n", Repeat("X: 0123456789\r\n")),
    ("OK\r\nX: ", Repeat("0123456789")),
    ("", Repeat("HTTP/1.1 100 Continue\r\n\r\n")),
    ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", Close),
    // Lengths.
    ("OK\r\nJSON\r\nContent-Length: 999\r\n\r\nANSWER", Close),
    ("OK\r\nJSON\r\nContent-Length: 5\r\n\r\nANSWER", Close),
    ("OK\r\nJSON\r\nContent-Length: 5\r\nContent-Length: LEN\r\n\r\nANSWER", Close),
    ("OK\r\nJSON\r\nContent-Length: -1\r\n\r\nANSWER", Close),
    ("OK\r\nJSON\r\nContent-Length: 99999999999999999999\r\n\r\nANSWER", Close),
    ("OK\r\nJSON\r\nContent-Length: 9999999999999\r\n\r\n", Repeat("[[[[[[[[")),
    ("OK\r\nJSON\r\n\r\n", Repeat("          ")),
    // Chunks.
    ("OK\r\nJSON\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nANSWER\r\n0\r\n\r\n", Close),
    ("OK\r\nJSON\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nANSWER", Close),
    ("OK\r\nJSON\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nANSWER\r\n0\r\n\r\n", Close),
    ("OK\r\nJSON\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\nANSWER", Close),
    ("OK\r\nJSON\r\nTransfer-Encoding: chunked\r\n\r\n1;", Repeat("extension")),
    ("OK\r\nJSON\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", Repeat("X: trailer\r\n")),
    ("OK\r\nJSON\r\nTransfer-Encoding: chunked\r\n\r\n", Repeat("8\r\n[[[[[[[[\r\n")),
    ("OK\r\nJSON\r\nTransfer-Encoding: gzip\r\n\r\nANSWER", Close),
    // Statuses.
    ("HTTP/1.1 301 Moved\r\nLocation: ELSEWHERE\r\nContent-Length: 0\r\n\r\n", Close),
    ("HTTP/1.1 307 Moved\r\nLocation: ELSEWHERE\r\nContent-Length: 0\r\n\r\n", Close),
    ("HTTP/1.1 308 Moved\r\nLocation: ELSEWHERE\r\nContent-Length: 0\r\n\r\n", Close),
    ("HTTP/1.1 500 Error\r\nJSON\r\nContent-Length: 3\r\n\r\n{{{", Close),
    // Bodies.
    ("OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", Close),
    ("OK\r\nContent-Type: \r\nContent-Length: 6\r\n\r\n<html>", Close),
    ("OK\r\nJSON\r\nContent-Length: 4\r\n\r\nnull", Close),
    ("OK\r\nJSON\r\nContent-Length: 2\r\n\r\n[]", Close),
    ("OK\r\nJSON\r\nContent-Length: 1\r\n\r\n{", Close),
    ("OK\r\nJSON\r\nContent-Length: 0\r\n\r\n", Close),
    ("OK\r\nSSE\r\n\r\ndata: ", Repeat("0123456789")),
];

/// Answers without an end, which their client waits for as for any other that takes long.
const ENDLESS: [(&str, Then); 8] = [
    ("", Stay),
    ("OK\r\nJS", Stay),
    ("OK\r\nJSON\r\nContent-Length: LEN\r\n\r\n{", Stay),
    ("OK\r\nSSE\r\n\r\n", Stay),
    ("OK\r\nSSE\r\n\r\n", Repeat(": comment\n\n")),
    ("OK\r\nSSE\r\n\r\n", Repeat("data: not JSON\n\n")),
    ("OK\r\nSSE\r\n\r\n", Repeat("id: 1\nretry: 0\n\n")),
    (
        "OK\r\nSSE\r\n\r\n",
        Repeat(
            "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n",
        ),
    ),
];

/// A server that answers a call of tool `N` with answer `N` of these, and other requests as it should.
fn serve(elsewhere: &str) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let elsewhere = elsewhere.to_owned();
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, elsewhere) = (stream.unwrap(), elsewhere.clone());
            thread::spawn(move || answer_requests(stream, &elsewhere));
        }
    });
    url
}

/// Answers the requests of one connection, until it is closed.
fn answer_requests(mut stream: TcpStream, elsewhere: &str) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (_, message) = read(&mut reader)?;
        let result = match message["method"].as_str() {
            Some("initialize") => json!({"protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}}, "serverInfo": {"name": "bad", "version": "1"}}),
            Some("tools/list") => json!({"tools": []}),
            _other => json!({"content": [{"type": "text", "text": "right"}]}),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
        let number = message["params"]["name"].as_str().and_then(|name| name.parse().ok());
        let (text, then) = match number.and_then(|n: usize| ENDED.iter().chain(&ENDLESS).nth(n)) {
            Some(found) => *found,
            None if message["id"].is_null() => {
                ("HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n", Stay)
            }
            None => ("OK\r\nJSON\r\nContent-Length: LEN\r\n\r\nANSWER", Stay),
        };
        let text = text
            .replace("OK\r\n", "HTTP/1.1 200 OK\r\n")
            .replace("JSON\r\n", "Content-Type: application/json\r\n")
            .replace("SSE\r\n", "Content-Type: text/event-stream\r\n")
            .replace("LEN", &answer.len().to_string())
            .replace("ANSWER", &answer)
            .replace("ELSEWHERE", elsewhere);
        stream.write_all(text.as_bytes()).ok()?;
        match then {
            Close => return None,
            Stay => {}
            Repeat(text) => {
                let text = text.repeat(1000);
                loop {
                    stream.write_all(text.as_bytes()).ok()?;
                }
            }
        }
    }
}

fn is_error(answer: &Value) -> bool {
    answer["error"].is_object() || answer["result"]["isError"] == true
}

#[test]
fn hostile_answers_of_an_http_server_affect_no_other_client() {
    let env = TestEnv::new();
    let mut bystander = with_bystander(&env);
    let elsewhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let upstream = serve(&format!("http://{}/mcp", elsewhere.local_addr().unwrap()));
    let server = env.json(["run", "bad", "--url", &upstream, "--wait", "--json"]);
    let url = server["url"].as_str().unwrap();
    let session = Raw::open(url);
    let daemon = env.daemon();
    let before = resident(daemon);
    for (n, (text, then)) in (0..).zip(ENDED) {
        let case = format!("an HTTP server answers {text:?}, then {}", name(then));
        let call = call(100 + n, &n.to_string(), &json!({}));
        let answer = bystander.during(&case, || session.post(BOTH, &call).answer());
        assert!(is_error(&answer), "{case}: {answer}");
    }
    let (address, path) = parts(url);
    for (n, (text, then)) in (ENDED.len()..).zip(ENDLESS) {
        let case = format!("an HTTP server answers {text:?}, then {}", name(then));
        let call = call(1, &n.to_string(), &json!({})).to_string();
        let text = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {JSON}\r\nAccept: {BOTH}\r\n\
             Mcp-Session-Id: {}\r\nContent-Length: {}\r\n\r\n{call}",
            session.id,
            call.len()
        );
        bystander.during(case, || {
            let waiting = connections(url, 1, &text);
            thread::sleep(Duration::from_millis(300));
            drop(waiting);
        });
    }
    let right = bystander.during("the right answer after all of them", || {
        session.post(BOTH, &call(99, "right", &json!({}))).answer()
    });
    assert_eq!(right["result"]["content"][0]["text"], "right", "{right}");
    assert!(elsewhere.accept().is_err(), "a redirect was followed");
    assert_eq!(env.daemon(), daemon);
    let after = resident(daemon);
    assert!(after < before + (100 << 20) / 4096, "{before} -> {after} pages");
}

fn name(then: Then) -> String {
    match then {
        Close => "closes".to_owned(),
        Stay => "waits".to_owned(),
        Repeat(text) => format!("repeats {text:?}"),
    }
}

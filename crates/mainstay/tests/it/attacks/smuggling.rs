//! Ambiguous and malformed HTTP requests. None is executed as another request, and none blocks other clients.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::json;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture};
use crate::proxy::raw::{Raw, call, parts};

/// No answer may take longer. An answer that waits for a body comes when the connection is closed.
const LIMIT: Duration = Duration::from_secs(20);

/// What the server answers to these bytes, after which nothing more comes.
fn answers(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // A request that is refused early is not read to its end.
    let _refused = stream.write_all(bytes);
    let _refused = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    answer
}

/// Bodies and lengths that disagree, headers that hide others, versions and methods that do not exist. `HOST` and
/// `SESSION` are filled in, `BODY` is a call that leaves a trace, `LEN` its length.
const REQUESTS: [&str; 44] = [
    // Lengths that disagree.
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: 0\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN, LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: +LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: -1\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: 0x10\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: 99999999999999999999\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length:\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: 16777217\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: 5\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\n\r\nBODY",
    // Chunks that disagree.
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nBODY\r\n0\r\n\r\n",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding: xchunked\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding: chunked, identity\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding: gzip, chunked, gzip\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.0\r\nHOST\r\nSESSION\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nBODY",
    // Headers that hide others.
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nHost: evil.example\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nX: 1\r\n folded: SESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\n HOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHost : localhost\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nX: \0\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\n: empty\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nno colon\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nMcp-Session-Id: a\r\nMcp-Session-Id: b\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/1.1\r\nHOST\r\nMcp-Session-Id: ../../x\r\nContent-Length: LEN\r\n\r\nBODY",
    // Paths, methods and versions that do not exist.
    "POST /fx/mcp/../../other/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST //fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /FX/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp%00 HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx%2fmcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST http://evil.example/fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "CONNECT evil.example:443 HTTP/1.1\r\nHOST\r\n\r\n",
    "TRACE /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\n\r\n",
    "PO ST /fx/mcp HTTP/1.1\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/2.0\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp HTTP/9.9\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "POST /fx/mcp\r\nHOST\r\nSESSION\r\nContent-Length: LEN\r\n\r\nBODY",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\r\n\r\n\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}",
];

#[test]
fn no_request_is_read_as_another() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let url = env.server("fx")["url"].as_str().unwrap().to_owned();
    let (address, _) = parts(&url);
    let session = Raw::open(&url);
    let file = env.work().join("effects");
    let body = call(7, "append", &json!({"path": file, "line": "x"})).to_string();
    let headers = format!(
        "Mcp-Session-Id: {}\r\nAccept: application/json, text/event-stream\r\n\
         Content-Type: application/json",
        session.id
    );
    let completed = |request: &str| {
        request
            .replace("HOST", &format!("Host: {address}"))
            .replace("SESSION", &headers)
            .replace("LEN", &body.len().to_string())
            .replace("BODY", &body)
    };
    for request in REQUESTS {
        let bytes = completed(request).into_bytes();
        let answer = bystander.during(format!("{request:?}"), || answers(&address, &bytes));
        let answer = String::from_utf8_lossy(&answer);
        let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(refused, "{request}\n{answer}");
        assert!(!file.exists(), "{request}\n{answer}");
    }
    // The same body, as a client sends it, leaves its trace.
    session.answered(&serde_json::from_str(&body).unwrap());
    assert_eq!(fs::read_to_string(&file).unwrap(), "x\n");
}

//! Recognises that a server has lost a session.
//!
//! The protocol has one way to say so, 404; servers have many. A request that is answered in any of
//! them was not carried out, so it may be sent again in a new session. What is not recognised
//! reaches the client as an error, what is wrongly recognised costs a handshake and a second try, so
//! the words looked for are those that servers are known to use, and only where the transport
//! speaks: never in a result, and in a JSON-RPC error only under a code that transports use.

use serde_json::value::RawValue;

use crate::frame::{METHOD_NOT_FOUND, members, string};

/// How much of an answer is read; what it is about stands at its beginning.
const READ: usize = 4096;

/// The codes under which transports refuse a session. Go servers leave it at 0.
const CODES: [i64; 5] = [-32000, -32001, -32002, -32600, 0];

/// What servers say, in lower case.
const WORDS: [&str; 29] = [
    // The session is unknown: official TypeScript, Python, Go, C#, Java and Rust servers, and others.
    "session not found",
    "session id not found",
    "could not find session",
    "unknown session",
    "unknown mcp-session-id",
    "no such session",
    "session does not exist",
    "session has been terminated",
    "session terminated",
    "session expired",
    "session has expired",
    "expired session",
    "invalid session",
    "invalid or missing session",
    // The answer of a process that has no session at all.
    "no valid session",
    "missing session id",
    "mcp-session-id header is required",
    "session id is required",
    "session id required",
    "session can only be created by an initialize request",
    // The handshake is missing.
    "server not initialized",
    "server is not initialized",
    "server has not been initialized",
    "session not initialized",
    "session is not initialized",
    "not an initialization request",
    "before initialization",
    "invalid during session initialization",
    "expect initialize request",
];

/// Whether an answer means that the server does not know the session of the request.
///
/// `status` is that of the HTTP response, none for a message on a stream that was accepted before.
/// `content` is its body or, if that is a stream of events, the data of one event. To be asked only
/// about requests other than `initialize` that were sent in a session.
pub fn is_session_lost(status: Option<u16>, content: &[u8]) -> bool {
    match status {
        // Some servers also say in this way that they do not know the method.
        Some(404 | 410) => Refusal::read(content).and_then(|it| it.code) != Some(METHOD_NOT_FOUND),
        Some(400 | 422) => speaks_of_loss(&beginning(content)),
        Some(401) => is_loss_and_no_challenge(&beginning(content)),
        None | Some(200..=299) => Refusal::read(content).is_some_and(|it| it.is_loss()),
        Some(_) => false,
    }
}

/// A JSON object that describes a failure.
struct Refusal {
    /// The code of a JSON-RPC error. Some servers say only what the matter is.
    code: Option<i64>,
    message: String,
}

impl Refusal {
    fn read(content: &[u8]) -> Option<Self> {
        let [result, error] = members(content, ["result", "error"]).ok()?;
        let error = error.filter(|_| result.is_none_or(|result| result.get() == "null"))?;
        if let Some(message) = string(error) {
            return Some(Self { code: None, message: message.into_owned() });
        }
        let [code, message] = members(error.get().as_bytes(), ["code", "message"]).ok()?;
        let message = message.and_then(string).unwrap_or_default().into_owned();
        Some(Self { code: code.and_then(number), message })
    }

    fn is_loss(&self) -> bool {
        self.code.is_none_or(|code| CODES.contains(&code)) && speaks_of_loss(&self.message)
    }
}

fn number(value: &RawValue) -> Option<i64> {
    value.get().parse().ok()
}

fn beginning(content: &[u8]) -> String {
    String::from_utf8_lossy(&content[..content.len().min(READ)]).into_owned()
}

fn speaks_of_loss(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    WORDS.iter().any(|messages| text.contains(messages))
}

/// A server that requires a token uses terms of OAuth; a new session would not help.
fn is_loss_and_no_challenge(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    speaks_of_loss(text)
        && !["invalid_token", "bearer", "access token"].iter().any(|w| lower.contains(w))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rpc(code: i64, message: &str) -> String {
        let error = serde_json::json!({ "code": code, "message": message });
        serde_json::json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string()
    }

    fn lost(status: u16, content: &str) {
        assert!(is_session_lost(Some(status), content.as_bytes()), "{status} {content}");
    }

    fn not_lost(status: u16, content: &str) {
        assert!(!is_session_lost(Some(status), content.as_bytes()), "{status} {content}");
    }

    #[test]
    fn official_servers_are_understood() {
        // TypeScript 1.x and 2.x
        lost(404, &rpc(-32001, "Session not found"));
        lost(400, &rpc(-32000, "Bad Request: Server not initialized"));
        lost(400, &rpc(-32000, "Bad Request: Mcp-Session-Id header is required"));
        // its example servers and server-everything
        lost(400, &rpc(-32000, "Bad Request: No valid session ID provided"));
        // Python 1.x and 2.x
        lost(404, &rpc(-32600, "Session not found"));
        lost(404, &rpc(-32600, "Not Found: Session has been terminated"));
        lost(404, &rpc(-32600, "Not Found: Invalid or expired session ID"));
        lost(400, &rpc(-32600, "Bad Request: Missing session ID"));
        lost(400, &rpc(-32600, "Bad Request: No valid session ID provided"));
        lost(404, "Could not find session");
        // Rust
        lost(404, "Not Found: Session not found");
        lost(401, "Unauthorized: Session not found");
        lost(422, "Unexpected message, expect initialize request");
        // Go
        lost(404, "session not found");
        lost(200, &rpc(0, r#"method "tools/call" is invalid during session initialization"#));
        // C# and Java
        lost(404, &rpc(-32001, "Session not found"));
        lost(
            400,
            &rpc(
                -32000,
                "Bad Request: A new session can only be created by an initialize request.",
            ),
        );
        lost(400, "Session ID required in mcp-session-id header");
    }

    #[test]
    fn other_servers_are_understood() {
        lost(400, "Invalid session ID\n");
        lost(400, "Invalid or expired session ID: 6cce26fd-e2e2-417e-b8c2-5fded9e0b6d5");
        lost(400, &rpc(-32600, "Invalid Request: Session not found"));
        lost(404, &rpc(-32000, "Not Found: Unknown Mcp-Session-Id header"));
        lost(400, "Bad Request: Not an initialization request and no valid session ID provided.");
        lost(200, r#"{"error":"Session not found"}"#);
        lost(200, &rpc(-32002, "Server not initialized"));
        lost(410, "");
        lost(404, "<html>Cannot POST /mcp</html>");
    }

    #[test]
    fn the_same_is_understood_inside_an_accepted_stream() {
        for code in CODES {
            let content = rpc(code, "Session not found");
            assert!(is_session_lost(None, content.as_bytes()), "{content}");
        }
        let content = rpc(-32600, "Received request before initialization was complete");
        assert!(is_session_lost(None, content.as_bytes()));
    }

    #[test]
    fn what_a_tool_says_of_sessions_is_its_own_affair() {
        for content in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[{"type":"text","text":"Session not found"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"error":{"code":-32001,"message":"Session not found"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":null,"result":"session not found"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"session not found"}}"#,
            "session not found",
        ] {
            not_lost(200, content);
            assert!(!is_session_lost(None, content.as_bytes()), "{content}");
        }
        not_lost(200, &rpc(-32603, "Session not found"));
        not_lost(200, &rpc(-32602, "browser session not found: 7"));
    }

    #[test]
    fn other_refusals_are_not_taken_for_it() {
        not_lost(400, &rpc(-32000, "Bad Request: Unsupported protocol version: 1"));
        not_lost(400, &rpc(-32600, "Invalid Request: Server already initialized"));
        not_lost(400, &rpc(-32600, "Invalid Request: Only one initialization request is allowed"));
        not_lost(400, &rpc(-32700, "Parse error"));
        not_lost(200, &rpc(-32002, "Resource not found"));
        not_lost(200, &rpc(-32001, "Request timed out"));
        not_lost(200, &rpc(-32000, "database not initialized"));
        not_lost(404, &rpc(-32601, "Method not found"));
        not_lost(409, &rpc(-32000, "Conflict: Only one SSE stream is allowed per session"));
        not_lost(500, &rpc(-32603, "Session terminated before the request completed"));
        not_lost(502, "session not found");
        not_lost(200, "");
    }

    #[test]
    fn a_server_that_wants_a_token_gets_no_new_session() {
        not_lost(401, "");
        not_lost(401, "Unauthorized");
        not_lost(401, r#"{"error":"invalid_token","error_description":"Session expired"}"#);
        not_lost(401, "Session expired: a Bearer token is needed");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(status: Option<u16>, content: Vec<u8>) {
            is_session_lost(status, &content);
        }
    }
}

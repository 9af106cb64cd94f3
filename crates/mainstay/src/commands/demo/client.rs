//! The demo's MCP client, with one session.

use mainstay_api::MAX_MESSAGE;
use mainstay_core::{ServerName, with_causes};
use mainstay_proxy::client::{self, ContentType, Headers, Method, Request};
use mainstay_proxy::sse::Parser;
use serde_json::{Value, json};

use super::failed;
use crate::commands::connect;
use crate::error::CliError;
use crate::remote::Remote;

/// One session with a server.
pub(super) struct Client {
    /// Its id.
    pub(super) session: String,
    http: client::Client,
    headers: Headers,
    last_id: u64,
}

impl Client {
    /// Connects and initializes, once.
    pub(super) async fn connect(remote: Remote, name: &ServerName) -> Result<Self, CliError> {
        let target = connect::target(name)?;
        let daemon = connect::Daemon::new(name.clone(), remote);
        let http = client::Client::over(target, daemon);
        let (session, headers) = (String::new(), session_headers(None)?);
        let mut client = Self { session, http, headers, last_id: 0 };
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "mainstay-demo", "version": env!("CARGO_PKG_VERSION")},
        });
        client.request("initialize", &params).await?;
        client.headers = session_headers(Some(&client.session))?;
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.post(&initialized).await?;
        Ok(client)
    }

    /// Calls a tool and returns the texts of its result.
    pub(super) async fn call(
        &mut self,
        tool: &str,
        arguments: &Value,
    ) -> Result<Vec<String>, CliError> {
        let params = json!({"name": tool, "arguments": arguments});
        let result = self.request("tools/call", &params).await?;
        let texts = result["content"].as_array().into_iter().flatten();
        let texts: Vec<String> =
            texts.filter_map(|item| item["text"].as_str().map(str::to_owned)).collect();
        if texts.is_empty() || result["isError"] == true {
            return Err(failed(format!("`{tool}` answered {result}")));
        }
        Ok(texts)
    }

    async fn request(&mut self, method: &str, params: &Value) -> Result<Value, CliError> {
        self.last_id += 1;
        let id = self.last_id;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut response = self.post(&request).await?;
        if let Some(session) = response.header("mcp-session-id") {
            session.clone_into(&mut self.session);
        }
        let answer = if response.content_type() == ContentType::EventStream {
            answer_of_stream(&mut response, id).await?
        } else {
            let body =
                response.bytes(MAX_MESSAGE).await.map_err(|error| failed(with_causes(&error)))?;
            serde_json::from_slice(&body).map_err(|source| CliError::Garbled { source })?
        };
        let result = answer.get("result").cloned();
        result.ok_or_else(|| failed(format!("`{method}` answered {answer}")))
    }

    async fn post(&self, message: &Value) -> Result<client::Response, CliError> {
        let body = message.to_string();
        let request = Request { method: Method::Post, headers: &[], body: body.as_bytes() };
        let sent = self.http.send_with(&[&self.headers], request).await;
        sent.map_err(|error| failed(with_causes(&error)))
    }
}

async fn answer_of_stream(response: &mut client::Response, id: u64) -> Result<Value, CliError> {
    let (mut parser, mut events) = (Parser::new(MAX_MESSAGE), Vec::new());
    while let Ok(Some(bytes)) = response.chunk().await {
        parser.feed(&bytes, &mut events).map_err(|error| failed(error.to_string()))?;
        for event in events.drain(..).filter(|event| !event.data.is_empty()) {
            let message: Value = serde_json::from_slice(&event.data)
                .map_err(|source| CliError::Garbled { source })?;
            if message["id"] == id {
                return Ok(message);
            }
        }
    }
    Err(failed("the session has ended"))
}

fn session_headers(session: Option<&str>) -> Result<Headers, CliError> {
    let mut headers = vec![
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
    ];
    headers.extend(session.map(|session| ("mcp-session-id", session)));
    Headers::new(&headers).map_err(|error| failed(error.to_string()))
}

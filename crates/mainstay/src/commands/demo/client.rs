//! The demo's MCP client: it connects once, and knows nothing of what happens behind its session.

use mainstay_api::{Connected, Request, Wire};
use mainstay_core::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use super::failed;
use crate::error::CliError;
use crate::remote::Remote;

/// One session with a server.
pub(super) struct Client {
    /// Its id.
    pub(super) session: String,
    reader: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    last_id: u64,
}

impl Client {
    /// Connects and initializes, once.
    pub(super) async fn connect(remote: &Remote, name: &ServerName) -> Result<Self, CliError> {
        let request = Request::Connect { name: name.clone(), session: None, farewell: false };
        let (Connected { session, .. }, Wire { reader, writer }) = remote.attach(&request).await?;
        let session = session.ok_or_else(|| failed("the session has no id"))?;
        let mut client = Self { session, reader: BufReader::new(reader), writer, last_id: 0 };
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "mainstay-demo", "version": env!("CARGO_PKG_VERSION")},
        });
        client.request("initialize", &params).await?;
        client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        Ok(client)
    }

    /// Calls a tool; gives the texts of its result.
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
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await?;
        loop {
            let mut line = String::new();
            let read = self.reader.read_line(&mut line).await;
            if read.map_err(CliError::io("the session cannot be read"))? == 0 {
                return Err(failed("the session has ended"));
            }
            let message: Value =
                serde_json::from_str(&line).map_err(|source| CliError::Garbled { source })?;
            if message["id"] == id {
                let result = message.get("result").cloned();
                return result.ok_or_else(|| failed(format!("`{method}` answered {message}")));
            }
        }
    }

    async fn write(&mut self, message: &Value) -> Result<(), CliError> {
        let line = format!("{message}\n");
        let written = self.writer.write_all(line.as_bytes()).await;
        written.map_err(CliError::io("the session cannot be written to"))
    }
}

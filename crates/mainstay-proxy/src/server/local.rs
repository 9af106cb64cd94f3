//! Requests of commands, which have no MCP client: the same way as those of clients.

use bytes::Bytes;
use mainstay_mcp::frame::{self, Parsed};
use mainstay_mcp::lists::MAX_PAGES;
use mainstay_mcp::upstream::{self, Identity, UpstreamError};
use mainstay_session::{Arrival, RequestPlace, SessionKey, classify_refusal};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Reader, ServerHandle};

/// A session that lasts as long as this value.
#[derive(Debug)]
pub struct Local {
    server: ServerHandle,
    session: SessionKey,
    next_id: u64,
}

impl ServerHandle {
    /// Opens a session that is not stored. It waits like a client's while the server is starting.
    pub async fn local(&self, identity: &Identity) -> Result<Local, UpstreamError> {
        let session = self.enter(mainstay_session::Server::open_local);
        let mut local = Local { server: self.clone(), session, next_id: 0 };
        let params = upstream::plain_params(identity);
        local.ask("initialize", Some(&params)).await?;
        Ok(local)
    }
}

/// Follows the requests of a [`Local`] session, which it does not keep open.
#[derive(Debug, Clone)]
pub struct LocalWatch {
    server: ServerHandle,
    session: SessionKey,
}

impl LocalWatch {
    /// Where the present request is; none if there is none.
    pub fn place(&self) -> Option<RequestPlace> {
        self.server.enter(|machine, _| machine.place_of_request(self.session))
    }

    /// Ends the session. Returns whether the server may have received its last request.
    pub fn cancel(&self) -> bool {
        self.server.enter(|machine, now| machine.cancel_local(now, self.session))
    }
}

impl Local {
    pub fn watch(&self) -> LocalWatch {
        LocalWatch { server: self.server.clone(), session: self.session }
    }

    /// Makes a request. Dropping the future gives it up.
    pub async fn ask(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        self.next_id += 1;
        let request = frame::request(self.next_id, method, params);
        let answer = self.exchange(request).await;
        let answer = answer.and_then(|answer| Parsed::read(answer).ok());
        let unanswered = || UpstreamError::Closed { method: method.to_owned(), sent: true };
        upstream::result_of(method, &answer.ok_or_else(unanswered)?).map_err(classify_refusal)
    }

    /// The server's tools, from all pages of the list.
    pub async fn tools(&mut self) -> Result<Vec<Box<RawValue>>, UpstreamError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            tools: Vec<Box<RawValue>>,
            next_cursor: Option<String>,
        }
        const METHOD: &str = "tools/list";
        let mut tools = Vec::new();
        let mut params = None;
        for _ in 0..MAX_PAGES {
            let result = self.ask(METHOD, params.as_deref()).await?;
            let page: Page = serde_json::from_str(result.get()).map_err(|error| {
                upstream::protocol(METHOD, format_args!("a result without tools: {error}"))
            })?;
            tools.extend(page.tools);
            match page.next_cursor.filter(|cursor| !cursor.is_empty()) {
                Some(cursor) => params = Some(upstream::string_param("cursor", &cursor)),
                None => break,
            }
        }
        Ok(tools)
    }

    /// Calls a tool. The result is as the server wrote it; it may itself say `isError`.
    pub async fn call(
        &mut self,
        tool: &str,
        arguments: &RawValue,
    ) -> Result<Box<RawValue>, UpstreamError> {
        #[derive(Serialize)]
        struct Params<'a> {
            name: &'a str,
            arguments: &'a RawValue,
        }
        let params = upstream::raw(&Params { name: tool, arguments });
        self.ask("tools/call", Some(&params)).await
    }

    async fn exchange(&self, request: Bytes) -> Option<Bytes> {
        let request = Parsed::read(request).ok()?;
        let (stream, turn) = self
            .server
            .enter(|machine, now| machine.request(now, self.session, request, Arrival::New));
        let mut reader = Reader::new(self.server.clone(), stream, turn, 0);
        loop {
            let item = reader.next().await?;
            if item.is_answer {
                return Some(item.message);
            }
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.server.enter(|machine, now| machine.close_local(now, self.session));
    }
}

//! Requests of our own user, who has no MCP client at hand: the same way as everybody's.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::exchange::Refusal;
use super::{Hub, Session};
use crate::frame::{self, Parsed};
use crate::front::Session as _;
use crate::lists::MAX_PAGES;
use crate::stream::Stream;
use crate::upstream::{self, Identity, UpstreamError};

/// A session that lasts as long as this value.
#[derive(Debug)]
pub struct Local {
    session: Session,
    next_id: u64,
}

impl Hub {
    /// Opens a session that is not kept. Held like a client's, if the server is coming up.
    pub async fn local(self: &Arc<Self>, identity: &Identity) -> Result<Local, UpstreamError> {
        let session = Session::new(Arc::clone(self), String::new(), false);
        let mut local = Local { session, next_id: 0 };
        let params = upstream::plain_params(identity);
        local.ask("initialize", Some(&params)).await?;
        Ok(local)
    }
}

impl Local {
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
        upstream::settled(method, &answer.ok_or_else(unanswered)?).map_err(ours)
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
        let out = Stream::new();
        let _asking = self.session.hub().own_gate.enter();
        self.session.request(request, Arc::clone(&out)).await;
        out.answer()
    }
}

/// Tells our own refusals from errors of the server.
fn ours(error: UpstreamError) -> UpstreamError {
    let UpstreamError::Rpc { method, message, data: Some(data), .. } = &error else { return error };
    match serde_json::from_str(data.get()) {
        Ok(Refusal { mainstay: "effect-unknown" }) => {
            UpstreamError::Closed { method: method.clone(), sent: true }
        }
        Ok(Refusal { .. }) => UpstreamError::Unavailable(message.clone()),
        Err(_) => error,
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.session.end();
    }
}

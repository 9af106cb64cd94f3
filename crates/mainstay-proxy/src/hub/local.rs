//! Requests of our own user, who has no MCP client at hand: the same way as everybody's.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{Hub, Session, exchange};
use crate::frame::{self, Parsed};
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
        upstream::settled(method, &answer.ok_or_else(unanswered)?)
    }

    async fn exchange(&self, request: Bytes) -> Option<Bytes> {
        let request = Parsed::read(request).ok()?;
        let out = Stream::new();
        exchange::answer(self.session.clone(), request, Arc::clone(&out)).await;
        out.answer()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.session.end();
    }
}

//! Mainstay's own session with an HTTP server, in which it reads lists.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use mainstay_mcp::upstream::{Hello, UpstreamError};
use serde_json::value::RawValue;
use tracing::debug;

use super::{OperationKey, Purpose, UpstreamSession};
use crate::action::{HttpFailure, HttpOperation, HttpOutcome};
use crate::links::{LinkKey, OwnPurpose, OwnRequest, closed};
use crate::server::Server;

impl Server {
    /// Opens Mainstay's own session with a server.
    pub(crate) fn open_own_session(&mut self, link: LinkKey, is_starting: bool) -> OperationKey {
        let generation = self.generation(link);
        let open = HttpOperation::Open {
            generation,
            params: Some(self.own_params()),
            level: None,
            subscriptions: BTreeSet::new(),
            is_starting,
        };
        self.operate(link, Purpose::Open(None), None, open)
    }

    /// Continues in the session that an earlier daemon opened. A server that runs elsewhere may have forgotten it.
    pub(crate) fn resume_own_session(
        &mut self,
        now: Instant,
        key: LinkKey,
        hello: Hello,
        is_remote: bool,
    ) {
        let session = match UpstreamSession::known(self.generation(key), &hello) {
            Ok(session) => Arc::new(session),
            Err(error) => return self.not_attached(key, error),
        };
        let Some(http) = self.http(key) else { return };
        http.own = Some(session);
        if !is_remote {
            return self.attached(key, hello);
        }
        http.found = Some(hello);
        self.ask_http(now, key, OwnRequest::new(OwnPurpose::FindSession, "ping", None));
    }

    pub(crate) fn own_session_found(
        &mut self,
        key: LinkKey,
        result: Result<Box<RawValue>, UpstreamError>,
    ) {
        match result {
            // One that does not answer a ping with a result has read it all the same.
            Ok(_) | Err(UpstreamError::Rpc { .. }) => {
                if let Some(hello) = self.http(key).and_then(|http| http.found.take()) {
                    self.attached(key, hello);
                }
            }
            Err(error @ (UpstreamError::Connect { .. } | UpstreamError::Closed { .. })) => {
                self.not_attached(key, error);
            }
            Err(_) => {
                self.open_own_session(key, false);
            }
        }
    }

    /// Sends a request of Mainstay itself.
    pub(crate) fn ask_http(&mut self, now: Instant, key: LinkKey, request: OwnRequest) {
        let Some(http) = self.http(key) else { return };
        let Some(session) = http.own.clone() else {
            return self.own_lost(now, key, &request, false);
        };
        let id = http.next_id;
        http.next_id += 1;
        let (method, params) = (request.method, request.params.clone());
        let ask = HttpOperation::Ask { session, id, method, params };
        self.operate(key, Purpose::Own(request), Some(now), ask);
    }

    pub(super) fn own_session_opened(&mut self, now: Instant, link: LinkKey, outcome: HttpOutcome) {
        let result = match outcome {
            HttpOutcome::Opened(session, hello) => Ok((session, hello)),
            HttpOutcome::Failed(HttpFailure::Unusable(error)) => Err(error),
            _ => Err(UpstreamError::Closed { method: "initialize".to_owned(), sent: true }),
        };
        let Some(http) = self.http(link) else { return };
        let waiting = std::mem::take(&mut http.waiting);
        let is_reopened = !waiting.is_empty();
        match result {
            Ok((session, hello)) => {
                http.own = Some(session);
                for request in waiting {
                    self.ask_http(now, link, request);
                }
                if !is_reopened {
                    self.attached(link, hello);
                }
            }
            Err(error) if is_reopened => {
                debug!(%error, "a session with the server cannot be opened again");
                for request in waiting {
                    self.own_lost(now, link, &request, true);
                }
            }
            Err(error) => self.not_attached(link, error),
        }
    }

    pub(super) fn own_request_done(
        &mut self,
        now: Instant,
        link: LinkKey,
        mut request: OwnRequest,
        outcome: HttpOutcome,
    ) {
        let result = match outcome {
            HttpOutcome::Result(result) => Ok(result),
            HttpOutcome::Failed(HttpFailure::Unusable(error)) => Err(error),
            _ => Err(closed(&request, true)),
        };
        if matches!(result, Err(UpstreamError::SessionLost { .. }))
            && request.purpose != OwnPurpose::FindSession
            && request.repetitions == 0
            && let Some(http) = self.http(link)
        {
            request.repetitions = 1;
            let is_first = http.waiting.is_empty();
            http.waiting.push(request);
            if is_first {
                self.open_own_session(link, false);
            }
            return;
        }
        self.own_answered(now, link, &request, result);
    }
}

//! One session with a run that speaks streamable HTTP.

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::sleep;

use super::http_stream;
use super::session::ClientState;
use crate::Hello;
use crate::client::{Client, Headers, Method, Request, Response, SendError};
use crate::frame;
use crate::record::UpstreamRecord;
use crate::upstream::{self, MAX_LINE, UpstreamError};

/// How much of an error's body is read.
pub(super) const ERROR_BODY: usize = 64 * 1024;

/// While a server is coming up it is asked again after this time.
const COMING_UP: Duration = Duration::from_millis(50);

/// What every POST carries.
static POST: LazyLock<Headers> = LazyLock::new(|| {
    let (kind, accept) = ("application/json", "application/json, text/event-stream");
    Headers::new(&[("Content-Type", kind), ("Accept", accept)]).expect("these are headers")
});

/// The session.
#[derive(Debug)]
pub(super) struct UpSession {
    record: UpstreamRecord,
    /// What tells the server which session a request belongs to.
    headers: Headers,
}

impl UpSession {
    /// Opens a session with a server that may still be coming up: as long as it refuses or cuts
    /// connections, or answers 404, 502 or 503, it is asked again.
    pub(super) async fn open_patiently(
        generation: u64,
        client: &Client,
        terms: &ClientState,
    ) -> Result<(Self, Hello), UpstreamError> {
        loop {
            match Self::open(generation, client, terms).await {
                Err(
                    UpstreamError::Connect { .. }
                    | UpstreamError::Closed { .. }
                    | UpstreamError::Http { status: 404 | 502 | 503, .. },
                ) => sleep(COMING_UP).await,
                opened => return opened,
            }
        }
    }

    /// `initialize`, `notifications/initialized`, then the level and the subscriptions.
    pub(super) async fn open(
        generation: u64,
        client: &Client,
        terms: &ClientState,
    ) -> Result<(Self, Hello), UpstreamError> {
        const METHOD: &str = "initialize";
        let request = frame::request(0, METHOD, terms.params.as_deref());
        let sent = client.send_with(&[&POST], post_of(&request)).await;
        let mut response = sent.map_err(|error| upstream::not_sent(METHOD, error))?;
        let id = response.header("mcp-session-id").map(str::to_owned);
        if response.status() != 200 {
            let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
            // Whatever it says of sessions, none is there that it could have lost.
            let body = upstream::excerpt(&body);
            let (method, status) = (METHOD.to_owned(), response.status());
            return Err(UpstreamError::Http { method, status, body });
        }
        let answer = http_stream::only_answer(METHOD, &mut response).await?;
        let hello = Hello::read(upstream::settled(METHOD, &answer)?, id)?;
        let up = Self::known(generation, &hello)?;
        up.tell(client, &frame::notification("notifications/initialized", None)).await;
        if let Some(level) = terms.level {
            let params = upstream::string_param("level", level.as_str());
            up.tell(client, &frame::request(1, "logging/setLevel", Some(&params))).await;
        }
        for (number, uri) in terms.subscriptions.iter().enumerate() {
            let params = upstream::string_param("uri", uri);
            let id = 2 + number as u64;
            up.tell(client, &frame::request(id, "resources/subscribe", Some(&params))).await;
        }
        Ok((up, hello))
    }

    /// A session that the server has said hello in, maybe to an earlier daemon.
    pub(super) fn known(generation: u64, hello: &Hello) -> Result<Self, UpstreamError> {
        Self::resume(UpstreamRecord {
            run: generation,
            id: hello.http_session.clone(),
            version: hello.protocol_version.clone(),
        })
    }

    /// A session that was opened before.
    pub(super) fn resume(record: UpstreamRecord) -> Result<Self, UpstreamError> {
        let version = ("MCP-Protocol-Version", record.version.as_str());
        let id = record.id.as_deref().map(|id| ("Mcp-Session-Id", id));
        let headers: Vec<_> = [Some(version), id].into_iter().flatten().collect();
        let headers = Headers::new(&headers);
        let headers = headers.map_err(|error| upstream::protocol("initialize", error))?;
        Ok(Self { record, headers })
    }

    /// What a later daemon needs to go on with it.
    pub(super) fn record(&self) -> &UpstreamRecord {
        &self.record
    }

    /// The run that it is with.
    pub(super) fn generation(&self) -> u64 {
        self.record.run
    }

    /// Makes a request of our own.
    pub(super) async fn ask(
        &self,
        client: &Client,
        id: u64,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let request = frame::request(id, method, params);
        let sent = self.post(client, &request).await;
        let mut response = sent.map_err(|error| upstream::not_sent(method, error))?;
        if response.status() != 200 {
            let body = response.bytes(ERROR_BODY).await.unwrap_or_default();
            return Err(upstream::bad_status(method, response.status(), &body));
        }
        let answer = http_stream::only_answer(method, &mut response).await?;
        upstream::settled(method, &answer)
    }

    pub(super) async fn post(&self, client: &Client, body: &[u8]) -> Result<Response, SendError> {
        client.send_with(&[&POST, &self.headers], post_of(body)).await
    }

    /// Sends a request without a body, with the headers of this session.
    pub(super) async fn send(
        &self,
        client: &Client,
        method: Method,
        headers: &[(&str, &str)],
    ) -> Result<Response, SendError> {
        client.send_with(&[&self.headers], Request { method, headers, body: &[] }).await
    }

    /// Sends something whose answer does not matter: a server that refuses it goes without.
    async fn tell(&self, client: &Client, message: &[u8]) {
        if let Ok(mut response) = self.post(client, message).await {
            response.bytes(MAX_LINE).await.ok();
        }
    }
}

fn post_of(body: &[u8]) -> Request<'_> {
    Request { method: Method::Post, headers: &[], body }
}

//! Sessions with a server that speaks streamable HTTP: one for each client, opened on the client's
//! own terms, opened again when the server has forgotten it or is another run.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::exchange::{Failure, Fate};
use super::http_stream::{self, Listener};
use super::outlook::RunLink;
use super::progress::Progress;
use super::session::{Session, Terms};
use crate::Hello;
use crate::client::{Client, Headers, Method, Request, Response, SendError};
use crate::frame::{self, Parsed};
use crate::record::Sent;
use crate::stream::Stream;
use crate::upstream::{self, MAX_LINE, UpstreamError};

/// How much of an error's body is read.
pub(super) const ERROR_BODY: usize = 64 * 1024;

/// What every POST carries.
static POST: LazyLock<Headers> = LazyLock::new(|| {
    let (kind, accept) = ("application/json", "application/json, text/event-stream");
    Headers::new(&[("Content-Type", kind), ("Accept", accept)]).expect("these are headers")
});

/// How many messages without an answer may be on their way for one client, and for how long.
const ERRANDS: usize = 64;
const ERRAND: Duration = Duration::from_secs(30);

/// While a server is coming up it is asked again after this time.
const COMING_UP: Duration = Duration::from_millis(50);

/// The way to a run that speaks HTTP.
#[derive(Debug)]
pub(crate) struct HttpRun {
    pub(super) generation: u64,
    pub(super) client: Client,
    /// The session that is our own.
    own: Mutex<Arc<UpSession>>,
    own_params: Arc<RawValue>,
    next_id: AtomicU64,
}

impl HttpRun {
    pub(super) fn new(
        generation: u64,
        client: Client,
        own: UpSession,
        own_params: Arc<RawValue>,
    ) -> Self {
        let own = Mutex::new(Arc::new(own));
        // The first few ids are those of the handshake.
        Self { generation, client, own, own_params, next_id: AtomicU64::new(10) }
    }

    /// Makes a request of our own. If the server has forgotten our session, it is opened again.
    pub(super) async fn ask_own(
        &self,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let own = Arc::clone(&super::lock(&self.own));
        match own.ask(&self.client, self.new_id(), method, params).await {
            Err(UpstreamError::SessionLost { .. }) => {
                let terms =
                    Terms { params: Some(Arc::clone(&self.own_params)), ..Terms::default() };
                let new = Arc::new(UpSession::open(self.generation, &self.client, &terms).await?);
                *super::lock(&self.own) = Arc::clone(&new);
                new.ask(&self.client, self.new_id(), method, params).await
            }
            answer => answer,
        }
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// One client's session with whatever run there is.
#[derive(Debug, Default)]
pub(super) struct HttpLane {
    present: Mutex<Option<Arc<UpSession>>>,
    /// Held while a session is opened, so that it is opened once.
    opening: tokio::sync::Mutex<()>,
    listening: AtomicBool,
    /// Messages without an answer that are on their way.
    errands: AtomicUsize,
}

/// A session with one run.
#[derive(Debug)]
pub(super) struct UpSession {
    pub(super) generation: u64,
    id: Option<String>,
    /// What tells the server which session a request belongs to.
    headers: Headers,
    result: Arc<RawValue>,
}

impl HttpLane {
    /// Opens the session for a client that initializes.
    pub(super) async fn open(
        &self,
        run: &HttpRun,
        params: &Arc<RawValue>,
    ) -> Result<Arc<RawValue>, UpstreamError> {
        let terms = Terms { params: Some(Arc::clone(params)), ..Terms::default() };
        let _one_at_a_time = self.opening.lock().await;
        let opened = UpSession::open(run.generation, &run.client, &terms).await?;
        let result = Arc::clone(&opened.result);
        *self.present() = Some(Arc::new(opened));
        Ok(result)
    }

    /// Asks on behalf of the client.
    pub(super) async fn ask(
        &self,
        run: &HttpRun,
        session: &Session,
        message: &Parsed,
        out: &Arc<Stream>,
        progress: Option<&Arc<Progress>>,
    ) -> Result<Parsed, Failure> {
        let up = self.ensure(run, session).await?;
        // Noted first: what is not known to be sent might be sent again.
        let sent = Sent { generation: run.generation, line: None };
        if session.hub().is_frozen() || !out.sent(sent) {
            // Another daemon decides what becomes of it.
            return std::future::pending().await;
        }
        let given_up = GivenUp::new(session, run.generation, message);
        let sent = up.post(&run.client, message.text()).await;
        let answer = match sent {
            Ok(mut response) => {
                let reading =
                    http_stream::Reading { run, up: &up, session, message, out, progress };
                reading.answer(&mut response).await
            }
            Err(error) => Err(Failure::from(error)),
        };
        if matches!(answer, Err(Failure::Lost(Fate::Forgotten))) {
            self.forget(&up);
        }
        given_up.disarm();
        answer
    }

    /// Sends something that wants no answer to the run of that generation, if it is still there. No
    /// session is opened for it: a new one begins with all that there is to know.
    pub(super) fn tell_later(session: &Session, generation: u64, message: Bytes) {
        let session = session.clone();
        if session.hub().is_frozen() {
            return;
        }
        if session.http().errands.fetch_add(1, Ordering::Relaxed) >= ERRANDS {
            session.http().errands.fetch_sub(1, Ordering::Relaxed);
            return debug!("a message to a server that does not take it was dropped");
        }
        drop(tokio::spawn(async move {
            let outlook = session.outlook();
            let run = outlook.borrow().run().filter(|run| run.generation == generation).cloned();
            if let Some(run) = run
                && let RunLink::Http(http) = &run.link
                && let Some(up) = session.http().with(http)
            {
                // Read to its end, so that the connection can be used again.
                let told = async {
                    up.post(&http.client, &message).await.ok()?.bytes(ERROR_BODY).await.ok()
                };
                drop(timeout(ERRAND, told).await);
            }
            session.http().errands.fetch_sub(1, Ordering::Relaxed);
        }));
    }

    /// Opens the session with a new run before anybody asks for it.
    pub(super) fn reopen(session: &Session, generation: u64) {
        let session = session.clone();
        drop(tokio::spawn(async move {
            let outlook = session.outlook();
            let run = outlook.borrow().run().filter(|run| run.generation == generation).cloned();
            if let Some(run) = run
                && let RunLink::Http(http) = &run.link
            {
                // If it fails, whoever needs the session next tries again.
                session.http().ensure(http, &session).await.ok();
            }
        }));
    }

    /// Hears what the server says outside of requests, from now on.
    pub(super) fn listen(&self, session: &Session) {
        let is_lines = |run: &Arc<super::outlook::Run>| matches!(run.link, RunLink::Lines(_));
        let in_vain = session.outlook().borrow().run().is_some_and(is_lines);
        if !in_vain && !self.listening.swap(true, Ordering::Relaxed) {
            // It ends with its session.
            drop(tokio::spawn(Listener::new(session).run()));
        }
    }

    /// Ends the session with the server too.
    pub(super) fn close(&self, session: &Session) {
        let Some(up) = self.present().take() else { return };
        let outlook = session.outlook();
        let run = outlook.borrow().run().filter(|run| run.generation == up.generation).cloned();
        drop(tokio::spawn(async move {
            if let Some(run) = run
                && let RunLink::Http(http) = &run.link
            {
                // A server that does not know the session any more, or cannot be reached, needs no end.
                up.send(&http.client, Method::Delete, &[]).await.ok();
            }
        }));
    }

    /// The session with this run, opened if there is none yet.
    pub(super) async fn ensure(
        &self,
        run: &HttpRun,
        session: &Session,
    ) -> Result<Arc<UpSession>, Failure> {
        match self.with(run) {
            Some(up) => Ok(up),
            None => Box::pin(self.open_again(run, session)).await,
        }
    }

    async fn open_again(
        &self,
        run: &HttpRun,
        session: &Session,
    ) -> Result<Arc<UpSession>, Failure> {
        let _one_at_a_time = self.opening.lock().await;
        if let Some(up) = self.with(run) {
            return Ok(up);
        }
        let terms = session.terms();
        let up = Arc::new(
            UpSession::open(run.generation, &run.client, &terms).await.map_err(not_opened)?,
        );
        *self.present() = Some(Arc::clone(&up));
        for uri in &terms.subscriptions {
            // What changed in between cannot be known.
            session.hear(frame::resource_updated(uri), None);
        }
        Ok(up)
    }

    fn with(&self, run: &HttpRun) -> Option<Arc<UpSession>> {
        self.present().as_ref().filter(|up| up.generation == run.generation).cloned()
    }

    pub(super) fn forget(&self, up: &Arc<UpSession>) {
        let mut present = self.present();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, up)) {
            *present = None;
        }
    }

    fn present(&self) -> MutexGuard<'_, Option<Arc<UpSession>>> {
        self.present.lock().expect("no code panics with this lock")
    }
}

impl UpSession {
    /// Opens a session with a server that may still be coming up: as long as it refuses or cuts
    /// connections, or answers 404, 502 or 503, it is asked again.
    pub(super) async fn open_patiently(
        generation: u64,
        client: &Client,
        terms: &Terms,
    ) -> Result<Self, UpstreamError> {
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
        terms: &Terms,
    ) -> Result<Self, UpstreamError> {
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
        let up = Self::resume(generation, &hello)?;
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
        Ok(up)
    }

    /// A session that was opened before, maybe by an earlier daemon.
    pub(super) fn resume(generation: u64, hello: &Hello) -> Result<Self, UpstreamError> {
        let version = ("MCP-Protocol-Version", hello.protocol_version.as_str());
        let id = hello.http_session.as_deref().map(|id| ("Mcp-Session-Id", id));
        let headers: Vec<_> = [Some(version), id].into_iter().flatten().collect();
        let headers = Headers::new(&headers);
        Ok(Self {
            generation,
            id: hello.http_session.clone(),
            headers: headers.map_err(|error| upstream::protocol("initialize", error))?,
            result: Arc::from(hello.result.clone()),
        })
    }

    pub(super) fn hello(&self) -> Result<Hello, UpstreamError> {
        Hello::read(self.result.as_ref().to_owned(), self.id.clone())
    }

    /// Makes a request of our own.
    async fn ask(
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

/// While armed, its drop tells the server that nobody waits for this request any more.
struct GivenUp<'a> {
    session: Option<&'a Session>,
    generation: u64,
    message: &'a Parsed,
}

impl<'a> GivenUp<'a> {
    fn new(session: &'a Session, generation: u64, message: &'a Parsed) -> Self {
        Self { session: Some(session), generation, message }
    }

    fn disarm(mut self) {
        self.session = None;
    }
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let (Some(session), Some(id)) = (self.session, self.message.id()) {
            let cancelled = frame::cancelled(id, "nobody waits for it any more");
            HttpLane::tell_later(session, self.generation, cancelled);
        }
    }
}

fn post_of(body: &[u8]) -> Request<'_> {
    Request { method: Method::Post, headers: &[], body }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        Self::Lost(if error.sent() { Fate::Sent } else { Fate::Unsent })
    }
}

/// A request for which no session could be opened has not reached the server.
fn not_opened(error: UpstreamError) -> Failure {
    match error {
        UpstreamError::Closed { .. }
        | UpstreamError::Connect { .. }
        // A gateway that does not reach the server.
        | UpstreamError::Http { status: 502..=504, .. } => Failure::Lost(Fate::Unsent),
        error => Failure::Unusable(error),
    }
}

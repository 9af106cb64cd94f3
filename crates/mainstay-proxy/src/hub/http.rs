//! Sessions with a server that speaks streamable HTTP: one for each client, opened on the client's
//! own terms, opened again when the server has forgotten it or is another run.
//!
//! When the server has restarted, the sessions of clients that listen are reopened in the background, a few
//! at a time, so that requests take precedence. All others are reopened by their next request.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::debug;

use super::availability::RunLink;
use super::exchange::{DeliveryState, Failure};
use super::http_session::{ERROR_BODY, UpSession};
use super::http_stream::{self, Listener};
use super::progress::Progress;
use super::session::{ClientState, Session};
use crate::catch_panic;
use crate::client::{Client, Method, SendError};
use crate::frame::{self, Parsed};
use crate::record::{Sent, UpstreamRecord};
use crate::stream::Stream;
use crate::upstream::UpstreamError;
use crate::write_fence::Noted;

/// How many messages without an answer may be on their way for one client, and for how long.
const ERRANDS: usize = 64;
const ERRAND: Duration = Duration::from_secs(30);

/// How many sessions are opened in the background at a time.
const BACKGROUND_OPENS: usize = 4;

/// The way to a run that speaks HTTP.
#[derive(Debug)]
pub(crate) struct HttpRun {
    pub(super) generation: u64,
    pub(super) client: Client,
    /// The session that is our own.
    own: Mutex<Arc<UpSession>>,
    own_params: Arc<RawValue>,
    next_id: AtomicU64,
    /// Permits for opening sessions in the background.
    background_opens: Semaphore,
}

impl HttpRun {
    pub(super) fn new(
        generation: u64,
        client: Client,
        own: UpSession,
        own_params: Arc<RawValue>,
        first_id: u64,
    ) -> Self {
        let own = Mutex::new(Arc::new(own));
        let (next_id, background_opens) =
            (AtomicU64::new(first_id), Semaphore::new(BACKGROUND_OPENS));
        Self { generation, client, own, own_params, next_id, background_opens }
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
                let terms = ClientState {
                    params: Some(Arc::clone(&self.own_params)),
                    ..ClientState::default()
                };
                let (new, _) = UpSession::open(self.generation, &self.client, &terms).await?;
                let new = Arc::new(new);
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
pub(super) struct HttpConn {
    present: Mutex<Option<Arc<UpSession>>>,
    /// Held while a session is opened, so that it is opened once.
    opening: tokio::sync::Mutex<()>,
    listening: AtomicBool,
    /// The last event id on the general stream, and the run that sent it.
    last_event: Mutex<Option<(u64, String)>>,
    /// Messages without an answer that are on their way.
    errands: AtomicUsize,
}

impl HttpConn {
    /// A client's session that goes on where an earlier daemon had it.
    pub(super) fn restored(record: &UpstreamRecord) -> Self {
        // One that no header can name is opened again.
        let up = UpSession::resume(record.clone()).ok().map(Arc::new);
        Self { present: Mutex::new(up), ..Self::default() }
    }

    /// What a later daemon needs to go on with the session.
    pub(super) fn record(&self) -> Option<UpstreamRecord> {
        self.present().as_ref().map(|up| up.record().clone())
    }

    /// Whether there is a session with this run.
    pub(super) fn is_open_with(&self, run: &HttpRun) -> bool {
        self.with(run).is_some()
    }

    /// Opens the session for a client that initializes.
    pub(super) async fn open(
        &self,
        run: &HttpRun,
        params: &Arc<RawValue>,
    ) -> Result<Arc<RawValue>, UpstreamError> {
        let terms = ClientState { params: Some(Arc::clone(params)), ..ClientState::default() };
        let _one_at_a_time = self.opening.lock().await;
        let (opened, hello) = UpSession::open(run.generation, &run.client, &terms).await?;
        *self.present() = Some(Arc::new(opened));
        Ok(Arc::from(hello.result))
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
        let is_frozen = session.hub().is_frozen();
        match if is_frozen { Noted::Never } else { out.sent(sent) } {
            Noted::Yes => {}
            Noted::NotYet => return Err(Failure::Lost(DeliveryState::Unsent)),
            // Another daemon decides what becomes of it.
            Noted::Never if out.is_relayed() => return Err(Failure::Lost(DeliveryState::Sent)),
            Noted::Never => return std::future::pending().await,
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
        if matches!(answer, Err(Failure::Lost(DeliveryState::Forgotten))) {
            self.forget(&up);
        }
        given_up.disarm();
        answer
    }

    /// Sends something that wants no answer to the run of that generation, if it is still there. No
    /// session is opened for it: a new one begins with all that there is to know.
    pub(super) fn tell_later(session: &Session, generation: u64, message: Bytes) {
        if !session.hub().is_frozen() {
            Self::tell_now(session, generation, message);
        }
    }

    /// The same, even if another daemon takes over.
    pub(super) fn tell_now(session: &Session, generation: u64, message: Bytes) {
        let session = session.clone();
        if session.http().errands.fetch_add(1, Ordering::Relaxed) >= ERRANDS {
            session.http().errands.fetch_sub(1, Ordering::Relaxed);
            return debug!("a message to a server that does not take it was dropped");
        }
        catch_panic::spawn(async move {
            let availability = session.availability();
            let run =
                availability.borrow().run().filter(|run| run.generation == generation).cloned();
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
        });
    }

    /// Opens the session with a new run before anybody asks for it.
    pub(super) fn reopen(session: &Session, generation: u64) {
        let session = session.clone();
        catch_panic::spawn(async move {
            let availability = session.availability();
            let run =
                availability.borrow().run().filter(|run| run.generation == generation).cloned();
            if let Some(run) = run
                && let RunLink::Http(http) = &run.link
            {
                // If it fails, whoever needs the session next tries again.
                session.http().ensure_in_background(http, &session).await.ok();
            }
        });
    }

    /// Listens for messages outside of requests while the client listens.
    pub(super) fn listen(&self, session: &Session) {
        let is_lines = |run: &Arc<super::availability::Run>| matches!(run.link, RunLink::Lines(_));
        let in_vain = session.availability().borrow().run().is_some_and(is_lines);
        if !in_vain && !self.listening.swap(true, Ordering::Relaxed) {
            // It ends with its session.
            catch_panic::spawn(Listener::new(session).run());
        }
    }

    /// The listener has ended.
    pub(super) fn stop_listening(&self) {
        self.listening.store(false, Ordering::Relaxed);
    }

    /// The last event id of this run on the general stream.
    pub(super) fn last_event(&self, generation: u64) -> Option<String> {
        let last = super::lock(&self.last_event);
        last.as_ref().filter(|(run, _)| *run == generation).map(|(_, id)| id.clone())
    }

    pub(super) fn set_last_event(&self, generation: u64, id: Option<String>) {
        *super::lock(&self.last_event) = id.map(|id| (generation, id));
    }

    /// Ends the session with the server too.
    pub(super) fn close(&self, session: &Session) {
        let Some(up) = self.present().take() else { return };
        let availability = session.availability();
        let run =
            availability.borrow().run().filter(|run| run.generation == up.generation()).cloned();
        catch_panic::spawn(async move {
            if let Some(run) = run
                && let RunLink::Http(http) = &run.link
            {
                // A server that does not know the session any more, or cannot be reached, needs no end.
                up.send(&http.client, Method::Delete, &[]).await.ok();
            }
        });
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

    /// As [`ensure`](Self::ensure), at lower priority than requests.
    pub(super) async fn ensure_in_background(
        &self,
        run: &HttpRun,
        session: &Session,
    ) -> Result<Arc<UpSession>, Failure> {
        if let Some(up) = self.with(run) {
            return Ok(up);
        }
        let _permit = run.background_opens.acquire().await.expect("the semaphore is never closed");
        self.ensure(run, session).await
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
        let opened = UpSession::open(run.generation, &run.client, &terms).await;
        let up = Arc::new(opened.map_err(not_opened)?.0);
        *self.present() = Some(Arc::clone(&up));
        session.keep_upstream();
        for uri in &terms.subscriptions {
            // What changed in between cannot be known.
            session.hear(frame::resource_updated(uri), None);
        }
        Ok(up)
    }

    fn with(&self, run: &HttpRun) -> Option<Arc<UpSession>> {
        self.present().as_ref().filter(|up| up.generation() == run.generation).cloned()
    }

    pub(super) fn forget(&self, up: &Arc<UpSession>) {
        let mut present = self.present();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, up)) {
            *present = None;
        }
    }

    fn present(&self) -> MutexGuard<'_, Option<Arc<UpSession>>> {
        mainstay_core::lock(&self.present)
    }
}

/// While armed, its drop tells the server that nobody waits for this request any more.
pub(super) struct GivenUp<'a> {
    session: Option<&'a Session>,
    generation: u64,
    message: &'a Parsed,
}

impl<'a> GivenUp<'a> {
    pub(super) fn new(session: &'a Session, generation: u64, message: &'a Parsed) -> Self {
        Self { session: Some(session), generation, message }
    }

    pub(super) fn disarm(mut self) {
        self.session = None;
    }
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let (Some(session), Some(id)) = (self.session, self.message.id()) {
            let cancelled = frame::cancelled(id, "nobody waits for it any more");
            HttpConn::tell_later(session, self.generation, cancelled);
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        Self::Lost(if error.sent() { DeliveryState::Sent } else { DeliveryState::Unsent })
    }
}

/// A request for which no session could be opened has not reached the server.
fn not_opened(error: UpstreamError) -> Failure {
    match error {
        UpstreamError::Closed { .. }
        | UpstreamError::Connect { .. }
        // A gateway that does not reach the server.
        | UpstreamError::Http { status: 502..=504, .. } => Failure::Lost(DeliveryState::Unsent),
        error => Failure::Unusable(error),
    }
}

//! The way to a stdio server, shared by many sessions or the own one of a single session.
//!
//! A [`StdioConn`] gives every request an id of its own, remembers who waits for it, and hands each
//! answer to whoever asked. One task reads what the server writes; requests are written by their own
//! tasks. When the lines end, every request still open learns at once whether it can have reached the
//! server: the engine counts the lines that were written whole.
//!
//! An id says to which daemon and way it belongs (`first_id`), and which line of the run bears the request.
//! So a connection knows of a request that an earlier daemon sent whether it can have reached the server, and hears
//! its answer: such requests are [`RecoveredRequest`] from the beginning, before any line is read.

mod interruption;
mod reader;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::debug;

use self::reader::Reader;
use super::notifications::NotificationRouter;
use super::progress::Progress;
use super::session::{ClientState, Session};
use crate::catch_panic::{self, CatchPanic};
use crate::frame::{self, Id, Method, Parsed};
use crate::record::Sent;
use crate::stream::Stream;
use crate::upstream::{self, Hello, LineLink, MAX_LINE, UpstreamError};
use crate::write_fence::{Noted, WriteFence};

/// How many messages without an answer may wait for a server that does not read.
const LATE: usize = 256;

/// How often a request is made again because the connection to the server was interrupted.
pub(super) const INTERRUPTIONS: u8 = 3;

/// The part of an id that tells which line of the run bears the request.
const LINE: u64 = 0xffff_ffff;

/// The lines to and from one run.
#[derive(Debug)]
pub(crate) struct StdioConn {
    generation: u64,
    /// What all our ids begin with.
    first_id: u64,
    /// When it is shut, another daemon speaks to the server.
    write_fence: WriteFence,
    to_server: mpsc::Sender<Bytes>,
    router: Mutex<Router>,
    /// Leave for messages to wait until the server reads.
    patience: Arc<Semaphore>,
    /// Whether all that the run has said since an earlier daemon is heard.
    misses_nothing: bool,
    /// Whether every line that was heard is told to be.
    all_heard: AtomicBool,
    ended: watch::Receiver<bool>,
}

/// Who waits for what.
#[derive(Debug)]
struct Router {
    /// How many lines were handed over since the start of the run.
    lines: u64,
    pending: HashMap<u64, Pending>,
    /// What becomes of the requests that an earlier daemon sent, for those who go on with them.
    awaited: HashMap<u64, oneshot::Receiver<Reply>>,
    closed: bool,
}

/// A request that is with the server.
#[derive(Debug)]
struct Pending {
    /// The number of its line.
    line: u64,
    /// When it was sent; none if an earlier daemon did.
    sent: Option<Instant>,
    reply: oneshot::Sender<Reply>,
    /// The client's request that it stands for; none for one of our own.
    client: Option<Client>,
}

#[derive(Debug, Clone)]
struct Client {
    session: Session,
    out: Arc<Stream>,
    progress: Option<Arc<Progress>>,
}

/// A request that an earlier daemon sent to a run, and whose answer may still come.
#[derive(Debug)]
pub(super) struct RecoveredRequest {
    /// The run that has it.
    pub(super) generation: u64,
    /// The id that it bears there.
    pub(super) id: u64,
    client: Client,
}

impl RecoveredRequest {
    pub(super) fn new(
        (generation, id): (u64, u64),
        session: &Session,
        out: &Arc<Stream>,
        progress: Option<Arc<Progress>>,
    ) -> Self {
        let client = Client { session: session.clone(), out: Arc::clone(out), progress };
        Self { generation, id, client }
    }

    pub(super) fn session(&self) -> &Session {
        &self.client.session
    }
}

/// What a connection starts with.
pub(super) struct StdioConnConfig {
    pub(super) generation: u64,
    /// What all its ids begin with.
    pub(super) first_id: u64,
    pub(super) write_fence: WriteFence,
    pub(super) awaited: Vec<RecoveredRequest>,
}

/// What became of a request.
#[derive(Debug)]
enum Reply {
    Answer(Parsed),
    /// It was too long to keep.
    TooLong,
    /// It was not valid JSON.
    Invalid,
    /// It was the request itself.
    Echo,
    /// There will be none.
    Gone {
        sent: bool,
    },
    /// Request or answer may have been lost with a connection. If it is not, it comes here, within that time.
    InDoubt {
        reply: oneshot::Receiver<Reply>,
        wait: Duration,
    },
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The run went away.
    Gone {
        /// Whether it may have seen the request.
        sent: bool,
    },
    /// Request or answer was lost with a connection to the run, which goes on.
    Interrupted,
    /// The server does not keep to the protocol.
    Protocol(UpstreamError),
}

impl StdioConn {
    /// Takes over the lines of a run. Messages that answer no request go to the notification router.
    pub(super) fn spawn(
        link: LineLink,
        beginning: StdioConnConfig,
        notifications: NotificationRouter,
    ) -> Arc<Self> {
        let LineLink { to_server, from_server, junk, written, heard, past, interruptions } = link;
        let StdioConnConfig { generation, first_id, write_fence, awaited } = beginning;
        let (end, ended) = watch::channel(false);
        let router = Mutex::new(Router::new(*written.borrow(), awaited));
        let patience = Arc::new(Semaphore::new(LATE));
        let conn = Arc::new(Self {
            generation,
            first_id,
            write_fence,
            to_server,
            router,
            patience,
            misses_nothing: past.is_none(),
            all_heard: AtomicBool::new(true),
            ended,
        });
        if let Some(interruptions) = interruptions {
            catch_panic::spawn(interruption::watch(Arc::downgrade(&conn), interruptions));
        }
        let mut reader = Reader::new(Arc::clone(&conn), notifications, junk, written, heard);
        // Its end is awaited through `closed`.
        drop(tokio::spawn(async move {
            // After a panic, the run is treated as if it had closed its output, and is replaced.
            CatchPanic::new(reader.run(past.unwrap_or_default(), from_server)).await;
            reader.close();
            end.send_replace(true);
        }));
        conn
    }

    /// Opens the MCP session: `initialize`, `notifications/initialized`, then the level and the
    /// subscriptions, before anything that a client sends.
    pub(super) async fn open(
        self: &Arc<Self>,
        terms: &ClientState,
    ) -> Result<Hello, UpstreamError> {
        let hello = self.ask_own("initialize", terms.params.as_deref()).await?;
        let hello = Hello::read(hello, None)?;
        self.tell(frame::notification("notifications/initialized", None)).await;
        if let Some(level) = terms.level {
            let params = upstream::string_param("level", level.as_str());
            self.ask_in_vain("logging/setLevel", &params).await;
        }
        for uri in &terms.subscriptions {
            let params = upstream::string_param("uri", uri);
            self.ask_in_vain("resources/subscribe", &params).await;
        }
        Ok(hello)
    }

    /// Makes a request whose answer does not matter: a server that refuses it goes without.
    async fn ask_in_vain(&self, method: &str, params: &RawValue) {
        self.tell_as(|id| frame::request(id, method, Some(params))).await;
    }

    /// Makes a request of our own.
    pub(super) async fn ask_own(
        self: &Arc<Self>,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let line = |id: u64| frame::in_one_line(frame::request(id, method, params));
        let closed = |sent| UpstreamError::Closed { method: method.to_owned(), sent };
        for _ in 0..INTERRUPTIONS {
            match self.exchange(method, None, || true, line).await {
                Ok(answer) => return upstream::settled(method, &answer),
                Err(Unanswered::Gone { sent }) => return Err(closed(sent)),
                Err(Unanswered::Protocol(error)) => return Err(error),
                // All that is asked here may be asked twice.
                Err(Unanswered::Interrupted) => {}
            }
        }
        Err(closed(true))
    }

    /// Asks on behalf of a client. The answer bears our id. `is_safe` tells whether the request may be executed twice.
    pub(super) async fn ask(
        self: &Arc<Self>,
        session: &Session,
        message: &Parsed,
        out: &Arc<Stream>,
        progress: Option<&Arc<Progress>>,
        is_safe: impl Fn() -> bool,
    ) -> Result<Parsed, Unanswered> {
        let client =
            Client { session: session.clone(), out: Arc::clone(out), progress: progress.cloned() };
        let line = |id: u64| {
            let id = id.to_string();
            frame::in_one_line(match progress {
                Some(progress) => message.with_id_and_token(&id, progress.place(), &id),
                None => message.with_id(&id),
            })
        };
        let method = message.method().map_or("", Method::as_str);
        self.exchange(method, Some(client), is_safe, line).await
    }

    /// Waits for the answer to a request that an earlier daemon sent. It bears the id of then.
    pub(super) async fn rejoin(
        self: &Arc<Self>,
        message: &Parsed,
        id: u64,
        is_safe: impl Fn() -> bool,
    ) -> Result<Parsed, Unanswered> {
        let awaited = self.router().awaited.remove(&id);
        // Whoever is not awaited here has missed the run.
        let Some(replied) = awaited else { return Err(Unanswered::Gone { sent: true }) };
        self.reply(message.method().map_or("", Method::as_str), id, is_safe, replied).await
    }

    /// Sends something that wants no answer. A server that has gone needs none.
    pub(super) async fn tell(&self, message: Bytes) {
        self.tell_as(|_| message).await;
    }

    /// As [`tell`](Self::tell), with an id that no request has.
    async fn tell_as(&self, message: impl FnOnce(u64) -> Bytes) {
        if let Ok(room) = self.to_server.reserve().await
            && !self.write_fence.is_shut()
        {
            let mut router = self.router();
            router.lines += 1;
            room.send(frame::in_one_line(message(self.id_of(router.lines))));
        }
    }

    /// As [`tell`](Self::tell), without waiting. To a server that does not read, only so much is told.
    pub(super) fn tell_later(self: &Arc<Self>, message: Bytes) {
        if self.write_fence.is_shut() {
            return;
        }
        if let Ok(room) = self.to_server.try_reserve() {
            self.router().lines += 1;
            return room.send(frame::in_one_line(message));
        }
        let Ok(permit) = Arc::clone(&self.patience).try_acquire_owned() else {
            debug!("a message to a server that does not read was dropped");
            return;
        };
        let conn = Arc::clone(self);
        // It ends with the connection at the latest: a closed channel has no room to wait for.
        catch_panic::spawn(async move {
            conn.tell(message).await;
            drop(permit);
        });
    }

    /// Whether all that the run has said since an earlier daemon is heard.
    pub(super) fn misses_nothing(&self) -> bool {
        self.misses_nothing
    }

    /// Whether another daemon would hear no line that was heard here.
    pub(super) fn all_heard(&self) -> bool {
        self.all_heard.load(Ordering::Relaxed)
    }

    /// Waits until the lines have ended.
    pub(crate) async fn closed(&self) {
        // An error means that the reader has ended, too.
        self.ended.clone().wait_for(|ended| *ended).await.ok();
    }

    /// Whether the lines have ended.
    pub(crate) fn is_closed(&self) -> bool {
        *self.ended.borrow()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    async fn exchange(
        self: &Arc<Self>,
        method: &str,
        client: Option<Client>,
        is_safe: impl Fn() -> bool,
        line: impl FnOnce(u64) -> Bytes,
    ) -> Result<Parsed, Unanswered> {
        let Ok(room) = self.to_server.reserve().await else {
            return Err(Unanswered::Gone { sent: false });
        };
        match self.send(room, method, client, line)? {
            Some((id, replied)) => self.reply(method, id, is_safe, replied).await,
            // Another daemon decides what becomes of it.
            None => std::future::pending().await,
        }
    }

    /// Sends a request. `None` if another daemon takes over.
    fn send(
        &self,
        room: mpsc::Permit<'_, Bytes>,
        method: &str,
        client: Option<Client>,
        line: impl FnOnce(u64) -> Bytes,
    ) -> Result<Option<(u64, oneshot::Receiver<Reply>)>, Unanswered> {
        let mut router = self.router();
        if router.closed {
            return Err(Unanswered::Gone { sent: false });
        }
        let id = self.id_of(router.lines + 1);
        let text = line(id);
        if text.len() > MAX_LINE {
            let (method, bytes) = (method.to_owned(), text.len());
            return Err(Unanswered::Protocol(UpstreamError::TooLarge { method, bytes }));
        }
        // Noted first: what is not known to be sent might be sent again.
        match self.note_sent(client.as_ref(), id) {
            Noted::Yes => {}
            Noted::NotYet => return Err(Unanswered::Gone { sent: false }),
            Noted::Never => return Ok(None),
        }
        let (reply, replied) = oneshot::channel();
        router.lines += 1;
        let sent = Some(tokio::time::Instant::now().into_std());
        let pending = Pending { line: router.lines, sent, reply, client };
        router.pending.insert(id, pending);
        room.send(text);
        Ok(Some((id, replied)))
    }

    fn note_sent(&self, client: Option<&Client>, id: u64) -> Noted {
        let sent = Sent { generation: self.generation, line: Some(id) };
        match client {
            _ if self.write_fence.is_shut() => Noted::Never,
            Some(client) => client.out.sent(sent),
            None => Noted::Yes,
        }
    }

    /// Waits for what becomes of a request that is with the server.
    async fn reply(
        self: &Arc<Self>,
        method: &str,
        id: u64,
        is_safe: impl Fn() -> bool,
        replied: oneshot::Receiver<Reply>,
    ) -> Result<Parsed, Unanswered> {
        let _given_up = GivenUp { conn: self, id };
        let mut outcome = replied.await;
        while let Ok(Reply::InDoubt { reply, wait }) = outcome {
            if is_safe() {
                return Err(Unanswered::Interrupted);
            }
            outcome = match Box::pin(timeout(wait, reply)).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(Unanswered::Interrupted),
            };
        }
        match outcome {
            Ok(Reply::Answer(answer)) => Ok(answer),
            Ok(Reply::TooLong) => {
                let what = format!("a line of more than {MAX_LINE} bytes");
                Err(Unanswered::Protocol(upstream::protocol(method, what)))
            }
            Ok(Reply::Invalid) => {
                let what = "an answer that is not valid JSON in UTF-8";
                Err(Unanswered::Protocol(upstream::protocol(method, what.to_owned())))
            }
            Ok(Reply::Echo) => Err(Unanswered::Protocol(UpstreamError::Protocol(
                "it sends back what it is sent, so it is no MCP server".to_owned(),
            ))),
            Ok(Reply::Gone { sent }) => Err(Unanswered::Gone { sent }),
            // Whoever held it would have said so; to assume that it was sent is safe.
            Ok(Reply::InDoubt { .. }) | Err(_) => Err(Unanswered::Gone { sent: true }),
        }
    }

    /// The id of the request that this line of the run bears.
    fn id_of(&self, line: u64) -> u64 {
        self.first_id | (line & LINE)
    }

    fn router(&self) -> MutexGuard<'_, Router> {
        mainstay_core::lock(&self.router)
    }
}

impl Router {
    /// The routes when so many lines have reached the server, or will.
    fn new(written: u64, awaited: Vec<RecoveredRequest>) -> Self {
        let mut router = Self {
            lines: written,
            pending: HashMap::new(),
            awaited: HashMap::new(),
            closed: false,
        };
        for RecoveredRequest { id, client, .. } in awaited {
            let (reply, replied) = oneshot::channel();
            router.awaited.insert(id, replied);
            // A server that was spoken to before has had lines; where none are counted, the number is
            // not known.
            if written > 0 && (id & LINE) > written {
                // The other end was put away just now.
                reply.send(Reply::Gone { sent: false }).ok();
            } else {
                router
                    .pending
                    .insert(id, Pending { line: 0, sent: None, reply, client: Some(client) });
            }
        }
        router
    }
}

/// Its drop tells the server that nobody waits for this request any more, if it is still open.
struct GivenUp<'a> {
    conn: &'a Arc<StdioConn>,
    id: u64,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        let given_up = self.conn.router().pending.remove(&self.id);
        if given_up.is_some() {
            let id = self.id.to_string();
            let id = Id::new(&id).expect("a number is an id");
            self.conn.tell_later(frame::cancelled(id, "nobody waits for it any more"));
        }
    }
}

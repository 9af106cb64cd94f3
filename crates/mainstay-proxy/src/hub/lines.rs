//! The way to a stdio server, shared by many sessions or the own one of a single session.
//!
//! A [`LineLane`] gives every request an id of its own, remembers who waits for it, and hands each
//! answer to whoever asked. One task reads what the server writes; requests are written by their own
//! tasks. When the lines end, every request still open learns at once whether it can have reached the
//! server: the engine counts the lines that were written whole.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tracing::debug;

use super::ear::{Caller, Ear};
use super::progress::Progress;
use super::session::{Session, Terms};
use crate::frame::{self, Id, Kind, Method, Parsed};
use crate::stream::Stream;
use crate::upstream::cut::{self, Cut};
use crate::upstream::{self, Hello, LineLink, MAX_LINE, UpstreamError};

/// How many messages without an answer may wait for a server that does not read.
const LATE: usize = 256;

/// Lines that are taken in at a time.
const BATCH: usize = 64;

/// The lines to and from one run.
#[derive(Debug)]
pub(crate) struct LineLane {
    generation: u64,
    to_server: mpsc::Sender<Bytes>,
    router: Mutex<Router>,
    /// Leave for messages to wait until the server reads.
    patience: Arc<Semaphore>,
    ended: watch::Receiver<bool>,
}

/// Who waits for what.
#[derive(Debug)]
struct Router {
    next_id: u64,
    /// How many lines were handed over since the start of the run.
    lines: u64,
    pending: HashMap<u64, Pending>,
    closed: bool,
}

/// A request that is with the server.
#[derive(Debug)]
struct Pending {
    /// The number of its line.
    line: u64,
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

/// What became of a request.
#[derive(Debug)]
enum Reply {
    Answer(Parsed),
    /// It was too long to keep.
    TooLong,
    /// It was the request itself.
    Echo,
    /// There will be none.
    Gone {
        sent: bool,
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
    /// The server does not keep to the protocol.
    Protocol(UpstreamError),
}

impl LineLane {
    /// Takes over the lines of a run. Ids begin at `first_id`. What the server says of itself goes to
    /// the ear.
    pub(super) fn spawn(link: LineLink, generation: u64, first_id: u64, ear: Ear) -> Arc<Self> {
        let LineLink { to_server, from_server, junk, written, .. } = link;
        let (end, ended) = watch::channel(false);
        let router = Router {
            next_id: first_id,
            lines: *written.borrow(),
            pending: HashMap::new(),
            closed: false,
        };
        let (router, patience) = (Mutex::new(router), Arc::new(Semaphore::new(LATE)));
        let lane = Arc::new(Self { generation, to_server, router, patience, ended });
        let reader = Reader { lane: Arc::clone(&lane), ear, junk, written };
        // Its end is awaited through `closed`.
        drop(tokio::spawn(async move {
            reader.run(from_server).await;
            end.send_replace(true);
        }));
        lane
    }

    /// Opens the MCP session: `initialize`, `notifications/initialized`, then the level and the
    /// subscriptions, before anything that a client sends.
    pub(super) async fn open(self: &Arc<Self>, terms: &Terms) -> Result<Hello, UpstreamError> {
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
        let id = {
            let mut router = self.router();
            router.next_id += 1;
            router.next_id - 1
        };
        self.tell(frame::request(id, method, Some(params))).await;
    }

    /// Makes a request of our own.
    pub(super) async fn ask_own(
        self: &Arc<Self>,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let line = |id: u64| frame::in_one_line(frame::request(id, method, params));
        let answer = match self.exchange(method, None, line).await {
            Ok(answer) => answer,
            Err(Unanswered::Gone { sent }) => {
                return Err(UpstreamError::Closed { method: method.to_owned(), sent });
            }
            Err(Unanswered::Protocol(error)) => return Err(error),
        };
        upstream::settled(method, &answer)
    }

    /// Asks on behalf of a client. The answer bears our id.
    pub(super) async fn ask(
        self: &Arc<Self>,
        session: &Session,
        message: &Parsed,
        out: &Arc<Stream>,
        progress: Option<&Arc<Progress>>,
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
        self.exchange(message.method().map_or("", Method::as_str), Some(client), line).await
    }

    /// Sends something that wants no answer. A server that has gone needs none.
    pub(super) async fn tell(&self, message: Bytes) {
        if let Ok(room) = self.to_server.reserve().await {
            let mut router = self.router();
            router.lines += 1;
            room.send(frame::in_one_line(message));
        }
    }

    /// As [`tell`](Self::tell), without waiting. To a server that does not read, only so much is told.
    pub(super) fn tell_later(self: &Arc<Self>, message: Bytes) {
        if let Ok(room) = self.to_server.try_reserve() {
            self.router().lines += 1;
            return room.send(frame::in_one_line(message));
        }
        let Ok(permit) = Arc::clone(&self.patience).try_acquire_owned() else {
            debug!("a message to a server that does not read was dropped");
            return;
        };
        let lane = Arc::clone(self);
        // It ends with the lane at the latest: a closed channel has no room to wait for.
        drop(tokio::spawn(async move {
            lane.tell(message).await;
            drop(permit);
        }));
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
        line: impl FnOnce(u64) -> Bytes,
    ) -> Result<Parsed, Unanswered> {
        let unsent = Unanswered::Gone { sent: false };
        let Ok(room) = self.to_server.reserve().await else { return Err(unsent) };
        let (reply, replied) = oneshot::channel();
        let id = {
            let mut router = self.router();
            if router.closed {
                return Err(unsent);
            }
            let id = router.next_id;
            let text = line(id);
            if text.len() > MAX_LINE {
                return Err(Unanswered::Protocol(UpstreamError::TooLarge {
                    method: method.to_owned(),
                    bytes: text.len(),
                }));
            }
            router.next_id += 1;
            router.lines += 1;
            let pending = Pending { line: router.lines, reply, client };
            router.pending.insert(id, pending);
            room.send(text);
            id
        };
        let _given_up = GivenUp { lane: self, id };
        match replied.await {
            Ok(Reply::Answer(answer)) => Ok(answer),
            Ok(Reply::TooLong) => {
                let what = format!("a line of more than {MAX_LINE} bytes");
                Err(Unanswered::Protocol(upstream::protocol(method, what)))
            }
            Ok(Reply::Echo) => Err(Unanswered::Protocol(UpstreamError::Protocol(
                "it sends back what it is sent, so it is no MCP server".to_owned(),
            ))),
            Ok(Reply::Gone { sent }) => Err(Unanswered::Gone { sent }),
            // Whoever held it would have said so; to assume that it was sent is safe.
            Err(_) => Err(Unanswered::Gone { sent: true }),
        }
    }

    fn router(&self) -> MutexGuard<'_, Router> {
        self.router.lock().expect("no code panics with this lock")
    }
}

/// Its drop tells the server that nobody waits for this request any more, if it is still open.
struct GivenUp<'a> {
    lane: &'a Arc<LineLane>,
    id: u64,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        let given_up = self.lane.router().pending.remove(&self.id);
        if given_up.is_some() {
            let id = self.id.to_string();
            let id = Id::new(&id).expect("a number is an id");
            self.lane.tell_later(frame::cancelled(id, "nobody waits for it any more"));
        }
    }
}

/// The task that hears the server.
struct Reader {
    lane: Arc<LineLane>,
    ear: Ear,
    junk: mpsc::Sender<Bytes>,
    written: watch::Receiver<u64>,
}

impl Reader {
    async fn run(self, mut from_server: mpsc::Receiver<Bytes>) {
        let mut lines = Vec::new();
        while from_server.recv_many(&mut lines, BATCH).await > 0 {
            for line in lines.drain(..) {
                self.hear(&line);
            }
        }
        let open = {
            let mut router = self.lane.router();
            router.closed = true;
            std::mem::take(&mut router.pending)
        };
        let written = *self.written.borrow();
        for pending in open.into_values() {
            // Whoever waited may have gone meanwhile.
            pending.reply.send(Reply::Gone { sent: pending.line <= written }).ok();
        }
        self.ear.lost(self.lane.generation);
    }

    fn hear(&self, line: &Bytes) {
        if let Some(newline) = memchr::memchr(b'\n', line) {
            return self.hear_cut(line.slice(..newline), &line[newline + 1..]);
        }
        if line.first() == Some(&b'[') {
            for part in frame::split(line) {
                self.hear_one(line.slice_ref(part));
            }
        } else {
            self.hear_one(line.clone());
        }
    }

    fn hear_one(&self, text: Bytes) {
        let Ok(message) = Parsed::read(text.clone()) else {
            // The log of a server that floods it may be full.
            self.junk.try_send(text).ok();
            return;
        };
        match message.kind() {
            Kind::Result | Kind::Error => {
                if let Some(pending) = self.take(&message) {
                    // Whoever waited may have gone meanwhile.
                    pending.reply.send(Reply::Answer(message)).ok();
                } else {
                    debug!("answer to no open request dropped");
                }
            }
            // Our ids are far from those that servers choose, so this one is ours.
            Kind::Request => match self.take(&message) {
                Some(pending) => drop(pending.reply.send(Reply::Echo)),
                None => self.ear.asked(&self.lane, &self.callers(), &message),
            },
            Kind::Notification if message.method() == Some(&Method::Progress) => {
                self.progress(&message);
            }
            Kind::Notification => {
                if !self.ear.told(&self.lane, &self.callers(), &message) {
                    self.junk.try_send(text).ok();
                }
            }
        }
    }

    /// The request of ours that this message bears the id of.
    fn take(&self, message: &Parsed) -> Option<Pending> {
        let id = message.id()?.as_u64()?;
        self.lane.router().pending.remove(&id)
    }

    /// Progress bears the id of its request as its token.
    fn progress(&self, message: &Parsed) {
        let Some(told) = message.progress() else { return };
        let id = Id::new(message.get(told.token)).and_then(Id::as_u64);
        let client = id.and_then(|id| self.lane.router().pending.get(&id)?.client.clone());
        if let Some(Client { out, progress: Some(progress), .. }) = client
            && progress.admits(told.value)
        {
            out.push(message.with(told.token, progress.token()));
        }
    }

    /// The clients that wait for this server.
    fn callers(&self) -> Vec<Caller> {
        let router = self.lane.router();
        let clients = router.pending.values().filter_map(|pending| pending.client.as_ref());
        clients.map(|Client { session, out, .. }| Caller::new(session, out)).collect()
    }

    /// Takes in the two ends of a line that was too long. An answer fails the request it is for. If
    /// it does not tell which, it is for the only one that the server has; if the server has
    /// several, none of them is to suffer for it, and it counts as junk.
    fn hear_cut(&self, head: Bytes, tail: &[u8]) {
        let mut router = self.lane.router();
        let id = match cut::read(&head, tail) {
            Cut::Answer(id) => Some(id),
            Cut::SomeAnswer if router.pending.len() == 1 => router.pending.keys().next().copied(),
            Cut::SomeAnswer | Cut::NoAnswer => None,
        };
        match id.and_then(|id| router.pending.remove(&id)) {
            Some(pending) => drop(pending.reply.send(Reply::TooLong)),
            None => drop(self.junk.try_send(head)),
        }
    }
}

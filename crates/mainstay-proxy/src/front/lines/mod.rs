//! One client over lines: a JSON-RPC message per line, as over stdio.
//!
//! `initialize` opens the session; every later request runs in a task of its own, and what it and
//! the general stream have to say is written as whole lines. At the end of the input open requests
//! have a few seconds left, then they are given up. A client that sends more than 1024 requests at a time, or does not read
//! what it is told, is read no further until it does.
//!
//! A request that goes on for 150 ms is written down until its answer is written to the client, so that it
//! outlives this daemon: a client that resumes its session is first told what became of such requests. A
//! client has no ids to come back with, so what it was told before the answer is not told again. Dropping
//! [`serve_lines`] gives open requests up, but ends no session: that is for the client to do.

mod input;
mod output;
mod passing;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::error;

use self::input::{Input, Line};
use self::output::Outgoing;
use super::batch::{self, Batch, is_batch};
use super::run::{Opening, Run};
use super::{Core, Lookup, Session, about_no_request};
use crate::frame::{self, INTERNAL_ERROR, INVALID_REQUEST, Kind, Method, PARSE_ERROR, Parsed};

/// How many requests may be in flight.
const IN_FLIGHT: usize = 1024;
/// How many lines may wait to be written.
const LINES: usize = 64;
/// How long requests may go on when the input has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// How long the last lines may take to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Who is served, and how.
#[derive(Debug, Clone)]
pub struct LineClient {
    /// The server that the client talks to.
    pub server: String,
    /// The session that it had before, if it comes back.
    pub resume: Option<String>,
    /// What becomes of the session when the input ends.
    pub at_end: AtEnd,
}

/// What becomes of a session when its client has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// It is closed.
    Close,
    /// It stays, for a client that comes back.
    Keep,
}

/// Why a client over lines is served no longer.
#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    /// The session that it wants to resume is not there.
    #[error("the session cannot be resumed")]
    Resume(#[source] Lookup),
    /// Its lines cannot be read.
    #[error("reading from the client failed")]
    Read(#[source] io::Error),
    /// It cannot be written to.
    #[error("writing to the client failed")]
    Write(#[source] io::Error),
}

/// Serves one client until its input ends. `opened` is told the id of its session.
pub async fn serve_lines<C: Core>(
    core: Arc<C>,
    client: LineClient,
    reader: impl AsyncBufRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    opened: impl FnMut(&str),
) -> Result<(), LinesError> {
    let (lines, to_write) = mpsc::channel(LINES);
    let mut talk = Talk::new(core, client, lines, opened);
    let mut writing = std::pin::pin!(output::write_all(to_write, writer));
    let outcome = tokio::select! {
        read = talk.read_all(reader) => read,
        written = &mut writing => written.map_err(LinesError::Write),
    };
    if outcome.is_ok() {
        tokio::select! {
            // Who has closed its input may still want the answers; for how long, nobody knows.
            _ = timeout(LAST_ANSWERS, talk.answered()) => {}
            written = &mut writing => return written.map_err(LinesError::Write),
        }
    }
    talk.end().await;
    if outcome.is_ok() {
        // The client may have stopped reading for good.
        timeout(LAST_LINES, writing).await.unwrap_or(Ok(())).map_err(LinesError::Write)?;
    }
    outcome
}

/// What one client and we have going on.
struct Talk<C: Core, F> {
    core: Arc<C>,
    client: LineClient,
    opened: F,
    lines: mpsc::Sender<Outgoing>,
    /// Shared with the task of `initialize`, which empties it if that fails.
    session: Slot<C::Session>,
    tasks: JoinSet<()>,
    in_flight: Arc<Semaphore>,
}

type Slot<S> = Arc<Mutex<Option<S>>>;

impl<C: Core, F: FnMut(&str)> Talk<C, F> {
    fn new(core: Arc<C>, client: LineClient, lines: mpsc::Sender<Outgoing>, opened: F) -> Self {
        Self {
            core,
            client,
            opened,
            lines,
            session: Slot::default(),
            tasks: JoinSet::new(),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
        }
    }

    async fn read_all(&mut self, reader: impl AsyncBufRead + Unpin) -> Result<(), LinesError> {
        if let Some(id) = &self.client.resume {
            let session = self.core.session(&self.client.server, id).map_err(LinesError::Resume)?;
            let taken_up = session.streams().taken_up();
            self.enter(session);
            for stream in taken_up {
                let (reader, lines) = (stream.reader_for_good(), self.lines.clone());
                self.spawn(passing::rest(reader, lines));
            }
        }
        let mut input = Input::new(reader);
        loop {
            let line = tokio::select! {
                line = input.next() => line.map_err(LinesError::Read)?,
                () = over(&self.session) => None,
            };
            let Some(line) = line else { break };
            match line {
                Line::Text(text) if text.trim_ascii().is_empty() => {}
                Line::Text(text) => self.take(text).await,
                Line::TooLong => self.refuse(PARSE_ERROR, "the line is too long").await,
            }
        }
        Ok(())
    }

    /// Resolves when no request is open.
    async fn answered(&self) {
        let all = u32::try_from(IN_FLIGHT).unwrap_or(u32::MAX);
        drop(self.in_flight.acquire_many(all).await);
    }

    /// Gives all open requests up.
    async fn end(mut self) {
        self.tasks.shutdown().await;
        let session = lock(&self.session).take();
        if let Some(session) = session
            && self.client.at_end == AtEnd::Close
        {
            // It may have ended by itself.
            self.core.close(&self.client.server, session.id()).ok();
        }
    }

    async fn take(&mut self, text: Bytes) {
        if is_batch(&text) {
            return self.take_batch(&text).await;
        }
        let message = match Parsed::read(text) {
            Ok(message) => message,
            Err(error) => return self.refuse(error.code(), &error.to_string()).await,
        };
        let session = lock(&self.session).clone();
        match (message.kind(), session) {
            (Kind::Request, None) if message.method() == Some(&Method::Initialize) => {
                self.open(message).await;
            }
            (Kind::Request, None) => {
                self.fail(&message, INVALID_REQUEST, "`initialize` must come first").await;
            }
            (Kind::Request, Some(session)) if message.method() == Some(&Method::Initialize) => {
                if session.version().is_none() {
                    return self.initialize(session, message).await;
                }
                self.fail(&message, INVALID_REQUEST, "the session is initialized already").await;
            }
            (Kind::Request, Some(session)) => {
                let run = Run::new(&session, message);
                let (lines, permit) = (self.lines.clone(), self.permit().await);
                self.spawn(passing::request(session, run, lines, permit));
            }
            (Kind::Notification | Kind::Result | Kind::Error, Some(session)) => {
                session.post(message);
            }
            // Nobody to tell, and nobody waits for an answer.
            (Kind::Notification | Kind::Result | Kind::Error, None) => {}
        }
    }

    async fn take_batch(&mut self, text: &Bytes) {
        let session = lock(&self.session).clone();
        let version = session.as_ref().and_then(Session::version);
        let batch = Batch::read(text, version);
        let (session, Batch { requests, others }) = match (session, batch) {
            (Some(session), Ok(batch)) => (session, batch),
            (None, Ok(_)) => return,
            (_, Err(error)) => return self.refuse(INVALID_REQUEST, &error.to_string()).await,
        };
        for message in others {
            session.post(message);
        }
        if !requests.is_empty() {
            let run = Run::of(|out| Box::pin(batch::run(session, requests, out)));
            let (lines, permit) = (self.lines.clone(), self.permit().await);
            self.spawn(async move { drop(passing::all(run, &lines, permit).await) });
        }
    }

    async fn open(&mut self, message: Parsed) {
        match self.core.open(&self.client.server) {
            Ok(session) => {
                self.enter(session.clone());
                self.initialize(session, message).await;
            }
            Err(error) => self.fail(&message, INTERNAL_ERROR, &error.to_string()).await,
        }
    }

    async fn initialize(&mut self, session: C::Session, message: Parsed) {
        let opening = Opening::new(session.clone());
        let run = Run::new(&session, message);
        let (slot, lines, permit) =
            (Arc::clone(&self.session), self.lines.clone(), self.permit().await);
        self.spawn(async move {
            let answer = passing::all(run, &lines, permit).await;
            if opening.settle(answer.as_deref()).is_none() {
                *lock(&slot) = None;
            }
        });
    }

    /// From now on this is the client's session.
    fn enter(&mut self, session: C::Session) {
        (self.opened)(session.id());
        session.listens();
        let mut general = session.streams().general().reader_for_good();
        let lines = self.lines.clone();
        *lock(&self.session) = Some(session);
        self.spawn(async move {
            while let Some(item) = general.next().await {
                if lines.send(item.message.into()).await.is_err() {
                    return;
                }
            }
        });
    }

    async fn permit(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.in_flight).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended {
                error!(%error, "task failed");
            }
        }
        self.tasks.spawn(task);
    }

    async fn fail(&self, request: &Parsed, code: i64, message: &str) {
        match request.id() {
            Some(id) => self.say(frame::error(id, code, message)).await,
            None => self.refuse(code, message).await,
        }
    }

    async fn refuse(&self, code: i64, message: &str) {
        self.say(about_no_request(code, message)).await;
    }

    async fn say(&self, line: Bytes) {
        // Without a writer, `serve_lines` ends.
        self.lines.send(line.into()).await.ok();
    }
}

/// Resolves when the session has ended behind its client's back, as it does when its server is removed:
/// a client that goes on talking in it would never hear that. One whose `initialize` failed may try again.
async fn over<S: Session>(slot: &Slot<S>) {
    let session = lock(slot).clone();
    if let Some(session) = session {
        session.streams().general().closed().await;
        if lock(slot).is_some() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

fn lock<S>(slot: &Mutex<Option<S>>) -> std::sync::MutexGuard<'_, Option<S>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

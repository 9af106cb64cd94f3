//! One client over lines: a JSON-RPC message per line, as over stdio.
//!
//! `initialize` opens the session; lines that come before its answer, other than a `ping` and cancellations, wait for that. Every later
//! request runs in a task of its own, and what it and the general stream have to say is written as whole lines. At the end of the input open requests
//! have a few seconds left, then they are given up. A client that sends more than 1024 requests at a time, or does not read
//! what it is told, is read no further until it does.
//!
//! A request that goes on for 150 ms is written down until its answer is written to the client, so that it
//! outlives this daemon: a client that resumes its session is first told what became of such requests. A
//! client has no ids to come back with, so what it was told before the answer is not told again. Dropping
//! [`serve_lines`] gives open requests up, but ends no session: that is for the client to do.
//!
//! We may leave a client that others go on with. From then on no line of its is taken. The core lets go of
//! the session, its last answers are written, and only then it is told how many lines were taken: the core
//! has seen every message of those, and none of any other.

mod input;
mod output;
mod passing;

use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::input::{Input, Line};
use self::output::Outgoing;
use super::batch::{self, Batch, is_batch};
use super::run::{Opening, Run};
use super::{Core, Lookup, NO_DISCOVER, NOT_INITIALIZED, Session, about_no_request};
use crate::catch_panic::CatchPanic;
use crate::frame::{
    self, INTERNAL_ERROR, INVALID_REQUEST, Kind, METHOD_NOT_FOUND, Method, PARSE_ERROR, Parsed,
};

/// How many requests may be in flight.
const IN_FLIGHT: usize = 1024;
/// How many lines may wait to be written.
const LINES: usize = 64;
/// How long requests may go on when the input has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// How long answers may take to be passed on that are there when we leave.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// How long the last lines may take to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Who is served, and how.
#[derive(Debug, Clone)]
pub struct LineClient {
    /// The server that the client talks to.
    pub server: String,
    /// The session that it had before, if it comes back.
    pub resume: Option<String>,
}

/// How serving a client over lines came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client's input or its session has ended.
    Done,
    /// We left, and have told the client all we had to tell. Its session is as it was.
    Left {
        /// How many lines of the client were taken; for the others nothing was done.
        taken: u64,
    },
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
    /// A task panicked. The client may reconnect and resume its session.
    #[error("a bug in Mainstay ended the connection")]
    Broken,
    /// It did not read the last lines that it was told.
    #[error("the client does not read")]
    Deaf,
}

/// Serves one client until its input ends or `leave` resolves. `opened` is told the id of its session.
pub async fn serve_lines<C: Core>(
    core: Arc<C>,
    client: LineClient,
    reader: impl AsyncBufRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    leave: impl Future<Output = ()>,
    opened: impl FnMut(&str),
) -> Result<Ended, LinesError> {
    let (lines, to_write) = mpsc::channel(LINES);
    let mut talk = Talk::new(core, client, lines, opened);
    let mut writing = pin!(output::write_all(to_write, writer));
    let ended = tokio::select! {
        ended = talk.read_all(reader, leave) => ended,
        written = &mut writing => written.map(|()| Ended::Done).map_err(LinesError::Write),
    };
    if let Ok(ended) = ended {
        tokio::select! {
            _ = timeout(LAST_ANSWERS, talk.last_answers(ended)) => {}
            written = &mut writing => return written.map(|()| ended).map_err(LinesError::Write),
        }
    }
    let ended = talk.end(ended).await?;
    match (timeout(LAST_LINES, writing).await, ended) {
        (Ok(written), _) => written.map(|()| ended).map_err(LinesError::Write),
        // Who has closed its input may have stopped reading for good.
        (Err(_), Ended::Done) => Ok(ended),
        (Err(_), Ended::Left { .. }) => Err(LinesError::Deaf),
    }
}

/// What one client and we have going on.
struct Talk<C: Core, F> {
    core: Arc<C>,
    client: LineClient,
    opened: F,
    lines: mpsc::Sender<Outgoing>,
    /// Shared with the task of `initialize`, which empties it if that fails.
    session: Slot<C::Session>,
    /// Locked while an `initialize` is in flight.
    initializing: Arc<AsyncMutex<()>>,
    tasks: JoinSet<()>,
    /// Notified when a task has panicked: it is unknown which answers the client still waits for.
    broken: Arc<Notify>,
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
            initializing: Arc::default(),
            tasks: JoinSet::new(),
            broken: Arc::default(),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
        }
    }

    async fn read_all(
        &mut self,
        reader: impl AsyncBufRead + Unpin,
        leave: impl Future<Output = ()>,
    ) -> Result<Ended, LinesError> {
        self.resume().await?;
        let (mut input, mut leave) = (Input::new(reader), pin!(leave));
        let (mut taken, broken) = (0, Arc::clone(&self.broken));
        loop {
            let is_line = tokio::select! {
                biased;
                () = &mut leave => return Ok(Ended::Left { taken }),
                () = broken.notified() => return Err(LinesError::Broken),
                is_line = self.take_next(&mut input) => is_line?,
            };
            if !is_line {
                return Ok(Ended::Done);
            }
            taken += 1;
        }
    }

    async fn resume(&mut self) -> Result<(), LinesError> {
        let Some(id) = &self.client.resume else { return Ok(()) };
        let found = super::find(&*self.core, &self.client.server, id, None).await;
        let session = found.map_err(LinesError::Resume)?;
        let taken_up = session.streams().taken_up();
        self.enter(session);
        for stream in taken_up {
            let (reader, lines) = (stream.reader_for_good(), self.lines.clone());
            self.spawn(passing::rest(reader, lines));
        }
        Ok(())
    }

    /// Takes a line; false if there are no more. Nothing is done for a line if this is dropped before it
    /// is done.
    async fn take_next(
        &mut self,
        input: &mut Input<impl AsyncBufRead + Unpin>,
    ) -> Result<bool, LinesError> {
        let line = tokio::select! {
            line = input.next() => line.map_err(LinesError::Read)?,
            () = over(&self.session) => None,
        };
        match line {
            None => return Ok(false),
            Some(Line::Text(text)) if text.trim_ascii().is_empty() => {}
            Some(Line::Text(text)) => self.take(text).await,
            Some(Line::TooLong) => self.refuse(PARSE_ERROR, "the line is too long").await,
        }
        Ok(true)
    }

    /// Resolves when there will be no more answers.
    async fn last_answers(&mut self, ended: Ended) {
        match ended {
            // Who has closed its input may still want them; for how long, nobody knows.
            Ended::Done => self.answered().await,
            Ended::Left { .. } => {
                let session = lock(&self.session).clone();
                if let Some(session) = session {
                    session.streams().general().closed().await;
                }
                // What has no answer by now is for others to answer.
                timeout(LAST_WORDS, self.all_told()).await.ok();
            }
        }
    }

    /// Resolves when no request is open.
    async fn answered(&self) {
        let all = u32::try_from(IN_FLIGHT).unwrap_or(u32::MAX);
        drop(self.in_flight.acquire_many(all).await);
    }

    /// Resolves when all that there was to say is said.
    async fn all_told(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Gives all open requests up.
    async fn end(mut self, ended: Result<Ended, LinesError>) -> Result<Ended, LinesError> {
        self.tasks.shutdown().await;
        let session = lock(&self.session).take();
        let closes = match ended {
            Ok(Ended::Left { .. }) | Err(LinesError::Broken) => false,
            Ok(Ended::Done) | Err(_) => true,
        };
        if let Some(session) = session.filter(|_| closes) {
            // It may have ended by itself.
            self.core.close(&self.client.server, session.id()).ok();
        }
        ended
    }

    async fn take(&mut self, text: Bytes) {
        if is_batch(&text) {
            drop(self.initializing.lock().await);
            return self.take_batch(&text).await;
        }
        let message = match Parsed::read(text) {
            Ok(message) => message,
            Err(error) => return self.refuse(error.code(), &error.to_string()).await,
        };
        if !matches!(message.method(), Some(Method::Ping | Method::Cancelled)) {
            drop(self.initializing.lock().await);
        }
        let session = lock(&self.session).clone();
        match (message.kind(), session) {
            (Kind::Request, None) => match message.method() {
                Some(Method::Initialize) => self.open(message).await,
                Some(Method::Ping) => self.pong(&message).await,
                Some(Method::Discover) => {
                    self.fail(&message, METHOD_NOT_FOUND, NO_DISCOVER).await;
                }
                _ => self.fail(&message, INVALID_REQUEST, NOT_INITIALIZED).await,
            },
            (Kind::Request, Some(session)) if message.method() == Some(&Method::Initialize) => {
                if session.version().is_none() {
                    let permit = self.permit().await;
                    return self.initialize(&session, message, permit);
                }
                self.fail(&message, INVALID_REQUEST, "the session is initialized already").await;
            }
            (Kind::Request, Some(session)) => {
                let (lines, permit) = (self.lines.clone(), self.permit().await);
                let run = Run::new(&session, message);
                self.begin(passing::request(session, run, lines, permit));
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
        let permit = if requests.is_empty() { None } else { Some(self.permit().await) };
        for message in others {
            session.post(message);
        }
        if let Some(permit) = permit {
            let run = Run::of(|out| Box::pin(batch::run(session, requests, out)));
            let lines = self.lines.clone();
            self.begin(async move { drop(passing::all(run, &lines, permit).await) });
        }
    }

    async fn open(&mut self, message: Parsed) {
        let permit = self.permit().await;
        match self.core.open(&self.client.server) {
            Ok(session) => {
                self.enter(session.clone());
                self.initialize(&session, message, permit);
            }
            Err(error) => self.fail(&message, INTERNAL_ERROR, &error.to_string()).await,
        }
    }

    fn initialize(&mut self, session: &C::Session, message: Parsed, permit: OwnedSemaphorePermit) {
        let opening = Opening::new(session.clone());
        let run = Run::new(session, message);
        let (slot, lines) = (Arc::clone(&self.session), self.lines.clone());
        let initializing = Arc::clone(&self.initializing).try_lock_owned();
        self.begin(async move {
            let _initializing = initializing;
            let answer = passing::all(run, &lines, permit).await;
            if opening.settle(answer.as_deref()).is_none() {
                *lock(&slot) = None;
            }
        });
    }

    /// From now on this is the client's session.
    fn enter(&mut self, session: C::Session) {
        (self.opened)(session.id());
        let mut general = session.streams().general().reader_for_good();
        session.listens();
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

    /// Gives a request to the core at once, so that it knows of every line that was taken; what is left
    /// to do is done by a task.
    fn begin(&mut self, request: impl Future<Output = ()> + Send + 'static) {
        let mut request = Box::pin(request);
        // The task looks again, as soon as it runs: nothing need wake it before.
        let begun = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if begun.is_pending() {
            self.spawn_boxed(request);
        }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(task));
    }

    fn spawn_boxed<T: Future<Output = ()> + Send + 'static>(&mut self, task: Pin<Box<T>>) {
        while self.tasks.try_join_next().is_some() {}
        let (task, broken) = (CatchPanic::from(task), Arc::clone(&self.broken));
        self.tasks.spawn(async move {
            if task.await.is_none() {
                broken.notify_one();
            }
        });
    }

    async fn pong(&self, ping: &Parsed) {
        if let Some(id) = ping.id() {
            self.say(frame::empty_result(id)).await;
        }
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
    mainstay_core::lock(slot)
}

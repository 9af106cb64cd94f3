//! A session over the lines of a stdio server.
//!
//! One task owns the link. It never waits for the server to read before it reads what the server
//! writes, so the two cannot block each other. When the link ends, every request still open fails at
//! once, after the answers that had already arrived were handed out.

mod waiting;

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use self::waiting::{Answer, Waiting};
use super::cut::Cut;
use super::{
    IN_FLIGHT, LineLink, MAX_LINE, UpstreamError, cancelled, closed, cut, protocol, reply, settled,
    unsent,
};
use crate::frame::{self, Frame, Outcome};

/// How many lines may wait for the server to read before no more requests are taken in.
const OUTBOX: usize = 64;
/// How many may wait before the server's own requests are no longer answered: it does not read.
const OUTBOX_WITH_REPLIES: usize = 1024;

/// A handle on the task.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    inbox: mpsc::Sender<Message>,
    cancels: mpsc::Sender<u64>,
}

impl Lines {
    pub(super) fn spawn(link: LineLink) -> Self {
        let (inbox, messages) = mpsc::channel(OUTBOX);
        let (cancels, cancelled) = mpsc::channel(IN_FLIGHT);
        // Its end is awaited through `closed`: the inbox closes with it.
        drop(tokio::spawn(run(link, messages, cancelled)));
        Self { inbox, cancels }
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask(
        &self,
        id: u64,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let (answer, answered) = oneshot::channel();
        let line = frame::in_one_line(frame::request(id, method, params));
        if line.len() > MAX_LINE {
            return Err(UpstreamError::TooLarge { method: method.to_owned(), bytes: line.len() });
        }
        let message = Message::Ask { id, line, waiting: Waiting::new(answer) };
        self.inbox.send(message).await.map_err(|_| unsent(method))?;
        match answered.await {
            Ok(Answer::Ok(result)) => Ok(result),
            Ok(Answer::Error(error)) => settled(method, Outcome::Error(&error)),
            Ok(Answer::TooLong) => {
                Err(protocol(method, format_args!("a line of more than {MAX_LINE} bytes")))
            }
            Ok(Answer::Echo) => Err(UpstreamError::Protocol(
                "it sends back what it is sent, so it is no MCP server".to_owned(),
            )),
            Ok(Answer::Gone { sent }) => Err(closed(method, sent)),
            // Whoever held it would have said so; to assume that it was sent is safe.
            Err(_) => Err(closed(method, true)),
        }
    }

    pub(super) async fn notify(&self, method: &str, line: Bytes) -> Result<(), UpstreamError> {
        self.inbox.send(Message::Tell(frame::in_one_line(line))).await.map_err(|_| unsent(method))
    }

    /// Takes the ids of requests that nobody waits for any more.
    pub(super) fn cancels(&self) -> &mpsc::Sender<u64> {
        &self.cancels
    }

    pub(super) async fn closed(&self) {
        self.inbox.closed().await;
    }
}

#[derive(Debug)]
enum Message {
    Ask { id: u64, line: Bytes, waiting: Waiting },
    Tell(Bytes),
}

/// The task. Ending it drops the session, and with it fails every request still open.
async fn run(
    LineLink { to_server, mut from_server, junk }: LineLink,
    mut messages: mpsc::Receiver<Message>,
    mut cancels: mpsc::Receiver<u64>,
) {
    let mut session = Session { junk, pending: HashMap::new(), outbox: VecDeque::new() };
    loop {
        tokio::select! {
            line = from_server.recv() => match line {
                Some(line) => session.hear(&line),
                None => return,
            },
            room = to_server.reserve(), if !session.outbox.is_empty() => match room {
                Ok(room) => session.hand_over().map_or((), |line| room.send(line)),
                Err(_) => break,
            },
            message = messages.recv(), if session.outbox.len() < OUTBOX => match message {
                Some(message) => session.take(message),
                None => break,
            },
            Some(id) = cancels.recv() => session.cancel(id),
        }
    }
    // The server takes no more lines, or no handle is left. Answers that have already arrived still
    // count, and what is still to be said, such as a last cancellation, is said if there is room.
    while let Ok(line) = from_server.try_recv() {
        session.hear(&line);
    }
    while let Ok(id) = cancels.try_recv() {
        session.cancel(id);
    }
    while let Ok(room) = to_server.try_reserve() {
        let Some(line) = session.hand_over() else { return };
        room.send(line);
    }
}

/// What is open between us and the server.
struct Session {
    junk: mpsc::Sender<Bytes>,
    pending: HashMap<u64, Waiting>,
    /// Lines not yet taken by the server, with the id if it is a request of ours.
    outbox: VecDeque<(Option<u64>, Bytes)>,
}

impl Session {
    fn take(&mut self, message: Message) {
        match message {
            // The cancellation of a request may overtake it.
            Message::Ask { waiting, .. } if waiting.is_given_up() => {}
            Message::Ask { id, line, waiting } => {
                self.pending.insert(id, waiting);
                self.outbox.push_back((Some(id), line));
            }
            Message::Tell(line) => self.outbox.push_back((None, line)),
        }
    }

    /// The next line for the server, which counts as sent from now on.
    fn hand_over(&mut self) -> Option<Bytes> {
        let (id, line) = self.outbox.pop_front()?;
        if let Some(waiting) = id.and_then(|id| self.pending.get_mut(&id)) {
            waiting.sent = true;
        }
        Some(line)
    }

    fn cancel(&mut self, id: u64) {
        if self.pending.remove(&id).is_none() {
            return;
        }
        match self.outbox.iter().position(|(queued, _)| *queued == Some(id)) {
            Some(place) => drop(self.outbox.remove(place)),
            None => self.outbox.push_back((None, cancelled(id))),
        }
    }

    fn hear(&mut self, line: &Bytes) {
        if let Some(newline) = line.iter().position(|&byte| byte == b'\n') {
            let (head, tail) = (line.slice(..newline), &line[newline + 1..]);
            return self.hear_cut(head, tail);
        }
        for message in frame::split(line) {
            match frame::scan(message) {
                Ok(Frame::Response { id, outcome }) => {
                    let pending = id.and_then(|id| self.pending.remove(&id.as_u64()?));
                    if let Some(pending) = pending {
                        pending.answer(Answer::from(outcome));
                    } else {
                        debug!(?id, "answer to no open request dropped");
                    }
                }
                Ok(Frame::Request { id, method, .. }) => {
                    // Our ids are far from those that servers choose, so this one is ours.
                    let echo = id.as_u64().and_then(|id| self.pending.remove(&id));
                    if let Some(echo) = echo {
                        echo.answer(Answer::Echo);
                    } else if self.outbox.len() < OUTBOX_WITH_REPLIES {
                        self.outbox.push_back((None, reply(id, &method)));
                    } else {
                        debug!(%id, %method, "request of a server that does not read dropped");
                    }
                }
                Ok(Frame::Notification { method, .. }) => debug!(%method, "notification dropped"),
                Err(_) => drop(self.junk.try_send(line.slice_ref(message))),
            }
        }
    }

    /// Takes in the two ends of a line that was too long. An answer fails the request it is for. If
    /// it does not tell which, it is for the only one that the server has; if the server has
    /// several, none of them is to suffer for it, and it counts as junk.
    fn hear_cut(&mut self, head: Bytes, tail: &[u8]) {
        let id = match cut::read(&head, tail) {
            Cut::Answer(id) => Some(id),
            Cut::SomeAnswer => self.only_one_sent(),
            Cut::NoAnswer => None,
        };
        match id.map(|id| self.pending.remove(&id)) {
            Some(Some(waiting)) => waiting.answer(Answer::TooLong),
            Some(None) => debug!(?id, "answer to no open request dropped"),
            None => drop(self.junk.try_send(head)),
        }
    }

    fn only_one_sent(&self) -> Option<u64> {
        let mut sent = self.pending.iter().filter(|(_, waiting)| waiting.sent);
        let only = sent.next().map(|(id, _)| *id);
        only.filter(|_| sent.next().is_none())
    }
}

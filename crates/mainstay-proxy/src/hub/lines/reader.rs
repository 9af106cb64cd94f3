//! The task that hears a server.
//!
//! It tells how many lines were heard ([`LineLink::heard`](crate::LineLink)), so that the rest can be told to
//! another daemon if this one dies. A line counts when all that is to be written down of it is: what goes
//! to streams is noted as it is heard; an answer is when its request's task has finished the stream, so its
//! line, and those after it, count only then. What is heard a second time after all does no harm but
//! to repeat a notification: an answer finds nobody who waits for it. A daemon that gives way waits a moment
//! until all lines count.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::{Client, Pending, Reply, StdioConn};
use crate::frame::{self, Id, Kind, Method, Parsed};
use crate::hub::notifications::{Caller, NotificationRouter};
use crate::stream::Stream;
use crate::upstream::NO_MESSAGE;
use crate::upstream::cut::{self, Cut};

/// Lines that are taken in at a time.
const BATCH: usize = 64;

/// How often to look whether answers were finished, while the server is silent.
const LOOK: Duration = Duration::from_millis(5);

/// How long lines are not counted for the sake of an answer: a server whose output nobody confirms has to
/// wait some day.
const UNFINISHED: Duration = Duration::from_secs(1);

/// The task that hears the server.
pub(super) struct Reader {
    conn: Arc<StdioConn>,
    notifications: NotificationRouter,
    junk: mpsc::Sender<Bytes>,
    written: watch::Receiver<u64>,
    heard: watch::Sender<u64>,
    /// How many lines have been heard.
    lines: u64,
    /// The answers whose streams were not finished when last looked at.
    unfinished: VecDeque<Unfinished>,
}

/// An answer that was heard, on its way to its stream.
struct Unfinished {
    line: u64,
    stream: Weak<Stream>,
    until: Instant,
}

impl Reader {
    pub(super) fn new(
        conn: Arc<StdioConn>,
        notifications: NotificationRouter,
        junk: mpsc::Sender<Bytes>,
        written: watch::Receiver<u64>,
        heard: watch::Sender<u64>,
    ) -> Self {
        Self { conn, notifications, junk, written, heard, lines: 0, unfinished: VecDeque::new() }
    }

    pub(super) async fn run(&mut self, past: Vec<Bytes>, mut from_server: mpsc::Receiver<Bytes>) {
        for line in past {
            self.hear_past(&line);
        }
        let mut lines = Vec::new();
        loop {
            let read = from_server.recv_many(&mut lines, BATCH);
            let read = if self.unfinished.is_empty() {
                Some(read.await)
            } else {
                timeout(LOOK, read).await.ok()
            };
            if read == Some(0) {
                break;
            }
            for line in lines.drain(..) {
                self.lines += 1;
                self.hear(&line);
            }
            self.tell_heard();
        }
    }

    /// Called when the output has ended: fails all pending requests.
    pub(super) fn close(&self) {
        let open = {
            let mut router = self.conn.router();
            router.closed = true;
            std::mem::take(&mut router.pending)
        };
        let written = *self.written.borrow();
        for pending in open.into_values() {
            // Whoever waited may have gone meanwhile.
            pending.reply.send(Reply::Gone { sent: pending.line <= written }).ok();
        }
        self.notifications.lost(self.conn.generation);
    }

    /// Tells how many lines need not be heard again.
    fn tell_heard(&mut self) {
        let now = Instant::now();
        while self.unfinished.front().is_some_and(|answer| answer.is_settled(now)) {
            self.unfinished.pop_front();
        }
        let heard = self.unfinished.front().map_or(self.lines, |answer| answer.line - 1);
        // Looked at last: streams that were closed because another daemon takes over are not settled.
        if !self.conn.write_fence.is_shut() {
            self.heard.send_if_modified(|told| std::mem::replace(told, heard) != heard);
        }
        self.conn.all_heard.store(self.unfinished.is_empty(), Ordering::Relaxed);
    }

    /// Takes in a line that an earlier daemon may have heard.
    fn hear_past(&mut self, line: &Bytes) {
        let parts = match line.first() {
            Some(b'[') => frame::split(line).into_iter().map(|part| line.slice_ref(part)).collect(),
            _ => vec![line.clone()],
        };
        for message in parts.into_iter().filter_map(|part| Parsed::read(part).ok()) {
            if matches!(message.kind(), Kind::Result | Kind::Error)
                && let Some(pending) = self.take(&message)
            {
                self.settle(pending, Reply::Answer(message));
            }
        }
    }

    fn hear(&mut self, line: &Bytes) {
        if let Some(newline) = memchr::memchr(b'\n', line) {
            return self.hear_cut(&line[..newline], &line[newline + 1..]);
        }
        if line.first() == Some(&b'[') {
            for part in frame::split(line) {
                self.hear_one(line.slice_ref(part));
            }
        } else {
            self.hear_one(line.clone());
        }
    }

    fn hear_one(&mut self, text: Bytes) {
        let Ok(message) = Parsed::read(text.clone()) else {
            if let Some(pending) = self.take_invalid(&text) {
                self.settle(pending, Reply::Invalid);
            }
            // The log of a server that floods it may be full.
            self.junk.try_send(marked(&text)).ok();
            return;
        };
        debug_assert!(!frame::is_test_panic(&message), "asked for by a test");
        match message.kind() {
            Kind::Result | Kind::Error => {
                if let Some(pending) = self.take(&message) {
                    self.settle(pending, Reply::Answer(message));
                } else if let Some((pending, answer)) = self.take_unreadable(&message) {
                    self.settle(pending, Reply::Answer(answer));
                } else {
                    debug!("answer to no open request dropped");
                    if message.id().is_none() {
                        // Logged, because it may explain why a request is never answered.
                        self.junk.try_send(text).ok();
                    }
                }
            }
            // Our ids are far from those that servers choose, so this one is ours.
            Kind::Request => match self.take(&message) {
                Some(pending) => self.settle(pending, Reply::Echo),
                None => self.notifications.asked(&self.conn, &self.callers(), &message),
            },
            Kind::Notification if message.method() == Some(&Method::Progress) => {
                self.progress(&message);
            }
            Kind::Notification => {
                if !self.notifications.told(&self.conn, &self.callers(), &message) {
                    self.junk.try_send(text).ok();
                }
            }
        }
    }

    /// Hands over what became of a request.
    fn settle(&mut self, Pending { reply, client, .. }: Pending, outcome: Reply) {
        // Whoever waited may have gone meanwhile.
        reply.send(outcome).ok();
        // Of what is past, no line is counted.
        if let Some(Client { out, .. }) = client.filter(|_| self.lines > 0) {
            let until = Instant::now() + UNFINISHED;
            let stream = Arc::downgrade(&out);
            self.unfinished.push_back(Unfinished { line: self.lines, stream, until });
        }
    }

    /// The request that an invalid line seems to answer: one whose id it has.
    fn take_invalid(&self, line: &[u8]) -> Option<Pending> {
        let line = line.trim_ascii_start();
        if line.first() != Some(&b'{') {
            return None;
        }
        let key = br#""id":"#;
        let after = &line[memchr::memmem::find(line, key)? + key.len()..];
        let after = after.trim_ascii_start();
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let id = std::str::from_utf8(&after[..digits]).ok()?.parse().ok()?;
        self.conn.router().pending.remove(&id)
    }

    /// The request of ours that this message bears the id of.
    fn take(&self, message: &Parsed) -> Option<Pending> {
        let id = message.id()?.as_u64()?;
        self.conn.router().pending.remove(&id)
    }

    /// Matches an error without an id (the server could not parse a line) to its request, and rewrites it as
    /// the answer. This is possible only if one request is pending and its line was the last one sent;
    /// otherwise the error may be about another line.
    fn take_unreadable(&self, message: &Parsed) -> Option<(Pending, Parsed)> {
        let error = message.error().filter(|_| message.id().is_none())?;
        let [code] = frame::members(error, ["code"]).ok()?;
        // Other errors without an id respond to notifications and are ignored.
        matches!(code?.get().parse(), Ok(frame::PARSE_ERROR | frame::INVALID_REQUEST))
            .then_some(())?;
        let mut router = self.conn.router();
        let (&id, only) = router.pending.iter().next().filter(|_| router.pending.len() == 1)?;
        (only.line == router.lines).then_some(())?;
        let own = id.to_string();
        let answer = Parsed::read(frame::error_text(Id::new(&own)?, error)).ok()?;
        Some((router.pending.remove(&id)?, answer))
    }

    /// Progress bears the id of its request as its token.
    fn progress(&self, message: &Parsed) {
        let Some(told) = message.progress() else { return };
        let id = Id::new(message.get(told.token)).and_then(Id::as_u64);
        let client = id.and_then(|id| self.conn.router().pending.get(&id)?.client.clone());
        if let Some(Client { out, progress: Some(progress), .. }) = client
            && progress.admits(told.value)
        {
            out.push(message.with(told.token, progress.token()));
        }
    }

    /// The clients that wait for this server.
    fn callers(&self) -> Vec<Caller> {
        let router = self.conn.router();
        let clients = router.pending.values().filter_map(|pending| pending.client.as_ref());
        clients.map(|Client { session, out, .. }| Caller::new(session, out)).collect()
    }

    /// Takes in the two ends of a line that was too long. An answer fails the request it is for. If
    /// it does not tell which, it is for the only one that the server has; if the server has
    /// several, none of them is to suffer for it, and it counts as junk.
    fn hear_cut(&mut self, head: &[u8], tail: &[u8]) {
        let mut router = self.conn.router();
        let id = match cut::read(head, tail) {
            Cut::Answer(id) => Some(id),
            Cut::SomeAnswer if router.pending.len() == 1 => router.pending.keys().next().copied(),
            Cut::SomeAnswer | Cut::NoAnswer => None,
        };
        let pending = id.and_then(|id| router.pending.remove(&id));
        drop(router);
        match pending {
            Some(pending) => self.settle(pending, Reply::TooLong),
            None => drop(self.junk.try_send(marked(head))),
        }
    }
}

/// A line that is not an MCP message, as the log has it.
fn marked(text: &[u8]) -> Bytes {
    [NO_MESSAGE.as_bytes(), text].concat().into()
}

impl Unfinished {
    fn is_settled(&self, now: Instant) -> bool {
        let is_open = |stream: &Arc<Stream>| !stream.is_finished() && !stream.is_closed();
        now >= self.until || !self.stream.upgrade().as_ref().is_some_and(is_open)
    }
}

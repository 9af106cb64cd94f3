//! A stream of messages toward a client, and its event log.
//!
//! The core writes a [`Stream`], a front reads it with a [`Reader`]. Each request has one, until its
//! answer; each session has a general one for what the server says unasked ([`Streams`]).
//!
//! - A reader gets each message once, in the order of the pushes, the answer last.
//! - There is one reader at a time: a new one replaces the older, whose stream then ends.
//! - A stream that may be resumed outlives its reader; the next one can go back to any message that
//!   is still in the log. Without that, a stream whose reader has gone is closed.
//! - Memory is bounded: see [`Stream::push`].
//! - A stream that is written down for a later daemon is so before anybody reads it: each message is noted
//!   before it wakes the reader. When that is forbidden, because another daemon takes over, the stream
//!   closes, and nobody reads what the other one does not know.

mod durable;
mod event;
mod log;
mod reader;
mod streams;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use self::durable::Durable;
use self::log::{Log, Pushed};
use crate::record::Sent;

pub(crate) use self::durable::Inherited;
pub use self::event::{EventId, NotOurs};
pub use self::log::Item;
pub use self::reader::{Reader, Ready, Start};
pub use self::streams::{Found, Streams};

/// One stream.
pub struct Stream {
    shared: Mutex<Shared>,
    /// Something changed that [`Stream::until`] may wait for.
    changed: Notify,
    /// What an earlier daemon did about its request.
    inherited: Option<Box<Inherited>>,
}

struct Shared {
    log: Log,
    durable: Durable,
    /// Where the request is being worked on.
    sent: Option<Sent>,
    /// How many readers there have been; the present one is the last of them.
    readers: u64,
    has_reader: bool,
    is_resumable: bool,
    is_closed: bool,
    /// When the last reader left, if the stream can be resumed.
    left: Option<Instant>,
    waker: Option<Waker>,
}

impl Stream {
    /// The stream of a request.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::with(Log::new(&log::REQUEST), false))
    }

    /// The general stream of a session.
    fn general() -> Arc<Self> {
        Arc::new(Self::with(Log::new(&log::GENERAL), true))
    }

    /// Adds a notification, or a request of the server, before the answer.
    ///
    /// When more than 1024 messages or 4 MiB are unread (256 and 256 KiB in a general stream) the
    /// oldest unread notifications are dropped. Gives false if the message was not taken: the
    /// stream has ended, or unread requests of the server fill it.
    pub fn push(&self, message: Bytes) -> bool {
        let mut shared = self.lock();
        if shared.is_closed {
            return false;
        }
        let pushed = shared.log.push(message.clone());
        if pushed != Pushed::Refused && !shared.note_message(message) {
            shared.close();
            drop(shared);
            self.changed.notify_waiters();
            return false;
        }
        shared.wake();
        drop(shared);
        match pushed {
            Pushed::Taken => true,
            Pushed::Overflowed => {
                warn!("notifications dropped: the client does not read its stream");
                true
            }
            Pushed::Refused => false,
        }
    }

    /// Ends the stream with the one answer, or without if none is due (the request was cancelled).
    /// Later calls are ignored.
    pub fn finish(&self, answer: Option<Bytes>) {
        let mut shared = self.lock();
        if !shared.log.finish(answer.clone()) {
            return;
        }
        if answer.is_none_or(|answer| shared.note_answer(answer)) {
            shared.wake();
        } else {
            shared.close();
            drop(shared);
            self.changed.notify_waiters();
        }
    }

    /// Resolves when fewer than 64 messages and less than 1 MiB are unread, or when nobody will read
    /// any more. A general stream may have no reader for long: write to it without waiting.
    pub async fn room(&self) {
        self.until(|shared| shared.log.has_room() || shared.is_closed).await;
    }

    /// Resolves when nobody reads the stream and nobody can come back to it, or when it was
    /// cancelled.
    pub async fn closed(&self) {
        self.until(|shared| shared.is_closed).await;
    }

    /// Closes the stream at once; its reader gets no more.
    pub fn cancel(&self) {
        self.lock().close();
        self.changed.notify_waiters();
    }

    /// See [`Stream::closed`].
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Whether somebody reads it now.
    pub fn has_reader(&self) -> bool {
        self.lock().is_attached()
    }

    /// When the last reader left, if the stream can be resumed.
    pub(crate) fn left_at(&self) -> Option<Instant> {
        self.lock().left
    }

    /// Whether [`Stream::finish`] was called.
    pub fn is_finished(&self) -> bool {
        self.lock().log.has_ended()
    }

    /// The answer, once there is one.
    pub fn answer(&self) -> Option<Bytes> {
        self.lock().log.answer().cloned()
    }

    /// How many notifications were dropped because the client was slow.
    pub fn dropped(&self) -> u64 {
        self.lock().log.dropped()
    }

    /// Begins to read. An older reader gets no more.
    pub fn reader(self: &Arc<Self>, start: Start) -> Reader {
        Reader::attach(Arc::clone(self), start)
    }

    /// From now on a reader may go and another come back.
    pub fn keep(&self) {
        self.lock().is_resumable = true;
    }

    /// Resolves when nobody has read the stream for this long, or when it is closed.
    pub async fn abandoned_for(&self, patience: Duration) {
        loop {
            self.until(|shared| !shared.is_attached() || shared.is_closed).await;
            let back = self.until(|shared| shared.is_attached() || shared.is_closed);
            if tokio::time::timeout(patience, back).await.is_err() || self.is_closed() {
                return;
            }
        }
    }

    fn with(log: Log, is_resumable: bool) -> Self {
        let shared = Shared {
            log,
            durable: Durable::No,
            sent: None,
            readers: 0,
            has_reader: false,
            is_resumable,
            is_closed: false,
            left: None,
            waker: None,
        };
        Self { shared: Mutex::new(shared), changed: Notify::new(), inherited: None }
    }

    async fn until(&self, holds: impl Fn(&Shared) -> bool) {
        loop {
            // Made before the look, so that no change after it is missed.
            let changed = self.changed.notified();
            if holds(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        mainstay_core::lock(&self.shared)
    }
}

impl Shared {
    fn is_attached(&self) -> bool {
        self.has_reader
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.wake();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.lock();
        f.debug_struct("Stream")
            .field("last", &shared.log.last())
            .field("is_attached", &shared.is_attached())
            .field("is_closed", &shared.is_closed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

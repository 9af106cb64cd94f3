//! Reading a stream.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::Instant;

use super::log::{Item, Next};
use super::{Shared, Stream};

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With what no earlier reader got.
    Unread,
    /// After the message with this number, as far as what follows is still there.
    After(u64),
}

/// The first thing that a stream has to say.
#[derive(Debug, PartialEq, Eq)]
pub enum Ready {
    /// The answer, with no message before it.
    Answer(Bytes),
    /// A message before the answer.
    Message,
    /// There will be nothing.
    End,
}

/// The one reader of a stream. Dropping it leaves the stream.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<Stream>,
    turn: u64,
    /// The number of the last message that it got, or after which it begins.
    position: u64,
    has_answer: bool,
}

impl Reader {
    pub(super) fn attach(stream: Arc<Stream>, start: Start) -> Self {
        let mut shared = stream.lock();
        shared.readers += 1;
        shared.has_reader = true;
        match start {
            Start::Unread => {}
            Start::After(number) => shared.log.rewind(number),
        }
        // The reader before this one learns that its turn is over.
        shared.wake();
        let (turn, position) = (shared.readers, shared.log.position());
        drop(shared);
        stream.changed.notify_waiters();
        Self { stream, turn, position, has_answer: false }
    }

    /// The next message; `None` when the stream has ended, was closed or has a newer reader.
    pub async fn next(&mut self) -> Option<Item> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// See [`Reader::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut shared = self.stream.lock();
        if !self.may_read(&shared) {
            return Poll::Ready(None);
        }
        let was_full = !shared.log.has_room();
        match shared.log.next() {
            Next::Item(item) => {
                let is_drained = was_full && shared.log.has_room();
                drop(shared);
                self.position = item.number;
                self.has_answer |= item.is_answer;
                if is_drained {
                    self.stream.changed.notify_waiters();
                }
                Poll::Ready(Some(item))
            }
            Next::Wait => wait(&mut shared, cx),
            Next::End => Poll::Ready(None),
        }
    }

    /// Waits for the first thing to read, and leaves it unread.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Ready> {
        let mut shared = self.stream.lock();
        if !self.may_read(&shared) {
            return Poll::Ready(Ready::End);
        }
        match shared.log.peek() {
            Next::Item(item) if item.is_answer => Poll::Ready(Ready::Answer(item.message)),
            Next::Item(_) => Poll::Ready(Ready::Message),
            Next::Wait => wait(&mut shared, cx),
            Next::End => Poll::Ready(Ready::End),
        }
    }

    /// The number after which the next message comes. A reader that begins after it misses nothing.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether it got the answer.
    pub(crate) fn has_answer(&self) -> bool {
        self.has_answer
    }

    /// The stream that it reads.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    fn may_read(&self, shared: &Shared) -> bool {
        shared.readers == self.turn && !shared.is_closed
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut shared = self.stream.lock();
        if shared.readers != self.turn {
            return;
        }
        shared.has_reader = false;
        shared.waker = None;
        if shared.is_resumable {
            shared.left = Some(Instant::now());
        } else {
            shared.close();
        }
        drop(shared);
        self.stream.changed.notify_waiters();
    }
}

fn wait<T>(shared: &mut Shared, cx: &Context<'_>) -> Poll<T> {
    match &mut shared.waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => shared.waker = Some(cx.waker().clone()),
    }
    Poll::Pending
}

//! Reading a stream.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use mainstay_session::{Commit, EventId, Item, Peek, Read, StreamRef, StreamState};

use super::ServerHandle;
use super::operation::Operation;

/// What a stream contains first.
#[derive(Debug, PartialEq, Eq)]
pub enum Ready {
    /// The answer, with no message before it.
    Answer(Bytes),
    /// A message before the answer.
    Message,
    /// There will be nothing.
    End,
}

/// The one reader of a stream. Dropping it leaves the stream; a request whose client cannot resume is given up then.
#[derive(Debug)]
pub struct Reader {
    server: ServerHandle,
    stream: StreamRef,
    turn: u64,
    /// The number of the last message that it got, or after which it begins.
    position: u64,
    has_answer: bool,
    /// An operation that this reader performs while it waits for its first message.
    operation: Option<Operation>,
}

impl Reader {
    pub(super) fn new(server: ServerHandle, stream: StreamRef, turn: u64, position: u64) -> Self {
        Self { server, stream, turn, position, has_answer: false, operation: None }
    }

    /// Has it perform an operation.
    pub(super) fn performing(mut self, operation: Option<Operation>) -> Self {
        self.operation = operation;
        self
    }

    /// The next message; `None` when the stream has ended, was closed or has a newer reader.
    pub async fn next(&mut self) -> Option<Item> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// See [`Reader::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.leave_operation();
        let read = self.server.enter_with(|state, _| {
            let read = state.machine.read(self.stream, self.turn);
            if read == Read::Wait {
                state.set_waker(self.stream, cx.waker());
            }
            read
        });
        match read {
            Read::Item(item) => {
                self.position = item.number;
                self.has_answer |= item.is_answer;
                Poll::Ready(Some(item))
            }
            Read::Wait => Poll::Pending,
            Read::End => Poll::Ready(None),
        }
    }

    /// Waits for the first thing to read, and leaves it unread.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Ready> {
        if let Some(operation) = &mut self.operation
            && let Poll::Ready(done) = operation.poll(cx)
        {
            self.operation = None;
            if let Some(done) = done {
                self.server.enter_with(|state, now| {
                    // It need not be woken: it looks below.
                    state.take_waker(self.stream);
                    state.finish(now, done);
                });
            }
        }
        let mut state = self.server.lock();
        match state.machine.peek(self.stream, self.turn) {
            Peek::Answer(answer) => Poll::Ready(Ready::Answer(answer)),
            Peek::Message => Poll::Ready(Ready::Message),
            Peek::End => Poll::Ready(Ready::End),
            Peek::Wait => {
                state.set_waker(self.stream, cx.waker());
                Poll::Pending
            }
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

    /// The state of its stream; `None` if that is forgotten.
    pub fn state(&self) -> Option<StreamState> {
        self.server.lock().machine.stream_state(self.stream)
    }

    /// The head of the response is about to be sent: from now on its client can resume the stream. Returns the
    /// event before the first message.
    pub fn commit(&mut self, commit: Commit) -> Option<EventId> {
        self.leave_operation();
        self.server.enter(|machine, now| machine.commit(now, self.stream, commit))
    }

    /// The client is given the id of an event of this stream.
    pub(crate) fn event_id_sent(&self) {
        self.server.lock().machine.event_id_sent(self.stream);
    }

    /// The client cannot resume the stream: if it is not read to its end, its request is given up.
    pub(crate) fn end_resumption(&self) {
        self.server.lock().machine.end_resumption(self.stream);
    }

    /// Continues the operation in a task, so that it does not depend on the reader.
    pub(super) fn leave_operation(&mut self) {
        if let Some(operation) = self.operation.take() {
            operation.spawn();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.server.enter(|machine, now| machine.reader_left(now, self.stream, self.turn));
        // It was aborted if it is not needed.
        self.leave_operation();
    }
}

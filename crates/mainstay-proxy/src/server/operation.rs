//! Exchanges with HTTP servers, from their start to their end.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use futures_util::task::AtomicWaker;
use mainstay_mcp::client::{Client, Trace};
use mainstay_session::{HttpFailure, HttpOperation, HttpOutcome, OperationKey, SentRequest};
use tokio::runtime::Handle;

use super::http::Exchange;
use super::{Inner, ServerHandle, State};
use crate::catch_panic::CatchPanic;

/// An operation that was started, as its server sees it.
pub(super) struct OperationIo {
    key: OperationKey,
    control: Arc<Control>,
}

/// What the server and the performer of an operation share.
#[derive(Default)]
pub(super) struct Control {
    is_aborted: AtomicBool,
    /// The client has read some of what was reported.
    has_room: AtomicBool,
    performer: AtomicWaker,
    pub(super) trace: Trace,
}

impl OperationIo {
    pub(super) fn abort(&self) {
        self.control.set(&self.control.is_aborted);
    }

    pub(super) fn resume(&self) {
        self.control.set(&self.control.has_room);
    }

    /// The request that it has sent last, or will send when it has a connection.
    pub(super) fn sent_request(&self) -> SentRequest {
        let (port, bytes) = self.control.trace.get().unzip();
        SentRequest { operation: self.key, port, bytes: bytes.unwrap_or(0), is_closed: false }
    }
}

impl Control {
    fn set(&self, flag: &AtomicBool) {
        flag.store(true, Ordering::Release);
        self.performer.wake();
    }

    /// Waits until the client has read some.
    pub(super) async fn room(&self) {
        // The performer is woken for all that changes here.
        let poll = |_: &mut Context<'_>| {
            if self.has_read() { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(poll).await;
    }

    /// Whether the client has read some since this was asked last.
    pub(super) fn has_read(&self) -> bool {
        self.has_room.swap(false, Ordering::Acquire)
    }
}

/// An operation that was started, and continues while it is polled: by the reader of its request, which saves a task
/// for most calls, or by a task of its own.
pub(super) struct Operation {
    server: Weak<Inner>,
    key: OperationKey,
    control: Arc<Control>,
    perform: CatchPanic<dyn Future<Output = HttpOutcome> + Send>,
}

impl Operation {
    pub(super) fn start(
        server: &ServerHandle,
        key: OperationKey,
        client: Client,
        operation: HttpOperation,
    ) -> (OperationIo, Self) {
        let (server, control) = (server.downgrade(), Arc::<Control>::default());
        let exchange =
            Exchange { server: Weak::clone(&server), key, client, control: Arc::clone(&control) };
        let perform: Pin<Box<dyn Future<Output = _> + Send>> = match operation {
            // Apart from the others, because its future is small, and made for every call.
            HttpOperation::Request { session, message } => {
                Box::pin(async move { exchange.perform_request(&session, &message).await })
            }
            operation => Box::pin(async move { exchange.perform(operation).await }),
        };
        let io = OperationIo { key, control: Arc::clone(&control) };
        (io, Self { server, key, control, perform: perform.into() })
    }

    /// Has it performed by a task.
    pub(super) fn spawn(mut self) {
        // Without a runtime, all ends.
        if self.is_aborted() || Handle::try_current().is_err() {
            return;
        }
        drop(tokio::spawn(async move {
            let done = poll_fn(|cx| self.poll(cx)).await;
            if let (Some(done), Some(inner)) = (done, self.server.upgrade()) {
                ServerHandle { inner }.enter_with(|state, now| state.finish(now, done));
            }
        }));
    }

    /// Continues it. `None` if it was aborted.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Done>> {
        self.control.performer.register(cx.waker());
        if self.is_aborted() {
            return Poll::Ready(None);
        }
        let outcome = ready!(Pin::new(&mut self.perform).poll(cx));
        // It fails if it panicked.
        let outcome = outcome.unwrap_or(HttpOutcome::Failed(HttpFailure::Lost));
        Poll::Ready(Some(Done { key: self.key, outcome }))
    }

    fn is_aborted(&self) -> bool {
        self.control.is_aborted.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("key", &self.key).finish_non_exhaustive()
    }
}

/// An operation that has ended.
pub(super) struct Done {
    key: OperationKey,
    outcome: HttpOutcome,
}

impl State {
    pub(super) fn insert_operation(&mut self, io: OperationIo) {
        let index = io.key.index();
        if self.operations.len() <= index {
            self.operations.resize_with(index + 1, || None);
        }
        self.operations[index] = Some(io);
    }

    pub(super) fn operation(&self, key: OperationKey) -> Option<&OperationIo> {
        self.operations.get(key.index())?.as_ref().filter(|io| io.key == key)
    }

    pub(super) fn remove_operation(&mut self, key: OperationKey) -> Option<OperationIo> {
        self.operations.get_mut(key.index())?.take_if(|io| io.key == key)
    }

    /// Reports how an operation ended.
    pub(super) fn finish(&mut self, now: std::time::Instant, Done { key, outcome }: Done) {
        self.remove_operation(key);
        self.machine.http_done(now, key, outcome);
    }
}

//! Requests of a client that are not answered yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Session, seconds};
use crate::frame::Id;
use crate::stream::Stream;

/// One of them.
pub(super) struct Open {
    pub(super) stream: Arc<Stream>,
    /// Whether the client has answered a question of the server's on its account.
    pub(super) interactive: bool,
}

impl Open {
    /// Whether an earlier daemon has sent it to the run of that generation, which can still answer.
    pub(super) fn was_sent_to(&self, generation: u64) -> bool {
        let sent = self.stream.inherited().and_then(|inherited| inherited.sent);
        sent.is_some_and(|sent| sent.generation == generation && sent.line.is_some())
    }
}

impl Session {
    /// Takes note of a request of the client for as long as the result lives.
    pub(in crate::hub) fn open<'a>(
        &'a self,
        id: Id<'a>,
        stream: &'a Arc<Stream>,
    ) -> OpenRequest<'a> {
        self.inner.used.store(seconds(self.hub().wall()), Ordering::Relaxed);
        let open = Open { stream: Arc::clone(stream), interactive: false };
        self.state().open.insert(id.get().into(), open);
        OpenRequest { session: self, id: id.get(), stream }
    }

    /// Whether every open request is answered or written down.
    pub(in crate::hub) fn is_settled(&self) -> bool {
        let is_settled = |open: &Open| open.stream.is_written_down() || open.stream.is_finished();
        self.state().open.values().all(is_settled)
    }

    /// Whether no request is open.
    pub(in crate::hub) fn is_idle(&self) -> bool {
        self.state().open.is_empty()
    }

    /// Whether an open request would miss its answer if another daemon took over.
    pub(in crate::hub) fn is_bound(&self) -> bool {
        self.state().open.values().any(|open| open.stream.is_bound())
    }
}

/// An open request. It is closed when this is dropped.
pub(in crate::hub) struct OpenRequest<'a> {
    session: &'a Session,
    id: &'a str,
    stream: &'a Arc<Stream>,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.session.state();
        // A client that uses an id twice has only the newer request under it.
        if state.open.get(self.id).is_some_and(|open| Arc::ptr_eq(&open.stream, self.stream)) {
            state.open.remove(self.id);
        }
        // Nobody waits for the answer to a question that was part of it.
        state.asks.end_with(self.stream);
    }
}

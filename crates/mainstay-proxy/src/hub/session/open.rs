//! Requests of a client that are not answered yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Session;
use crate::frame::{Id, Method, Parsed};
use crate::hub::{LARGE, OPEN, OPEN_BYTES, OPEN_BYTES_IN_SESSION, OPEN_IN_SESSION};
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
        let Some(inherited) = self.stream.inherited() else { return false };
        let is_there = inherited.sent.is_some_and(|sent| sent.generation == generation);
        is_there && inherited.can_be_answered()
    }
}

impl Session {
    /// Registers a request of the client for as long as the result lives. `None` if a limit is reached;
    /// requests that an earlier daemon accepted are exempt.
    pub(in crate::hub) fn open<'a>(
        &'a self,
        message: &Parsed,
        id: Id<'a>,
        method: &Method,
        stream: &'a Arc<Stream>,
    ) -> Option<OpenRequest<'a>> {
        let bytes = Some(message.text().len()).filter(|bytes| *bytes > LARGE).unwrap_or(0);
        let needs_marking = {
            let mut state = self.state();
            let hub = self.hub();
            let in_session = (state.open_count, state.open_bytes);
            let of_server =
                (hub.open.load(Ordering::Relaxed), hub.open_bytes.load(Ordering::Relaxed));
            let is_accepted = stream.inherited().is_some_and(|inherited| !inherited.is_repeated);
            if !is_accepted && !fits(in_session, of_server, bytes) {
                return None;
            }
            let open = Open { stream: Arc::clone(stream), interactive: false };
            state.open.insert(id.get().into(), open);
            state.open_count += 1;
            state.open_bytes += bytes;
            hub.open.fetch_add(1, Ordering::Relaxed);
            hub.open_bytes.fetch_add(bytes, Ordering::Relaxed);
            state.needs_marking()
        };
        if needs_marking && *method != Method::Initialize {
            self.mark_used();
        }
        Some(OpenRequest { session: self, id: id.get(), bytes, stream })
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
    /// As counted against the limit: 0 for a small request.
    bytes: usize,
    stream: &'a Arc<Stream>,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.session.state();
        state.open_count -= 1;
        state.open_bytes -= self.bytes;
        let hub = self.session.hub();
        hub.open.fetch_sub(1, Ordering::Relaxed);
        hub.open_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        // A client that uses an id twice has only the newer request under it.
        if state.open.get(self.id).is_some_and(|open| Arc::ptr_eq(&open.stream, self.stream)) {
            state.open.remove(self.id);
        }
        // Nobody waits for the answer to a question that was part of it.
        state.asks.end_with(self.stream);
        drop(state);
        self.session.touch();
    }
}

/// Whether another request fits the limits. `bytes` is 0 for a small request. Open requests are given as
/// their number and the bytes of the large ones.
fn fits(in_session: (usize, usize), of_server: (usize, usize), bytes: usize) -> bool {
    let count = in_session.0 < OPEN_IN_SESSION && of_server.0 < OPEN;
    let is_small = bytes == 0;
    let size = in_session.1 + bytes <= OPEN_BYTES_IN_SESSION && of_server.1 + bytes <= OPEN_BYTES;
    count && (is_small || size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_and_servers_have_limits_and_small_requests_pass_large_ones() {
        let check = |in_session, of_server, bytes, expected| {
            assert_eq!(
                fits(in_session, of_server, bytes),
                expected,
                "{in_session:?} {of_server:?} {bytes}"
            );
        };
        check((1023, 0), (8191, 0), 0, true);
        check((1024, 0), (1024, 0), 0, false);
        check((0, 0), (8192, 0), 0, false);
        check((1, 48 << 20), (1, 48 << 20), 16 << 20, true);
        check((1, 48 << 20), (1, 48 << 20), (16 << 20) + 1, false);
        check((0, 0), (20, 250 << 20), 6 << 20, true);
        check((0, 0), (20, 250 << 20), 7 << 20, false);
        check((9, 64 << 20), (99, 256 << 20), 0, true);
    }
}

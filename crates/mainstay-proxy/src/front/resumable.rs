//! Streams that outlive the connection of their client, and the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::Session;
use super::run::{Work, settle};
use crate::stream::{EventId, Stream};

/// How long a request goes on before it is worth to be written down.
pub const DURABLE: Duration = Duration::from_millis(150);
/// How long a client may be away before its request is given up.
pub(crate) const RESUME: Duration = Duration::from_secs(30);
/// How long the end of a stream is kept for a client that may have lost it.
const KEPT: Duration = Duration::from_secs(60);

/// The memory that large finished streams of all sessions may take for that time. Further ones are kept only shortly,
/// long enough for a client that reconnects at once.
static LARGE_KEPT: ByteBudget = ByteBudget::new(64 << 20);
const LARGE: usize = 64 << 10;
const KEPT_SHORTLY: Duration = Duration::from_secs(3);

/// A stream that can be resumed, as long as this is there. Its drop makes the session forget it, and
/// with it what was written down.
pub(crate) struct ResumableStream<S: Session> {
    session: S,
    event: EventId,
    stream: Arc<Stream>,
}

impl<S: Session> ResumableStream<S> {
    /// Keeps the stream of a request, given by its id as JSON.
    pub(crate) fn new(session: S, stream: &Arc<Stream>, request: Option<&str>) -> Self {
        let event = session.streams().keep(stream, request);
        Self { session, event, stream: Arc::clone(stream) }
    }

    /// A stream that the session has taken up.
    pub(crate) fn recovered(session: S, event: EventId, stream: &Arc<Stream>) -> Self {
        Self { session, event, stream: Arc::clone(stream) }
    }

    /// The event before its first message.
    pub(crate) fn event(&self) -> &EventId {
        &self.event
    }

    /// From now on it is written down, with the text of its request.
    pub(crate) fn write_down(&self, request: Bytes) {
        self.session.streams().write_down(&self.event, &self.stream, request);
    }

    /// Works until the answer, or until its client has stayed away for too long.
    pub(crate) async fn see_through(&self, work: Work, request: &Bytes) {
        tokio::select! {
            biased;
            done = work => settle(&self.stream, done, Some(request)),
            () = self.stream.abandoned_for(RESUME) => self.stream.cancel(),
        }
    }

    /// Waits for a client that may have lost the end.
    pub(crate) async fn linger(self) {
        self.session.streams().settle();
        let bytes = self.stream.bytes();
        let reserved = (bytes > LARGE).then(|| LARGE_KEPT.reserve(bytes));
        let resumable = if let Some(None) = reserved { KEPT_SHORTLY } else { KEPT };
        tokio::select! {
            () = tokio::time::sleep(resumable) => {}
            () = self.stream.closed() => {}
        }
    }
}

/// Counts bytes up to a limit.
struct ByteBudget {
    limit: usize,
    used: AtomicUsize,
}

/// A part of a [`ByteBudget`], until it is dropped.
struct Reserved<'a> {
    budget: &'a ByteBudget,
    bytes: usize,
}

impl ByteBudget {
    const fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    fn reserve(&self, bytes: usize) -> Option<Reserved<'_>> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Reserved { budget: self, bytes })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<S: Session> Drop for ResumableStream<S> {
    fn drop(&mut self) {
        self.session.streams().forget(&self.event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_is_whole_again_in_the_end() {
        let budget = ByteBudget::new(100);
        let first = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none() && budget.reserve(usize::MAX).is_none());
        let second = budget.reserve(40).unwrap();
        drop(first);
        assert!(budget.reserve(60).is_some());
        drop(second);
        assert!(budget.reserve(100).is_some());
    }
}

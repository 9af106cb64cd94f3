//! Streams that outlive the connection of their client, and the daemon.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Session;
use super::run::{Work, settle};
use crate::stream::{Begin, EventId, Stream};

/// How long a request goes on before it is worth to be written down.
pub(crate) const DURABLE: Duration = Duration::from_millis(150);
/// How long a client may be away before its request is given up.
pub(crate) const RESUME: Duration = Duration::from_secs(30);
/// How long the end of a stream is kept for a client that may have lost it.
const KEPT: Duration = Duration::from_secs(60);

/// A stream that can be resumed, as long as this is there. Its drop makes the session forget it, and
/// with it what was written down.
pub(crate) struct Kept<S: Session> {
    session: S,
    event: EventId,
    stream: Arc<Stream>,
}

impl<S: Session> Kept<S> {
    /// Keeps the stream of a request, given by its id as JSON.
    pub(crate) fn new(session: S, stream: &Arc<Stream>, request: Option<&str>) -> Self {
        let event = session.streams().keep(stream, request);
        Self { session, event, stream: Arc::clone(stream) }
    }

    /// A stream that the session has taken up.
    pub(crate) fn taken_up(session: S, event: EventId, stream: &Arc<Stream>) -> Self {
        Self { session, event, stream: Arc::clone(stream) }
    }

    /// The event before its first message.
    pub(crate) fn event(&self) -> &EventId {
        &self.event
    }

    /// From now on it is written down, with the text of its request.
    pub(crate) fn write_down(&self, request: Bytes, begin: Begin) {
        self.session.streams().write_down(&self.event, &self.stream, request, begin);
    }

    /// Works until the answer, or until its client has stayed away for too long.
    pub(crate) async fn see_through(&self, work: Work, request: &Bytes) {
        tokio::select! {
            biased;
            done = work => settle(&self.stream, done, Some(request)),
            () = self.stream.forsaken(RESUME) => self.stream.cancel(),
        }
    }

    /// Waits for a client that may have lost the end.
    pub(crate) async fn linger(self) {
        self.session.streams().settle();
        tokio::select! {
            () = tokio::time::sleep(KEPT) => {}
            () = self.stream.closed() => {}
        }
    }
}

impl<S: Session> Drop for Kept<S> {
    fn drop(&mut self) {
        self.session.streams().forget(&self.event);
    }
}

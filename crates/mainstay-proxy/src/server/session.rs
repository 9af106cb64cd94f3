//! A session, as fronts use it.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_mcp::frame::Parsed;
use mainstay_mcp::version::ProtocolVersion;
use mainstay_session::{Arrival, EventId, Found, SessionKey, Start, StreamRef};

use super::{Reader, ServerHandle};

/// A handle to one session of a client with a server. Clones are the same session.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    pub(super) server: ServerHandle,
    pub(super) key: SessionKey,
    id: Arc<str>,
}

impl Session {
    pub(super) fn new(server: ServerHandle, key: SessionKey) -> Option<Self> {
        let id = Arc::clone(server.lock().machine.session_id(key)?);
        Some(Self { server, key, id })
    }

    pub fn server(&self) -> &str {
        self.server.name()
    }

    /// Its id: visible ASCII characters.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The protocol version agreed with the client; none until it is initialized.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.server.lock().machine.version(self.key)
    }

    /// The client has shown this token, by which it is recognised in other sessions.
    pub(crate) fn set_token(&self, token: Box<str>) {
        self.server.enter(|machine, _| machine.set_token(self.key, token));
    }

    /// Sends a request. The reader gets its answer, and what comes before it.
    pub fn request(&self, message: Parsed, arrival: Arrival) -> Reader {
        let mut reader = self.request_when_polled(message, arrival);
        reader.leave_operation();
        reader
    }

    /// The same, but an HTTP server is sent the request when the reader is polled, by its task.
    pub fn request_when_polled(&self, message: Parsed, arrival: Arrival) -> Reader {
        let ((stream, turn), operation) = self.server.enter_for_operation(|state, now| {
            state.machine.request(now, self.key, message, arrival)
        });
        Reader::new(self.server.clone(), stream, turn, 0).performing(operation)
    }

    /// Sends the requests of a batch, which are answered together in an array.
    pub fn batch(&self, messages: Vec<Parsed>) -> Reader {
        let (stream, turn) =
            self.server.enter(|machine, now| machine.batch(now, self.key, messages));
        Reader::new(self.server.clone(), stream, turn, 0)
    }

    /// Takes a notification or an answer of the client.
    pub fn post(&self, message: &Parsed) {
        self.server.enter(|machine, now| machine.post(now, self.key, message));
    }

    /// Listens to the general stream. The session of a `mainstay connect` ends when it stops listening. `None` if the
    /// session has ended.
    pub fn listen(&self, start: Start, is_connect: bool) -> Option<Reader> {
        let listen = |machine: &mut mainstay_session::Server, now| {
            machine.listen(now, self.key, start, is_connect)
        };
        let (stream, turn, position) = self.server.enter(listen)?;
        Some(Reader::new(self.server.clone(), stream, turn, position))
    }

    /// Reads the general stream without asking an HTTP server for what it sends outside of requests.
    #[doc(hidden)]
    pub fn read_general(&self, start: Start) -> Option<Reader> {
        let general = self.server.lock().machine.general_stream(self.key)?;
        self.resume(general, start)
    }

    /// Reads the stream of a request again. `None` if it is forgotten.
    pub fn resume(&self, stream: StreamRef, start: Start) -> Option<Reader> {
        let (turn, position) =
            self.server.enter(|machine, now| machine.attach_reader(now, stream, start))?;
        Some(Reader::new(self.server.clone(), stream, turn, position))
    }

    /// Finds what a client that got this event may still read.
    pub fn find(&self, event: &EventId) -> Found<StreamRef> {
        self.server.lock().machine.find(self.key, event)
    }

    /// The event before the first one of the general stream.
    pub fn general_event(&self) -> Option<EventId> {
        self.server.lock().machine.general_event(self.key)
    }

    /// Adds a message to the general stream, because its client does not get it in the response to its request.
    pub(crate) fn push_general(&self, message: Bytes) {
        self.server.enter(|machine, _| machine.push_general(self.key, message));
    }
}

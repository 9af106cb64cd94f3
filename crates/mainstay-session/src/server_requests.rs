//! Requests of the server that are with a client.
//!
//! A client sees each under an id that names the run and the id that the request has there. It ends with the client's
//! answer, which goes to the run that asked; when the server cancels it; or when its run or the request that it was
//! part of is over, of which the client is notified.
//!
//! A later daemon does not know which requests an earlier one passed on. It passes an answer on to the run that its id
//! names, as long as the session has a request there that the earlier daemon had sent.

use std::time::{Duration, Instant};

use mainstay_mcp::frame::{self, Id, Parsed};
use serde_json::Value;

use crate::availability::Availability;
use crate::calls::Stage;
use crate::server::Server;
use crate::session::{SessionKey, Undelivered};
use crate::stream::Stream;
use crate::streams::StreamRef;
use crate::timers::Timer;

/// How long a run may take to be connected again after a daemon before its request counts as moot.
const RUN_BACK_TIMEOUT: Duration = Duration::from_secs(10);

/// The beginning of the ids that clients see.
const PREFIX: &str = "mainstay-";

/// A request that a client has not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerRequest {
    /// The run that asked.
    pub(crate) generation: u64,
    /// Its id there, as JSON.
    id: Box<str>,
    /// The client's request that it is part of, if that is known.
    pub(crate) stream: Option<StreamRef>,
}

impl ServerRequest {
    /// The id under which the client sees it, as JSON.
    fn client_id(&self) -> String {
        serde_json::json!(format!("{PREFIX}{}-{}", self.generation, self.id)).to_string()
    }

    /// The run and the id that a client's id stands for.
    fn read_client_id(id: Id<'_>) -> Option<(u64, Box<str>)> {
        let name: String = serde_json::from_str(id.get()).ok()?;
        let (generation, id) = name.strip_prefix(PREFIX)?.split_once('-')?;
        // What a client wrote there becomes part of a message to the server.
        match serde_json::from_str(id).ok()? {
            Value::Number(_) | Value::String(_) => {}
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
        }
        Some((generation.parse().ok()?, id.into()))
    }

    fn is(&self, generation: u64, id: &str) -> bool {
        self.generation == generation && *self.id == *id
    }
}

impl Server {
    /// Passes a request of the server to a client. `is_part_of_stream` if it is known to be about the client's request
    /// of that stream. Says why not, if that is not possible.
    pub(crate) fn ask_client(
        &mut self,
        key: SessionKey,
        generation: u64,
        request: &Parsed,
        stream: Option<StreamRef>,
        is_part_of_stream: bool,
    ) -> Option<&'static str> {
        let session = self.sessions.get_mut(key)?;
        let part_of = stream.filter(|_| is_part_of_stream);
        let asked = ServerRequest { generation, id: request.id()?.get().into(), stream: part_of };
        if !session.client.handles(request.method()) {
            return Some("the client did not announce that it can be asked this");
        }
        let id = asked.client_id();
        session.server_requests.push(asked.clone());
        if self.deliver(key, request.with_id(&id), stream) {
            return None;
        }
        let session = self.sessions.get_mut(key)?;
        session.server_requests.retain(|request| *request != asked);
        Some("the client does not listen")
    }

    /// The server cancels a request.
    pub(crate) fn server_request_cancelled(
        &mut self,
        key: SessionKey,
        generation: u64,
        notification: &Parsed,
    ) {
        let Some(place) = notification.cancelled_id() else { return };
        let id = notification.get(place);
        let Some(session) = self.sessions.get_mut(key) else { return };
        let found = session.server_requests.iter().position(|it| it.is(generation, id));
        if let Some(found) = found {
            let request = session.server_requests.swap_remove(found);
            let text = notification.with(place, &request.client_id());
            self.deliver(key, text, request.stream);
        }
    }

    /// Notifies a client that requests of the server are over.
    pub(crate) fn withdraw_server_requests(
        &mut self,
        key: SessionKey,
        which: impl Fn(&ServerRequest) -> bool,
    ) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.server_requests.is_empty() {
            return;
        }
        let withdrawn: Vec<_> =
            session.server_requests.extract_if(.., |request| which(request)).collect();
        for request in withdrawn {
            let id = request.client_id();
            let id = Id::new(&id).expect("a string is an id");
            let text = frame::cancelled(id, "the server that asked has stopped");
            self.deliver(key, text, request.stream);
        }
    }

    /// The client answers a request of the server.
    pub(crate) fn server_request_answered(
        &mut self,
        now: Instant,
        key: SessionKey,
        response: &Parsed,
    ) {
        let Some((generation, id)) = response.id().and_then(ServerRequest::read_client_id) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(key) else { return };
        let found = session.server_requests.iter().position(|it| it.is(generation, &id));
        let stream = match found {
            Some(found) => session.server_requests.swap_remove(found).stream,
            // An earlier daemon passed it on.
            None if self.has_inherited_request_at(key, generation) => None,
            // The server that asked has gone, or asked nothing.
            None => return,
        };
        let Some(session) = self.sessions.get(key) else { return };
        for call in session.open.clone() {
            // If it is not known which request it was part of, it may have been any.
            if let Some(call) = self.calls.get_mut(call)
                && stream.is_none_or(|stream| call.stream == stream)
            {
                call.is_interactive = true;
                if let Stage::Joined(earlier) = call.stage {
                    self.set_interactive(earlier);
                }
            }
        }
        self.send_to_generation(now, key, generation, response.with_id(&id));
    }

    /// Whether an earlier daemon has sent a request of the session to that run, which can still answer.
    fn has_inherited_request_at(&self, key: SessionKey, generation: u64) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        session.open.iter().any(|call| {
            let stream = self.calls.get(*call).and_then(|call| self.streams.get(call.stream));
            stream.and_then(Stream::inherited).is_some_and(|inherited| {
                inherited.sent.is_some_and(|sent| sent.generation == generation)
                    && inherited.can_be_answered()
            })
        })
    }

    /// Sends a message to the run of that generation, if it is there or about to be connected again.
    fn send_to_generation(
        &mut self,
        now: Instant,
        key: SessionKey,
        generation: u64,
        message: bytes::Bytes,
    ) {
        let Some(session) = self.sessions.get(key) else { return };
        match self.availability_for(session) {
            Availability::Up(run) if run.generation == generation => {
                let link = run.link;
                self.send_to_run(key, link, message);
            }
            Availability::Coming { due: None, .. } => {
                let until = now + RUN_BACK_TIMEOUT;
                if let Some(session) = self.sessions.get_mut(key) {
                    session.undelivered.push(Undelivered { generation, message, until });
                }
                self.timers.set(until, Timer::Session(key));
            }
            Availability::Up(_)
            | Availability::Coming { due: Some(_), .. }
            | Availability::Down { .. }
            | Availability::Removed => {}
        }
    }

    /// Sends what waited for a run, if that is up.
    pub(crate) fn send_undelivered(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if session.undelivered.is_empty() {
            return;
        }
        let Some(run) = self.run_for(key) else { return };
        let Some(session) = self.sessions.get_mut(key) else { return };
        for message in std::mem::take(&mut session.undelivered) {
            if message.generation == run.generation {
                self.send_to_run(key, run.link, message.message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_recognised_by_its_id() {
        for id in ["7", "\"a-b\"", "\"quoted \\\" and \\u00e4\""] {
            let request = ServerRequest { generation: 3, id: id.into(), stream: None };
            let client_id = request.client_id();
            let read = ServerRequest::read_client_id(Id::new(&client_id).unwrap());
            assert_eq!(read, Some((3, id.into())), "{client_id}");
        }
        let spliced = r#""mainstay-3-1,\"method\":\"ping\"""#;
        for other in [
            spliced,
            "\"mainstay-3-[]\"",
            "\"mainstay-3\"",
            "\"mainstay-x-1\"",
            "\"other-3-1\"",
            "3",
        ] {
            assert_eq!(ServerRequest::read_client_id(Id::new(other).unwrap()), None, "{other}");
        }
    }
}

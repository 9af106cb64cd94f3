//! Questions: requests of the server that are with the client.
//!
//! A client sees each under an id that names the run and the id which the question has there. It ends with
//! the client's answer, which goes to whoever asked and to nobody else; when the server takes it back; or
//! when its run or the request that it was part of is over, of which the client is told.
//!
//! A later daemon does not know which questions an earlier one put. It passes an answer on to the run that
//! its id names, as long as the session has a request there that the earlier daemon had sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;

use super::open::Open;
use super::{ClientState, Session};
use crate::catch_panic;
use crate::frame::{self, Id, InitializeParams, Method, Parsed};
use crate::hub::availability::{Availability, Run, RunLink};
use crate::hub::http::HttpConn;
use crate::stream::Stream;

/// How long a run may take to be spoken to again after a daemon before its question counts as moot.
const COME_UP: Duration = Duration::from_secs(10);

/// The questions that a client has not answered yet.
#[derive(Default)]
pub(super) struct Asks {
    open: HashMap<Question, Ask>,
}

/// Which question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    /// The run that asked.
    generation: u64,
    /// Its id there, as JSON.
    id: Box<str>,
}

/// What it is part of.
struct Ask {
    /// The client's request on whose stream it was put.
    stream: Option<Arc<Stream>>,
}

impl Asks {
    /// The request of this stream is answered: what was asked as a part of it is no more of interest.
    pub(super) fn end_with(&mut self, stream: &Arc<Stream>) {
        self.open.retain(|_, ask| !ask.is_part_of(stream));
    }
}

impl Ask {
    fn is_part_of(&self, stream: &Arc<Stream>) -> bool {
        self.stream.as_ref().is_some_and(|own| Arc::ptr_eq(own, stream))
    }
}

impl Question {
    /// The id under which the client sees it, as JSON.
    fn name(&self) -> String {
        serde_json::json!(format!("{NAME}{}-{}", self.generation, self.id)).to_string()
    }

    /// What was given that name.
    fn named(name: Id<'_>) -> Option<Self> {
        let name: String = serde_json::from_str(name.get()).ok()?;
        let (generation, id) = name.strip_prefix(NAME)?.split_once('-')?;
        // What a client wrote there becomes part of a message to the server.
        match serde_json::from_str(id).ok()? {
            Value::Number(_) | Value::String(_) => {}
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
        }
        Some(Self { generation: generation.parse().ok()?, id: id.into() })
    }
}

/// How the name of every question begins.
const NAME: &str = "mainstay-";

impl Session {
    /// Puts a question of the server to the client. Says why not, if it cannot be.
    pub(in crate::hub) fn ask_client(
        &self,
        generation: u64,
        request: &Parsed,
        stream: Option<&Arc<Stream>>,
    ) -> Option<&'static str> {
        let question = Question { generation, id: request.id()?.get().into() };
        let mut state = self.state();
        if !state.terms.understands(request.method()) {
            return Some("the client did not announce that it can be asked this");
        }
        let name = question.name();
        state.asks.open.insert(question.clone(), Ask { stream: stream.cloned() });
        drop(state);
        if self.put(request.with_id(&name), stream) {
            return None;
        }
        self.state().asks.open.remove(&question);
        Some("the client does not listen")
    }

    /// The server takes a question back.
    pub(in crate::hub) fn ask_cancelled(&self, generation: u64, notification: &Parsed) {
        let Some(place) = notification.cancelled_id() else { return };
        let question = Question { generation, id: notification.get(place).into() };
        let ask = self.state().asks.open.remove(&question);
        if let Some(ask) = ask {
            self.hear(notification.with(place, &question.name()), ask.stream.as_ref());
        }
    }

    /// The run is over, and with it what it asked.
    pub(in crate::hub) fn forget_asks(&self, generation: u64) {
        self.withdraw(|question, _| question.generation == generation);
    }

    /// A request is over, and with it what was asked on its account.
    pub(in crate::hub) fn forget_asks_of(&self, stream: &Arc<Stream>) {
        self.withdraw(|_, ask| ask.is_part_of(stream));
    }

    /// Whether the client has answered a question of the server's on account of this request.
    pub(in crate::hub) fn was_interactive(&self, stream: &Arc<Stream>) -> bool {
        let state = self.state();
        state.open.values().any(|open| open.interactive && Arc::ptr_eq(&open.stream, stream))
    }

    fn withdraw(&self, which: impl Fn(&Question, &Ask) -> bool) {
        let withdrawn: Vec<_> =
            self.state().asks.open.extract_if(|question, ask| which(question, ask)).collect();
        for (question, ask) in withdrawn {
            let name = question.name();
            let name = Id::new(&name).expect("a string is an id");
            let notification = frame::cancelled(name, "the server that asked has stopped");
            self.hear(notification, ask.stream.as_ref());
        }
    }

    /// The client answers a question of the server's.
    pub(super) fn answered(&self, response: &Parsed) {
        let Some(question) = response.id().and_then(Question::named) else { return };
        let mut state = self.state();
        let stream = match state.asks.open.remove(&question) {
            Some(ask) => ask.stream,
            // An earlier daemon put it.
            None if state.open.values().any(|open| open.was_sent_to(question.generation)) => None,
            // The server that asked has gone, or asked nothing.
            None => return,
        };
        // If it cannot be told which request the question was part of, it may have been any.
        let concerned =
            |open: &Open| stream.as_ref().is_none_or(|stream| Arc::ptr_eq(&open.stream, stream));
        for open in state.open.values_mut() {
            open.interactive |= concerned(open);
        }
        drop(state);
        self.tell_run(question.generation, response.with_id(&question.id));
    }

    /// Tells the run of that generation something, if it is there or about to be taken up.
    fn tell_run(&self, generation: u64, message: Bytes) {
        match self.present() {
            Availability::Up(run) => self.tell(&run, generation, message),
            Availability::Coming { due: None, .. } => {
                let session = self.clone();
                // It ends by itself.
                catch_panic::spawn(async move {
                    let mut availability = session.availability();
                    let up = timeout(COME_UP, availability.wait_for(|it| it.run().is_some())).await;
                    let run = up.ok().and_then(|up| up.ok()?.run().cloned());
                    if let Some(run) = run {
                        session.tell(&run, generation, message);
                    }
                });
            }
            Availability::Coming { due: Some(_), .. }
            | Availability::Down { .. }
            | Availability::Removed => {}
        }
    }

    fn tell(&self, run: &Run, generation: u64, message: Bytes) {
        match &run.link {
            _ if run.generation != generation => {}
            RunLink::Lines(conn) => conn.tell_later(message),
            RunLink::Http(_) => HttpConn::tell_later(self, generation, message),
        }
    }
}

impl ClientState {
    /// Whether the client announced that it can be asked this. What we do not know is left to it.
    fn understands(&self, method: Option<&Method>) -> bool {
        let capability = match method {
            Some(Method::CreateMessage) => "sampling",
            Some(Method::Elicit) => "elicitation",
            Some(Method::RootsList) => "roots",
            _ => return true,
        };
        let params = self.params.as_ref().map(|params| params.get().as_bytes());
        params.and_then(InitializeParams::read).is_some_and(|params| params.has(capability))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_known_by_its_name() {
        for id in ["7", "\"a-b\"", "\"quoted \\\" and \\u00e4\""] {
            let question = Question { generation: 3, id: id.into() };
            let name = question.name();
            assert_eq!(Question::named(Id::new(&name).unwrap()), Some(question), "{name}");
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
            assert_eq!(Question::named(Id::new(other).unwrap()), None, "{other}");
        }
    }
}

//! What `connect` knows of the exchange between its client and the daemon, and what it does when the
//! connection between the two breaks.
//!
//! Pure: lines go in, lines to write come out. It reads of a line only what it must: which requests
//! are in flight, and how the session was opened. Guarantees: every request that was sent gets one
//! answer; one that may have had an effect is never sent twice; the others are sent again once.
//!
//! After a break the daemon may still know the session. If it does not, the client's own `initialize`
//! and `initialized` are said again, before anything else, and the answer is kept from the client.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use mainstay_api::Connected;
use serde_json::{Value, json};

use super::message::{Message, messages};

/// A message with its line's end.
pub(super) type Line = Rc<Vec<u8>>;

const UNKNOWN_EFFECT: &str =
    "the Mainstay daemon was restarted during this request; its effect is unknown";
const TWICE: &str =
    "the Mainstay daemon was restarted twice during this request; it can safely be made again";

/// What becomes of a line from the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The client gets it.
    Pass,
    /// The client has its answer already, or never asked.
    Swallow,
    /// The session could not be opened again, for this reason.
    Lost(String),
}

/// An exchange, over any number of connections.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    session: Option<String>,
    opening: Option<Opening>,
    in_flight: HashMap<Id, Flight>,
    /// The number of requests so far, which puts those in flight in order.
    requests: u64,
    /// What is said again on this connection before the client's next line.
    again: VecDeque<Line>,
    /// Whether the session is being opened again.
    restoring: bool,
    /// The client's line that has not been sent as a whole.
    unsent: Option<Line>,
}

/// How the client opened its session.
#[derive(Debug)]
struct Opening {
    id: Id,
    initialize: Line,
    answered: bool,
    initialized: Option<Line>,
}

/// The id of a request, as JSON without white space.
type Id = String;

/// A request that was sent and not answered.
#[derive(Debug)]
struct Flight {
    number: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// It does no harm twice.
    Safe { line: Line, repeated: bool },
    /// The call of a tool.
    Call,
    /// Anything else.
    Other,
}

impl Exchange {
    /// Takes in a line of the client, to be sent. At most one is kept: see [`Self::wants_line`].
    pub(super) fn offer(&mut self, line: Vec<u8>) {
        self.unsent = Some(Rc::new(line));
    }

    /// Whether the client's next line may be read.
    pub(super) fn wants_line(&self) -> bool {
        !self.restoring && self.unsent.is_none() && self.again.is_empty()
    }

    /// The next line for the daemon.
    pub(super) fn next(&self) -> Option<Line> {
        let own = self.unsent.as_ref().filter(|_| !self.restoring);
        self.again.front().or(own).cloned()
    }

    /// The line that [`Self::next`] gave has been sent as a whole.
    pub(super) fn sent(&mut self) {
        if self.again.pop_front().is_none()
            && let Some(line) = self.unsent.take()
        {
            for message in messages(&line) {
                self.note(&message, &line);
            }
        }
    }

    /// A line came from the daemon.
    pub(super) fn received(&mut self, line: &[u8]) -> Heard {
        let messages = messages(line);
        let mut pass = messages.is_empty();
        for message in &messages {
            match message.answers() {
                None => pass = true,
                Some(id) if self.is_restored_by(&id) => return self.restored(message),
                Some(id) => {
                    pass |= self.in_flight.remove(&id).is_some();
                    self.note_opened(&id, message);
                }
            }
        }
        if pass { Heard::Pass } else { Heard::Swallow }
    }

    /// The connection broke. Gives the answers that the client gets now.
    pub(super) fn broken(&mut self) -> Vec<Vec<u8>> {
        self.again.clear();
        self.restoring = false;
        self.answer_those(|kind| match kind {
            Kind::Safe { repeated: false, .. } => None,
            Kind::Safe { repeated: true, .. } => Some(TWICE),
            Kind::Call | Kind::Other => Some(UNKNOWN_EFFECT),
        })
    }

    /// There will be no other connection. Gives the answers that are still due, also to what was
    /// never sent.
    pub(super) fn give_up(&mut self, why: &str) -> Vec<Vec<u8>> {
        self.again.clear();
        self.sent();
        self.answer_those(|_| Some(why))
    }

    /// The session to ask for on the next connection. Until it is open there is none to go on with.
    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref().filter(|_| self.is_open())
    }

    /// There is a connection.
    pub(super) fn connected(&mut self, connected: &Connected) {
        let resumed = connected.resumes(self.session());
        self.session.clone_from(&connected.session);
        match &self.opening {
            Some(opening) if opening.answered && !resumed => {
                self.restoring = true;
                self.again.push_back(opening.initialize.clone());
            }
            Some(_) | None => self.repeat(),
        }
    }

    /// Whether every request has its answer and every line is sent.
    pub(super) fn is_settled(&self) -> bool {
        self.in_flight.is_empty() && self.again.is_empty() && self.unsent.is_none()
    }

    fn is_open(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| opening.answered)
    }

    fn is_restored_by(&self, id: &Id) -> bool {
        self.restoring && self.opening.as_ref().is_some_and(|opening| opening.id == *id)
    }

    /// Notes what a message of the client means for later.
    fn note(&mut self, message: &Message<'_>, line: &Line) {
        let Some(method) = message.method.as_deref() else { return };
        match (method, message.id()) {
            ("notifications/initialized", None) => {
                if let Some(opening) = &mut self.opening {
                    opening.initialized = Some(line.clone());
                }
            }
            // Whoever cancelled a request expects no answer.
            ("notifications/cancelled", None) => {
                if let Some(id) = message.cancelled() {
                    self.in_flight.remove(&id);
                }
            }
            (_, None) => {}
            (method, Some(id)) => {
                let line = message.line();
                if method == "initialize" {
                    let (id, initialize) = (id.clone(), line.clone());
                    let opening = Opening { id, initialize, answered: false, initialized: None };
                    self.opening = Some(opening);
                }
                self.requests += 1;
                let kind = Kind::of(method, line);
                self.in_flight.insert(id, Flight { number: self.requests, kind });
            }
        }
    }

    /// The client's own `initialize` was answered.
    fn note_opened(&mut self, id: &Id, answer: &Message<'_>) {
        match &mut self.opening {
            Some(opening) if opening.id == *id && !opening.answered => {
                opening.answered = true;
                if answer.error.is_some() {
                    self.opening = None;
                }
            }
            Some(_) | None => {}
        }
    }

    /// The `initialize` that was said again was answered.
    fn restored(&mut self, answer: &Message<'_>) -> Heard {
        if let Some(reason) = answer.error_message() {
            return Heard::Lost(reason);
        }
        self.restoring = false;
        let initialized = self.opening.as_ref().and_then(|opening| opening.initialized.clone());
        self.again.extend(initialized);
        self.repeat();
        Heard::Swallow
    }

    /// Says every request in flight again, in order. Only safe ones are left by now.
    fn repeat(&mut self) {
        let mut flights: Vec<&mut Flight> = self.in_flight.values_mut().collect();
        flights.sort_unstable_by_key(|flight| flight.number);
        for flight in flights {
            if let Kind::Safe { line, repeated } = &mut flight.kind {
                *repeated = true;
                self.again.push_back(line.clone());
            }
        }
    }

    /// Answers those requests in flight for which there is something to say, in order.
    fn answer_those<'a>(&mut self, text: impl Fn(&Kind) -> Option<&'a str>) -> Vec<Vec<u8>> {
        let due = self.in_flight.extract_if(|_, flight| text(&flight.kind).is_some());
        let mut due: Vec<(Id, Flight)> = due.collect();
        due.sort_unstable_by_key(|(_, flight)| flight.number);
        due.into_iter()
            .filter_map(|(id, flight)| Some(answer(&id, &flight.kind, text(&flight.kind)?)))
            .collect()
    }
}

impl Kind {
    fn of(method: &str, line: Line) -> Self {
        match method {
            "initialize"
            | "ping"
            | "tools/list"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "completion/complete" => Self::Safe { line, repeated: false },
            "tools/call" => Self::Call,
            _ => Self::Other,
        }
    }
}

/// An answer of our own: for a tool as its result, because that is what a model gets to see.
fn answer(id: &Id, kind: &Kind, text: &str) -> Vec<u8> {
    let outcome = match kind {
        Kind::Call => json!({"content": [{"type": "text", "text": text}], "isError": true}),
        Kind::Safe { .. } | Kind::Other => json!({"code": -32603, "message": text}),
    };
    let member = match kind {
        Kind::Call => "result",
        Kind::Safe { .. } | Kind::Other => "error",
    };
    let id: Value = serde_json::from_str(id).unwrap_or_default();
    let mut line = json!({"jsonrpc": "2.0", "id": id, member: outcome}).to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;

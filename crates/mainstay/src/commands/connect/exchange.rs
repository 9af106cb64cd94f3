//! What `connect` knows of the exchange between its client and the daemon, and what it does when the
//! connection between the two breaks.
//!
//! Pure: lines and the time go in, lines to write come out. It reads of a line only what it must:
//! which requests are in flight, and how the session was opened. Guarantees: every request gets one
//! answer, unless its client cancels it; one that may have had an effect is never sent twice; the
//! others are sent again at most once.
//!
//! After a break nothing is decided until the next connection. It says which of the requests in
//! flight have outlived the daemon: their answers are still to come. Of the others the safe ones are
//! sent again, and for those that may have had an effect the client gets the word that it is unknown.
//! If there is no connection for [`UNDECIDED`], that word is given then. What the client says
//! meanwhile waits; what has waited for [`HOLD`] is answered without having been sent.
//!
//! A daemon that leaves for another one says which lines it took. The rest counts as never sent: it
//! waits with what the client says meanwhile, before it.
//!
//! The daemon may still know the session. If it does not, the client's own `initialize` and
//! `initialized` are said again, before anything else, and the answer is kept from the client.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use mainstay_api::{Connected, Farewell};
use serde_json::{Value, json};

use super::held::{HOLD, Held, Unsent};
use super::message::{Message, compact, messages};
use super::said::{Asked, Id, Kind, Line, Said, said};
use super::unheard::{Unheard, Why};

/// How long requests that may have had an effect wait for the next connection.
const UNDECIDED: Duration = Duration::from_secs(8);

const UNKNOWN_EFFECT: &str = "the Mainstay daemon ended during this request; its effect is unknown";
const TWICE: &str =
    "the Mainstay daemon ended twice during this request; it can safely be made again";
const ABSENT: &str = "the Mainstay daemon is not running, and did not come back in time; nothing was \
                      changed by this request, and any `mainstay` command, for example \
                      `mainstay ls`, starts the daemon";
const STOPPED: &str = "Mainstay is stopped, because of `mainstay daemon stop`; nothing was changed by this request, and \
                       `mainstay daemon start` starts it";

/// What becomes of a line from the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The client gets it.
    Pass,
    /// The client has its answer already, or never asked; or it is meant for us.
    Swallow,
    /// The session could not be opened again, for this reason.
    Lost(String),
}

/// An exchange, over any number of connections.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    standing: Standing,
    /// Whether the user has stopped Mainstay.
    is_stopped: bool,
    session: Option<String>,
    opening: Option<Opening>,
    in_flight: HashMap<Id, Flight>,
    /// The number of requests so far, which puts those in flight in order.
    requests: u64,
    /// What is said again on this connection before the client's next line.
    again: VecDeque<Again>,
    /// What was sent on this connection and may not have been taken.
    unheard: Unheard,
    /// The client's lines that have not been sent as a whole.
    held: Held,
}

/// How things are between us and the daemon.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// There was no connection yet.
    #[default]
    New,
    /// Lines go both ways.
    Connected,
    /// Connected, but the session is being opened again.
    Restoring,
    /// The connection broke then.
    Away(Instant),
}

/// How the client opened its session.
#[derive(Debug)]
struct Opening {
    id: Id,
    initialize: Line,
    answered: bool,
    initialized: Option<Line>,
    /// Whether `initialized` is due, because the session was opened again.
    owed: bool,
}

/// A request that was sent and not answered.
#[derive(Debug)]
struct Flight {
    number: u64,
    kind: Kind,
    /// The number of the line that it was last sent as.
    line: u64,
    /// Whether it was sent a second time.
    repeated: bool,
}

/// A line that is said again.
#[derive(Debug)]
struct Again {
    line: Line,
    why: Why,
}

impl Exchange {
    /// Takes in a line of the client, to be sent. See [`Self::wants_line`].
    pub(super) fn offer(&mut self, line: Vec<u8>, now: Instant) {
        self.held.push(line, now);
        // Whoever cancelled a request expects no answer, also not one of ours.
        for id in self.held.cancelled_last() {
            self.in_flight.remove(id);
        }
        self.held.drop_cancelled();
    }

    /// Whether the client's next line may be read. While there is a connection, one at a time, and no
    /// faster than the daemon takes them.
    pub(super) fn wants_line(&self) -> bool {
        match self.standing {
            Standing::Connected => self.held.is_empty() && self.again.is_empty(),
            Standing::Away(_) => self.held.has_room(),
            Standing::New | Standing::Restoring => false,
        }
    }

    /// The next line for the daemon.
    pub(super) fn next(&self) -> Option<Line> {
        let own = self.held.first().filter(|_| self.standing == Standing::Connected);
        self.again.front().map(|again| &again.line).or(own).cloned()
    }

    /// The line that [`Self::next`] gave has been sent as a whole.
    pub(super) fn sent(&mut self) {
        if let Some(Again { line, why }) = self.again.pop_front() {
            let number = self.unheard.sent(line, why.clone());
            match why {
                Why::Repeat(id) => {
                    if let Some(flight) = self.in_flight.get_mut(&id) {
                        (flight.line, flight.repeated) = (number, true);
                    }
                }
                Why::Opened => self.owe_initialized(false),
                Why::Opening | Why::Client => {}
            }
        } else if let Some(Unsent { line, said, .. }) = self.held.pop() {
            let number = self.unheard.sent(line.clone(), Why::Client);
            for said in said {
                self.note(said, &line, number);
            }
        }
    }

    /// A line came from the daemon.
    pub(super) fn received(&mut self, line: &[u8]) -> Heard {
        let messages = messages(line);
        if let [message] = &messages[..]
            && let Some(Farewell::Leaving { taken }) = message.farewell()
        {
            self.unheard.left(taken);
            return Heard::Swallow;
        }
        let mut pass = messages.is_empty();
        for message in &messages {
            match message.answers() {
                None => pass = true,
                Some(id) if self.is_restored_by(&id) => return self.restored(message),
                Some(id) => {
                    if let Some(flight) = self.in_flight.remove(&id) {
                        self.unheard.heard(flight.line);
                        pass = true;
                    }
                    self.note_opened(&id, message);
                }
            }
        }
        if pass { Heard::Pass } else { Heard::Swallow }
    }

    /// Whether the daemon has said that it leaves for another one.
    pub(super) fn is_left(&self) -> bool {
        self.unheard.is_left()
    }

    /// The connection broke. What that means is decided by the next one, or by time.
    pub(super) fn broken(&mut self, now: Instant) {
        self.again.clear();
        self.standing = Standing::Away(now);
        let mut back = Vec::new();
        for (line, why) in self.unheard.broken() {
            match why {
                Why::Client => back.push(line),
                Why::Repeat(id) => {
                    if let Some(flight) = self.in_flight.get_mut(&id) {
                        flight.repeated = false;
                    }
                }
                Why::Opened => self.owe_initialized(true),
                // Whether it is still needed is told by the next connection.
                Why::Opening => {}
            }
        }
        for said in back.iter().flat_map(|line| said(line)) {
            self.forget(&said);
        }
        self.held.put_back(back, now);
    }

    /// Whether the user has stopped Mainstay: if so, nothing waits for a connection.
    pub(super) fn set_stopped(&mut self, is_stopped: bool) {
        self.is_stopped = is_stopped;
    }

    /// There is a connection. Gives the answers that the client gets now.
    pub(super) fn connected(&mut self, connected: &Connected) -> Vec<Vec<u8>> {
        self.is_stopped = false;
        self.unheard.connected();
        let resumed = connected.resumes(self.session());
        self.session.clone_from(&connected.session);
        // What another session has open is none of ours.
        let pending = connected.pending.iter().filter(|_| resumed);
        let pending: HashSet<Id> = pending.filter_map(|id| compact(id)).collect();
        let answers = self.answer_those(|id, flight| match flight.kind {
            _ if pending.contains(id) => None,
            Kind::Safe(_) if !flight.repeated => None,
            Kind::Safe(_) => Some(TWICE),
            Kind::Call | Kind::Other => Some(UNKNOWN_EFFECT),
        });
        match &self.opening {
            Some(opening) if opening.answered && !resumed => {
                self.standing = Standing::Restoring;
                let line = opening.initialize.clone();
                self.again.push_back(Again { line, why: Why::Opening });
            }
            Some(_) | None => self.go_on(&pending),
        }
        answers
    }

    /// Gives the answers that can wait no longer for a connection.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let Standing::Away(since) = self.standing else { return Vec::new() };
        let (now, why) = if self.is_stopped { (now + HOLD, STOPPED) } else { (now, ABSENT) };
        let mut answers = self.answer_those(|_, flight| match flight.kind {
            Kind::Safe(_) => (since + HOLD <= now).then_some(why),
            Kind::Call | Kind::Other => (since + UNDECIDED <= now).then_some(UNKNOWN_EFFECT),
        });
        for Unsent { said, .. } in self.held.expire(now) {
            answers.extend(refusals(&said, why));
        }
        answers
    }

    /// When [`Self::overdue`] has something to give next, if ever.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let Standing::Away(since) = self.standing else { return None };
        let patience = self.in_flight.values().map(|flight| match flight.kind {
            Kind::Safe(_) => HOLD,
            Kind::Call | Kind::Other => UNDECIDED,
        });
        let of_flights = patience.min().map(|patience| since + patience);
        let next = of_flights.into_iter().chain(self.held.deadline()).min();
        if self.is_stopped { next.map(|_| since) } else { next }
    }

    /// There will be no other connection. Gives the answers that are still due, also to what was
    /// never sent.
    pub(super) fn give_up(&mut self, why: &str) -> Vec<Vec<u8>> {
        self.again.clear();
        let mut answers = self.answer_those(|_, flight| match flight.kind {
            Kind::Safe(_) => Some(why),
            Kind::Call | Kind::Other => Some(UNKNOWN_EFFECT),
        });
        while let Some(Unsent { said, .. }) = self.held.pop() {
            answers.extend(refusals(&said, why));
        }
        answers
    }

    /// The session to ask for on the next connection. Until it is open there is none to go on with.
    pub(super) fn session(&self) -> Option<&str> {
        let is_open = self.opening.as_ref().is_some_and(|opening| opening.answered);
        self.session.as_deref().filter(|_| is_open)
    }

    /// Whether every request has its answer and every line is sent.
    pub(super) fn is_settled(&self) -> bool {
        self.in_flight.is_empty() && self.again.is_empty() && self.held.is_empty()
    }

    fn is_restored_by(&self, id: &Id) -> bool {
        self.standing == Standing::Restoring
            && self.opening.as_ref().is_some_and(|opening| opening.id == *id)
    }

    /// Notes what a line of the client, which is sent under this number, means for later.
    fn note(&mut self, said: Said, line: &Line, number: u64) {
        match said {
            Said::Initialized => {
                if let Some(opening) = &mut self.opening {
                    (opening.initialized, opening.owed) = (Some(line.clone()), false);
                }
            }
            Said::Cancelled(id) => {
                self.in_flight.remove(&id);
            }
            Said::Request(Asked { id, kind, opens }) => {
                if opens && let Kind::Safe(initialize) = &kind {
                    let (id, initialize) = (id.clone(), initialize.clone());
                    self.opening = Some(Opening {
                        id,
                        initialize,
                        answered: false,
                        initialized: None,
                        owed: false,
                    });
                }
                self.requests += 1;
                let flight = Flight { number: self.requests, kind, line: number, repeated: false };
                self.in_flight.insert(id, flight);
            }
        }
    }

    /// Undoes [`Self::note`]: nobody has heard it.
    fn forget(&mut self, said: &Said) {
        match said {
            Said::Initialized => {
                if let Some(opening) = &mut self.opening {
                    opening.initialized = None;
                }
            }
            Said::Cancelled(_) => {}
            Said::Request(Asked { id, .. }) => {
                self.in_flight.remove(id);
                self.opening.take_if(|opening| opening.id == *id && !opening.answered);
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
        self.owe_initialized(true);
        self.go_on(&HashSet::new());
        Heard::Swallow
    }

    fn owe_initialized(&mut self, owed: bool) {
        if let Some(opening) = &mut self.opening {
            opening.owed = owed;
        }
    }

    /// The session is open: what was lost in it is said again.
    fn go_on(&mut self, pending: &HashSet<Id>) {
        self.standing = Standing::Connected;
        let owed = self.opening.as_ref().filter(|opening| opening.owed);
        let initialized = owed.and_then(|opening| opening.initialized.clone());
        self.again.extend(initialized.map(|line| Again { line, why: Why::Opened }));
        self.repeat(pending);
    }

    /// Says every request in flight again, in order, but for those that are still pending. Only safe
    /// ones are left by now.
    fn repeat(&mut self, pending: &HashSet<Id>) {
        let lost = self.in_flight.iter().filter(|(id, _)| !pending.contains(*id));
        let mut lost: Vec<(&Id, &Flight)> = lost.collect();
        lost.sort_unstable_by_key(|(_, flight)| flight.number);
        for (id, flight) in lost {
            if let Kind::Safe(line) = &flight.kind {
                self.again.push_back(Again { line: line.clone(), why: Why::Repeat(id.clone()) });
            }
        }
    }

    /// Answers those requests in flight for which there is something to say, in order.
    fn answer_those<'a>(&mut self, text: impl Fn(&Id, &Flight) -> Option<&'a str>) -> Vec<Vec<u8>> {
        let due = self.in_flight.extract_if(|id, flight| text(id, flight).is_some());
        let mut due: Vec<(Id, Flight)> = due.collect();
        due.sort_unstable_by_key(|(_, flight)| flight.number);
        due.into_iter()
            .filter_map(|(id, flight)| Some(answer(&id, &flight.kind, text(&id, &flight)?)))
            .collect()
    }
}

/// The answers to requests that were never sent.
fn refusals(said: &[Said], why: &str) -> Vec<Vec<u8>> {
    let refusal = |said: &Said| match said {
        Said::Request(Asked { id, kind, .. }) => Some(answer(id, kind, why)),
        Said::Initialized | Said::Cancelled(_) => None,
    };
    said.iter().filter_map(refusal).collect()
}

/// An answer of our own: for a tool as its result, because that is what a model gets to see.
fn answer(id: &Id, kind: &Kind, text: &str) -> Vec<u8> {
    let (member, outcome) = match kind {
        Kind::Call => {
            ("result", json!({"content": [{"type": "text", "text": text}], "isError": true}))
        }
        Kind::Safe(_) | Kind::Other => ("error", json!({"code": -32603, "message": text})),
    };
    let id: Value = serde_json::from_str(id).unwrap_or_default();
    let mut line = json!({"jsonrpc": "2.0", "id": id, member: outcome}).to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod farewells;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

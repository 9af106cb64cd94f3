//! Questions: requests of the server that are with the client.
//!
//! A client sees each under an id of ours. It ends with the client's answer, which goes to whoever asked
//! and to nobody else; when the server takes it back; or when its run or the request that it was part
//! of is over, of which the client is told.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};

use super::open::Open;
use super::{Session, Terms};
use crate::frame::{self, Id, InitializeParams, Method, Parsed};
use crate::hub::http::HttpLane;
use crate::hub::lines::LineLane;
use crate::stream::Stream;

/// The questions that a client has not answered yet, by our numbers.
#[derive(Default)]
pub(super) struct Asks {
    open: HashMap<u64, Ask>,
    next: u64,
}

/// One question.
struct Ask {
    origin: Origin,
    generation: u64,
    /// The client's request on whose stream it was put.
    stream: Option<Arc<Stream>>,
}

/// Who asked, and under which id.
#[derive(Debug, Clone)]
pub(in crate::hub) enum Origin {
    Lines { lane: Weak<LineLane>, id: Box<str> },
    Http { id: Box<str> },
}

impl Asks {
    /// None, numbered so that an answer to a question that an earlier daemon put is not taken for the
    /// answer to one of these.
    pub(super) fn apart() -> Self {
        let next = RandomState::new().hash_one(0) >> 16;
        Self { next, ..Self::default() }
    }

    /// The request of this stream is answered: what was asked as a part of it is no more of interest.
    pub(super) fn end_with(&mut self, stream: &Arc<Stream>) {
        self.open.retain(|_, ask| !ask.is_part_of(stream));
    }

    fn add(&mut self, ask: Ask) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number, ask);
        number
    }
}

impl Ask {
    fn is_part_of(&self, stream: &Arc<Stream>) -> bool {
        self.stream.as_ref().is_some_and(|own| Arc::ptr_eq(own, stream))
    }
}

impl Session {
    /// Puts a question of the server to the client. Says why not, if it cannot be.
    pub(in crate::hub) fn ask_client(
        &self,
        origin: Origin,
        generation: u64,
        request: &Parsed,
        stream: Option<&Arc<Stream>>,
    ) -> Option<&'static str> {
        let mut state = self.state();
        if !state.terms.understands(request.method()) {
            return Some("the client did not announce that it can be asked this");
        }
        let number = state.asks.add(Ask { origin, generation, stream: stream.cloned() });
        drop(state);
        if self.put(request.with_id(&ask_id(number)), stream) {
            return None;
        }
        self.state().asks.open.remove(&number);
        Some("the client does not listen")
    }

    /// The server takes a question back.
    pub(in crate::hub) fn ask_cancelled(&self, generation: u64, notification: &Parsed) {
        let Some(place) = notification.cancelled_id() else { return };
        let taken = self.take_asks(|ask| {
            ask.generation == generation && ask.origin.id() == notification.get(place)
        });
        for (number, ask) in taken {
            self.hear(notification.with(place, &ask_id(number)), ask.stream.as_ref());
        }
    }

    /// The run is over, and with it what it asked.
    pub(in crate::hub) fn forget_asks(&self, generation: u64) {
        self.withdraw(|ask| ask.generation == generation);
    }

    /// A request is over, and with it what was asked on its account.
    pub(in crate::hub) fn forget_asks_of(&self, stream: &Arc<Stream>) {
        self.withdraw(|ask| ask.is_part_of(stream));
    }

    /// Whether the client has answered a question of the server's on account of this request.
    pub(in crate::hub) fn was_interactive(&self, stream: &Arc<Stream>) -> bool {
        let state = self.state();
        state.open.values().any(|open| open.interactive && Arc::ptr_eq(&open.stream, stream))
    }

    fn withdraw(&self, which: impl Fn(&Ask) -> bool) {
        for (number, ask) in self.take_asks(which) {
            let id = ask_id(number);
            let id = Id::new(&id).expect("a string is an id");
            self.hear(
                frame::cancelled(id, "the server that asked has stopped"),
                ask.stream.as_ref(),
            );
        }
    }

    fn take_asks(&self, which: impl Fn(&Ask) -> bool) -> Vec<(u64, Ask)> {
        self.state().asks.open.extract_if(|_, ask| which(ask)).collect()
    }

    /// The client answers a question of the server's.
    pub(super) fn answered(&self, response: &Parsed) {
        let number = response.id().and_then(|id| ask_number(id.get()));
        let Some(ask) = number.and_then(|number| self.state().asks.open.remove(&number)) else {
            // The server that asked has gone, or asked nothing.
            return;
        };
        // If it cannot be told which request the question was part of, it may have been any.
        let concerned = |open: &Open| {
            ask.stream.as_ref().is_none_or(|stream| Arc::ptr_eq(&open.stream, stream))
        };
        for open in self.state().open.values_mut() {
            open.interactive |= concerned(open);
        }
        match ask.origin {
            Origin::Lines { lane, id } => {
                if let Some(lane) = lane.upgrade() {
                    lane.tell_later(response.with_id(&id));
                }
            }
            Origin::Http { id } => {
                HttpLane::tell_later(self, ask.generation, response.with_id(&id));
            }
        }
    }
}

impl Terms {
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

impl Origin {
    fn id(&self) -> &str {
        match self {
            Self::Lines { id, .. } | Self::Http { id } => id,
        }
    }
}

/// The id under which a client sees a question of the server's.
fn ask_id(number: u64) -> String {
    format!("\"mainstay-{number}\"")
}

fn ask_number(id: &str) -> Option<u64> {
    id.strip_prefix("\"mainstay-")?.strip_suffix('"')?.parse().ok()
}

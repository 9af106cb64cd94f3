//! What a line of the client means for later.

use std::rc::Rc;

use super::message::{Message, messages};

/// A message with its line's end.
pub(super) type Line = Rc<Vec<u8>>;

/// The id of a request, as JSON without white space.
pub(super) type Id = String;

/// A message that has to be remembered.
#[derive(Debug)]
pub(super) enum Said {
    /// It wants an answer.
    Request(Asked),
    /// The session is open from the client's side.
    Initialized,
    /// Nobody waits for the answer to this request any more.
    Cancelled(Id),
}

/// A request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) id: Id,
    pub(super) kind: Kind,
    /// Whether it opens the session.
    pub(super) opens: bool,
}

/// What it means to make a request twice.
#[derive(Debug)]
pub(super) enum Kind {
    /// It does no harm.
    Safe(Line),
    /// The call of a tool: nobody here knows.
    Call,
    /// Anything else: nobody here knows.
    Other,
}

/// What a line says that has to be remembered.
pub(super) fn said(line: &[u8]) -> Vec<Said> {
    messages(line).iter().filter_map(of_message).collect()
}

fn of_message(message: &Message<'_>) -> Option<Said> {
    match (message.method.as_deref()?, message.id()) {
        ("notifications/initialized", None) => Some(Said::Initialized),
        ("notifications/cancelled", None) => message.cancelled().map(Said::Cancelled),
        (_, None) => None,
        (method, Some(id)) => {
            let kind = Kind::of(method, || message.line());
            Some(Said::Request(Asked { id, kind, opens: method == "initialize" }))
        }
    }
}

impl Kind {
    fn of(method: &str, line: impl FnOnce() -> Line) -> Self {
        match method {
            "initialize"
            | "ping"
            | "tools/list"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "completion/complete" => Self::Safe(line()),
            "tools/call" => Self::Call,
            _ => Self::Other,
        }
    }
}

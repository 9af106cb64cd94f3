//! What was decided for single requests, for the event log.

use super::session::Session;
use crate::frame::{Method, Parsed};
use crate::front::Session as _;

/// Hears of every request that could not simply be passed on. No method may wait.
pub trait EventSink: Send + Sync + 'static {
    /// This was decided.
    fn record_decision(&self, decision: Decision);
    /// The run of this generation, which speaks HTTP and counts as up, could not be reached. It is
    /// told for every attempt.
    fn unreachable(&self, server: &str, generation: u64);
}

/// What was decided for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The server.
    pub server: String,
    /// The run it is about, if it is about one.
    pub run: Option<u64>,
    /// What was decided, in one word.
    pub cause: &'static str,
    /// The rest, as a sentence.
    pub detail: String,
}

impl Decision {
    pub(super) fn about(
        session: &Session,
        request: &Parsed,
        cause: &'static str,
        what: &str,
        run: Option<u64>,
    ) -> Self {
        let method = request.method().map_or("", Method::as_str);
        let name = request.name().map(|name| format!(" {name}")).unwrap_or_default();
        let whose = match session.id().get(..8) {
            Some(short) => format!("session {short}"),
            None => "our own user".to_owned(),
        };
        Self {
            server: session.hub().name().to_owned(),
            run,
            cause,
            detail: format!("{method}{name} of {whose}: {what}"),
        }
    }
}

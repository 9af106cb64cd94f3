//! The headers between `mainstay connect` ([`bridge`](crate::bridge)) and the private listener of a daemon. Either may
//! be of an earlier version than the other, so they stay as they are.

use std::fmt;

use hyper::header::{HeaderName, HeaderValue};

/// In a request: the [`SequenceNumbers`] of its message. In every response of a private listener: [`ORDERED`].
pub(crate) static SEQUENCE: HeaderName = HeaderName::from_static("mainstay-sequence");

/// Announces that the listener keeps the order of messages.
pub(crate) const ORDERED: HeaderValue = HeaderValue::from_static("ordered");

/// In a request that is sent again, because the response was lost with a daemon: whether the server had asked the client
/// something on its account ([`repeated`]).
pub(crate) static REPEATED: HeaderName = HeaderName::from_static("mainstay-repeated");

const ASKED: &str = "asked";

/// The value of [`REPEATED`].
pub(crate) fn repeated(was_asked: bool) -> &'static str {
    if was_asked { ASKED } else { "lost" }
}

/// Reads the value of [`REPEATED`].
pub(crate) fn was_asked(repeated: &HeaderValue) -> bool {
    repeated == ASKED
}

/// The place of a message in its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SequenceNumbers {
    pub(crate) number: u64,
    /// The lowest number whose response has not begun.
    pub(crate) lowest: u64,
}

impl SequenceNumbers {
    pub(crate) fn parse(value: &HeaderValue) -> Option<Self> {
        let (number, lowest) = value.to_str().ok()?.split_once('/')?;
        Some(Self { number: number.parse().ok()?, lowest: lowest.parse().ok()? })
    }
}

impl fmt::Display for SequenceNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, lowest } = self;
        write!(f, "{number}/{lowest}")
    }
}

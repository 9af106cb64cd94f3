//! The ids of events.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The id of a request is part of event ids only up to this length.
const REQUEST_ID: usize = 64;

/// What an event is called toward the client: its stream, its number there, and the request that the
/// stream belongs to. A client resumes with the id of the last event that it got.
///
/// The request is part of the id so that a client gets an answer to a request whose stream was
/// forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    pub(crate) stream: u64,
    pub(crate) message: u64,
    pub(crate) request: Option<Arc<str>>,
}

impl EventId {
    /// The id before all messages of a stream.
    pub(crate) fn first(stream: u64, request: Option<Arc<str>>) -> Self {
        let request = request.filter(|id| id.len() <= REQUEST_ID);
        Self { stream, message: 0, request }
    }

    /// The id of a message in the same stream.
    #[must_use]
    pub fn at(&self, message: u64) -> Self {
        Self { message, ..self.clone() }
    }
}

/// `STREAM-MESSAGE` or `STREAM-MESSAGE-REQUEST`: 16 hexadecimal digits, a number, and the JSON text
/// of the request's id in hexadecimal digits, so that any id is fit for a header.
impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.stream, self.message)?;
        let Some(request) = &self.request else { return Ok(()) };
        f.write_str("-")?;
        request.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text is not an event id of Mainstay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an event id of Mainstay")]
pub struct NotOurs;

impl FromStr for EventId {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Self, NotOurs> {
        let mut parts = text.splitn(3, '-');
        let stream = parts.next().filter(|text| text.len() == 16).ok_or(NotOurs)?;
        let stream = u64::from_str_radix(stream, 16).map_err(|_| NotOurs)?;
        let message = parts.next().ok_or(NotOurs)?.parse().map_err(|_| NotOurs)?;
        let request = parts.next().map(unhex).transpose()?;
        Ok(Self { stream, message, request })
    }
}

fn unhex(text: &str) -> Result<Arc<str>, NotOurs> {
    if text.len() > 2 * REQUEST_ID {
        return Err(NotOurs);
    }
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    let request = String::from_utf8(bytes.ok_or(NotOurs)?).map_err(|_| NotOurs)?;
    Ok(request.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_are_read_as_written(
            stream: u64, message: u64, request in prop::option::of("\\PC{0,16}"),
        ) {
            let request = request.map(Arc::from);
            let id = EventId { stream, message, request };
            let text = id.to_string();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(text.parse(), Ok(id));
        }

        #[test]
        fn other_ids_never_panic(text in "[0-9a-f]{14,18}-?[0-9é]{0,3}-?[0-9a-fé]{0,5}|\\PC*") {
            text.parse::<EventId>().ok();
        }
    }
}

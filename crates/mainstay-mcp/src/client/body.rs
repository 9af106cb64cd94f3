//! Where a body is and where it ends: pure, over a buffer that others fill.

use bytes::{Bytes, BytesMut};

use super::chunked::{BadChunk, Chunked};
use super::head::Framing;

#[derive(Debug)]
pub(super) enum Body {
    /// So many bytes are to come.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    /// The connection ended where the body was to end.
    Closed,
}

impl Body {
    pub(super) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunked::Size),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// Takes the content at the front of the buffer, if there is any.
    pub(super) fn take(&mut self, buf: &mut BytesMut) -> Result<Option<Bytes>, BadChunk> {
        let len = match self {
            Self::Length(left) => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(buf.len());
                *left -= len as u64;
                len
            }
            Self::Chunked(state) => return state.take(buf),
            Self::UntilClose => buf.len(),
            Self::Closed => 0,
        };
        Ok((len > 0).then(|| buf.split_to(len).freeze()))
    }

    /// Whether all of it was taken.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(state) => *state == Chunked::Over,
            Self::UntilClose => false,
            Self::Closed => true,
        }
    }

    /// Whether the server has nothing more to send: `Some` with the number of bytes in the buffer
    /// that are not part of the body.
    pub(super) fn surplus(&mut self, buf: &mut BytesMut) -> Option<usize> {
        match self {
            Self::Length(left) => buf.len().checked_sub(usize::try_from(*left).ok()?),
            Self::Chunked(state) => {
                // An error comes again when the next chunk is asked for.
                state.advance(buf).ok()?;
                (*state == Chunked::Over).then_some(buf.len())
            }
            Self::UntilClose => None,
            Self::Closed => Some(0),
        }
    }

    /// How many more bytes are certain to come, beside those in the buffer.
    pub(super) fn missing(&self, buf: &[u8]) -> u64 {
        let left = match self {
            Self::Length(left) => *left,
            // The end of the chunk's line, and at least one more chunk, the empty one.
            Self::Chunked(Chunked::Data(left)) => left.saturating_add(7),
            Self::Chunked(_) | Self::UntilClose | Self::Closed => 0,
        };
        left.saturating_sub(buf.len() as u64)
    }

    /// The connection ended. Returns whether the body may end there.
    pub(super) fn close(&mut self) -> bool {
        match self {
            Self::UntilClose | Self::Closed => {
                *self = Self::Closed;
                true
            }
            Self::Length(_) | Self::Chunked(_) => self.is_over(),
        }
    }
}

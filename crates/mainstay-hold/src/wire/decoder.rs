//! Decodes frames from a stream of bytes.

use std::marker::PhantomData;

use super::MAX_FRAME;
use crate::codec::DecodeError;

const KEPT_CAPACITY: usize = 64 * 1024;

/// Decodes frames from bytes that arrive in any pieces.
#[derive(Debug)]
pub struct Decoder<F> {
    buffer: Vec<u8>,
    taken: usize,
    limit: usize,
    frames: PhantomData<fn() -> F>,
}

impl<F> Default for Decoder<F> {
    fn default() -> Self {
        Self { buffer: Vec::new(), taken: 0, limit: MAX_FRAME, frames: PhantomData }
    }
}

impl<F: Frame> Decoder<F> {
    /// Refuses longer frames from now on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds bytes that were read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > self.buffer.len() / 2 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame that is not to be skipped, if it has arrived.
    #[expect(
        clippy::should_implement_trait,
        reason = "it ends at the first error, unlike an iterator"
    )]
    pub fn next(&mut self) -> Result<Option<F>, WireError> {
        while let Some(raw) = self.next_raw()? {
            if let Some(frame) = F::decode(raw)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// The next whole frame, if it has arrived, borrowed from the buffer.
    pub fn next_raw(&mut self) -> Result<Option<Raw<'_>>, WireError> {
        if self.taken == self.buffer.len() {
            self.taken = 0;
            self.buffer.clear();
            // A long frame must not cost memory for the rest of the connection's life.
            self.buffer.shrink_to(KEPT_CAPACITY);
        }
        let Some((len, rest)) = self.buffer[self.taken..].split_first_chunk() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len > self.limit {
            return Err(WireError::TooLong(len));
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        self.taken += 4 + len;
        let (&kind, payload) = frame.split_first().ok_or(WireError::Empty)?;
        Ok(Some(Raw { kind, payload }))
    }
}

/// The frames of one direction.
pub trait Frame: Sized {
    /// Appends the frame.
    fn encode(&self, into: &mut Vec<u8>);

    /// The frame of this type with this payload, or `None` if it is to be skipped.
    fn decode(raw: Raw<'_>) -> Result<Option<Self>, WireError>;
}

/// A whole frame, not decoded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raw<'a> {
    pub(super) kind: u8,
    pub(super) payload: &'a [u8],
}

/// Why the bytes of a peer cannot be decoded. The connection is of no use after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame announces more bytes than it may have.
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    /// A frame has no type.
    #[error("a frame is empty")]
    Empty,
    /// A frame has a type that this build does not know and may not skip.
    #[error("frame type {0} is unknown")]
    UnknownType(u8),
    /// A payload is damaged.
    #[error("a frame of type {kind} is damaged")]
    Payload {
        /// The type of the frame.
        kind: u8,
        /// What is wrong with it.
        source: DecodeError,
    },
}

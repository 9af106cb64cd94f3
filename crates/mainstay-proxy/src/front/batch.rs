//! Several messages in one: a batch, which only protocol version 2025-03-26 knows.

use bytes::Bytes;

use super::ProtocolVersion;
use crate::frame::{self, FrameError, Kind, Method, Parsed};

/// How many messages a batch may have.
const MESSAGES: usize = 128;

#[derive(Debug)]
pub(super) struct Batch {
    pub(super) requests: Vec<Parsed>,
    /// Notifications and answers.
    pub(super) others: Vec<Parsed>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum BatchError {
    #[error("batches are part of protocol version 2025-03-26 only")]
    Version,
    #[error("the batch is empty, has more than {MESSAGES} messages, or is not JSON")]
    Size,
    #[error("`initialize` must not be part of a batch")]
    Initialize,
    #[error("a message of the batch is not a JSON-RPC message")]
    Message(#[source] FrameError),
}

/// Whether a text is an array.
pub(super) fn is_batch(text: &[u8]) -> bool {
    text.trim_ascii_start().first() == Some(&b'[')
}

impl Batch {
    /// Reads a batch, if the session's version has batches.
    pub(super) fn read(text: &Bytes, version: Option<ProtocolVersion>) -> Result<Self, BatchError> {
        if version != Some(ProtocolVersion::V2025_03_26) {
            return Err(BatchError::Version);
        }
        let parts = frame::split(text);
        if parts.len() > MESSAGES || parts.iter().any(|part| is_batch(part)) {
            return Err(BatchError::Size);
        }
        let messages = parts.into_iter().map(|part| Parsed::read(text.slice_ref(part)));
        let messages: Vec<_> = messages.collect::<Result<_, _>>().map_err(BatchError::Message)?;
        if messages.iter().any(|message| message.method() == Some(&Method::Initialize)) {
            return Err(BatchError::Initialize);
        }
        let is_request = |message: &Parsed| message.kind() == Kind::Request;
        let (requests, others) = messages.into_iter().partition(is_request);
        Ok(Self { requests, others })
    }
}

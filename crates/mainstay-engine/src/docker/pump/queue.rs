//! Lines that wait for the consumer.

use std::collections::VecDeque;

use bytes::Bytes;

/// The limit of lines.
pub(super) const LINES: usize = 256;

/// The limit of bytes. Beyond it, the server has to wait.
const BYTES: usize = 32 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: VecDeque<Bytes>,
    bytes: usize,
}

impl Queue {
    pub(super) fn push(&mut self, line: Bytes) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.lines.len() < LINES && self.bytes < BYTES
    }
}

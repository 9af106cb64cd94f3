//! Buffers: output that is not consumed yet, and the end of standard error.

use std::collections::VecDeque;

/// Output that was read and not consumed yet, numbered by offset since the start of the run.
pub(super) struct Ring {
    bytes: VecDeque<u8>,
    start: u64,
    limit: usize,
}

impl Ring {
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), start: 0, limit }
    }

    /// The offset of the first byte that is kept.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The offset after the last byte.
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// How many bytes may be read before some are consumed.
    pub(super) fn room(&self) -> usize {
        self.limit.saturating_sub(self.bytes.len())
    }

    /// Adds bytes. The limit is the reader's to keep: what a dead server left in its pipe is taken
    /// in beyond it, because it is bounded by the pipe.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        extend(&mut self.bytes, bytes, self.limit);
    }

    /// At most `max` bytes from this offset on, in two pieces.
    pub(super) fn slices(&self, from: u64, max: usize) -> (&[u8], &[u8]) {
        let skip = usize::try_from(from.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let (first, second) = self.bytes.as_slices();
        let (skip_first, skip_second) = (skip.min(first.len()), skip.saturating_sub(first.len()));
        let (first, second) = (&first[skip_first..], &second[skip_second.min(second.len())..]);
        let first = &first[..first.len().min(max)];
        (first, &second[..second.len().min(max - first.len())])
    }

    /// Forgets everything before this offset.
    pub(super) fn consume(&mut self, to: u64) {
        let consumed = to.min(self.end()).saturating_sub(self.start);
        self.start += consumed;
        drop_front(&mut self.bytes, usize::try_from(consumed).unwrap_or(usize::MAX));
    }
}

/// The last bytes of a stream.
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    limit: usize,
}

impl Tail {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.limit)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(self.limit);
        self.bytes.drain(..excess);
        extend(&mut self.bytes, bytes, self.limit);
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}

/// Appends without reserving more than `limit` in advance, which doubling would do.
pub(super) fn extend(to: &mut VecDeque<u8>, bytes: &[u8], limit: usize) {
    let needed = to.len() + bytes.len();
    if needed > to.capacity() {
        let capacity = (2 * to.capacity()).min(limit).max(needed);
        to.reserve_exact(capacity - to.len());
    }
    to.extend(bytes);
}

/// Drops bytes from the front and gives the memory back when nothing is left: most servers are
/// silent most of the time.
pub(super) fn drop_front(from: &mut VecDeque<u8>, count: usize) {
    from.drain(..count.min(from.len()));
    if from.is_empty() && from.capacity() > KEPT_CAPACITY {
        *from = VecDeque::new();
    }
}

const KEPT_CAPACITY: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined((first, second): (&[u8], &[u8])) -> Vec<u8> {
        [first, second].concat()
    }

    proptest! {
        #[test]
        fn a_ring_is_a_window_on_the_whole_stream(
            steps in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..30), 0..40u64), 1..40),
            ahead in 0..40u64,
            max in 0..50usize,
        ) {
            let (mut ring, mut whole) = (Ring::new(64), Vec::new());
            for (bytes, consumed) in steps {
                let bytes = &bytes[..bytes.len().min(ring.room())];
                ring.push(bytes);
                whole.extend_from_slice(bytes);
                ring.consume(ring.start() + consumed);
                prop_assert_eq!(ring.end(), whole.len() as u64);
                prop_assert!(ring.end() - ring.start() <= 64);
                let from = (ring.start() + ahead).min(ring.end());
                let expected = &whole[usize::try_from(from).unwrap()..];
                let expected = &expected[..expected.len().min(max)];
                prop_assert_eq!(joined(ring.slices(from, max)), expected);
            }
        }

        #[test]
        fn a_tail_is_the_end_of_the_stream(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..20),
        ) {
            let mut tail = Tail::new(20);
            for chunk in &chunks {
                tail.push(chunk);
            }
            let whole = chunks.concat();
            prop_assert_eq!(tail.to_vec(), &whole[whole.len().saturating_sub(20)..]);
        }
    }

    #[test]
    fn memory_is_returned_and_never_overreserved() {
        let mut ring = Ring::new(1 << 20);
        for _ in 0..1 << 10 {
            ring.push(&[0; 1 << 10]);
        }
        assert_eq!(ring.room(), 0);
        assert_eq!(ring.bytes.capacity(), 1 << 20);
        ring.consume(1 << 20);
        assert_eq!(ring.bytes.capacity(), 0);
    }
}

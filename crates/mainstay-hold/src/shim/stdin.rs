//! Lines on their way to the server.
//!
//! A line is taken whole or not at all, in the order of ids, and written whole before the next. It is
//! acknowledged when its last byte is in the pipe. What the server will not read any more (it closed its
//! input, or has exited) is dropped and never acknowledged.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::ring;

const HEAVY: usize = 1024 * 1024;
const FULL: usize = 32 * 1024 * 1024;

/// What a line costs beyond its bytes, so that empty lines are bounded too.
const LINE_COST: usize = 16;

/// How much waits to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Lines are accepted.
    Light,
    /// Lines are accepted only if the server waits for the daemon.
    Heavy,
    /// No line is accepted.
    Full,
}

pub(super) struct Stdin {
    pipe: Option<OwnedFd>,
    queue: VecDeque<u8>,
    /// For each line of the queue, the bytes of it that are still there.
    lines: VecDeque<usize>,
    accepted: u64,
}

impl Stdin {
    /// Takes a pipe that never blocks.
    pub(super) fn new(pipe: OwnedFd) -> Self {
        let (queue, lines) = (VecDeque::new(), VecDeque::new());
        Self { pipe: Some(pipe), queue, lines, accepted: 0 }
    }

    /// The id of the last line that was taken.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The id of the last line that is in the pipe.
    pub(super) fn written(&self) -> u64 {
        self.accepted - self.lines.len() as u64
    }

    /// Accepts a line, or returns the id that was expected. A closed input drops lines silently.
    pub(super) fn accept(&mut self, id: u64, line: &[u8]) -> Result<(), u64> {
        if self.pipe.is_none() {
            return Ok(());
        }
        let expected = self.accepted + 1;
        if id != expected {
            return Err(expected);
        }
        self.accepted = id;
        self.lines.push_back(line.len());
        ring::extend(&mut self.queue, line, usize::MAX);
        Ok(())
    }

    pub(super) fn load(&self) -> Load {
        match self.queue.len() + self.lines.len() * LINE_COST {
            cost if cost <= HEAVY => Load::Light,
            cost if cost <= FULL => Load::Heavy,
            _ => Load::Full,
        }
    }

    /// The pipe, and whether it is to be waited for. Its other end may close at any time.
    pub(super) fn pipe(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.pipe.as_ref().map(|pipe| (pipe.as_fd(), !self.queue.is_empty()))
    }

    /// Writes what the pipe takes now.
    pub(super) fn flush(&mut self) {
        // Empty lines are written by doing nothing.
        self.sent(0);
        while let Some(pipe) = &self.pipe
            && !self.queue.is_empty()
        {
            let (first, second) = self.queue.as_slices();
            match rustix::io::writev(pipe, &[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(count) => self.sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.close(),
            }
        }
    }

    /// Closes the pipe and forgets what was not written.
    pub(super) fn close(&mut self) {
        self.accepted = self.written();
        self.lines = VecDeque::new();
        self.queue = VecDeque::new();
        self.pipe = None;
    }

    fn sent(&mut self, mut count: usize) {
        ring::drop_front(&mut self.queue, count);
        while let Some(left) = self.lines.front_mut() {
            if *left > count {
                *left -= count;
                return;
            }
            count -= *left;
            self.lines.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn piped() -> (Stdin, File) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        (Stdin::new(write), File::from(read))
    }

    #[test]
    fn ids_are_consecutive() {
        let (mut stdin, _read) = piped();
        assert_eq!(stdin.accept(2, b"x"), Err(1));
        assert_eq!(stdin.accept(1, b"x"), Ok(()));
        assert_eq!(stdin.accept(1, b"x"), Err(2));
        assert_eq!((stdin.accepted(), stdin.written()), (1, 0));
    }

    #[test]
    fn a_line_counts_as_written_when_its_last_byte_is() {
        let (mut stdin, mut read) = piped();
        stdin.accept(1, b"").unwrap();
        stdin.accept(2, b"a\n").unwrap();
        stdin.accept(3, &vec![b'x'; 100_000]).unwrap();
        stdin.accept(4, b"").unwrap();
        stdin.flush();
        assert_eq!((stdin.accepted(), stdin.written()), (4, 2));
        let mut got = vec![0; 70_000];
        let count = read.read(&mut got).unwrap();
        assert!(got[..count].starts_with(b"a\nxxx"));
        stdin.flush();
        assert_eq!(stdin.written(), 4);
    }

    #[test]
    fn closing_drops_the_queue_and_its_ids() {
        let (mut stdin, read) = piped();
        stdin.accept(1, b"a\n").unwrap();
        stdin.flush();
        drop(read);
        stdin.accept(2, b"b\n").unwrap();
        stdin.flush();
        assert!(stdin.pipe().is_none());
        assert_eq!((stdin.accepted(), stdin.written()), (1, 1));
        assert_eq!(stdin.accept(9, b"nobody reads"), Ok(()));
        assert_eq!(stdin.accepted(), 1);
    }

    #[test]
    fn empty_lines_are_bounded_too() {
        let (mut stdin, _read) = piped();
        let mut id = 0;
        while stdin.load() == Load::Light {
            id += 1;
            stdin.accept(id, b"").unwrap();
        }
        assert!(id < 100_000);
    }
}

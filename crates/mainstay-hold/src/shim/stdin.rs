//! Lines on their way to the server.
//!
//! A line is taken whole or not at all, in the order of ids, and written whole before the next. It is
//! acknowledged when its last byte is in the pipe. What the server will not read any more (it closed its
//! input, or has exited) is dropped and never acknowledged.
//!
//! The kernel counts the bytes in the pipe, so it is known which of the written lines the server has begun to read.
//! When the last process that can read them is dead, the others were never received.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::fcntl_getpipe_size;

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

/// What the server has not read of the lines that were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unread {
    /// The id of the last line of which the server has read anything.
    pub(super) read_through: u64,
    /// How much is in the pipe.
    pub(super) bytes: u64,
}

pub(super) struct Stdin {
    pipe: Option<OwnedFd>,
    /// The other end of a pipe that was closed, only to count what is left in it.
    rest: Option<OwnedFd>,
    queue: VecDeque<u8>,
    /// For each line of the queue, the bytes of it that are still there.
    lines: VecDeque<usize>,
    /// The bytes of the first of them that are in the pipe.
    begun: usize,
    in_pipe: LastLines,
    accepted: u64,
}

impl Stdin {
    /// Takes a pipe that never blocks.
    pub(super) fn new(pipe: OwnedFd) -> Self {
        Self {
            in_pipe: LastLines::new(fcntl_getpipe_size(&pipe).unwrap_or(0)),
            pipe: Some(pipe),
            rest: None,
            queue: VecDeque::new(),
            lines: VecDeque::new(),
            begun: 0,
            accepted: 0,
        }
    }

    /// What the server has not read, if that can be counted. After [`Self::close`], what it will never read once all its
    /// processes are dead.
    pub(super) fn unread(&self) -> Option<Unread> {
        let pipe = self.pipe.as_ref().or(self.rest.as_ref())?;
        let bytes = rustix::io::ioctl_fionread(pipe).ok()?;
        let whole_lines = usize::try_from(bytes).ok()?.saturating_sub(self.begun);
        let lines = self.in_pipe.unread(whole_lines);
        Some(Unread { read_through: self.written().checked_sub(lines)?, bytes })
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
                Ok(count) => {
                    // The server may have made its pipe larger.
                    self.in_pipe.capacity = fcntl_getpipe_size(pipe).unwrap_or(0);
                    self.sent(count);
                }
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
        if let Some(pipe) = self.pipe.take() {
            self.rest = other_end(&pipe);
        }
    }

    fn sent(&mut self, mut count: usize) {
        ring::drop_front(&mut self.queue, count);
        while let Some(left) = self.lines.front_mut() {
            if *left > count {
                *left -= count;
                self.begun += count;
                return;
            }
            count -= *left;
            self.in_pipe.add(self.begun + *left);
            self.begun = 0;
            self.lines.pop_front();
        }
    }
}

/// Opens a pipe for reading, by the end that is written to. It never delays the end of input.
fn other_end(pipe: &OwnedFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// The lengths of the last lines that were written, as far as a pipe can have them.
#[derive(Debug)]
struct LastLines {
    lengths: VecDeque<usize>,
    bytes: usize,
    /// How many bytes the pipe holds at most.
    capacity: usize,
}

impl LastLines {
    fn new(capacity: usize) -> Self {
        Self { lengths: VecDeque::new(), bytes: 0, capacity }
    }

    fn add(&mut self, length: usize) {
        self.lengths.push_back(length);
        self.bytes += length;
        // An empty line takes no room in the pipe, and says nothing.
        while let Some(first) = self.lengths.front()
            && (self.bytes - first >= self.capacity || self.lengths.len() > self.capacity)
        {
            self.bytes -= first;
            self.lengths.pop_front();
        }
    }

    /// How many of the last lines are wholly within the last `bytes`.
    fn unread(&self, mut bytes: usize) -> u64 {
        let mut lines = 0;
        for length in self.lengths.iter().rev().filter(|_| self.capacity > 0) {
            if *length > bytes || bytes == 0 {
                break;
            }
            bytes -= length;
            lines += 1;
        }
        lines
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
    fn lines_that_were_not_read_are_counted() {
        let (mut stdin, mut read) = piped();
        for id in 1..=3 {
            stdin.accept(id, b"line\n").unwrap();
        }
        stdin.flush();
        assert_eq!(stdin.unread(), Some(Unread { read_through: 0, bytes: 15 }));
        read.read_exact(&mut [0; 6]).unwrap();
        let unread = Unread { read_through: 2, bytes: 9 };
        assert_eq!(stdin.unread(), Some(unread), "a line that was begun counts as read");
        stdin.close();
        assert_eq!(
            stdin.unread(),
            Some(unread),
            "what is left can be counted after the end of input"
        );
        read.read_exact(&mut [0; 9]).unwrap();
        assert_eq!(stdin.unread(), Some(Unread { read_through: 3, bytes: 0 }));
        assert_eq!(read.read(&mut [0; 1]).unwrap(), 0, "the end of input is not delayed");
    }

    #[test]
    fn a_line_that_is_half_written_does_not_hide_the_lines_before_it() {
        let (mut stdin, mut read) = piped();
        stdin.accept(1, b"a\n").unwrap();
        stdin.accept(2, b"b\n").unwrap();
        stdin.accept(3, &vec![b'x'; 100_000]).unwrap();
        stdin.flush();
        assert_eq!(stdin.unread().map(|unread| unread.read_through), Some(0));
        read.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(stdin.unread().map(|unread| unread.read_through), Some(1));
        read.read_exact(&mut [0; 100]).unwrap();
        assert_eq!(stdin.unread().map(|unread| unread.read_through), Some(2));
        drop(read);
        stdin.flush();
        assert_eq!(stdin.unread().map(|unread| unread.read_through), Some(2));
    }

    #[test]
    fn no_more_lines_are_remembered_than_the_pipe_can_have() {
        let mut last = LastLines::new(100);
        for _ in 0..1000 {
            last.add(10);
        }
        assert_eq!((last.lengths.len(), last.unread(100), last.unread(55)), (10, 10, 5));
        for _ in 0..1000 {
            last.add(0);
        }
        assert!(last.lengths.len() <= 100);
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

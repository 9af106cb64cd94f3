//! The server's pipes, and where their bytes go.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::ring::{Ring, Tail};
use super::spawn::Spawned;
use super::stdin::Stdin;
use crate::launch::{Launch, Stdout};
use crate::log::Log;

/// At most this much is read at once, so that no pipe keeps the others waiting.
const READ: usize = 64 * 1024;

/// Where bytes are read into, [`READ`] of them. It is never cleared: a page that nothing was read
/// into costs no memory.
pub(super) type Scratch = [MaybeUninit<u8>];

pub(super) fn scratch() -> Box<Scratch> {
    Box::new_uninit_slice(READ)
}

const TAIL: usize = 16 * 1024;
const SMALLEST_RING: usize = 4 * 1024;

pub(super) struct Server {
    pub(super) pid: u32,
    pub(super) stdin: Stdin,
    pub(super) output: Ring,
    pub(super) tail: Tail,
    pub(super) log: Log,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    stdout_is: Stdout,
}

/// One of the two pipes that a server writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pipe {
    Stdout,
    Stderr,
}

impl Server {
    pub(super) fn new(spawned: Spawned, launch: &Launch) -> Self {
        Self {
            pid: spawned.pid.as_raw_nonzero().get().unsigned_abs(),
            stdin: Stdin::new(spawned.stdin),
            output: Ring::new((launch.output_ring as usize).max(SMALLEST_RING)),
            tail: Tail::new(TAIL),
            log: Log::new(launch.log.clone()),
            stdout: Some(spawned.stdout),
            stderr: Some(spawned.stderr),
            stdout_is: launch.stdout,
        }
    }

    /// The pipe, if it is open and there is room for what it holds. A full ring makes the server
    /// wait, and nothing is lost.
    pub(super) fn readable(&self, pipe: Pipe) -> Option<&OwnedFd> {
        self.end(pipe).filter(|_| self.room(pipe) > 0)
    }

    /// Reads once.
    pub(super) fn read(&mut self, pipe: Pipe, scratch: &mut Scratch) {
        self.read_up_to(pipe, self.room(pipe).min(READ), scratch);
    }

    /// Reads what is in both pipes now, beyond the ring's limit if necessary, but never waits: a
    /// descendant may hold them open.
    pub(super) fn drain(&mut self, scratch: &mut Scratch) {
        for pipe in [Pipe::Stdout, Pipe::Stderr] {
            let waiting = self.end(pipe).and_then(|end| rustix::io::ioctl_fionread(end).ok());
            let mut left = waiting.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            while left > 0 {
                match self.read_up_to(pipe, left.min(READ), scratch) {
                    0 => break,
                    count => left -= count,
                }
            }
        }
    }

    /// Closes all pipes.
    pub(super) fn close(&mut self) {
        self.stdin.close();
        (self.stdout, self.stderr) = (None, None);
    }

    /// Whether there will be no more output.
    pub(super) fn output_closed(&self) -> bool {
        self.stdout.is_none()
    }

    fn end(&self, pipe: Pipe) -> Option<&OwnedFd> {
        match pipe {
            Pipe::Stdout => self.stdout.as_ref(),
            Pipe::Stderr => self.stderr.as_ref(),
        }
    }

    fn room(&self, pipe: Pipe) -> usize {
        match (pipe, self.stdout_is) {
            (Pipe::Stdout, Stdout::Mcp) => self.output.room(),
            (Pipe::Stdout, Stdout::Log) | (Pipe::Stderr, Stdout::Mcp | Stdout::Log) => READ,
        }
    }

    fn read_up_to(&mut self, pipe: Pipe, max: usize, scratch: &mut Scratch) -> usize {
        let end = match pipe {
            Pipe::Stdout => &mut self.stdout,
            Pipe::Stderr => &mut self.stderr,
        };
        let Some(open) = end else { return 0 };
        let bytes = match rustix::io::read(open, &mut scratch[..max]) {
            Ok((bytes, _)) if !bytes.is_empty() => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return 0,
            Ok(_) | Err(_) => {
                *end = None;
                return 0;
            }
        };
        match (pipe, self.stdout_is) {
            (Pipe::Stdout, Stdout::Mcp) => self.output.push(bytes),
            (Pipe::Stdout, Stdout::Log) | (Pipe::Stderr, Stdout::Mcp | Stdout::Log) => {
                self.log.write(bytes);
                self.tail.push(bytes);
            }
        }
        bytes.len()
    }
}

//! Requests of daemons.
//!
//! Daemons are numbered and replace each other. A connection sends the number of its daemon first, and is refused as soon
//! as a higher one is known.

use std::mem;
use std::time::Duration;

use super::Run;
use crate::clock;
use crate::shim::conn::{Attached, Interest};
use crate::wire::{Frame, MAX_FRAME, Raw, ToShim};

/// The longest frame of a connection that is not attached, so that it cannot fill memory.
const SMALL_FRAME: usize = 64 * 1024;

impl Run {
    /// Handles all whole frames that have arrived.
    pub(super) fn decode(&mut self, index: usize) {
        let mut decoder = mem::take(&mut self.conns[index].decoder);
        while !self.conns[index].closed() {
            let attached = self.conns[index].attached.is_some();
            decoder.set_limit(if attached { MAX_FRAME } else { SMALL_FRAME });
            let raw = match decoder.next_raw() {
                Ok(Some(raw)) => raw,
                Ok(None) => break,
                Err(error) => {
                    self.conns[index].refuse(error.to_string());
                    break;
                }
            };
            self.take(index, raw);
        }
        self.conns[index].decoder = decoder;
    }

    fn take(&mut self, index: usize, raw: Raw<'_>) {
        let daemon = self.conns[index].daemon;
        // Lines may be long, so they are not copied.
        if let (Some(_), Some((id, line))) = (daemon, raw.as_write()) {
            return self.write(index, id, line);
        }
        match (daemon, ToShim::decode(raw)) {
            (_, Err(error)) => self.conns[index].refuse(error.to_string()),
            (_, Ok(None)) => {}
            (None, Ok(Some(ToShim::Daemon { number }))) => self.introduce(index, number),
            (None, Ok(Some(_))) => self.conns[index].refuse("a daemon must send its number first"),
            (Some(daemon), Ok(Some(frame))) => self.handle(index, daemon, frame),
        }
    }

    fn introduce(&mut self, index: usize, number: u64) {
        self.conns[index].daemon = Some(number);
        if number > self.fence {
            self.fence = number;
            self.dismissed_at = None;
        }
        for conn in &mut self.conns {
            if let Some(daemon) = conn.daemon.filter(|daemon| *daemon < self.fence) {
                conn.refuse(format!("daemon {daemon} was replaced by daemon {}", self.fence));
            }
        }
    }

    fn handle(&mut self, index: usize, daemon: u64, frame: ToShim) {
        let now = clock::now();
        match frame {
            ToShim::Daemon { .. } => {
                self.conns[index].refuse(format!("daemon {daemon} has sent its number before"));
            }
            ToShim::Attach { from } => self.attach(index, daemon, from),
            ToShim::Watch => self.conns[index].raise(Interest::Watching),
            ToShim::Write { id, line } => self.write(index, id, &line),
            ToShim::Consumed { offset } => self.consume(index, offset),
            ToShim::End { grace_ms } => self.end(now, Duration::from_millis(grace_ms.into())),
            ToShim::Kill => self.end(now, Duration::ZERO),
            ToShim::Log { text } => self.server.log.write_lines(&text),
            ToShim::Tail => {
                let due = &mut self.conns[index].tails_due;
                *due = due.saturating_add(1);
            }
            ToShim::CountUnread => {
                let due = &mut self.conns[index].counts_due;
                *due = due.saturating_add(1);
            }
            ToShim::Dismiss => self.conns[index].raise(Interest::Dismissing),
            // If this fails, the daemon asks again.
            ToShim::Restore => drop(self.restore_directory()),
        }
    }

    fn attach(&mut self, index: usize, daemon: u64, from: u64) {
        let output = &self.server.output;
        if from > output.end() {
            let why = format!("output ends at {}, before {from}", output.end());
            return self.conns[index].refuse(why);
        }
        let sent = from.max(output.start());
        for (other, conn) in self.conns.iter_mut().enumerate() {
            if other != index && conn.attached.take().is_some() {
                conn.refuse(format!("daemon {daemon} has attached over another connection"));
            }
        }
        let conn = &mut self.conns[index];
        conn.attached = Some(Attached { sent, sent_closed: false });
        conn.raise(Interest::Watching);
    }

    fn write(&mut self, index: usize, id: u64, line: &[u8]) {
        if self.conns[index].attached.is_none() {
            return self.conns[index].refuse("only the attached daemon may write");
        }
        if let Err(expected) = self.server.stdin.accept(id, line) {
            self.conns[index].refuse(format!("line {id} came where line {expected} is next"));
        }
    }

    fn consume(&mut self, index: usize, offset: u64) {
        match &self.conns[index].attached {
            Some(attached) if offset <= attached.sent => self.server.output.consume(offset),
            Some(attached) => {
                let why = format!("only {} bytes were sent, not {offset}", attached.sent);
                self.conns[index].refuse(why);
            }
            None => self.conns[index].refuse("only the attached daemon may consume"),
        }
    }
}

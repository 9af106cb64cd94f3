//! Standard input and output of a run, through its shim.
//!
//! Output is confirmed to the shim only when it has been handed on as whole lines, so a daemon
//! that dies in between loses none: the next one gets it again.
//!
//! Two tasks carry the lines. The receiver ends when the shim hangs up or [`Stdio::from_server`] is
//! dropped, the sender ends with the receiver.

use std::collections::VecDeque;

use bytes::Bytes;
use mainstay_hold::wire::{FromShim, ToShim};
use tokio::sync::{mpsc, watch};

use crate::lines::{Line, LineSplitter};
use crate::process::link::{Greeting, ShimLink, ShimReader, ShimWriter};
use crate::tasks::Tasks;
use crate::{EngineError, Stdio};

/// Lines on the way in one direction; more than that waits in the pipe.
const QUEUE: usize = 256;

/// Lines sent to the shim at a time.
const BATCH: usize = 64;

/// Bytes that the shim has not acknowledged; with more than that, lines wait here.
const WINDOW: usize = 1024 * 1024;

/// Lines of junk on the way to the log; more than that is dropped.
const JUNK: usize = 64;

/// An unfinished line is kept in the shim too, up to this size.
const KEEP_PARTIAL: usize = 256 * 1024;

/// Takes over a run's standard input and output.
pub(crate) async fn attach(
    tasks: &Tasks,
    mut link: ShimLink,
    greeting: &Greeting,
) -> Result<Stdio, EngineError> {
    let from = greeting.out_start;
    link.send(&ToShim::Attach { from }).await?;
    let (to_server, outgoing) = mpsc::channel(QUEUE);
    let (incoming, from_server) = mpsc::channel(QUEUE);
    let (junk, to_log) = mpsc::channel(JUNK);
    let (consumed, confirm) = watch::channel(from);
    let (acknowledged, written) = watch::channel(greeting.written);
    tasks.spawn(receive(link.reader, incoming, junk.clone(), consumed, acknowledged));
    tasks.spawn(send(link.writer, greeting.written, outgoing, to_log, confirm, written.clone()));
    let heard = watch::channel(0).0;
    Ok(Stdio { to_server, from_server, junk, written, heard, past: Vec::new() })
}

/// Ends when the shim hangs up or nobody wants the lines any more; the sender ends with it.
async fn receive(
    mut shim: ShimReader,
    lines: mpsc::Sender<Bytes>,
    junk: mpsc::Sender<Bytes>,
    consumed: watch::Sender<u64>,
    acknowledged: watch::Sender<u64>,
) {
    let mut splitter = LineSplitter::default();
    loop {
        let frame = tokio::select! {
            frame = shim.next() => frame,
            () = lines.closed() => return,
        };
        match frame {
            Ok(Some(FromShim::Output { offset, bytes })) => {
                let seen = offset + bytes.len() as u64;
                for line in splitter.push(bytes.into()) {
                    let line = match line {
                        Line::Whole(line) => line,
                        Line::TooLong { length, ends } => {
                            let note = format!("[a line of {length} bytes was dropped: too long]");
                            // The log of a flooding server may be full; the note is only a help.
                            junk.try_send(note.into()).ok();
                            ends
                        }
                    };
                    if lines.send(line).await.is_err() {
                        return;
                    }
                }
                let pending = splitter.pending();
                let kept = if pending > KEEP_PARTIAL { 0 } else { pending };
                consumed.send_replace(seen - kept as u64);
            }
            Ok(Some(FromShim::Closed)) => {
                // The lines end here, but junk may still be on its way to the log.
                drop(lines);
                while let Ok(Some(_)) = shim.next().await {}
                return;
            }
            Ok(Some(FromShim::Written { through })) => {
                acknowledged.send_replace(through);
            }
            Ok(Some(FromShim::Refused { why })) => {
                tracing::warn!(why, "the shim refused this daemon");
                return;
            }
            Ok(Some(FromShim::Hello { .. } | FromShim::Exited { .. } | FromShim::Tail { .. })) => {}
            // It was killed. What it had written and not told yet cannot be known, so everything that
            // was handed over counts as written.
            Ok(None) => {
                acknowledged.send_replace(u64::MAX);
                return;
            }
            Ok(Some(FromShim::Gone { .. })) => return,
            Err(error) => {
                tracing::warn!(%error, "the connection to a shim broke");
                acknowledged.send_replace(u64::MAX);
                return;
            }
        }
    }
}

/// Lines that the shim has not acknowledged yet.
#[derive(Debug, Default)]
struct Window {
    lines: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl Window {
    fn add(&mut self, id: u64, length: usize) {
        self.lines.push_back((id, length));
        self.bytes += length;
    }

    fn acknowledge(&mut self, through: u64) {
        while let Some(&(id, length)) = self.lines.front()
            && id <= through
        {
            self.lines.pop_front();
            self.bytes -= length;
        }
    }

    fn is_open(&self) -> bool {
        self.bytes < WINDOW
    }
}

/// Ends when the receiver has ended, or the shim cannot be written to. What has been consumed is
/// told first: a shim whose ring is full waits for that, and reads nothing else meanwhile.
async fn send(
    mut shim: ShimWriter,
    mut id: u64,
    mut lines: mpsc::Receiver<Bytes>,
    mut junk: mpsc::Receiver<Bytes>,
    mut consumed: watch::Receiver<u64>,
    mut written: watch::Receiver<u64>,
) {
    let mut window = Window::default();
    let mut batch = Vec::new();
    let mut open = true;
    loop {
        tokio::select! {
            biased;
            changed = consumed.changed() => {
                if changed.is_err() {
                    return;
                }
                let offset = *consumed.borrow_and_update();
                shim.put(&ToShim::Consumed { offset });
            }
            Ok(()) = written.changed() => {
                window.acknowledge(*written.borrow_and_update());
                continue;
            }
            Some(text) = junk.recv() => shim.put(&ToShim::Log { text: text.into() }),
            count = lines.recv_many(&mut batch, BATCH), if open && window.is_open() => {
                open = count > 0;
                for line in batch.drain(..) {
                    id += 1;
                    let mut line = Vec::from(line);
                    line.push(b'\n');
                    window.add(id, line.len());
                    shim.put(&ToShim::Write { id, line });
                }
            }
        }
        if shim.flush().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_closes_until_lines_are_acknowledged() {
        let mut window = Window::default();
        window.add(1, WINDOW - 1);
        assert!(window.is_open());
        window.add(2, 1);
        assert!(!window.is_open());
        window.acknowledge(1);
        assert!(window.is_open());
        window.acknowledge(9);
        assert_eq!(window.bytes, 0);
    }
}

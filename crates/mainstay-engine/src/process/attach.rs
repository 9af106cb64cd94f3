//! Standard input and output of a run, through its shim.
//!
//! Output is acknowledged to the shim only after the consumer has processed it, so a daemon
//! that dies in between loses none: the next one gets it again. Acknowledgements are exact to the
//! line, so none is delivered twice, except what was processed in the instant before a death.
//!
//! When the server dies, its lines end with the last of its processes: only then is it known which lines of input it has
//! not read.
//!
//! Two tasks carry the lines. The receiver ends when the shim closes the connection or [`Stdio::from_server`] is
//! dropped. The sender ends with the receiver, after the last acknowledgement.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use mainstay_hold::wire::{FromShim, ToShim};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::lines::LineSplitter;
use crate::process::link::{Greeting, ShimLink, ShimReader, ShimWriter};
use crate::tasks::{Tasks, or_pending};
use crate::{EngineError, Stdio};

/// Lines on the way in one direction; more wait in the pipe.
const QUEUE: usize = 256;

/// Lines sent to the shim at a time.
const BATCH: usize = 64;

/// Bytes that the shim has not acknowledged; with more than that, lines wait here. A shim with too much
/// queued input stops reading, including acknowledgements of output, and a server that writes before it reads
/// would hang.
const WINDOW: usize = 1024 * 1024;

/// Lines of junk on the way to the log; more are dropped.
const JUNK: usize = 64;

/// How long after the end of the output the exit of the server is waited for. A server that closes its output and goes on
/// has ended its session.
const EXIT_FOLLOWS: Duration = Duration::from_millis(500);

/// An unfinished line is kept in the shim too, up to this size.
const KEEP_PARTIAL: usize = 256 * 1024;

/// Becomes the consumer of a run's output.
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
    let (acknowledge, acknowledged) = watch::channel(from);
    let (written_tx, written) = watch::channel(greeting.written);
    let (consumed, consumed_rx) = watch::channel(0);
    let receiver = Receiver {
        junk: junk.clone(),
        consumed: consumed_rx,
        splitter: LineSplitter::default(),
        unconsumed: Unconsumed::since(from),
        acknowledge,
        written: written_tx,
        read_through: u64::MAX,
    };
    tasks.spawn(receiver.run(link.reader, incoming));
    tasks.spawn(send(
        link.writer,
        greeting.written,
        outgoing,
        to_log,
        acknowledged,
        written.clone(),
    ));
    let (earlier_output, interruptions) = (None, None);
    Ok(Stdio { to_server, from_server, junk, written, consumed, earlier_output, interruptions })
}

/// Processes messages of the shim.
struct Receiver {
    junk: mpsc::Sender<Bytes>,
    consumed: watch::Receiver<u64>,
    splitter: LineSplitter,
    unconsumed: Unconsumed,
    acknowledge: watch::Sender<u64>,
    written: watch::Sender<u64>,
    /// The last line of which the server has read anything, as far as the shim has counted that.
    read_through: u64,
}

impl Receiver {
    /// Ends when the shim closes the connection or the consumer is gone; the sender ends with it.
    async fn run(mut self, mut shim: ShimReader, lines: mpsc::Sender<Bytes>) {
        // None after the end of the output: junk may still be on its way to the log.
        let mut lines = Some(lines);
        // In a box, and not polled while there is none: this loop runs for every line.
        let mut end = None;
        let mut has_exited = false;
        loop {
            let frame = tokio::select! {
                // If the sender was dropped, no more lines will be consumed.
                Ok(()) = self.consumed.changed() => {
                    self.acknowledge();
                    continue;
                }
                frame = shim.next() => frame,
                () = or_pending(lines.as_ref().map(mpsc::Sender::closed)) => return self.acknowledge(),
                () = or_pending(end.as_mut()), if end.is_some() => {
                    (lines, end) = (None, None);
                    continue;
                }
            };
            match frame {
                Ok(Some(FromShim::Output { offset, bytes })) => {
                    if let Some(lines) = &lines {
                        self.receive(offset, bytes.into(), lines).await;
                    }
                }
                Ok(Some(FromShim::Closed)) if !has_exited => {
                    end = Some(Box::pin(sleep(EXIT_FOLLOWS)));
                }
                Ok(Some(FromShim::Exited { .. })) => (has_exited, end) = (true, None),
                Ok(Some(FromShim::Written { through })) => {
                    self.written.send_replace(through);
                }
                Ok(Some(FromShim::Refused { why })) => {
                    tracing::warn!(why, "the shim refused this daemon");
                    return;
                }
                Ok(Some(FromShim::Closed | FromShim::Hello { .. } | FromShim::Tail { .. })) => {}
                Ok(Some(FromShim::Unread { read_through, .. })) => {
                    self.read_through = read_through;
                }
                // Nobody can read any more what is in the pipe.
                Ok(Some(FromShim::Gone { .. })) => {
                    let read_through = self.read_through;
                    self.written.send_modify(|written| *written = read_through.min(*written));
                    return;
                }
                // The shim was killed. What it had written without reporting it is not known, so everything
                // that was sent counts as written.
                Ok(None) => {
                    self.written.send_replace(u64::MAX);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "the connection to a shim broke");
                    self.written.send_replace(u64::MAX);
                    return;
                }
            }
        }
    }

    /// Delivers the lines that a piece of output completes.
    async fn receive(&mut self, offset: u64, piece: Bytes, lines: &mpsc::Sender<Bytes>) {
        let end = offset + piece.len() as u64;
        for (place, line) in self.splitter.push_located(piece) {
            // The log of a flooding server may be full; the note is only a help.
            let line = line.or_ends(|note| drop(self.junk.try_send(note.into())));
            self.unconsumed.delivered(offset + place as u64);
            if lines.send(line).await.is_err() {
                return;
            }
        }
        self.unconsumed.received(end, self.splitter.pending());
        self.acknowledge();
    }

    /// Acknowledges the output that the shim need not keep any more.
    fn acknowledge(&mut self) {
        let offset = self.unconsumed.consumed(*self.consumed.borrow_and_update());
        self.acknowledge.send_if_modified(|acknowledged| {
            let more = offset > *acknowledged;
            *acknowledged = offset.max(*acknowledged);
            more
        });
    }
}

/// Lines that were delivered and not consumed yet. What the shim keeps bounds them.
#[derive(Debug)]
struct Unconsumed {
    /// The number of lines that were consumed.
    count: u64,
    /// Where each line ends that was delivered since.
    ends: VecDeque<u64>,
    /// Where the last consumed line ends.
    offset: u64,
    /// Once all lines are consumed, nothing before this offset is needed.
    rest: u64,
}

impl Unconsumed {
    fn since(offset: u64) -> Self {
        Self { count: 0, ends: VecDeque::new(), offset, rest: offset }
    }

    fn delivered(&mut self, end: u64) {
        self.ends.push_back(end);
    }

    /// All output before `end` was received, of which `partial` bytes are an unfinished line.
    fn received(&mut self, end: u64, partial: usize) {
        let kept = if partial > KEEP_PARTIAL { 0 } else { partial };
        self.rest = end - kept as u64;
    }

    /// `count` lines have been consumed in all. Returns the offset before which nothing is needed.
    fn consumed(&mut self, count: u64) -> u64 {
        while self.count < count
            && let Some(end) = self.ends.pop_front()
        {
            self.count += 1;
            self.offset = end;
        }
        if self.ends.is_empty() { self.offset.max(self.rest) } else { self.offset }
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

/// Ends when the receiver has ended, or the shim cannot be written to. Acknowledgements go
/// first: a shim whose ring is full waits for them, and reads nothing else meanwhile.
async fn send(
    mut shim: ShimWriter,
    mut id: u64,
    mut lines: mpsc::Receiver<Bytes>,
    mut junk: mpsc::Receiver<Bytes>,
    mut acknowledged: watch::Receiver<u64>,
    mut written: watch::Receiver<u64>,
) {
    let mut window = Window::default();
    let mut batch = Vec::new();
    let mut waiting = VecDeque::new();
    let mut open = true;
    loop {
        while window.is_open()
            && let Some(line) = waiting.pop_front()
        {
            id += 1;
            let mut line = Vec::from(line);
            line.push(b'\n');
            window.add(id, line.len());
            shim.put(&ToShim::Write { id, line });
        }
        if shim.flush().await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            changed = acknowledged.changed() => {
                if changed.is_err() {
                    return;
                }
                let offset = *acknowledged.borrow_and_update();
                shim.put(&ToShim::Consumed { offset });
            }
            Ok(()) = written.changed() => {
                window.acknowledge(*written.borrow_and_update());
            }
            Some(text) = junk.recv() => shim.put(&ToShim::Log { text: text.into() }),
            count = lines.recv_many(&mut batch, BATCH), if open && window.is_open() => {
                open = count > 0;
                waiting.extend(batch.drain(..));
            }
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

    #[test]
    fn only_processed_lines_are_acknowledged() {
        let mut unconsumed = Unconsumed::since(100);
        unconsumed.delivered(110);
        unconsumed.delivered(125);
        unconsumed.received(130, 5);
        assert_eq!(unconsumed.consumed(0), 100);
        assert_eq!(unconsumed.consumed(1), 110);
        assert_eq!(unconsumed.consumed(1), 110);
        assert_eq!(unconsumed.consumed(2), 125);
        assert_eq!(unconsumed.consumed(9), 125, "more was never handed on");
        unconsumed.delivered(140);
        assert_eq!(unconsumed.consumed(9), 140);
    }

    #[test]
    fn a_partial_line_is_acknowledged_after_the_lines_before_it() {
        let mut unconsumed = Unconsumed::since(0);
        unconsumed.delivered(10);
        // Blank lines, and an unfinished one.
        unconsumed.received(30, 12);
        assert_eq!(unconsumed.consumed(0), 0);
        assert_eq!(unconsumed.consumed(1), 18);
        unconsumed.received(18 + 2 * KEEP_PARTIAL as u64, 2 * KEEP_PARTIAL);
        assert_eq!(unconsumed.consumed(1), 18 + 2 * KEEP_PARTIAL as u64, "too much to keep");
    }
}

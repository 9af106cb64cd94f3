//! Standard input and output of a run, through its shim.
//!
//! Output is confirmed to the shim only when whoever reads it says that it was dealt with, so a daemon
//! that dies in between loses none: the next one gets it again. What was dealt with is confirmed to the
//! line, so none comes twice, but for what was dealt with in the instant before a death.
//!
//! Two tasks carry the lines. The receiver ends when the shim hangs up or [`Stdio::from_server`] is
//! dropped, the sender ends with the receiver, after the last confirmation.

mod unheard;

use std::collections::VecDeque;

use bytes::Bytes;
use mainstay_hold::wire::{FromShim, ToShim};
use tokio::sync::{mpsc, watch};

use self::unheard::Unheard;
use crate::lines::{Line, LineSplitter};
use crate::process::link::{Greeting, ShimLink, ShimReader, ShimWriter};
use crate::tasks::Tasks;
use crate::{EngineError, Stdio};

/// Lines on the way in one direction; more than that waits in the pipe.
const QUEUE: usize = 256;

/// Lines sent to the shim at a time.
const BATCH: usize = 64;

/// Bytes that the shim has not acknowledged; with more than that, lines wait here. A shim with too much
/// queued input stops reading, including acknowledgements of output, and a server that writes before it reads
/// would hang.
const WINDOW: usize = 1024 * 1024;

/// Lines of junk on the way to the log; more than that is dropped.
const JUNK: usize = 64;

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
    let (heard, told) = watch::channel(0);
    let receiver = Receiver {
        junk: junk.clone(),
        heard: told,
        splitter: LineSplitter::default(),
        unheard: Unheard::since(from),
        consumed,
        acknowledged,
    };
    tasks.spawn(receiver.run(link.reader, incoming));
    tasks.spawn(send(link.writer, greeting.written, outgoing, to_log, confirm, written.clone()));
    Ok(Stdio { to_server, from_server, junk, written, heard, past: None, interruptions: None })
}

/// Takes in what the shim says.
struct Receiver {
    junk: mpsc::Sender<Bytes>,
    heard: watch::Receiver<u64>,
    splitter: LineSplitter,
    unheard: Unheard,
    consumed: watch::Sender<u64>,
    acknowledged: watch::Sender<u64>,
}

/// What the receiver has to do next.
enum Step {
    Frame(Option<FromShim>),
    Broken(EngineError),
    /// Lines were dealt with.
    Heard,
    /// Nobody wants the lines any more.
    Unwanted,
}

impl Receiver {
    /// Ends when the shim hangs up or nobody wants the lines any more; the sender ends with it.
    async fn run(mut self, mut shim: ShimReader, lines: mpsc::Sender<Bytes>) {
        // None when there will be no more: junk may still be on its way to the log.
        let mut lines = Some(lines);
        loop {
            match self.next(&mut shim, lines.as_ref()).await {
                Step::Heard => self.confirm(),
                Step::Unwanted => return self.confirm(),
                Step::Frame(Some(FromShim::Output { offset, bytes })) => {
                    if let Some(lines) = &lines {
                        self.take(offset, bytes.into(), lines).await;
                    }
                }
                Step::Frame(Some(FromShim::Closed)) => lines = None,
                Step::Frame(Some(FromShim::Written { through })) => {
                    self.acknowledged.send_replace(through);
                }
                Step::Frame(Some(FromShim::Refused { why })) => {
                    tracing::warn!(why, "the shim refused this daemon");
                    return;
                }
                Step::Frame(Some(
                    FromShim::Hello { .. } | FromShim::Exited { .. } | FromShim::Tail { .. },
                )) => {}
                Step::Frame(Some(FromShim::Gone { .. })) => return,
                // It was killed. What it had written and not told yet cannot be known, so everything
                // that was handed over counts as written.
                Step::Frame(None) => {
                    self.acknowledged.send_replace(u64::MAX);
                    return;
                }
                Step::Broken(error) => {
                    tracing::warn!(%error, "the connection to a shim broke");
                    self.acknowledged.send_replace(u64::MAX);
                    return;
                }
            }
        }
    }

    async fn next(&mut self, shim: &mut ShimReader, lines: Option<&mpsc::Sender<Bytes>>) -> Step {
        tokio::select! {
            // Whoever has let go of this deals with no more lines.
            Ok(()) = self.heard.changed() => Step::Heard,
            frame = shim.next() => frame.map_or_else(Step::Broken, Step::Frame),
            () = unwanted(lines) => Step::Unwanted,
        }
    }

    /// Hands on the lines that a piece of output completes. Whether they are wanted is seen later.
    async fn take(&mut self, offset: u64, piece: Bytes, lines: &mpsc::Sender<Bytes>) {
        let end = offset + piece.len() as u64;
        for (place, line) in self.splitter.push_located(piece) {
            let line = match line {
                Line::Whole(line) => line,
                Line::TooLong { length, ends } => {
                    let note = format!("[a line of {length} bytes was dropped: too long]");
                    // The log of a flooding server may be full; the note is only a help.
                    self.junk.try_send(note.into()).ok();
                    ends
                }
            };
            self.unheard.hand_on(offset + place as u64);
            if lines.send(line).await.is_err() {
                return;
            }
        }
        self.unheard.take_in(end, self.splitter.pending());
        self.confirm();
    }

    /// Has the shim told what it need not keep any more, if that is more than before.
    fn confirm(&mut self) {
        let offset = self.unheard.heard(*self.heard.borrow_and_update());
        self.consumed.send_if_modified(|consumed| {
            let more = offset > *consumed;
            *consumed = offset.max(*consumed);
            more
        });
    }
}

/// Waits until nobody wants the lines any more; for ever if there will be none.
async fn unwanted(lines: Option<&mpsc::Sender<Bytes>>) {
    match lines {
        Some(lines) => lines.closed().await,
        None => std::future::pending().await,
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
            changed = consumed.changed() => {
                if changed.is_err() {
                    return;
                }
                let offset = *consumed.borrow_and_update();
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
}

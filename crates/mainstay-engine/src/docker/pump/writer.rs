//! Writes lines to a run, across connections.
//!
//! A line that was cut off when the connection broke was not complete, so the server has not acted on it: it
//! is written again, whole. A line that was written whole may have been lost if the engine died: the
//! interruption is reported to the consumer.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mainstay_core::{Interruption, lock};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::ledger::InputLedger;

/// The standard input of a run.
pub(super) type Input = Pin<Box<dyn AsyncWrite + Send>>;

pub(super) enum ToWriter {
    /// Replaces the source of the lines.
    Lines(mpsc::Receiver<Bytes>),
    /// Replaces the connection. The time is when the one before was lost, if there was one.
    Input(Input, Option<Instant>),
}

/// What is known about the lines for the server.
pub(super) struct Progress {
    /// How many were written whole.
    pub(super) written: watch::Sender<u64>,
    pub(super) ledger: Arc<Mutex<InputLedger>>,
}

/// Writes lines until the reader of the same pump ends.
pub(super) async fn write(
    mut commands: mpsc::Receiver<ToWriter>,
    Progress { written, ledger }: Progress,
    interruptions: watch::Sender<Interruption>,
) {
    let mut lines: Option<mpsc::Receiver<Bytes>> = None;
    let mut input: Option<Input> = None;
    let mut pending: Option<Pending> = None;
    loop {
        if let (Some(open), Some(line)) = (&mut input, &mut pending) {
            lock(&ledger).push(*written.borrow() + 1, line.len());
            if line.write(open).await {
                pending = None;
                written.send_modify(|written| *written += 1);
            } else {
                input = None;
            }
        }
        let free = input.is_some() && pending.is_none();
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(ToWriter::Lines(new)) => lines = Some(new),
                Some(ToWriter::Input(new, lost)) => {
                    input = Some(new);
                    if let Some(at) = lost.map(Instant::into_std) {
                        interruptions.send_replace(Interruption { written: *written.borrow(), at });
                    }
                }
                None => return,
            },
            line = outgoing(&mut lines), if free => pending = Some(Pending { line, cut: false }),
        }
    }
}

/// The next line of the consumer; waits for ever without one.
async fn outgoing(lines: &mut Option<mpsc::Receiver<Bytes>>) -> Bytes {
    if let Some(open) = lines {
        if let Some(line) = open.recv().await {
            return line;
        }
        *lines = None;
    }
    std::future::pending().await
}

/// A line that is being written.
struct Pending {
    line: Bytes,
    /// Whether a part of it may have been written before.
    cut: bool,
}

impl Pending {
    /// The bytes that are about to be written.
    fn len(&self) -> usize {
        self.line.len() + 1 + usize::from(self.cut)
    }

    /// Writes the whole line. Returns false if the connection broke.
    async fn write(&mut self, input: &mut Input) -> bool {
        let mut text = Vec::with_capacity(self.line.len() + 2);
        if self.cut {
            // The part that was written becomes a line of its own, which is not valid JSON.
            text.push(b'\n');
        }
        text.extend_from_slice(&self.line);
        text.push(b'\n');
        self.cut = true;
        input.write_all(&text).await.is_ok() && input.flush().await.is_ok()
    }
}

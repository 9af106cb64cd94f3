//! Writing lines.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{mpsc, oneshot};

use crate::frame;

/// A message on its way to the client.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) message: Bytes,
    /// Told when it is written.
    pub(super) written: Option<oneshot::Sender<()>>,
}

impl From<Bytes> for Outgoing {
    fn from(message: Bytes) -> Self {
        Self { message, written: None }
    }
}

/// Writes each message as a line, and flushes when no other waits; ends with the last sender.
pub(super) async fn write_all(
    mut messages: mpsc::Receiver<Outgoing>,
    writer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut writer = BufWriter::new(writer);
    let mut told = Vec::new();
    while let Some(message) = messages.recv().await {
        let mut next = Some(message);
        while let Some(Outgoing { message, written }) = next {
            writer.write_all(&frame::in_one_line(message)).await?;
            writer.write_all(b"\n").await?;
            told.extend(written);
            next = messages.try_recv().ok();
        }
        writer.flush().await?;
        for written in told.drain(..) {
            // Whoever waited may have been given up.
            written.send(()).ok();
        }
    }
    Ok(())
}

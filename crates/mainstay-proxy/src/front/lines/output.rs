//! Writing lines.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;

use crate::frame;

/// Writes each message as a line, and flushes when no other waits; ends with the last sender.
pub(super) async fn write_all(
    mut messages: mpsc::Receiver<Bytes>,
    writer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut writer = BufWriter::new(writer);
    while let Some(message) = messages.recv().await {
        let mut next = Some(message);
        while let Some(message) = next {
            writer.write_all(&frame::in_one_line(message)).await?;
            writer.write_all(b"\n").await?;
            next = messages.try_recv().ok();
        }
        writer.flush().await?;
    }
    Ok(())
}

//! What is written to the client, and the memory that it takes meanwhile.
//!
//! A client may stop reading. Then small messages wait in a short queue, and few large ones are in memory: the others
//! stay in the daemon, and no further message of the client is sent.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::client::Response;
use crate::frame;
use crate::sse::{Event, Parser, TooLong};

/// How many messages wait to be written.
const QUEUE: usize = 64;

/// A message above this length is read only with [`Memory`].
const LARGE: usize = 16 << 10;

/// How many large messages are read, or wait to be written, at the same time.
const MAX_LARGE: usize = 4;

/// The right to have a large message in memory.
pub(super) type Memory = Option<OwnedSemaphorePermit>;

#[derive(Debug, Clone)]
pub(super) struct Output {
    queue: mpsc::Sender<(Bytes, Memory)>,
    large: Arc<Semaphore>,
}

impl Output {
    /// An output, and what [`write_lines`] writes.
    pub(super) fn new() -> (Self, mpsc::Receiver<(Bytes, Memory)>) {
        let (queue, messages) = mpsc::channel(QUEUE);
        (Self { queue, large: Arc::new(Semaphore::new(MAX_LARGE)) }, messages)
    }

    pub(super) async fn write(&self, message: Bytes, memory: Memory) {
        // Without a writer the bridge ends.
        self.queue.send((message, memory)).await.ok();
    }

    /// Resolves when the client reads.
    pub(super) async fn room(&self) {
        drop(self.large.acquire().await);
        drop(self.queue.reserve().await);
    }

    /// Reads a whole body of at most `limit` bytes.
    pub(super) async fn read(
        &self,
        response: &mut Response,
        limit: usize,
    ) -> Option<(Bytes, Memory)> {
        let memory = self.reserve(response.remaining().unwrap_or(u64::MAX)).await;
        Some((response.bytes(limit).await.ok()?, memory))
    }

    async fn reserve(&self, bytes: u64) -> Memory {
        if bytes <= LARGE as u64 {
            return None;
        }
        Arc::clone(&self.large).acquire_owned().await.ok()
    }
}

/// Reads the events of a response that have data.
pub(super) struct EventReader {
    output: Output,
    response: Response,
    parser: Parser,
    events: std::vec::IntoIter<Event>,
    memory: Memory,
}

impl EventReader {
    /// Continues after `last_event`. Events are at most `limit` bytes long.
    pub(super) fn new(
        output: &Output,
        response: Response,
        limit: usize,
        last_event: Option<String>,
    ) -> Self {
        let parser = match last_event {
            Some(event) => Parser::resumed(limit, event),
            None => Parser::new(limit),
        };
        let events = Vec::new().into_iter();
        Self { output: output.clone(), response, parser, events, memory: None }
    }

    /// The next event; `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Result<Option<(Event, Memory)>, TooLong> {
        loop {
            if let Some(event) = self.events.find(|event| !event.data.is_empty()) {
                return Ok(Some((event, self.memory.take())));
            }
            if self.memory.is_none() {
                self.memory = self.output.reserve(self.parser.buffered() as u64).await;
            }
            let Ok(Some(bytes)) = self.response.chunk().await else { return Ok(None) };
            let mut events = Vec::new();
            self.parser.feed(&bytes, &mut events)?;
            self.events = events.into_iter();
        }
    }

    /// From where the response can be resumed, if all events were processed.
    pub(super) fn last_event_id(&self) -> Option<&str> {
        self.parser.last_event_id()
    }

    pub(super) fn into_response(self) -> Response {
        self.response
    }
}

/// Writes each message as a line, until the last sender is dropped.
pub(super) async fn write_lines(
    mut messages: mpsc::Receiver<(Bytes, Memory)>,
    output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    while let Some(message) = messages.recv().await {
        let mut next = Some(message);
        while let Some((message, _memory)) = next {
            output.write_all(&frame::in_one_line(message)).await?;
            output.write_all(b"\n").await?;
            next = messages.try_recv().ok();
        }
        output.flush().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, BufReader, duplex};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn few_large_messages_are_in_memory_until_the_client_reads() {
        let is_ready = async |wait: &mut (dyn Future<Output = ()> + Unpin)| {
            timeout(Duration::from_secs(1), wait).await.is_ok()
        };
        let (output, messages) = Output::new();
        let (client, stdout) = duplex(1024);
        let writer = tokio::spawn(write_lines(messages, stdout));
        for _ in 0..MAX_LARGE {
            let memory = output.reserve(LARGE as u64 + 1).await;
            assert!(memory.is_some());
            output.write(vec![b'x'; LARGE + 1].into(), memory).await;
        }
        assert!(output.reserve(LARGE as u64).await.is_none(), "small messages need no memory");
        let next = output.clone();
        let mut large = Box::pin(async move { drop(next.reserve(u64::MAX).await) });
        assert!(!is_ready(&mut large).await);
        assert!(!is_ready(&mut Box::pin(output.room())).await);
        let mut lines = BufReader::new(client).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap().len(), LARGE + 1);
        assert!(is_ready(&mut large).await && is_ready(&mut Box::pin(output.room())).await);
        drop((lines, large, output));
        assert!(writer.await.unwrap().is_err(), "the client has gone");
    }
}

//! Reading until something happens.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

/// A reader from which nothing comes any more, not even its end, once the future is done.
pub(super) struct Until<R, F> {
    reader: R,
    future: Pin<Box<F>>,
    is_done: bool,
}

impl<R, F: Future<Output = ()>> Until<R, F> {
    pub(super) fn new(reader: R, future: F) -> Self {
        Self { reader, future: Box::pin(future), is_done: false }
    }

    fn look(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.is_done = self.is_done || self.future.as_mut().poll(cx).is_ready();
        if self.is_done { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl<R: AsyncRead + Unpin, F: Future<Output = ()>> AsyncRead for Until<R, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.look(cx));
        Pin::new(&mut self.reader).poll_read(cx, buffer)
    }
}

impl<R: AsyncBufRead + Unpin, F: Future<Output = ()>> AsyncBufRead for Until<R, F> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        std::task::ready!(this.look(cx));
        Pin::new(&mut this.reader).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        Pin::new(&mut self.reader).consume(amount);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::sync::oneshot;
    use tokio::time::{Duration, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_once_it_happened() {
        let (mut writer, reader) = tokio::io::duplex(64);
        let (happen, happened) = oneshot::channel::<()>();
        let mut reader = Until::new(BufReader::new(reader), async { drop(happened.await) });
        writer.write_all(b"one\n").await.unwrap();
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        assert_eq!(line, "one\n");
        happen.send(()).unwrap();
        writer.write_all(b"two\n").await.unwrap();
        drop(writer);
        let more = timeout(Duration::from_secs(1), reader.read_line(&mut line)).await;
        assert!(more.is_err(), "neither a line nor the end");
    }
}

//! A connection as hyper needs it.
//!
//! hyper passes head and body of a response as two buffers. Short ones are put together here,
//! because one plain write costs less than a vectored one.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_state::ConnectionState;
use super::socket::MaybeSocket;
use super::store::{ConnectionStore, MAX_DATA};

/// Up to so many bytes are joined.
const SHORT: usize = 1024;

/// A connection, from which no request is begun to be read when the intake gate is closed.
pub(super) struct Io<T> {
    inner: TokioIo<T>,
    conn: Arc<ConnectionState>,
    store: Option<Arc<dyn ConnectionStore>>,
    /// What an earlier daemon has read of a request.
    reread: Bytes,
}

impl<T> Io<T> {
    pub(super) fn new(
        connection: T,
        conn: Arc<ConnectionState>,
        store: Option<Arc<dyn ConnectionStore>>,
        reread: Bytes,
    ) -> Self {
        Self { inner: TokioIo::new(connection), conn, store, reread }
    }

    pub(super) fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: AsyncRead + MaybeSocket + Unpin> Read for Io<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.conn.may_read() {
            // Closing the gate wakes the connection.
            return Poll::Pending;
        }
        if !self.reread.is_empty() {
            let len = self.reread.len().min(buf.remaining());
            buf.put_slice(&self.reread.split_to(len));
            self.conn.read(Some(len));
            return Poll::Ready(Ok(()));
        }
        let Self { inner, conn, store, .. } = &mut *self;
        if let Some(store) = store
            && !conn.is_too_long_to_record()
        {
            let read = ready!(poll_read_recorded(inner.inner_mut(), conn, &**store, cx, buf));
            conn.read(read.as_ref().ok().copied());
            return Poll::Ready(read.map(drop));
        }
        let read = ready!(Pin::new(inner).poll_read(cx, buf));
        conn.read(None);
        Poll::Ready(read)
    }
}

/// Reads what may be the start of the next request, and records it. Returns how many bytes were read.
fn poll_read_recorded<T: AsyncRead + MaybeSocket + Unpin>(
    connection: &mut T,
    conn: &ConnectionState,
    store: &dyn ConnectionStore,
    cx: &mut Context<'_>,
    mut buf: ReadBufCursor<'_>,
) -> Poll<io::Result<usize>> {
    let len = MAX_DATA.min(buf.remaining());
    let mut read = Poll::Pending;
    let is_recorded = conn.read_recorded(len, &mut |memory| {
        let mut bytes = ReadBuf::new(memory);
        let polled = Pin::new(&mut *connection).poll_read(cx, &mut bytes);
        buf.put_slice(bytes.filled());
        let count = bytes.filled().len();
        read = polled.map_ok(|()| count);
        count
    });
    if is_recorded {
        if read.is_ready()
            && let Some(socket) = connection.socket()
        {
            conn.store(store, socket);
        }
        return read;
    }
    let mut bytes = [MaybeUninit::uninit(); MAX_DATA];
    let mut bytes = ReadBuf::uninit(&mut bytes[..len]);
    let read = Pin::new(&mut *connection).poll_read(cx, &mut bytes);
    if !bytes.filled().is_empty() {
        conn.read_unrecorded(bytes.filled(), store, connection.socket());
    }
    buf.put_slice(bytes.filled());
    read.map_ok(|()| bytes.filled().len())
}

impl<T: AsyncWrite + Unpin> Write for Io<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.conn.start_writing();
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.conn.record_write(bytes_of(&written), written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.conn.start_writing();
        let mut room = [0; SHORT];
        let written = match joined(bufs, &mut room) {
            Some(text) => Pin::new(&mut self.inner).poll_write(cx, text),
            None => Pin::new(&mut self.inner).poll_write_vectored(cx, bufs),
        };
        self.conn.record_write(bytes_of(&written), written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// hyper has written all that it had.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.conn.flushed();
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    /// A connection that may be passed on to the next daemon stays open. If it is not, its drop closes it.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.conn.is_passed_on() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

fn bytes_of(written: &Poll<io::Result<usize>>) -> usize {
    match written {
        Poll::Ready(Ok(bytes)) => *bytes,
        Poll::Ready(Err(_)) | Poll::Pending => 0,
    }
}

/// All of it, if there is room.
fn joined<'a>(bufs: &[IoSlice<'_>], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut len = 0;
    for buf in bufs {
        room.get_mut(len..len + buf.len())?.copy_from_slice(buf);
        len += buf.len();
    }
    Some(&room[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_put_together() {
        let check = |bufs: &[&[u8]], expected: Option<&[u8]>| {
            let bufs: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            assert_eq!(joined(&bufs, &mut [0; 4]), expected, "{bufs:?}");
        };
        check(&[b"ab", b"", b"cd"], Some(b"abcd"));
        check(&[b"ab", b"cde"], None);
        check(&[], Some(b""));
    }
}

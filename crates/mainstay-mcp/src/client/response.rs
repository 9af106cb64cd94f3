//! An answer, and the connection on which its body comes.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;

use super::body::Body;
use super::conn::Conn;
use super::error::BodyError;
use super::exchange::{Answer, READ};
use super::head::{self, ContentType};
use super::pool::Pool;

/// The most room made at once for a body that is read in parts.
const MOST_READ: usize = 64 << 10;
/// A whole body up to this length gets memory of its own, so that keeping it does not keep the much
/// larger buffer into which it was read.
const SMALL: usize = 2 << 10;

/// An answer: its head, and its body as it comes.
///
/// The connection is free for the next request as soon as the body's last byte has arrived. An
/// answer dropped before that closes it.
pub struct Response {
    status: u16,
    content_type: ContentType,
    text: Bytes,
    body: Body,
    buf: BytesMut,
    /// Where the connection goes afterwards, and at last the memory.
    pool: Arc<Pool>,
    /// `None` once nothing more will be read.
    lease: Option<Lease>,
}

/// A connection in use.
struct Lease {
    conn: Conn,
    /// How long it may idle in the pool; `None` closes it.
    keep: Option<Duration>,
}

impl Response {
    pub(super) fn new(answer: Answer, conn: Conn, pool: &Arc<Pool>) -> Self {
        let Answer { head, text, rest } = answer;
        let keep = head.keep.map(|keep| conn.idle_limit(keep));
        let lease = Lease { conn, keep };
        let mut response = Self {
            status: head.status,
            content_type: head.content_type,
            text,
            body: Body::new(head.framing),
            buf: rest,
            pool: Arc::clone(pool),
            lease: Some(lease),
        };
        response.settle();
        response
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// What the body is.
    pub fn content_type(&self) -> ContentType {
        self.content_type
    }

    /// The first header with this name, whatever its case, if its value is UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        head::find(&self.text, name)
    }

    /// The length of the rest of the body, if the server has sent it.
    pub fn remaining(&self) -> Option<u64> {
        match self.body {
            Body::Length(left) => Some(left),
            Body::Chunked(_) | Body::UntilClose | Body::Closed => None,
        }
    }

    /// The rest of the body, at most `limit` bytes. Given up before it is done, it takes what it
    /// has read with it.
    pub async fn bytes(&mut self, limit: usize) -> Result<Bytes, BodyError> {
        if let Body::Length(left) = self.body {
            let left = usize::try_from(left).ok().filter(|left| *left <= limit);
            let left = left.ok_or_else(|| self.too_long(limit))?;
            while self.buf.len() < left {
                self.read(left - self.buf.len()).await?;
            }
        }
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        let mut len = first.len();
        let mut more = BytesMut::new();
        while len <= limit
            && let Some(piece) = self.chunk().await?
        {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&piece);
            len += piece.len();
        }
        if len > limit {
            return Err(self.too_long(limit));
        }
        let whole = if more.is_empty() { first } else { more.freeze() };
        Ok(if len <= SMALL { Bytes::copy_from_slice(&whole) } else { whole })
    }

    /// The next part of the body, never empty; `None` after the last. It can be given up at any
    /// time and asked for again.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            if let Some(piece) = self.body.take(&mut self.buf)? {
                self.settle();
                return Ok(Some(piece));
            }
            if self.body.is_over() {
                return Ok(None);
            }
            let missing = usize::try_from(self.body.missing(&self.buf)).unwrap_or(MOST_READ);
            self.read(missing.clamp(READ, MOST_READ)).await?;
        }
    }

    /// Reads on to the end, at most `limit` bytes, so that the connection can be used again. For
    /// event streams, whose end comes a moment after the last event.
    pub async fn finish(mut self, limit: usize) {
        let mut len = 0;
        while len <= limit
            && let Ok(Some(piece)) = self.chunk().await
        {
            len += piece.len();
        }
    }

    /// Whether the connection is still in use: false as soon as the last byte has arrived.
    pub fn is_open(&self) -> bool {
        self.lease.is_some()
    }

    /// Waits for more of the body.
    async fn read(&mut self, room: usize) -> Result<(), BodyError> {
        let Some(lease) = &mut self.lease else { return Err(BodyError::Cut(None)) };
        self.buf.reserve(room);
        match lease.conn.read_buf(&mut self.buf).await {
            Ok(0) => {
                self.lease = None;
                if self.body.close() { Ok(()) } else { Err(BodyError::Cut(None)) }
            }
            Ok(_) => {
                self.settle();
                Ok(())
            }
            Err(error) => {
                self.lease = None;
                Err(BodyError::Cut(Some(error)))
            }
        }
    }

    /// Lets go of the connection if the last byte has arrived.
    fn settle(&mut self) {
        if let Some(surplus) = self.body.surplus(&mut self.buf)
            && let Some(Lease { conn, keep }) = self.lease.take()
            // Surplus bytes would be taken for the next answer.
            && surplus == 0
            && let Some(keep) = keep
        {
            self.pool.put(conn, keep);
        }
    }

    fn too_long(&mut self, limit: usize) -> BodyError {
        self.lease = None;
        BodyError::TooLong { limit }
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        // Both are parts of the same memory, which can be used again when one is left.
        drop(mem::take(&mut self.text));
        self.pool.put_room(mem::take(&mut self.buf));
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("content_type", &self.content_type)
            .finish_non_exhaustive()
    }
}

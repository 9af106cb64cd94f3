//! Reading lines of bounded length.

use std::io;

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// How long a line may be.
const MAX_LINE: usize = 16 << 20;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(Bytes),
    /// Longer than 16 MiB; it was skipped.
    TooLong,
}

pub(super) struct Input<R> {
    reader: R,
    limit: usize,
}

impl<R: AsyncBufRead + Unpin> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, limit: MAX_LINE }
    }

    /// The next line; none at the end. What stands after the last line end counts as a line.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut text = BytesMut::new();
        let mut is_too_long = false;
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                let is_nothing = text.is_empty() && !is_too_long;
                return Ok((!is_nothing).then(|| line(text, is_too_long)));
            }
            let end = memchr(b'\n', chunk);
            let part = &chunk[..end.unwrap_or(chunk.len())];
            is_too_long |= text.len() + part.len() > self.limit;
            if is_too_long {
                text = BytesMut::new();
            } else {
                text.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(line(text, is_too_long)));
            }
        }
    }
}

fn line(text: BytesMut, is_too_long: bool) -> Line {
    if is_too_long { Line::TooLong } else { Line::Text(text.freeze()) }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    #[tokio::test]
    async fn lines_are_cut_at_their_ends_and_long_ones_skipped() {
        let text = "one\n\n123456789\nlonger than ten\ntwo";
        for capacity in [1, 3, 64] {
            let reader = BufReader::with_capacity(capacity, text.as_bytes());
            let mut input = Input { reader, limit: 10 };
            let mut lines = Vec::new();
            while let Some(line) = input.next().await.unwrap() {
                lines.push(line);
            }
            let text = |text: &'static str| Line::Text(Bytes::from_static(text.as_bytes()));
            let expected = [text("one"), text(""), text("123456789"), Line::TooLong, text("two")];
            assert_eq!(lines, expected, "{capacity}");
        }
    }
}

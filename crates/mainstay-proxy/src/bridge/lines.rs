//! Lines of bounded length from any stream.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// How much is read at a time.
const READ: usize = 64 * 1024;

/// What a stream brings.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// A whole line, with its end.
    Line(Vec<u8>),
    /// A line was longer than the limit and has been passed over.
    TooLong,
    /// The end, and what came after the last line's end.
    End(Vec<u8>),
}

/// A stream as lines. Nothing is lost if [`Lines::next`] is dropped before it is done.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    limit: usize,
    line: Vec<u8>,
    too_long: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Lines of at most `limit` bytes, their ends not counted.
    pub(super) fn new(reader: R, limit: usize) -> Self {
        let reader = BufReader::with_capacity(READ, reader);
        Self { reader, limit, line: Vec::new(), too_long: false }
    }

    pub(super) async fn next(&mut self) -> io::Result<Incoming> {
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(Incoming::End(std::mem::take(&mut self.line)));
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(read.len(), |end| end + 1);
            let content = end.unwrap_or(length);
            self.too_long |= self.line.len() + content > self.limit;
            if self.too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(&read[..length]);
            }
            self.reader.consume(length);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                let too_long = std::mem::take(&mut self.too_long);
                return Ok(if too_long { Incoming::TooLong } else { Incoming::Line(line) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_and_bounded() {
        let text = b"one\n12345678\n123456789\n\nhalf".as_slice();
        let mut lines = Lines::new(text, 8);
        let mut seen = Vec::new();
        while !matches!(seen.last(), Some(Incoming::End(_))) {
            seen.push(lines.next().await.unwrap());
        }
        let line = |text: &str| Incoming::Line(text.as_bytes().to_vec());
        let expected = [
            line("one\n"),
            line("12345678\n"),
            Incoming::TooLong,
            line("\n"),
            Incoming::End(b"half".to_vec()),
        ];
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn a_line_that_was_waited_for_in_vain_is_not_lost() {
        let (mut far, near) = tokio::io::duplex(64);
        let mut lines = Lines::new(near, 8);
        tokio::io::AsyncWriteExt::write_all(&mut far, b"ab").await.unwrap();
        tokio::select! {
            biased;
            incoming = lines.next() => panic!("{incoming:?}"),
            () = std::future::ready(()) => {}
        }
        tokio::io::AsyncWriteExt::write_all(&mut far, b"c\n").await.unwrap();
        assert_eq!(lines.next().await.unwrap(), Incoming::Line(b"abc\n".to_vec()));
    }
}

//! Taking chunks apart: pure, over a buffer that others fill.
//!
//! Extensions and trailers are read and dropped. How the bytes were cut up never matters.

use bytes::{Buf, Bytes, BytesMut};

/// How long the line with a chunk's size may be, and a trailer.
const MAX_LINE: usize = 8 << 10;
/// How long all trailers together may be.
const MAX_TRAILERS: usize = 64 << 10;

/// The body is not chunked correctly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadChunk {
    #[error("the size of a chunk is not a hexadecimal number")]
    Size,
    #[error("a chunk does not end where it should")]
    End,
    #[error("what surrounds the chunks is too long")]
    TooLong,
}

/// The position in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunked {
    /// Before the line with a size.
    Size,
    /// In a chunk, with so many bytes to come.
    Data(u64),
    /// After a chunk, before the end of its line.
    DataEnd,
    /// After the last chunk, with so much room for trailers.
    Trailers(usize),
    Over,
}

impl Chunked {
    /// Skips what is not content, as far as the buffer goes. After an error the buffer and the
    /// state are as before, so that asking again gives the same error.
    pub(super) fn advance(&mut self, buf: &mut BytesMut) -> Result<(), BadChunk> {
        loop {
            *self = match *self {
                Self::Size => match line(buf)? {
                    Some(end) => {
                        let size = size(&buf[..end])?;
                        buf.advance(end + 2);
                        if size == 0 { Self::Trailers(MAX_TRAILERS) } else { Self::Data(size) }
                    }
                    None => return Ok(()),
                },
                Self::DataEnd => match buf.as_ref() {
                    [] | [b'\r'] => return Ok(()),
                    [b'\r', b'\n', ..] => {
                        buf.advance(2);
                        Self::Size
                    }
                    _ => return Err(BadChunk::End),
                },
                Self::Trailers(room) => match line(buf)? {
                    Some(end) => {
                        let room = room.checked_sub(end + 2).ok_or(BadChunk::TooLong)?;
                        buf.advance(end + 2);
                        if end == 0 { Self::Over } else { Self::Trailers(room) }
                    }
                    None => return Ok(()),
                },
                Self::Data(_) | Self::Over => return Ok(()),
            };
        }
    }

    /// Takes the content at the front of the buffer, if there is any.
    pub(super) fn take(&mut self, buf: &mut BytesMut) -> Result<Option<Bytes>, BadChunk> {
        self.advance(buf)?;
        let Self::Data(left) = *self else { return Ok(None) };
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        if len == 0 {
            return Ok(None);
        }
        let left = left - len as u64;
        *self = if left == 0 { Self::DataEnd } else { Self::Data(left) };
        Ok(Some(buf.split_to(len).freeze()))
    }
}

/// The length of the line at the front, without its end; `None` if the end is missing.
fn line(buf: &[u8]) -> Result<Option<usize>, BadChunk> {
    let seen = &buf[..buf.len().min(MAX_LINE)];
    match seen.iter().position(|byte| *byte == b'\n') {
        Some(end) if end > 0 && seen[end - 1] == b'\r' => Ok(Some(end - 1)),
        Some(_) => Err(BadChunk::End),
        None if buf.len() >= MAX_LINE => Err(BadChunk::TooLong),
        None => Ok(None),
    }
}

fn size(line: &[u8]) -> Result<u64, BadChunk> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or(line).trim_ascii_end();
    // `from_str_radix` takes a sign, too.
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(BadChunk::Size);
    }
    let digits = str::from_utf8(digits).map_err(|_| BadChunk::Size)?;
    u64::from_str_radix(digits, 16).map_err(|_| BadChunk::Size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes text that arrives in one piece; gives the content and what is left over.
    fn check(text: &str, expected: Result<(&str, &str), BadChunk>) {
        let mut buf = BytesMut::from(text);
        let mut state = Chunked::Size;
        let mut content = Vec::new();
        let outcome = loop {
            match state.take(&mut buf) {
                Ok(Some(piece)) => content.extend_from_slice(&piece),
                Ok(None) => break Ok(()),
                Err(error) => {
                    assert_eq!(state.take(&mut buf), Err(error), "{text:?}");
                    break Err(error);
                }
            }
        };
        let content = String::from_utf8(content).unwrap();
        let rest = String::from_utf8(buf.to_vec()).unwrap();
        let got = outcome.map(|()| (content.as_str(), rest.as_str()));
        assert_eq!(got, expected, "{text:?}");
        assert_eq!(state == Chunked::Over, got.is_ok() && text.contains("\r\n\r\n"), "{text:?}");
    }

    #[test]
    fn chunks_become_content() {
        check("5\r\nhello\r\n0\r\n\r\n", Ok(("hello", "")));
        check("0\r\n\r\nHTTP", Ok(("", "HTTP")));
        check("3;a=\"b\"\r\nabc\r\n00A  \r\n0123456789\r\n0;x\r\n\r\n", Ok(("abc0123456789", "")));
        check("1\r\na\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\nmore", Ok(("a", "more")));
        check("1\r\na\r\n0\r\nTrailer: x\r\n", Ok(("a", "")));
        check("5\r\nhel", Ok(("hel", "")));
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        check("\r\n", Err(BadChunk::Size));
        check("+5\r\nhello", Err(BadChunk::Size));
        check("0x5\r\nhello", Err(BadChunk::Size));
        check("10000000000000000\r\n", Err(BadChunk::Size));
        check("5\nhello", Err(BadChunk::End));
        check("2\r\nhello", Err(BadChunk::End));
        check(&"1".repeat(MAX_LINE), Err(BadChunk::TooLong));
        let trailers = "A: b\r\n".repeat(MAX_TRAILERS / 6 + 1);
        check(&format!("0\r\n{trailers}"), Err(BadChunk::TooLong));
    }
}

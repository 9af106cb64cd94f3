//! How the bytes of an answer are cut up never matters.

use bytes::{Buf, BytesMut};
use proptest::prelude::*;

use super::body::Body;
use super::chunked::BadChunk;
use super::head::{Head, HeadError};

/// What an answer came to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Whole { status: u16, content: Vec<u8>, surplus: usize },
    Cut,
    NotHttp(HeadError),
    Garbled(BadChunk),
}

/// Reads an answer that arrives in these pieces, after which the connection ends.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let mut buf = BytesMut::new();
    let mut found: Option<(u16, Body)> = None;
    let mut content = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        while found.is_none() {
            match Head::parse(&buf) {
                Ok(None) => break,
                Ok(Some(head)) => {
                    buf.advance(head.len);
                    if !head.is_interim() {
                        found = Some((head.status, Body::new(head.framing)));
                    }
                }
                Err(error) => return Outcome::NotHttp(error),
            }
        }
        let Some((_, body)) = &mut found else { continue };
        loop {
            match body.take(&mut buf) {
                Ok(Some(piece)) => content.extend_from_slice(&piece),
                Ok(None) => break,
                Err(error) => return Outcome::Garbled(error),
            }
        }
    }
    let Some((status, mut body)) = found else { return Outcome::Cut };
    if body.close() { Outcome::Whole { status, content, surplus: buf.len() } } else { Outcome::Cut }
}

fn check(text: &[u8], cuts: &[prop::sample::Index]) -> Result<(), TestCaseError> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([text.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let pieces = starts.zip(ends).map(|(start, end)| &text[start..end]);
    let whole = read(std::iter::once(text));
    prop_assert_eq!(&read(pieces), &whole);
    prop_assert_eq!(&read(text.chunks(1)), &whole);
    Ok(())
}

fn chunked(pieces: &[Vec<u8>], extension: &str, trailer: &str) -> Vec<u8> {
    let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in pieces {
        text.extend(format!("{:X}{extension}\r\n", piece.len()).bytes());
        text.extend(piece);
        text.extend(b"\r\n");
    }
    text.extend(format!("0\r\n{trailer}\r\n").bytes());
    text
}

proptest! {
    #[test]
    fn a_chunked_answer_is_its_chunks(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
        extension in "(;[a-z]{1,5}(=[a-z]{0,5})?)?",
        trailer in "([A-Z][a-z]{0,5}: [a-z]{0,5}\r\n){0,2}",
        surplus in prop::collection::vec(any::<u8>(), 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut text = chunked(&pieces, &extension, &trailer);
        text.extend(&surplus);
        let content = pieces.concat();
        let expected = Outcome::Whole { status: 200, content, surplus: surplus.len() };
        prop_assert_eq!(read(std::iter::once(&text[..])), expected);
        check(&text, &cuts)?;
    }

    #[test]
    fn an_answer_of_known_length_is_that_long(
        content in prop::collection::vec(any::<u8>(), 0..80),
        interim in 0_usize..3,
        missing in 0_usize..2,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut text = b"HTTP/1.1 103 Early\r\nContent-Length: 9\r\n\r\n".repeat(interim);
        let len = content.len() + missing;
        text.extend(format!("HTTP/1.1 404 No\r\nContent-Length: {len}\r\n\r\n").bytes());
        text.extend(&content);
        let whole = Outcome::Whole { status: 404, content, surplus: 0 };
        let expected = if missing == 0 { whole } else { Outcome::Cut };
        prop_assert_eq!(read(std::iter::once(&text[..])), expected);
        check(&text, &cuts)?;
    }

    #[test]
    fn nonsense_is_the_same_nonsense_in_any_pieces(
        head in "(HTTP/1\\.[01] [0-9]{3} x\r\n)?",
        lines in "((Content-Length|Transfer-Encoding|X): (chunked|[0-9]{1,2}|)\r\n){0,3}(\r\n)?",
        body in "([0-9a-f]{0,2}(\r\n|\n|;)[a-z]{0,3}(\r\n)?){0,4}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        check(format!("{head}{lines}{body}").as_bytes(), &cuts)?;
    }
}

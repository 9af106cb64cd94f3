//! The parser of event streams: how the bytes were cut up never matters, and nothing that it keeps
//! is longer than allowed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_mcp::sse::{Event, Parser, TooLong};

const LIMIT: usize = 64;

fuzz_target!(|input: &[u8]| {
    let Some((&size, stream)) = input.split_first() else { return };
    let whole = parse(std::iter::once(stream));
    let pieces = parse(stream.chunks(usize::from(size).max(1)));
    assert_eq!(whole.0, pieces.0);
    assert_eq!(whole.1, pieces.1);
    if whole.1.is_ok() {
        assert_eq!(whole.2.last_event_id(), pieces.2.last_event_id());
        assert_eq!(whole.2.retry(), pieces.2.retry());
    }
    for event in &whole.0 {
        assert!(event.data.len() <= LIMIT);
    }
});

fn parse<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Event>, Result<(), TooLong>, Parser) {
    let mut parser = Parser::new(LIMIT);
    let mut events = Vec::new();
    let mut outcome = Ok(());
    for piece in pieces {
        outcome = parser.feed(piece, &mut events);
        if outcome.is_err() {
            break;
        }
    }
    (events, outcome, parser)
}

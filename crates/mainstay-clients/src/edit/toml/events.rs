//! A text in the parser's terms: what opens and closes, keys and plain values.

use toml_parser::lexer::{Lexer, Token, TokenKind};
use toml_parser::parser::{Event, EventKind, RecursionGuard, ValidateWhitespace, parse_document};
use toml_parser::{ParseError, Source};

/// As deep as the full parser goes.
pub(super) const MAX_DEPTH: u32 = 80;

/// How many tokens are parsed at once, at least: few enough to stay close to the processor.
const BATCH: usize = 4096;

/// Hands over all of a text but its white space and comments, a number of whole statements at a time, as long as nothing
/// breaks the grammar. What keys and plain values say has not been looked at.
pub(crate) fn events(source: Source, mut take: impl FnMut(&[Event])) -> Result<(), ParseError> {
    let mut lexer = source.lex();
    let (mut tokens, mut events) = (Vec::new(), Vec::new());
    loop {
        tokens.clear();
        events.clear();
        fill(&mut tokens, &mut lexer);
        if tokens.is_empty() {
            return Ok(());
        }
        let mut wrong = None;
        let mut collect = |event: Event| {
            use EventKind::{Comment, Newline, Whitespace};
            if !matches!(event.kind(), Whitespace | Comment | Newline) {
                events.push(event);
            }
        };
        let mut checked = ValidateWhitespace::new(&mut collect, source);
        parse_document(&tokens, &mut RecursionGuard::new(&mut checked, MAX_DEPTH), &mut wrong);
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        take(&events);
    }
}

/// Takes the next tokens, up to the end of a statement: a line end outside of all brackets.
fn fill(tokens: &mut Vec<Token>, lexer: &mut Lexer<'_>) {
    let mut depth = 0_usize;
    for token in lexer {
        let kind = token.kind();
        tokens.push(token);
        match kind {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => depth += 1,
            // One too many is an error in these tokens already.
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                depth = depth.saturating_sub(1);
            }
            TokenKind::Newline if depth == 0 && tokens.len() >= BATCH => return,
            _ => {}
        }
    }
}

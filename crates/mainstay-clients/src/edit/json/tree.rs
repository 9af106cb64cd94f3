//! From text to as much of its tree as an edit looks at, with byte ranges.
//!
//! The whole text is checked, by the scanner of `jsonc-parser` and the grammar here, but only the way to the container
//! and what is in it are kept. Most of a settings file is neither: not building it halves the time.

mod surrogates;

use std::borrow::Cow;
use std::ops::Range;

use jsonc_parser::errors::{ParseError, ParseErrorKind};
use jsonc_parser::tokens::Token;
use jsonc_parser::{ParseStringErrorKind, Scanner, ScannerOptions};

use super::super::value::{Fields, Value};
use super::super::{EditError, Format, Position};

/// Deeper than any settings file, and shallow enough for the stack.
const MAX_DEPTH: usize = 512;

/// A value and where it is.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) range: Range<usize>,
    pub(super) content: Content<'a>,
}

#[derive(Debug)]
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    Number(Cow<'a, str>),
    Flag(bool),
    Null,
    List(Vec<Node<'a>>),
    Object(Vec<Member<'a>>),
}

/// A key with its value; the range is that of both.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) key: Cow<'a, str>,
    pub(super) range: Range<usize>,
    pub(super) value: Node<'a>,
}

/// The members of an object, and where it is.
#[derive(Debug, Clone)]
pub(super) struct Object<'v> {
    pub(super) range: Range<usize>,
    pub(super) members: &'v [Member<'v>],
}

/// What of a value is kept. The content of lists and objects that are not is empty.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keep<'k> {
    All,
    /// The members of the objects along these keys, and all of what is at their end.
    Way(&'k [&'k str]),
    Nothing,
}

impl Keep<'_> {
    fn below(self, key: &str) -> Self {
        match self {
            Self::All | Self::Way([]) => Self::All,
            Self::Way([first, rest @ ..]) if *first == key => Self::Way(rest),
            Self::Way(_) | Self::Nothing => Self::Nothing,
        }
    }

    fn is_nothing(self) -> bool {
        matches!(self, Self::Nothing)
    }
}

impl Node<'_> {
    /// What this is, for people.
    pub(super) fn kind(&self) -> &'static str {
        match self.content {
            Content::Text(_) => "a text",
            Content::Number(_) => "a number",
            Content::Flag(_) => "a flag",
            Content::Null => "null",
            Content::List(_) => "a list",
            Content::Object(_) => "an object",
        }
    }

    pub(super) fn as_object(&self) -> Option<Object<'_>> {
        match &self.content {
            Content::Object(members) => Some(Object { range: self.range.clone(), members }),
            Content::Text(_)
            | Content::Number(_)
            | Content::Flag(_)
            | Content::Null
            | Content::List(_) => None,
        }
    }

    /// The same, without the text that it was read from.
    fn into_owned<'t>(self) -> Node<'t> {
        let owned = |text: Cow<str>| Cow::Owned(text.into_owned());
        let content = match self.content {
            Content::Text(text) => Content::Text(owned(text)),
            Content::Number(number) => Content::Number(owned(number)),
            Content::Flag(flag) => Content::Flag(flag),
            Content::Null => Content::Null,
            Content::List(items) => {
                Content::List(items.into_iter().map(Node::into_owned).collect())
            }
            Content::Object(members) => {
                let owned = |Member { key, range, value }: Member| Member {
                    key: owned(key),
                    range,
                    value: value.into_owned(),
                };
                Content::Object(members.into_iter().map(owned).collect())
            }
        };
        Node { range: self.range, content }
    }

    /// As our own value.
    pub(super) fn value(&self) -> Value {
        match &self.content {
            Content::Text(text) => Value::Text(text.to_string()),
            Content::Number(number) => {
                number.parse().map_or_else(|_| Value::Other(number.to_string()), Value::Number)
            }
            Content::Flag(flag) => Value::Flag(*flag),
            Content::Null => Value::Other("null".to_owned()),
            Content::List(items) => Value::List(items.iter().map(Node::value).collect()),
            Content::Object(members) => Value::Map(fields(members)),
        }
    }
}

impl Object<'_> {
    /// The members as our own values, in their order.
    pub(super) fn fields(&self) -> Fields {
        fields(self.members)
    }
}

fn fields(members: &[Member]) -> Fields {
    members.iter().map(|member| (member.key.to_string(), member.value.value())).collect()
}

/// Parses a text to its root, which a text without any value lacks.
pub(super) fn parse<'t>(
    text: &'t str,
    format: Format,
    keep: Keep,
) -> Result<Option<Node<'t>>, EditError> {
    match Parser::parse(text, format, keep) {
        Ok(root) => Ok(root),
        Err(Fault::HalfAPair) => {
            let mended = surrogates::mend(text);
            let root = Parser::parse(&mended, format, keep);
            root.map(|root| root.map(Node::into_owned)).map_err(|fault| fault.into_error(text))
        }
        Err(fault @ Fault::Refused(_)) => Err(fault.into_error(text)),
    }
}

enum Fault {
    /// An escaped half of a surrogate pair, which the scanner does not take.
    HalfAPair,
    Refused(EditError),
}

impl Fault {
    fn into_error(self, text: &str) -> EditError {
        match self {
            Self::Refused(error) => error,
            Self::HalfAPair => unparsable(text, text.len(), "half of a surrogate pair"),
        }
    }
}

/// Reads one token at a time; each method leaves the last token of what it read as the current one.
struct Parser<'a> {
    text: &'a str,
    scanner: Scanner<'a>,
    token: Option<Token<'a>>,
    relaxed: bool,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn parse(text: &'a str, format: Format, keep: Keep) -> Result<Option<Node<'a>>, Fault> {
        let options = ScannerOptions {
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let scanner = Scanner::new(text, &options);
        let relaxed = format == Format::Jsonc;
        let mut parser = Self { text, scanner, token: None, relaxed, depth: 0 };
        parser.advance()?;
        if parser.token.is_none() {
            return Ok(None);
        }
        let root = parser.value(keep)?;
        parser.advance()?;
        match parser.token {
            None => Ok(Some(root)),
            Some(_) => Err(parser.expected("the end of the file")),
        }
    }

    fn advance(&mut self) -> Result<(), Fault> {
        loop {
            let behind = self.scanner.token_end();
            self.token = self.scanner.scan().map_err(|error| self.refused(&error))?;
            self.check_bytes(behind)?;
            match self.token {
                Some(Token::CommentLine(_) | Token::CommentBlock(_)) if self.relaxed => {}
                Some(Token::CommentLine(_) | Token::CommentBlock(_)) => {
                    let at = Position::of(self.text, self.scanner.token_start());
                    return Err(Fault::Refused(EditError::Comment { at }));
                }
                _ => return Ok(()),
            }
        }
    }

    /// Refuses bytes that the scanner takes and a client may not: other white space than that of JSON, and control
    /// characters in a text.
    fn check_bytes(&self, behind: usize) -> Result<(), Fault> {
        let (start, end) = match self.token {
            Some(_) => (self.scanner.token_start(), self.scanner.token_end()),
            None => (self.text.len(), self.text.len()),
        };
        let is_odd = |byte: u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        if let Some(odd) = self.text[behind..start].bytes().position(is_odd) {
            return Err(self.problem(behind + odd, "unexpected character"));
        }
        let is_control = |byte: u8| byte < 0x20;
        match &self.token {
            Some(Token::String(_)) => match self.text[start..end].bytes().position(is_control) {
                Some(control) => Err(self.problem(
                    start + control,
                    "a control character in a text; write it as an escape",
                )),
                None => Ok(()),
            },
            Some(_) | None => Ok(()),
        }
    }

    fn value(&mut self, keep: Keep) -> Result<Node<'a>, Fault> {
        let start = self.scanner.token_start();
        let content = match self.token.take() {
            Some(Token::OpenBrace) => self.nested(|parser| parser.object(start, keep))?,
            Some(Token::OpenBracket) => self.nested(|parser| parser.list(start, keep))?,
            Some(Token::String(text)) => Content::Text(text),
            Some(Token::Number(number)) => Content::Number(Cow::Borrowed(number)),
            Some(Token::Boolean(flag)) => Content::Flag(flag),
            Some(Token::Null) => Content::Null,
            _ => return Err(self.expected("a value")),
        };
        Ok(Node { range: start..self.scanner.token_end(), content })
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Content<'a>, Fault>,
    ) -> Result<Content<'a>, Fault> {
        if self.depth == MAX_DEPTH {
            return Err(self.expected("less nesting"));
        }
        self.depth += 1;
        let content = read(self)?;
        self.depth -= 1;
        Ok(content)
    }

    fn object(&mut self, open: usize, keep: Keep) -> Result<Content<'a>, Fault> {
        let mut members = Vec::new();
        self.advance()?;
        loop {
            let key = match self.token.take() {
                Some(Token::CloseBrace) => return Ok(Content::Object(members)),
                Some(Token::String(key)) => key,
                Some(_) => return Err(self.expected("a key in double quotes or `}`")),
                None => return Err(self.problem(open, "`{` without its end, expected `}`")),
            };
            let start = self.scanner.token_start();
            self.advance()?;
            if self.token != Some(Token::Colon) {
                return Err(self.expected("`:` after a key"));
            }
            self.advance()?;
            let value = self.value(keep.below(&key))?;
            if !keep.is_nothing() {
                members.push(Member { key, range: start..value.range.end, value });
            }
            self.separator(&Token::CloseBrace)?;
        }
    }

    fn list(&mut self, open: usize, keep: Keep) -> Result<Content<'a>, Fault> {
        let mut items = Vec::new();
        self.advance()?;
        loop {
            match self.token {
                Some(Token::CloseBracket) => return Ok(Content::List(items)),
                Some(_) => {}
                None => return Err(self.problem(open, "`[` without its end, expected `]`")),
            }
            let keep = if matches!(keep, Keep::All) { Keep::All } else { Keep::Nothing };
            let item = self.value(keep)?;
            if !keep.is_nothing() {
                items.push(item);
            }
            self.separator(&Token::CloseBracket)?;
        }
    }

    /// Goes behind a value: to the closing token, to the end of the text, or past a comma.
    fn separator(&mut self, close: &Token) -> Result<(), Fault> {
        let end = self.scanner.token_end();
        self.advance()?;
        match &self.token {
            Some(Token::Comma) => {
                let comma = self.scanner.token_start();
                self.advance()?;
                if !self.relaxed && self.token.as_ref() == Some(close) {
                    let at = Position::of(self.text, comma);
                    return Err(Fault::Refused(EditError::TrailingComma { at }));
                }
                Ok(())
            }
            Some(token) if token != close => Err(self.problem(end, "expected `,`")),
            Some(_) | None => Ok(()),
        }
    }

    fn expected(&self, what: &str) -> Fault {
        self.problem(self.scanner.token_start(), &format!("expected {what}"))
    }

    fn problem(&self, at: usize, problem: &str) -> Fault {
        Fault::Refused(unparsable(self.text, at, problem))
    }

    fn refused(&self, error: &ParseError) -> Fault {
        use ParseErrorKind as E;
        let problem = match error.kind() {
            E::String(ParseStringErrorKind::InvalidUnicodeEscapeSequence(_)) => {
                return Fault::HalfAPair;
            }
            E::UnterminatedCommentBlock => "`/*` without its end, expected `*/`".to_owned(),
            E::UnexpectedToken => "unexpected character".to_owned(),
            other => other.to_string().to_lowercase(),
        };
        self.problem(error.range().start, &problem)
    }
}

fn unparsable(text: &str, at: usize, problem: &str) -> EditError {
    EditError::Unparsable { at: Position::of(text, at), problem: problem.to_owned() }
}

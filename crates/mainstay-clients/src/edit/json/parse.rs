//! From text to a tree with byte ranges, and from its errors to ours.

use jsonc_parser::ast::Value as Node;
use jsonc_parser::errors::{ParseError, ParseErrorKind};
use jsonc_parser::{CollectOptions, ParseOptions, ParseResult, ParseStringErrorKind, parse_to_ast};

use super::super::value::Value;
use super::super::{EditError, Format, Position};

/// Parses a text and looks at its root, which a text without any value lacks.
pub(super) fn in_document<T>(
    text: &str,
    format: Format,
    look: impl FnOnce(Option<&Node>) -> Result<T, EditError>,
) -> Result<T, EditError> {
    match parse(text, format) {
        Ok(document) => look(document.value.as_ref()),
        Err(error) if is_lone_surrogate(&error) => {
            let mended = mend_surrogates(text);
            let document = parse(&mended, format).map_err(|error| refuse(text, &error))?;
            look(document.value.as_ref())
        }
        Err(error) => Err(refuse(text, &error)),
    }
}

/// A node as our own value. `text` is where numbers are read from.
pub(super) fn value_of(text: &str, node: &Node) -> Value {
    match node {
        Node::StringLit(string) => Value::Text(string.value.to_string()),
        Node::BooleanLit(flag) => Value::Flag(flag.value),
        Node::NumberLit(number) => number
            .value
            .parse()
            .map_or_else(|_| Value::Other(number.value.to_owned()), Value::Number),
        Node::Array(list) => {
            Value::List(list.elements.iter().map(|item| value_of(text, item)).collect())
        }
        Node::Object(map) => Value::Map(
            map.properties
                .iter()
                .map(|property| {
                    (property.name.as_str().to_owned(), value_of(text, &property.value))
                })
                .collect(),
        ),
        Node::NullKeyword(null) => Value::Other(text[null.range.start..null.range.end].to_owned()),
    }
}

/// What a node is, for people.
pub(super) fn kind(node: &Node) -> &'static str {
    match node {
        Node::StringLit(_) => "a text",
        Node::NumberLit(_) => "a number",
        Node::BooleanLit(_) => "a flag",
        Node::Object(_) => "an object",
        Node::Array(_) => "a list",
        Node::NullKeyword(_) => "null",
    }
}

pub(super) fn duplicate(text: &str, key: &str, first: usize, second: usize) -> EditError {
    EditError::Duplicate {
        key: key.to_owned(),
        first: Position::of(text, first).line,
        second: Position::of(text, second).line,
    }
}

fn parse(text: &str, format: Format) -> Result<ParseResult<'_>, ParseError> {
    let relaxed = format == Format::Jsonc;
    let options = ParseOptions {
        allow_comments: relaxed,
        allow_trailing_commas: relaxed,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    parse_to_ast(text, &CollectOptions::default(), &options)
}

fn refuse(text: &str, error: &ParseError) -> EditError {
    use ParseErrorKind as E;
    let at = Position::of(text, error.range().start);
    let problem = match error.kind() {
        E::CommentsNotAllowed => return EditError::Comment { at },
        E::TrailingCommasNotAllowed => return EditError::TrailingComma { at },
        E::UnterminatedObject => "`{` without its end, expected `}`".to_owned(),
        E::UnterminatedArray => "`[` without its end, expected `]`".to_owned(),
        E::UnterminatedCommentBlock => "`/*` without its end, expected `*/`".to_owned(),
        E::UnexpectedTokenInObject | E::ExpectedStringObjectProperty => {
            "expected a key in double quotes or `}`".to_owned()
        }
        E::ExpectedColonAfterObjectKey => "expected `:` after a key".to_owned(),
        E::ExpectedObjectValue => "expected a value after `:`".to_owned(),
        E::ExpectedComma => "expected `,`".to_owned(),
        E::MultipleRootJsonValues => "expected the end of the file".to_owned(),
        E::UnexpectedCloseBrace
        | E::UnexpectedCloseBracket
        | E::UnexpectedColon
        | E::UnexpectedComma
        | E::UnexpectedToken
        | E::UnexpectedWord => "expected a value".to_owned(),
        other => other.to_string().to_lowercase(),
    };
    EditError::Unparsable { at, problem }
}

fn is_lone_surrogate(error: &ParseError) -> bool {
    matches!(
        error.kind(),
        ParseErrorKind::String(ParseStringErrorKind::InvalidUnicodeEscapeSequence(_))
    )
}

/// A text of the same length in which each escaped half of a surrogate pair is a replacement character.
///
/// JavaScript writes such halves where it cut a text in the middle of an emoji, and reads them back, so files with them
/// are sound for their clients. The ranges found in the mended text hold for the true one, which is the one we splice.
fn mend_surrogates(text: &str) -> String {
    let mut mended = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        mended.push_str(plain);
        let len = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.push_str("\\ufffd");
                rest = &escape[6..];
                continue;
            }
            (Some(_), _) => 6,
            (None, _) => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
        };
        mended.push_str(&escape[..len]);
        rest = &escape[len..];
    }
    mended + rest
}

/// The code unit of a `\uXXXX` that a text begins with.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

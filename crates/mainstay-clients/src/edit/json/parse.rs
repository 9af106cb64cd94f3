//! Parsing with `jsonc-parser`, and what it does not check or report as we need it.

use jsonc_parser::ast::{Object, ObjectProp, Value as Ast};
use jsonc_parser::errors::{ParseError, ParseErrorKind};
use jsonc_parser::tokens::{Token, TokenAndRange};
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, parse_to_ast};

use super::super::value::{Fields, Value};
use super::super::{EditError, Format, Position};

/// The root value of a text, if there is one. The parser limits the nesting depth.
pub(super) fn parse(text: &str, format: Format) -> Result<Option<Ast<'_>>, EditError> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: format == Format::Jsonc,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let collect = CollectOptions { comments: CommentCollectionStrategy::AsTokens, tokens: true };
    let parsed = parse_to_ast(text, &collect, &options).map_err(|error| refused(text, &error))?;
    check_tokens(text, format, &parsed.tokens.unwrap_or_default())?;
    Ok(parsed.value)
}

/// Rejects what the parser accepts and clients may not: white space that JSON does not have, control characters in
/// strings, and comments in strict JSON.
fn check_tokens(text: &str, format: Format, tokens: &[TokenAndRange]) -> Result<(), EditError> {
    let is_odd = |byte: u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let check_space = |start: usize, end: usize| match text[start..end].bytes().position(is_odd) {
        Some(odd) => Err(unparsable(text, start + odd, "unexpected character")),
        None => Ok(()),
    };
    let mut end = 0;
    for TokenAndRange { range, token } in tokens {
        check_space(end, range.start)?;
        end = range.end;
        match token {
            Token::CommentLine(_) | Token::CommentBlock(_) if format == Format::Json => {
                return Err(EditError::Comment { at: Position::of(text, range.start) });
            }
            Token::String(_) => {
                let control = text[range.start..end].bytes().position(|byte| byte < 0x20);
                if let Some(control) = control {
                    let problem = "a control character in a string; write it as an escape";
                    return Err(unparsable(text, range.start + control, problem));
                }
            }
            _ => {}
        }
    }
    check_space(end, text.len())
}

fn refused(text: &str, error: &ParseError) -> EditError {
    use ParseErrorKind as E;
    let start = error.range().start;
    let problem = match error.kind() {
        E::TrailingCommasNotAllowed => {
            return EditError::TrailingComma { at: Position::of(text, start) };
        }
        E::ExpectedComma => "expected `,`",
        E::ExpectedColonAfterObjectKey => "expected `:` after a key",
        E::ExpectedStringObjectProperty | E::UnexpectedTokenInObject => {
            "expected a key in double quotes or `}`"
        }
        E::ExpectedObjectValue
        | E::UnexpectedCloseBrace
        | E::UnexpectedCloseBracket
        | E::UnexpectedColon
        | E::UnexpectedComma
        | E::UnexpectedWord => "expected a value",
        E::MultipleRootJsonValues => "expected the end of the file",
        E::UnterminatedObject => "unclosed `{`, expected `}`",
        E::UnterminatedArray => "unclosed `[`, expected `]`",
        E::UnterminatedCommentBlock => "unclosed `/*`, expected `*/`",
        E::UnexpectedToken => "unexpected character",
        other => &other.to_string().to_lowercase(),
    };
    unparsable(text, start, problem)
}

fn unparsable(text: &str, at: usize, problem: &str) -> EditError {
    EditError::Unparsable { at: Position::of(text, at), problem: problem.to_owned() }
}

pub(super) fn value_of(value: &Ast) -> Value {
    match value {
        Ast::StringLit(text) => Value::Text(text.value.to_string()),
        Ast::NumberLit(number) => number
            .value
            .parse()
            .map_or_else(|_| Value::Other(number.value.to_owned()), Value::Number),
        Ast::BooleanLit(flag) => Value::Flag(flag.value),
        Ast::NullKeyword(_) => Value::Other("null".to_owned()),
        Ast::Array(list) => Value::List(list.elements.iter().map(value_of).collect()),
        Ast::Object(object) => Value::Map(fields_of(object)),
    }
}

pub(super) fn fields_of(object: &Object) -> Fields {
    let field =
        |property: &ObjectProp| (property.name.as_str().to_owned(), value_of(&property.value));
    object.properties.iter().map(field).collect()
}

/// JavaScript writes escaped surrogates without their other half, such as `\ud83d`, where it cut a string in the middle of
/// an emoji, and reads them back. `jsonc-parser` rejects them. This returns a text of the same length in which each lone surrogate is a replacement character. Byte ranges in it are those of the
/// original text.
pub(super) fn replace_lone_surrogates(text: &str) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        let (len, is_lone) = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, false),
            (Some(0xd800..=0xdfff), _) => (6, true),
            (Some(_), _) => (6, false),
            (None, _) => (1 + escape[1..].chars().next().map_or(0, char::len_utf8), false),
        };
        replaced.push_str(plain);
        replaced.push_str(if is_lone { "\\ufffd" } else { &escape[..len] });
        rest = &escape[len..];
    }
    replaced + rest
}

/// The code unit of the escape (`\u` and four digits) at the start of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

//! Why a text is not edited.

use std::fmt;

/// A place in a text, for people: both numbers count from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    pub(super) fn of(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Why a text is not edited. The file stays as it is in every case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("{at}: {problem}")]
    Unparsable { at: Position, problem: String },
    #[error("{at}: a comment, which strict JSON does not allow")]
    Comment { at: Position },
    #[error("{at}: a trailing comma, which strict JSON does not allow")]
    TrailingComma { at: Position },
    #[error("`{key}` is there twice, in line {first} and in line {second}")]
    Duplicate { key: String, first: usize, second: usize },
    /// Something that has to hold other things (the document, a container, our entry) is something else.
    #[error("{at}: `{what}` is {found}, not a table of keys and values")]
    WrongType { what: String, found: &'static str, at: Position },
    #[error("{at}: `{key}` is written with dots inside of braces; write it as a table of its own")]
    DottedInBraces { key: String, at: Position },
}

//! How a file is laid out, guessed from the file, so that what is added looks like the rest.

/// The habits of a whole file.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) newline: &'static str,
    /// One step of indentation.
    pub(super) unit: String,
    /// Everything stands in one line, and so will what is added.
    pub(super) flat: bool,
    /// A space follows colons and commas that stand in one line.
    pub(super) spaced: bool,
}

/// How one value is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Style {
    /// In one line.
    Line { spaced: bool },
    /// Over several lines; `indent` is that of the line in which the value begins.
    Lines { newline: &'static str, indent: String, unit: String },
}

/// The line end that a text uses first, if it has one.
pub(super) fn newline_of(text: &str) -> Option<&'static str> {
    let at = text.find(['\n', '\r'])?;
    Some(match &text[at..] {
        rest if rest.starts_with("\r\n") => "\r\n",
        rest if rest.starts_with('\n') => "\n",
        _ => "\r",
    })
}

/// Where the line begins that holds `offset`. A line end belongs to the line before it.
pub(super) fn line_start(text: &str, offset: usize) -> usize {
    let is_end = |at: usize| text.as_bytes()[at] == b'\n' || !text[at + 1..].starts_with('\n');
    let mut ends = text[..offset].rmatch_indices(['\n', '\r']).map(|(at, _)| at);
    ends.find(|at| is_end(*at)).map_or(0, |at| at + 1)
}

/// Where the line that holds `offset` ends, with its line end.
pub(super) fn line_end(text: &str, offset: usize) -> usize {
    text[offset..].find('\n').map_or(text.len(), |newline| offset + newline + 1)
}

/// The white space at the beginning of the line that holds `offset`, as far as it reaches before `offset`.
pub(super) fn margin(text: &str, offset: usize) -> &str {
    let line = &text[line_start(text, offset)..offset];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// The indentation of `offset`, if nothing but white space stands before it in its line and the line is not the first.
pub(super) fn own_line_indent(text: &str, offset: usize) -> Option<&str> {
    let start = line_start(text, offset);
    let before = &text[start..offset];
    (start > 0 && before.bytes().all(|byte| matches!(byte, b' ' | b'\t'))).then_some(before)
}

//! Lines outside braces: headers of tables, and keys with their values.

use std::ops::Range;

use toml_edit::{Document, Item, Key, Table};

use super::super::text::{Splice, line_end, line_start, margin, newline_of};
use super::super::value::Value;
use super::parse::span;
use super::{ParsedText, write};

/// A header, or a key with its value.
#[derive(Debug)]
pub(super) struct Statement {
    /// The header; or from the last segment of the key to the end of the value.
    pub(super) span: Range<usize>,
    /// The keys from the root.
    pub(super) path: Vec<String>,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Header,
    /// A key that names this many segments, below the header above it.
    Key(usize),
}

impl Statement {
    pub(super) fn is_within(&self, path: &[&str]) -> bool {
        self.path.len() >= path.len() && self.path.iter().zip(path).all(|(a, b)| a == b)
    }

    pub(super) fn lines(&self, text: &str) -> Range<usize> {
        line_start(text, self.span.start)..line_end(text, self.span.end)
    }
}

/// All statements of a document, in the order of the text.
pub(super) fn statements(document: &Document<String>) -> Vec<Statement> {
    let mut statements = Vec::new();
    collect(document.as_table(), &[], &mut statements);
    statements.sort_unstable_by_key(|statement| statement.span.start);
    statements
}

fn collect(table: &Table, path: &[String], statements: &mut Vec<Statement>) {
    if !table.is_dotted() {
        for (keys, value) in table.get_values() {
            let named = keys.iter().map(|key| key.get().to_owned());
            // The other segments of a dotted key have the span of their first occurrence.
            let start = span(keys.last().and_then(|key| Key::span(key))).start;
            statements.push(Statement {
                span: start..span(value.span()).end,
                path: path.iter().cloned().chain(named).collect(),
                kind: Kind::Key(keys.len()),
            });
        }
    }
    for (key, item) in table {
        let path: Vec<_> = path.iter().cloned().chain([key.to_owned()]).collect();
        let tables: Vec<&Table> = match item {
            Item::Table(table) => vec![table],
            Item::ArrayOfTables(tables) => tables.iter().collect(),
            Item::Value(_) | Item::None => Vec::new(),
        };
        for table in tables {
            if !table.is_implicit() {
                let (span, path) = (span(table.span()), path.clone());
                statements.push(Statement { span, path, kind: Kind::Header });
            }
            collect(table, &path, statements);
        }
    }
}

/// The path of the last header, if there is one.
pub(super) fn last_header(statements: &[Statement]) -> &[String] {
    let header = statements.iter().rfind(|statement| statement.kind == Kind::Header);
    header.map_or(&[], |header| &header.path)
}

impl ParsedText<'_> {
    /// Removes everything within a path: its lines and what is between them, and with `spaced` the empty line above.
    pub(super) fn remove_lines(&self, path: &[&str], spaced: bool) -> Vec<Splice> {
        let text = self.text.as_ref();
        let runs =
            self.statements.chunk_by(|one, next| one.is_within(path) == next.is_within(path));
        let delete = |run: &[Statement]| {
            let mut start = run[0].lines(text).start;
            if spaced && start > 0 && is_spaced(text, start) {
                start = line_start(text, start - 1);
            }
            Splice::delete(start..run[run.len() - 1].lines(text).end)
        };
        runs.filter(|run| run[0].is_within(path)).map(delete).collect()
    }

    /// Removes the lines of one field of an entry, and only those.
    pub(super) fn remove_field(&self, entry: &[&str], field: &str) -> Vec<Splice> {
        let path: Vec<_> = entry.iter().copied().chain([field]).collect();
        let lines = self.statements.iter().filter(|statement| statement.is_within(&path));
        lines.map(|statement| Splice::delete(statement.lines(&self.text))).collect()
    }

    /// Adds fields to an existing entry, in the way in which it is written.
    pub(super) fn add_fields(&self, entry: &[&str], fields: &[(&str, &Value)]) -> Splice {
        let statements = &self.statements;
        let is_header = |one: &Statement| one.kind == Kind::Header && one.path == entry;
        if let Some(header) = statements.iter().position(is_header) {
            return self.add_lines(&statements[self.end_of_section(header)], "", fields);
        }
        let dotted = statements.iter().rev().find_map(|one| match one.kind {
            Kind::Key(named) if one.is_within(entry) => {
                let above = one.path.len() - named;
                (above < entry.len()).then(|| (one, format!("{}.", write::dotted(&entry[above..]))))
            }
            Kind::Key(_) | Kind::Header => None,
        });
        if let Some((last, prefix)) = dotted {
            return self.add_lines(last, &prefix, fields);
        }
        let first = statements.iter().find(|one| one.is_within(entry)).expect("the entry exists");
        let newline = newline_of(&self.text);
        let table = write::table(entry, fields.iter().copied(), newline);
        Splice::insert(first.lines(&self.text).start, format!("{table}{newline}"))
    }

    /// Where to insert a new table of the container: after the last one of that container, or at the end.
    pub(super) fn place_for_table(&self) -> usize {
        let (text, statements) = (self.text.as_ref(), &self.statements);
        let is_sibling = |one: &Statement| one.kind == Kind::Header && one.is_within(self.keys);
        let Some(sibling) = statements.iter().rposition(is_sibling) else { return text.len() };
        let last = self.end_of_section(sibling);
        let Some(next) = statements.get(last + 1) else { return text.len() };
        after(text, statements[last].lines(text).end, Some(next.lines(text).start))
    }

    /// The last statement below a header.
    fn end_of_section(&self, header: usize) -> usize {
        let below = self.statements[header + 1..].iter();
        header + below.take_while(|one| one.kind != Kind::Header).count()
    }

    fn add_lines(&self, last: &Statement, prefix: &str, fields: &[(&str, &Value)]) -> Splice {
        let prefix = format!("{}{prefix}", margin(&self.text, last.span.start));
        let added = write::lines(&prefix, fields.iter().copied(), newline_of(&self.text));
        Splice::insert(last.lines(&self.text).end, added)
    }
}

/// Where to insert a table after one whose last line ends at `end`, given where the next one begins: after the comments that
/// follow directly, unless they continue to the next header and so belong to that table.
pub(super) fn after(text: &str, end: usize, next: Option<usize>) -> usize {
    let between = &text[end..next.unwrap_or(text.len())];
    let is_comment = |line: &&str| line.trim_start().starts_with('#');
    let comments: usize = between.split_inclusive('\n').take_while(is_comment).map(str::len).sum();
    if comments == between.len() && next.is_some() { end } else { end + comments }
}

/// Whether a table at `at` needs no empty line above it: there is one, or nothing is above it.
pub(super) fn is_spaced(text: &str, at: usize) -> bool {
    at == 0 || text[line_start(text, at - 1)..at].trim().is_empty()
}

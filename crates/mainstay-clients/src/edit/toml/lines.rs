//! Lines outside of braces: headers of tables, and keys with their values.

use std::ops::Range;

use toml_edit::{Document, Item, Table};

use super::super::layout::{self, line_end, line_start};
use super::super::splice::Splice;
use super::super::value::Value;
use super::{span, write};

/// A header, or a key with its value.
#[derive(Debug)]
pub(super) struct Statement<'d> {
    /// From the header or the last segment of the key to the end of the value.
    span: Range<usize>,
    /// The way from the root.
    path: Vec<&'d str>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Header,
    /// A key that names this many segments, below the header above it.
    Key(usize),
}

impl Statement<'_> {
    pub(super) fn start(&self) -> usize {
        self.span.start
    }

    pub(super) fn is_within(&self, path: &[&str]) -> bool {
        self.path.starts_with(path)
    }

    fn lines(&self, text: &str) -> Range<usize> {
        line_start(text, self.span.start)..line_end(text, self.span.end)
    }
}

/// All statements in the order of the text.
pub(super) fn statements<'d>(document: &'d Document<&str>) -> Vec<Statement<'d>> {
    let mut statements = Vec::new();
    keys(document.as_table(), &[], &mut statements);
    tables(document.as_table(), &[], &mut statements);
    statements.sort_by_key(|statement| statement.span.start);
    statements
}

/// The path of the last header, if there is one.
pub(super) fn last_header<'s, 'd>(statements: &'s [Statement<'d>]) -> &'s [&'d str] {
    let header = statements.iter().rfind(|statement| statement.kind == Kind::Header);
    header.map_or(&[], |header| &header.path)
}

/// Takes out everything within a path: its lines and what stands between them, and with `spaced` the empty line above.
pub(super) fn remove(
    text: &str,
    statements: &[Statement],
    path: &[&str],
    spaced: bool,
) -> Vec<Splice> {
    statements
        .chunk_by(|one, next| one.is_within(path) == next.is_within(path))
        .filter(|run| run[0].is_within(path))
        .map(|run| {
            let mut start = run[0].lines(text).start;
            if spaced && start > 0 && is_spaced(text, start) {
                start = line_start(text, start - 1);
            }
            Splice::delete(start..run[run.len() - 1].lines(text).end)
        })
        .collect()
}

/// Takes out the lines of one field of an entry, and only those.
pub(super) fn remove_field(
    text: &str,
    statements: &[Statement],
    entry: &[&str],
    field: &str,
) -> Vec<Splice> {
    let path: Vec<_> = entry.iter().copied().chain([field]).collect();
    let doomed = statements.iter().filter(|statement| statement.is_within(&path));
    doomed.map(|statement| Splice::delete(statement.lines(text))).collect()
}

/// Adds fields to an entry that is there, in the way in which it is written.
pub(super) fn add_fields(
    text: &str,
    statements: &[Statement],
    entry: &[&str],
    fields: &[(&str, &Value)],
) -> Splice {
    let newline = layout::newline_of(text).unwrap_or("\n");
    let header = statements.iter().position(|one| one.kind == Kind::Header && one.path == entry);
    if let Some(header) = header {
        let last = end_of_section(statements, header);
        return add_lines(text, &statements[last], "", fields, newline);
    }
    let dotted = statements.iter().rev().find_map(|one| match one.kind {
        Kind::Key(named) if one.is_within(entry) => {
            let above = one.path.len() - named;
            (above < entry.len()).then(|| (one, format!("{}.", write::dotted(&entry[above..]))))
        }
        Kind::Key(_) | Kind::Header => None,
    });
    if let Some((last, prefix)) = dotted {
        return add_lines(text, last, &prefix, fields, newline);
    }
    let first = statements.iter().find(|one| one.is_within(entry)).expect("the entry is there");
    let table = write::table(entry, fields.iter().copied(), newline);
    Splice::insert(first.lines(text).start, format!("{table}{newline}"))
}

/// Where a new table of a container goes: behind the last one of that container, or to the end.
pub(super) fn place_for_table(text: &str, statements: &[Statement], container: &[&str]) -> usize {
    let is_sibling = |one: &Statement| one.kind == Kind::Header && one.is_within(container);
    let Some(sibling) = statements.iter().rposition(is_sibling) else { return text.len() };
    let last = end_of_section(statements, sibling);
    let Some(next) = statements.get(last + 1) else { return text.len() };
    let end = statements[last].lines(text).end;
    let between = &text[end..next.lines(text).start];
    let is_comment = |line: &&str| line.trim_start().starts_with('#');
    let comments: usize = between.split_inclusive('\n').take_while(is_comment).map(str::len).sum();
    // Comments that reach down to the next header are about that table.
    if comments == between.len() { end } else { end + comments }
}

/// Whether a table at `at` needs no empty line above it: there is one, or there is nothing at all.
pub(super) fn is_spaced(text: &str, at: usize) -> bool {
    at == 0 || text[line_start(text, at - 1)..at].trim().is_empty()
}

fn keys<'d>(table: &'d Table, above: &[&'d str], statements: &mut Vec<Statement<'d>>) {
    for (keys, value) in table.get_values() {
        let leaf = keys[keys.len() - 1];
        statements.push(Statement {
            span: span(leaf.span()).start..span(value.span()).end,
            path: above.iter().copied().chain(keys.iter().map(|key| key.get())).collect(),
            kind: Kind::Key(keys.len()),
        });
    }
}

fn tables<'d>(table: &'d Table, above: &[&'d str], statements: &mut Vec<Statement<'d>>) {
    for (key, item) in table {
        let path: Vec<_> = above.iter().copied().chain([key]).collect();
        match item {
            Item::Table(table) => section(table, &path, statements),
            Item::ArrayOfTables(list) => {
                for table in list {
                    section(table, &path, statements);
                }
            }
            Item::Value(_) | Item::None => {}
        }
    }
}

/// A table and what is below it. One without a header has no keys of its own, or the header above it has counted them.
fn section<'d>(table: &'d Table, path: &[&'d str], statements: &mut Vec<Statement<'d>>) {
    if !table.is_implicit() && !table.is_dotted() {
        statements.push(Statement {
            span: span(table.span()),
            path: path.to_vec(),
            kind: Kind::Header,
        });
        keys(table, path, statements);
    }
    tables(table, path, statements);
}

/// The last statement below a header.
fn end_of_section(statements: &[Statement], header: usize) -> usize {
    let below = statements[header + 1..].iter().take_while(|one| one.kind != Kind::Header);
    header + below.count()
}

fn add_lines(
    text: &str,
    last: &Statement,
    prefix: &str,
    fields: &[(&str, &Value)],
    newline: &str,
) -> Splice {
    let prefix = format!("{}{prefix}", layout::margin(text, last.span.start));
    let added = write::lines(&prefix, fields.iter().copied(), newline);
    Splice::insert(last.lines(text).end, added)
}

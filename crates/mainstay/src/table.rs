//! Tables that fit the terminal.

use crate::text::clip;
use crate::ui::paint;

/// No column is cut to less than this.
const NARROWEST: usize = 8;

/// What stands between two columns.
const GAP: usize = 2;

/// A cell of a table: its text and how it is painted once its column's width is known.
pub(crate) struct Cell {
    text: String,
    paint: fn(&str) -> String,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::painted(text, str::to_owned)
    }

    pub(crate) fn painted(text: impl Into<String>, paint: fn(&str) -> String) -> Self {
        Self { text: text.into(), paint }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Columns padded to their widest cell, two blanks apart, no blanks at line ends.
///
/// If they do not fit the terminal, columns are left out, those named in `dispensable` in that order; then
/// the widest ones are cut. Without a terminal everything is shown.
pub(crate) fn table(
    head: &[&str],
    rows: Vec<Vec<Cell>>,
    dispensable: &[&str],
    terminal: Option<usize>,
) -> String {
    let titles = head.iter().map(|title| Cell::painted(*title, paint::strong)).collect();
    let mut rows: Vec<Vec<Cell>> = std::iter::once(titles).chain(rows).collect();
    let mut head = head.to_vec();
    let mut dispensable = dispensable.iter();
    while terminal.is_some_and(|terminal| needed(&widths(&rows)) > terminal)
        && let Some(title) = dispensable.next()
    {
        if let Some(column) = head.iter().position(|other| other == title) {
            head.remove(column);
            for row in &mut rows {
                row.remove(column);
            }
        }
    }
    columns_within(terminal, &rows)
}

/// [`table`] without a head, with every cell in full.
pub(crate) fn columns(rows: &[Vec<Cell>]) -> String {
    columns_within(None, rows)
}

/// [`table`] without a head. The widest columns are cut until a line fits the terminal.
pub(crate) fn columns_within(terminal: Option<usize>, rows: &[Vec<Cell>]) -> String {
    let mut widths = widths(rows);
    if let Some(terminal) = terminal.filter(|_| !widths.is_empty()) {
        shrink(&mut widths, terminal);
    }
    let lines: Vec<String> = rows.iter().map(|row| line(row, &widths)).collect();
    lines.join("\n")
}

fn widths(rows: &[Vec<Cell>]) -> Vec<usize> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| rows.iter().filter_map(|row| row.get(column)).map(Cell::width).max();
    (0..count).map(|column| width(column).unwrap_or(0)).collect()
}

/// How wide the longest possible line is.
fn needed(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Cuts the widest columns until a line fits, the first one last: it has the names.
fn shrink(widths: &mut [usize], terminal: usize) {
    while needed(widths) > terminal {
        let (names, others) = widths.split_at_mut(1);
        let widest = others.iter_mut().rev().filter(|width| **width > NARROWEST);
        let widest = widest.max().or(names.iter_mut().find(|width| **width > NARROWEST));
        let Some(width) = widest else { return };
        *width -= 1;
    }
}

fn line(row: &[Cell], widths: &[usize]) -> String {
    let last = row.iter().rposition(|cell| !cell.text.is_empty()).map_or(0, |last| last + 1);
    let mut line = String::new();
    for (column, cell) in row[..last].iter().enumerate() {
        let text = clip(&cell.text, widths[column]);
        line.push_str(&(cell.paint)(&text));
        if column + 1 < last {
            let gap = widths[column] - text.chars().count() + GAP;
            line.extend(std::iter::repeat_n(' ', gap));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn columns_line_up_and_end_without_blanks() {
        let rows = vec![
            vec![Cell::new("a"), Cell::painted("running", paint::good), Cell::new("")],
            vec![Cell::new("long-name"), Cell::new("x"), Cell::new("url")],
        ];
        let text = table(&["NAME", "STATUS", "URL"], rows, &[], None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @"
        NAME       STATUS   URL
        a          running
        long-name  x        url
        ");
    }

    #[test]
    fn a_narrow_terminal_costs_columns_first_and_then_text() {
        let show = |terminal| {
            let row = ["time", "process", "http://127.0.0.1:7433/time/mcp"].map(Cell::new);
            let text = table(&["NAME", "ENGINE", "URL"], vec![row.into()], &["ENGINE"], terminal);
            anstream::adapter::strip_str(&text).to_string()
        };
        let full = "NAME  ENGINE   URL\ntime  process  http://127.0.0.1:7433/time/mcp";
        assert_eq!(show(None), full);
        assert_eq!(show(Some(45)), full);
        assert_eq!(show(Some(44)), "NAME  URL\ntime  http://127.0.0.1:7433/time/mcp");
        assert_eq!(show(Some(20)), "NAME  URL\ntime  http://127.0.…");
        assert_eq!(show(Some(1)), "NAME  URL\ntime  http://…");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            rows in prop::collection::vec(prop::collection::vec("[a-zä]{0,60}", 4), 1..5),
            terminal in 40usize..120,
        ) {
            let rows = rows.into_iter().map(|row| row.into_iter().map(Cell::new).collect());
            let text = table(&["A", "B", "C", "D"], rows.collect(), &["C"], Some(terminal));
            for line in anstream::adapter::strip_str(&text).to_string().lines() {
                prop_assert!(line.chars().count() <= terminal, "{line}");
            }
        }
    }
}

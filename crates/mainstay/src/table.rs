//! Tables that fit the terminal.

use std::cmp::Reverse;

use crate::text::clip;
use crate::ui::paint;

/// No column is cut to less than this.
const NARROWEST: usize = 8;

/// Blanks between two columns.
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

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

/// How a table is made to fit a terminal.
pub(crate) struct Fit<'a> {
    /// Columns that are left out, in this order.
    pub(crate) dispensable: &'a [&'a str],
    /// The column that is cut last of all but the first.
    pub(crate) essential: Option<&'a str>,
}

/// Columns padded to their widest cell, two blanks apart, no blanks at line ends.
///
/// If they do not fit the terminal, columns are left out, and then the widest ones are cut. Without a terminal
/// everything is shown.
pub(crate) fn table(
    head: &[&str],
    rows: Vec<Vec<Cell>>,
    fit: &Fit<'_>,
    terminal: Option<usize>,
) -> String {
    let titles = head.iter().map(|title| Cell::painted(*title, paint::strong)).collect();
    let mut rows: Vec<Vec<Cell>> = std::iter::once(titles).chain(rows).collect();
    let mut head = head.to_vec();
    let mut dispensable = fit.dispensable.iter();
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
    let essential = fit.essential.and_then(|title| head.iter().position(|other| *other == title));
    lay_out(terminal, &rows, essential)
}

/// Lines of `key: value`.
pub(crate) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, impl Into<Cell>)>) -> String {
    let row = |(key, value): (&str, _)| {
        vec![Cell::painted(format!("{key}:"), paint::faint), Into::into(value)]
    };
    columns(None, facts.into_iter().map(row))
}

/// [`table`] without a head. The widest columns are cut until a line fits the terminal, if there is one.
pub(crate) fn columns(terminal: Option<usize>, rows: impl Iterator<Item = Vec<Cell>>) -> String {
    lay_out(terminal, &rows.collect::<Vec<_>>(), None)
}

fn lay_out(terminal: Option<usize>, rows: &[Vec<Cell>], essential: Option<usize>) -> String {
    let mut widths = widths(rows);
    if let Some(terminal) = terminal.filter(|_| !widths.is_empty()) {
        shrink(&mut widths, terminal, essential);
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

/// Cuts the widest columns until a line fits; then the essential one; then the first one, which has the names.
fn shrink(widths: &mut [usize], terminal: usize, essential: Option<usize>) {
    while needed(widths) > terminal {
        let order = |column: usize| match column {
            0 => 2,
            _ if Some(column) == essential => 1,
            _ => 0,
        };
        let wide = widths.iter_mut().enumerate().filter(|(_, width)| **width > NARROWEST);
        let first =
            wide.min_by_key(|(column, width)| (order(*column), Reverse(**width), Reverse(*column)));
        let Some((_, width)) = first else { return };
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

    const NOTHING: Fit<'static> = Fit { dispensable: &[], essential: None };

    #[test]
    fn columns_line_up_and_end_without_blanks() {
        let rows = vec![
            vec![Cell::new("a"), Cell::painted("running", paint::good), Cell::new("")],
            vec![Cell::new("long-name"), Cell::new("x"), Cell::new("url")],
        ];
        let text = table(&["NAME", "STATUS", "URL"], rows, &NOTHING, None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @"
        NAME       STATUS   URL
        a          running
        long-name  x        url
        ");
    }

    #[test]
    fn a_narrow_terminal_drops_columns_before_it_cuts_text() {
        let show = |terminal| {
            let row = ["time", "process", "http://127.0.0.1:7433/time/mcp"].map(Cell::new);
            let fit = Fit { dispensable: &["ENGINE"], essential: None };
            let text = table(&["NAME", "ENGINE", "URL"], vec![row.into()], &fit, terminal);
            anstream::adapter::strip_str(&text).to_string()
        };
        let full = "NAME  ENGINE   URL\ntime  process  http://127.0.0.1:7433/time/mcp";
        assert_eq!(show(None), full);
        assert_eq!(show(Some(45)), full);
        assert_eq!(show(Some(44)), "NAME  URL\ntime  http://127.0.0.1:7433/time/mcp");
        assert_eq!(show(Some(20)), "NAME  URL\ntime  http://127.0.…");
        assert_eq!(show(Some(1)), "NAME  URL\ntime  http://…");
    }

    #[test]
    fn the_essential_column_is_cut_last() {
        let show = |terminal| {
            let row =
                ["time", "restarting in 20 s", "http://127.0.0.1:7433/time/mcp"].map(Cell::new);
            let fit = Fit { dispensable: &[], essential: Some("URL") };
            let text = table(&["NAME", "STATUS", "URL"], vec![row.into()], &fit, Some(terminal));
            anstream::adapter::strip_str(&text).to_string().lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(show(56), "time  restarting in 20 s  http://127.0.0.1:7433/time/mcp");
        assert_eq!(show(46), "time  restart…  http://127.0.0.1:7433/time/mcp");
        assert_eq!(show(36), "time  restart…  http://127.0.0.1:74…");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            rows in prop::collection::vec(prop::collection::vec("[a-zä]{0,60}", 4), 1..5),
            terminal in 40usize..120,
        ) {
            let rows = rows.into_iter().map(|row| row.into_iter().map(Cell::new).collect());
            let fit = Fit { dispensable: &["C"], essential: Some("D") };
            let text = table(&["A", "B", "C", "D"], rows.collect(), &fit, Some(terminal));
            for line in anstream::adapter::strip_str(&text).to_string().lines() {
                prop_assert!(line.chars().count() <= terminal, "{line}");
            }
        }
    }
}

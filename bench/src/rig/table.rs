//! A small table for people.

use std::fmt;

use crate::stats::Percentiles;

/// A title, a heading for each column of figures, and rows that begin with a label.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    headings: Vec<&'static str>,
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, headings: &[&'static str]) -> Self {
        Self { title: title.into(), headings: headings.to_vec(), rows: Vec::new() }
    }

    /// A table of times: p50, p99 and maximum.
    pub(crate) fn of_times(title: impl Into<String>) -> Self {
        Self::new(title, &["p50", "p99", "max"])
    }

    #[must_use]
    pub(crate) fn row(mut self, label: impl Into<String>, cells: Vec<String>) -> Self {
        self.rows.push((label.into(), cells));
        self
    }

    /// A row for [`Table::of_times`].
    #[must_use]
    pub(crate) fn times(self, label: impl Into<String>, times: Percentiles) -> Self {
        let Percentiles { p50_us, p99_us, max_us, .. } = times;
        self.row(label, [p50_us, p99_us, max_us].map(milliseconds).to_vec())
    }
}

/// A time as cells show it.
pub(crate) fn milliseconds(us: f64) -> String {
    format!("{:.2} ms", us / 1e3)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label_width = self.rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        let label_width = label_width.max(self.title.len());
        let headings = self.headings.iter().map(|heading| (*heading).to_owned()).collect();
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(column));
                let widest = cells.map(String::len).max().unwrap_or(0);
                widest.max(self.headings[column].len())
            })
            .collect();
        let heading = (self.title.clone(), headings);
        for (number, (label, cells)) in std::iter::once(&heading).chain(&self.rows).enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "{label:label_width$}")?;
            for (cell, width) in cells.iter().zip(&widths) {
                write!(f, "  {cell:>width$}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let times = Percentiles { p50_us: 900.0, p90_us: 0.0, p99_us: 12_345.0, max_us: 2e6 };
        let table = Table::of_times("kill, 3 times").times("noticed", times);
        assert_eq!(
            table.to_string(),
            "kill, 3 times      p50       p99         max\n\
             noticed        0.90 ms  12.35 ms  2000.00 ms"
        );
    }
}

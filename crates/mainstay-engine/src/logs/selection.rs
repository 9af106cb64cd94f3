//! Selects lines of a log by time and pattern.

use jiff::Timestamp;
use regex_lite::Regex;

use crate::{LogLine, LogRange};

/// The length of a time at the beginning of a line.
const TIME: usize = "2026-05-01T14:03:59.045Z".len();

#[derive(Debug)]
pub(super) struct Selection {
    since: Option<Timestamp>,
    grep: Option<Regex>,
    /// The time of the last line that had one. A line without one is as old.
    last: Option<Timestamp>,
}

impl Selection {
    pub(super) fn of(range: &LogRange) -> Self {
        Self { since: range.since, grep: range.grep.clone(), last: None }
    }

    /// The parsed line, if it is selected.
    pub(super) fn select(&mut self, line: String) -> Option<LogLine> {
        let line = parse(line);
        self.last = line.at.or(self.last);
        let late_enough = self.since.is_none_or(|since| self.last.is_some_and(|at| at >= since));
        let matches = self.grep.as_ref().is_none_or(|grep| grep.is_match(&line.text));
        (late_enough && matches).then_some(line)
    }
}

/// Splits the time off, if the line begins with one as [`mainstay_hold::log`] writes it.
fn parse(line: String) -> LogLine {
    let stamped = line.split_at_checked(TIME).and_then(|(time, text)| {
        let text = text.strip_prefix(' ')?;
        let at = time.ends_with('Z').then(|| time.parse().ok())??;
        Some(LogLine { at: Some(at), text: text.to_owned() })
    });
    stamped.unwrap_or(LogLine { at: None, text: line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_and_without_a_time() {
        let check = |line: &str, at: Option<&str>, text: &str| {
            let at = at.map(|at| at.parse().unwrap());
            assert_eq!(parse(line.to_owned()), LogLine { at, text: text.to_owned() });
        };
        let time = "2026-05-01T14:03:59.045Z";
        check(&format!("{time} up"), Some(time), "up");
        check(&format!("{time} "), Some(time), "");
        check(&format!("{time} {time} twice"), Some(time), &format!("{time} twice"));
        for line in
            ["", "up", "2026-05-01T14:03:59Z short", "äääääääääääää", "2026-05-01T14:03:59.045Z"]
        {
            check(line, None, line);
        }
        check("2026-13-01T14:03:59.045Z no month", None, "2026-13-01T14:03:59.045Z no month");
    }

    #[test]
    fn a_line_without_a_time_is_as_old_as_the_one_before() {
        let since = Some("2026-05-01T14:03:59.045Z".parse().unwrap());
        let mut selection = Selection::of(&LogRange { since, ..LogRange::default() });
        let lines = ["old", "2026-05-01T14:03:59.044Z a", "b", "2026-05-01T14:03:59.045Z c", "d"];
        let selected: Vec<String> = lines
            .into_iter()
            .filter_map(|line| selection.select(line.to_owned()))
            .map(|line| line.text)
            .collect();
        assert_eq!(selected, ["c", "d"]);
    }
}

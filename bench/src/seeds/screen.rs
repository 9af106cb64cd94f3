//! The screen: a line for each row, as soon as that is known.

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::chain;
use crate::rig::BenchError;

/// No line is wider.
const WIDTH: usize = 100;
const TITLE: usize = 34;
const SAW: usize = 39;
const FIGURE: usize = 22;
/// How long one row may take, and all of them.
const ROW_LIMIT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);

/// A row that held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// What the client saw.
    pub(super) saw: String,
    /// What was measured.
    pub(super) figure: String,
}

impl Seen {
    pub(super) fn new(saw: impl Into<String>, figure: impl Into<String>) -> Self {
        Self { saw: saw.into(), figure: figure.into() }
    }
}

/// Where rows are shown, and what became of them.
pub(super) struct Screen<'a, W> {
    out: &'a mut W,
    begun: Instant,
    held: usize,
    left_out: usize,
    /// The rows that failed, each with its whole reason.
    failed: Vec<String>,
    /// Whether a line could not be shown.
    lost: Option<io::Error>,
}

impl<'a, W: Write> Screen<'a, W> {
    pub(super) fn new(out: &'a mut W) -> Self {
        Self { out, begun: Instant::now(), held: 0, left_out: 0, failed: Vec::new(), lost: None }
    }

    pub(super) fn open(&mut self) {
        self.show(&columns("what happens", "what the client sees", "measured", ""));
    }

    /// Plays a row and shows it.
    pub(super) async fn row(
        &mut self,
        title: &str,
        story: impl Future<Output = Result<Seen, BenchError>>,
    ) {
        let limit = ROW_LIMIT.min(LIMIT.saturating_sub(self.begun.elapsed()));
        let told = match timeout(limit, story).await {
            Ok(told) => told.map_err(|error| chain(&error)),
            Err(_) => Err(format!("it was not over within {limit:?}")),
        };
        self.show(&line(title, &told));
        match told {
            Ok(_) => self.held += 1,
            Err(why) => self.failed.push(format!("{title}: {why}")),
        }
    }

    /// Shows that a row is not played.
    pub(super) fn left_out(&mut self, title: &str) {
        self.show(&columns(title, "left out: it needs a container engine", "", "-"));
        self.left_out += 1;
    }

    /// Shows what became of all; says whether none failed.
    pub(super) fn close(mut self) -> Result<bool, BenchError> {
        let (held, failed, left_out) = (self.held, self.failed.len(), self.left_out);
        let took = figure(self.begun.elapsed());
        self.show(&format!("{held} ok, {failed} failed, {left_out} left out, in {took}"));
        for why in std::mem::take(&mut self.failed) {
            self.show(&format!("\nFAILED {why}"));
        }
        match self.lost {
            Some(error) => Err(BenchError::SetUp(error)),
            None => Ok(failed == 0),
        }
    }

    fn show(&mut self, text: &str) {
        let shown = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
        if let Err(error) = shown {
            self.lost.get_or_insert(error);
        }
    }
}

/// A time as rows show it.
pub(super) fn figure(time: Duration) -> String {
    match time.as_millis() {
        ms @ ..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

fn line(title: &str, told: &Result<Seen, String>) -> String {
    match told {
        Ok(Seen { saw, figure }) => columns(title, saw, figure, "ok"),
        Err(why) => {
            let line = format!("{title:TITLE$} FAILED: {}", why.replace('\n', " "));
            line.chars().take(WIDTH).collect()
        }
    }
}

fn columns(title: &str, saw: &str, figure: &str, verdict: &str) -> String {
    let line = format!("{title:TITLE$.TITLE$} {saw:SAW$.SAW$} {figure:>FIGURE$.FIGURE$} {verdict}");
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shown(rows: &[(&str, Result<Seen, BenchError>)]) -> (String, bool) {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out);
        for (title, told) in rows {
            let told = match told {
                Ok(seen) => Ok(seen.clone()),
                Err(error) => Err(BenchError::Wrong(chain(error))),
            };
            screen.row(title, async { told }).await;
        }
        let held = screen.close().unwrap();
        (String::from_utf8(out).unwrap(), held)
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_tells_what_was_seen_and_measured() {
        let (text, held) = shown(&[("a deed", Ok(Seen::new("an answer", "7 ms")))]).await;
        assert!(held);
        let row = text.lines().next().unwrap();
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(words, ["a", "deed", "an", "answer", "7", "ms", "ok"]);
        assert!(text.ends_with("1 ok, 0 failed, 0 left out, in 0 ms\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_one_line_in_the_table_and_whole_below_it() {
        let why = "long\n".repeat(50);
        let (text, held) = shown(&[("a deed", Err(BenchError::Wrong(why.clone())))]).await;
        assert!(!held);
        let row = text.lines().next().unwrap();
        assert!(row.contains("FAILED: ") && row.len() == WIDTH, "{row}");
        assert!(text.contains(&why), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_that_does_not_end_has_failed() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out);
        for _ in 0..10 {
            screen.row("never", std::future::pending()).await;
        }
        assert!(screen.begun.elapsed() <= LIMIT + Duration::from_secs(1));
        assert!(!screen.close().unwrap());
    }

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        let told = [7, 999, 1000, 12_345].map(|ms| figure(Duration::from_millis(ms)));
        assert_eq!(told, ["7 ms", "999 ms", "1.0 s", "12.3 s"]);
    }

    #[test]
    fn columns_fit_the_screen() {
        assert!(TITLE + SAW + FIGURE + " ".len() * 3 + "ok".len() <= WIDTH);
    }
}

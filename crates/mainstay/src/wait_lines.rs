//! Shows what a command waits for: one line that is rewritten on a terminal, few lines elsewhere.

use indicatif::ProgressBar;
use mainstay_api::WaitReport;

use crate::terminal_text::plain_line;
use crate::ui::Ui;

/// The most lines that one command prints about its wait.
const MAX_LINES: usize = 20;

/// What was reported so far.
#[derive(Debug)]
pub(crate) struct WaitLines {
    what: String,
    spinner: ProgressBar,
    last: Option<WaitReport>,
    /// Whether the request was sent, if it was cancelled.
    was_sent: Option<bool>,
    printed: usize,
}

impl WaitLines {
    /// For a request that is called `what`. The spinner is shown on a terminal only.
    pub(crate) fn new(what: &str, spinner: ProgressBar) -> Self {
        Self { what: what.to_owned(), spinner, last: None, was_sent: None, printed: 0 }
    }

    pub(crate) fn show(&mut self, report: WaitReport, ui: &mut Ui) {
        if report.state == WaitReport::CANCELLED {
            self.was_sent = Some(report.is_sent);
            return;
        }
        let line = format!("waiting for {}: {}", self.what, plain_line(&report.reason));
        if !self.spinner.is_hidden() {
            self.spinner.set_message(line);
        } else if self.is_new(&report) {
            self.printed += 1;
            ui.message(line);
        }
        self.last = Some(report);
    }

    /// What was waited for last.
    pub(crate) fn last_reason(&self) -> Option<String> {
        self.last.as_ref().map(|report| plain_line(&report.reason))
    }

    /// Whether the request may have been sent to the server. Only the last report says so for certain.
    pub(crate) fn is_sent(&self) -> bool {
        self.was_sent.unwrap_or(true)
    }

    /// Only another state is worth another line: reasons contain times.
    fn is_new(&self, report: &WaitReport) -> bool {
        let is_other = self.last.as_ref().is_none_or(|last| last.state != report.state);
        is_other && self.printed < MAX_LINES
    }
}

impl Drop for WaitLines {
    fn drop(&mut self) {
        self.spinner.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_printed_for_each_state_and_not_too_many() {
        let mut ui = Ui::new();
        let mut lines = WaitLines::new("`add`", ProgressBar::hidden());
        let mut show = |state: &str, second: usize| {
            let reason = format!("time is {state} for {second} s");
            lines.show(WaitReport { state: state.to_owned(), reason, is_sent: false }, &mut ui);
            lines.printed
        };
        assert_eq!([show("busy", 1), show("busy", 2), show("blocked", 3)], [1, 1, 2]);
        for n in 0..1000 {
            show(if n % 2 == 0 { "busy" } else { "blocked" }, n);
        }
        assert_eq!(lines.printed, MAX_LINES);
        assert!(lines.is_sent(), "it may be sent after that");
        lines.show(WaitReport::cancelled(false), &mut ui);
        assert!(!lines.is_sent());
        assert_eq!(lines.last_reason().as_deref(), Some("time is blocked for 999 s"));
    }
}

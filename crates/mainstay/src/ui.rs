//! Output: data on stdout, messages on stderr, colour only on a terminal.
//!
//! A terminal gets only text and colours ([`colored_lines`]); a program gets a server's data unchanged
//! ([`Ui::data`]).

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write};
use std::time::Duration;

use anstream::AutoStream;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mainstay_core::ImageRef;
use serde::Serialize;

use crate::error::CliError;
use crate::terminal_text::{colored_lines, plain_line};

/// A spinner is shown for waits that take longer.
const SPINNER_DELAY: Duration = Duration::from_millis(500);

/// How often spinners and progress bars are drawn.
const TICK: Duration = Duration::from_millis(100);

/// The width of a terminal that does not report it.
const DEFAULT_WIDTH: usize = 80;

/// The progress bar of a pull.
const PULL: &str = "{spinner} {msg} {bar:30} {binary_bytes}/{binary_total_bytes}";

/// Standard output and error.
#[derive(Debug)]
pub(crate) struct Ui {
    out: AutoStream<io::Stdout>,
    err: AutoStream<io::Stderr>,
}

impl Ui {
    /// The streams of this process. Colour follows the terminal, `NO_COLOR` and `CLICOLOR_FORCE`.
    pub(crate) fn new() -> Self {
        Self { out: AutoStream::auto(io::stdout()), err: AutoStream::auto(io::stderr()) }
    }

    /// Prints a line (or several) of data.
    pub(crate) fn print(&mut self, text: impl Display) -> Result<(), CliError> {
        self.print_all(&format!("{text}\n"))
    }

    /// Prints text without adding a line end.
    pub(crate) fn print_all(&mut self, text: &str) -> Result<(), CliError> {
        let printed = if self.out.is_terminal() {
            self.out.write_all(colored_lines(text).as_bytes())
        } else {
            self.out.write_all(text.as_bytes())
        };
        printed.and_then(|()| self.out.flush()).map_err(CliError::output)
    }

    /// Prints what a server wrote, byte for byte unless the reader is a terminal.
    pub(crate) fn data(&mut self, text: &str) -> Result<(), CliError> {
        if self.out.is_terminal() {
            return self.print_all(text);
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::output)
    }

    /// Prints an answer, as JSON or as `human` formats it.
    pub(crate) fn answer<T: Serialize>(
        &mut self,
        json: bool,
        answer: &T,
        human: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        if json {
            return self.json(answer);
        }
        let text = human(answer);
        if text.is_empty() { Ok(()) } else { self.print(text) }
    }

    pub(crate) fn json(&mut self, answer: &impl Serialize) -> Result<(), CliError> {
        let json = serde_json::to_string_pretty(answer);
        self.print(json.map_err(|source| CliError::Garbled { source })?)
    }

    /// Prints items of a stream, one per line.
    pub(crate) fn items<T: Serialize>(
        &mut self,
        json: bool,
        items: &[T],
        human: impl Fn(&T) -> String,
    ) -> Result<(), CliError> {
        let mut text = String::new();
        for item in items {
            text.push_str(&if json {
                serde_json::to_string(item).map_err(|source| CliError::Garbled { source })?
            } else {
                human(item)
            });
            text.push('\n');
        }
        self.print_all(&text)
    }

    /// Prints a message. Errors are ignored.
    pub(crate) fn message(&mut self, text: impl Display) {
        let text = text.to_string();
        let text = if self.err.is_terminal() { colored_lines(&text) } else { text };
        let _closed = writeln!(self.err, "{text}");
    }

    /// Whether the reader of stdout is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.out.is_terminal()
    }

    /// How many columns the reader of stdout has, if it is a terminal.
    pub(crate) fn width(&self) -> Option<usize> {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
        let known = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        self.out.is_terminal().then(|| known.unwrap_or(DEFAULT_WIDTH))
    }

    /// Whether messages go to a terminal.
    pub(crate) fn has_stderr_terminal(&self) -> bool {
        self.err.is_terminal()
    }

    /// Waits for `work`, and shows a spinner once that takes longer than half a second.
    pub(crate) async fn waiting<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if !self.err.is_terminal() {
            return work.await;
        }
        if let Ok(done) = tokio::time::timeout(SPINNER_DELAY, &mut work).await {
            return done;
        }
        let spinner = self.spinner(what);
        let done = work.await;
        spinner.finish_and_clear();
        done
    }

    /// A spinner that is not drawn yet, and a task that draws it on a terminal once the wait takes longer than half a
    /// second.
    pub(crate) fn late_spinner(
        &self,
        what: &str,
    ) -> (ProgressBar, impl Future<Output = Infallible> + use<>) {
        let spinner = ProgressBar::new_spinner().with_message(plain_line(what));
        spinner.set_draw_target(ProgressDrawTarget::hidden());
        let (drawn, is_terminal) = (spinner.clone(), self.err.is_terminal());
        let draw = async move {
            tokio::time::sleep(SPINNER_DELAY).await;
            if is_terminal {
                drawn.set_draw_target(ProgressDrawTarget::stderr());
                drawn.enable_steady_tick(TICK);
            }
            std::future::pending().await
        };
        (spinner, draw)
    }

    /// A spinner on a terminal; hidden elsewhere.
    pub(crate) fn spinner(&self, what: &str) -> ProgressBar {
        if !self.err.is_terminal() {
            return ProgressBar::hidden();
        }
        let spinner = ProgressBar::new_spinner().with_message(plain_line(what));
        spinner.enable_steady_tick(TICK);
        spinner
    }

    /// Shows that an image is being pulled: a progress bar on a terminal, one line elsewhere.
    pub(crate) fn pulling(&mut self, image: &ImageRef) -> ProgressBar {
        if !self.err.is_terminal() {
            self.message(format_args!("pulling {image}"));
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(PULL).expect("the template is sound");
        let bar = ProgressBar::new(0)
            .with_style(style)
            .with_message(plain_line(&format!("pulling {image}")));
        bar.enable_steady_tick(TICK);
        bar
    }
}

/// Colours by meaning. The escape codes are always written; [`Ui`] removes them if there is no terminal.
pub(crate) mod paint {
    use anstyle::{AnsiColor, Style};

    const GOOD: Style = AnsiColor::Green.on_default();
    const WARNING: Style = AnsiColor::Yellow.on_default();
    const BAD: Style = AnsiColor::Red.on_default().bold();
    const NOTE: Style = AnsiColor::Cyan.on_default();
    const STRONG: Style = Style::new().bold();
    const FAINT: Style = Style::new().dimmed();

    pub(crate) fn good(text: &str) -> String {
        format!("{GOOD}{text}{GOOD:#}")
    }

    pub(crate) fn warning(text: &str) -> String {
        format!("{WARNING}{text}{WARNING:#}")
    }

    pub(crate) fn bad(text: &str) -> String {
        format!("{BAD}{text}{BAD:#}")
    }

    pub(crate) fn note(text: &str) -> String {
        format!("{NOTE}{text}{NOTE:#}")
    }

    pub(crate) fn strong(text: &str) -> String {
        format!("{STRONG}{text}{STRONG:#}")
    }

    pub(crate) fn faint(text: &str) -> String {
        format!("{FAINT}{text}{FAINT:#}")
    }

    /// The colour of a status.
    pub(crate) fn status(status: mainstay_core::Status) -> fn(&str) -> String {
        use mainstay_core::Status as S;
        match status {
            S::Running => good,
            S::Starting
            | S::Restarting
            | S::Busy
            | S::Blocked
            | S::Hung
            | S::Suspended
            | S::Unresponsive
            | S::Unhealthy
            | S::Waiting
            | S::Stopping
            | S::Removing => warning,
            S::Stopped => faint,
            S::Error => bad,
        }
    }
}

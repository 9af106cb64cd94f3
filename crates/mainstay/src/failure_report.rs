//! Why daemons keep failing.
//!
//! A holder whose daemons keep failing writes the reason to a file in the run directory. The next daemon that serves
//! removes it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use mainstay_api::ApiError;
use mainstay_hold::holder::FAILURE_REPORT;

use crate::text::{clip, plain_line};

/// A holder writes less than this.
const MAX_BYTES: u64 = 64 * 1024;

/// The longest message in one line.
const MAX_CHARS: usize = 300;

/// Why a daemon failed, and what to do about it if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureReport {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl FailureReport {
    /// The report about the last daemon, if it failed.
    pub(crate) fn read_from(run_dir: &Path) -> Option<Self> {
        let (file, mut text) = (File::open(run_dir.join(FAILURE_REPORT)).ok()?, Vec::new());
        file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
        Some(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Parses a report, which may contain an [`ApiError`] as JSON.
    pub(crate) fn parse(text: &str) -> Self {
        Self::with_error(text)
            .unwrap_or_else(|| Self { message: text.trim().to_owned(), help: None })
    }

    fn with_error(text: &str) -> Option<Self> {
        let (before, json) = text.split_at(text.find(r#"{"kind""#)?);
        let mut errors = serde_json::Deserializer::from_str(json).into_iter::<ApiError>();
        let error = errors.next()?.ok()?;
        let rest = json[errors.byte_offset()..].trim_start_matches(':').trim_end();
        Some(Self { message: format!("{before}{}{rest}", error.message), help: error.help })
    }

    /// The message in one line of bounded length. None if it is empty, because the disk was full.
    pub(crate) fn line(&self) -> Option<String> {
        let lines = self.message.lines().map(str::trim).filter(|line| !line.is_empty());
        let text = plain_line(&lines.collect::<Vec<_>>().join(" "));
        (!text.is_empty()).then(|| clip(&text, MAX_CHARS))
    }

    /// The failed starts in one line.
    pub(crate) fn summary(&self) -> String {
        let failing = "the last starts failed";
        self.line().map_or_else(|| failing.to_owned(), |line| format!("{failing}: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, message: &str, help: Option<&str>) {
        let expected = FailureReport { message: message.to_owned(), help: help.map(str::to_owned) };
        assert_eq!(FailureReport::parse(text), expected);
    }

    #[test]
    fn a_reported_api_error_becomes_message_and_help() {
        check("it exited with 1\n", "it exited with 1", None);
        let error = r#"{"kind":"internal","message":"no {room}"}"#;
        check(error, "no {room}", None);
        check(&format!("as it is: {error}:\nlast text"), "as it is: no {room}\nlast text", None);
        let error = r#"{"kind":"invalid","message":"bad file","help":"correct it"}"#;
        check(&format!("as it is: {error}"), "as it is: bad file", Some("correct it"));
        check(r#"{"kind": half"#, r#"{"kind": half"#, None);
    }

    #[test]
    fn daemons_that_keep_failing_are_reported_in_one_line() {
        let line = |text: &str| FailureReport::parse(text).summary();
        let failing = "the last starts failed";
        assert_eq!(line(""), failing);
        let text = line("it exited with 101:\n\n  thread `main` panicked\u{7}\n");
        assert_eq!(text, format!("{failing}: it exited with 101: thread `main` panicked"));
        assert_eq!(line(&"x".repeat(1_000)).chars().count(), failing.len() + 2 + MAX_CHARS);
    }

    #[test]
    fn a_report_exists_while_its_file_does() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(FailureReport::read_from(dir.path()), None);
        std::fs::write(dir.path().join(FAILURE_REPORT), "it fell").unwrap();
        assert_eq!(FailureReport::read_from(dir.path()).unwrap().message, "it fell");
    }
}

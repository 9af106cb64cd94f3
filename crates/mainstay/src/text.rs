//! Helpers for text.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_api::ServerInfo;
use mainstay_core::human_duration;

use crate::limits::Limit;

pub(crate) use crate::table::{Cell, Fit, columns, facts, table};
pub(crate) use crate::terminal_text::plain_line;

/// The time limit that is never reached.
pub(crate) const NEVER: &str = "never";

/// Parses a duration with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "write a duration with its unit, as `45s` or `2m`".to_owned())
}

/// Parses a time limit: a duration, or `never`.
pub(crate) fn time_limit(text: &str) -> Result<Limit<Duration>, String> {
    if text == NEVER {
        return Ok(None);
    }
    humantime::parse_duration(text)
        .map(Some)
        .map_err(|_| "write a duration with its unit, as `45s` or `2m`, or `never`".to_owned())
}

/// How long ago `at` was. Zero if it is in the future, because clocks may disagree.
pub(crate) fn since(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or_default()
}

/// "12 s ago"
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", human_duration(since(at, now)))
}

/// "in 20 s", or "now". Rounded up to whole seconds.
pub(crate) fn due(at: Timestamp, now: Timestamp) -> String {
    let left = since(now, at);
    if left.is_zero() {
        return "now".to_owned();
    }
    let whole = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    format!("in {}", human_duration(Duration::from_secs(whole)))
}

/// Why a server has its status, unless that only repeats the status.
pub(crate) fn reason(server: &ServerInfo) -> Option<String> {
    let says_more = !server.reason.is_empty() && server.reason != server.status.as_str();
    says_more.then(|| plain_line(&server.reason))
}

/// A path, with `~` for the home directory.
pub(crate) fn tilde(path: &Path, home: Option<&Path>) -> String {
    let below = home.and_then(|home| path.strip_prefix(home).ok());
    match below {
        Some(below) => plain_line(&Path::new("~").join(below).display().to_string()),
        None => plain_line(&path.display().to_string()),
    }
}

/// Replaces the home directory by `~` in paths within a text. A path begins after a blank, a bracket or a quote.
pub(crate) fn home_as_tilde(text: &str, home: Option<&Path>) -> String {
    let Some(home) = home.and_then(Path::to_str).filter(|home| *home != "/") else {
        return text.to_owned();
    };
    let (mut short, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(home) {
        short.push_str(before);
        let begins = short.is_empty() || short.ends_with([' ', '(', '`', '\'']);
        short.push_str(if begins && after.starts_with('/') { "~" } else { home });
        rest = after;
    }
    short + rest
}

/// "a", "a and b", "a, b and c"
pub(crate) fn and(items: &[impl AsRef<str>]) -> String {
    match items {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [others @ .., last] => {
            let others: Vec<&str> = others.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", others.join(", "), last.as_ref())
        }
    }
}

/// The id of a container as engines shorten it.
pub(crate) fn short_id(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// Cuts a line to `width` characters.
pub(crate) fn clip(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let mut short: String = line.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn times_are_relative_to_now() {
        assert_eq!(ago(at(100), at(112)), "12 s ago");
        assert_eq!(ago(at(112), at(100)), "0 ms ago");
        assert_eq!(due(at(120), at(100)), "in 20 s");
        assert_eq!(due(Timestamp::from_millisecond(1_900).unwrap(), at(0)), "in 2 s");
        assert_eq!(due(at(100), at(100)), "now");
    }

    #[test]
    fn durations_are_parsed_with_units() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        let expected = "write a duration with its unit, as `45s` or `2m`";
        assert_eq!(duration("soon"), Err(expected.to_owned()));
    }

    #[test]
    fn a_home_is_written_as_a_tilde() {
        let home = Some(Path::new("/home/me"));
        assert_eq!(tilde(Path::new("/home/me/.cursor/mcp.json"), home), "~/.cursor/mcp.json");
        assert_eq!(tilde(Path::new("/home/meg/x"), home), "/home/meg/x");
        assert_eq!(tilde(Path::new("/home/me/x"), None), "/home/me/x");
        let text = "`/home/me/x` (/home/me/y): not /home/meg, /mnt/home/me/x or /home/me";
        let short = "`~/x` (~/y): not /home/meg, /mnt/home/me/x or /home/me";
        assert_eq!(home_as_tilde(text, home), short);
        assert_eq!(home_as_tilde(text, None), text);
        assert_eq!(home_as_tilde("/home/me/x", home), "~/x");
        assert_eq!(home_as_tilde("/etc/x", Some(Path::new("/"))), "/etc/x");
    }

    #[test]
    fn a_list_ends_with_and() {
        let check = |items: &[&str], expected: &str| assert_eq!(and(items), expected);
        check(&[], "");
        check(&["a"], "a");
        check(&["a", "b"], "a and b");
        check(&["a", "b", "c"], "a, b and c");
    }

    #[test]
    fn long_lines_are_clipped() {
        assert_eq!(clip("hello", 5), "hello");
        assert_eq!(clip("hello!", 5), "hell…");
        assert_eq!(clip("hello", 0), "…");
    }
}

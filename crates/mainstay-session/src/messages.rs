//! What clients and models read when Mainstay answers in place of a server.

use std::time::{Duration, Instant};

use mainstay_core::human_duration;

use crate::availability::{Availability, Reason};
use crate::calls::Stage;
use crate::replay::NoAnswer;

/// How many lines of standard error an answer carries.
const STDERR_LINES: usize = 5;

/// How many characters of a server's line a progress message carries.
const PROGRESS_LINE: usize = 200;

/// For a request beyond the limit of its session or server.
pub(crate) const TOO_MANY: &str = "too many requests, or too large ones, are waiting for an answer; \
                                   this one was not sent to the server, try again later";

/// Comes before the answer to a call that its client had given up: the server's, or that its effect is unknown.
pub(crate) const LATE_RESULT: &str = "This is the answer to your earlier identical call, which came after you had \
                                      stopped waiting for it. Nothing was executed again. The next identical \
                                      call is executed.";

/// For a call that has waited for the result of an identical one.
pub(crate) const CANCELLED_EARLIER: &str = "the earlier identical call that this one waited for was cancelled; its effect is unknown: check before you repeat it";

/// For a call that repeats one which may never end.
pub(crate) const OVERLONG_EARLIER: &str = "the earlier identical call has not ended within `--block-limit` and was cancelled; its effect is unknown: check before you repeat it. \
                                           The next identical call is executed.";

/// The text of an answer in place of the server's.
pub(crate) fn no_answer(
    server: &str,
    no_answer: NoAnswer,
    availability: &Availability,
    now: Instant,
    hold: Duration,
) -> String {
    match no_answer {
        NoAnswer::Down => {
            let why = reason(availability).map_or("it is not running", |why| &why.text);
            let next = next(availability).and_then(|at| at.checked_duration_since(now));
            let next = next.map_or_else(String::new, |next| {
                format!("; the next attempt is in {} s", next.as_secs().max(1))
            });
            let text = format!("the MCP server `{server}` is down: {why}{next}");
            with_stderr(text, reason(availability))
        }
        // It is ready, but silent or out of reach.
        NoAnswer::Late if matches!(availability, Availability::Up(_)) => format!(
            "the MCP server `{server}` has not answered within {} s; \
             the session stays open, try again later",
            hold.as_secs()
        ),
        NoAnswer::Late => {
            let why = reason(availability).filter(|why| !why.text.is_empty());
            let why = why.map_or("it is not ready", |why| &why.text);
            let text = format!(
                "the MCP server `{server}` did not come back within {} s: {why}; \
                 the session stays open, try again later",
                hold.as_secs()
            );
            with_stderr(text, reason(availability))
        }
        NoAnswer::Removed => format!("the MCP server `{server}` was removed"),
        NoAnswer::Unknown { generation } => {
            let end = availability.end_of(generation).map(AsRef::as_ref);
            let why = end.map_or("the connection to it broke", |why: &Reason| &why.text);
            let text = format!(
                "the server stopped during this call; its effect is unknown: check before you \
                 repeat it (`{server}`: {why})"
            );
            with_stderr(text, end)
        }
        NoAnswer::Severed { generation: 0 } => {
            "Mainstay was restarted during this call; its effect is unknown: check before you repeat it"
                .to_owned()
        }
        NoAnswer::Severed { .. } => format!(
            "Mainstay was restarted during this call; its effect is unknown: check before you repeat it \
             (`{server}` itself is still running)"
        ),
        NoAnswer::Interrupted { .. } => format!(
            "the connection to the server was lost during this call; its effect is unknown: check before you \
             repeat it (`{server}` itself is still running, and its container engine was away)"
        ),
        NoAnswer::DiedTwice { generation } => {
            let end = availability.end_of(generation).map(AsRef::as_ref);
            let why = end.map_or("the connection to it broke", |why: &Reason| &why.text);
            let text = format!(
                "the server stopped twice during this request, which is not sent a third time \
                 (`{server}`: {why})"
            );
            with_stderr(text, end)
        }
        NoAnswer::BrokenOff { .. } => format!(
            "the server broke off the connection twice during this request, which is not sent a third \
             time (`{server}` itself is still running)"
        ),
        NoAnswer::SessionLostRepeatedly => {
            format!("the MCP server `{server}` forgets every session as soon as it is opened")
        }
    }
}

/// The progress message for a client that waits for a server. `line` is the last one that the server wrote to
/// standard error.
pub(crate) fn starting(server: &str, line: Option<&str>, availability: &Availability) -> String {
    let line = line.map(str::trim).filter(|line| !line.is_empty());
    let why = reason(availability).map(|why| why.text.as_str()).filter(|why| !why.is_empty());
    match line.or(why) {
        Some(detail) => {
            let shown = detail.chars().filter(|c| !c.is_control()).take(PROGRESS_LINE);
            format!("starting {server}: {}", shown.collect::<String>())
        }
        None => format!("starting {server}"),
    }
}

/// The progress message for a client that waits for the answer to a request.
pub(crate) fn waiting(
    server: &str,
    stage: &Stage,
    availability: &Availability,
    waited: Duration,
) -> String {
    let waited = human_duration(waited);
    match stage {
        Stage::Queued(_) => format!("held for {waited}: `{server}` does not answer"),
        Stage::Waiting | Stage::OpeningUpstream if matches!(availability, Availability::Up(_)) => {
            format!("held for {waited}: `{server}` does not answer")
        }
        Stage::Waiting | Stage::OpeningUpstream => {
            match reason(availability).filter(|why| !why.text.is_empty()) {
                Some(why) => format!("held for {waited}: `{server}` is not ready: {}", why.text),
                None => format!("held for {waited}: `{server}` is not ready"),
            }
        }
        Stage::AtStdio { .. }
        | Stage::AtHttp { .. }
        | Stage::Relayed
        | Stage::Joined(_)
        | Stage::AwaitingLists { .. }
        | Stage::AwaitingRecord { .. }
        | Stage::Over => format!("waiting for the answer of `{server}` for {waited}"),
    }
}

/// For a call that the server may have executed, after its time limit.
pub(crate) fn timed_out(server: &str, limit: &str) -> String {
    format!(
        "no answer from `{server}` within {limit}, the limit for this call (`--call-timeout`): it was cancelled, and its effect is unknown; \
         check before you repeat it"
    )
}

/// For a call that was never sent to the server, after its time limit.
pub(crate) fn timed_out_unsent(
    server: &str,
    limit: &str,
    stage: &Stage,
    availability: Option<&Availability>,
) -> String {
    let why = match (stage, availability) {
        (Stage::Queued(_), _) | (_, Some(Availability::Up(_))) => "it does not answer",
        (_, availability) => availability
            .and_then(reason)
            .filter(|why| !why.text.is_empty())
            .map_or("it was not ready", |why| &why.text),
    };
    format!(
        "no answer from `{server}` within {limit}, the limit for this call (`--call-timeout`): {why}; the call was never sent to it, and not \
         executed"
    )
}

/// One word for why there is no answer of the server, for the event log.
pub(crate) fn cause(no_answer: NoAnswer) -> &'static str {
    match no_answer {
        NoAnswer::Down => "refused",
        NoAnswer::Late => "hold-expired",
        NoAnswer::Removed => "removed",
        NoAnswer::Unknown { .. } | NoAnswer::Severed { .. } | NoAnswer::Interrupted { .. } => {
            "effect-unknown"
        }
        NoAnswer::DiedTwice { .. } => "died-twice",
        NoAnswer::BrokenOff { .. } => "broken-off",
        NoAnswer::SessionLostRepeatedly => "session-lost",
    }
}

/// The note in the first tool result after a restart.
pub(crate) fn restart_note(server: &str, after: Option<&Reason>) -> String {
    let why = after.map_or_else(String::new, |why| format!(" ({})", why.text));
    format!(
        "[mainstay] `{server}` was restarted since your last call{why}: \
         whatever it kept in memory is lost."
    )
}

/// The answer to a call of a tool that the server had before.
pub(crate) fn vanished(server: &str, tool: &str) -> String {
    format!(
        "the tool `{tool}` is no longer offered by `{server}`: it was there before the server was \
         restarted or changed; list the tools again"
    )
}

fn reason(availability: &Availability) -> Option<&Reason> {
    match availability {
        Availability::Up(_) | Availability::Removed => None,
        Availability::Coming { why, .. } | Availability::Down { why } => Some(why),
    }
}

fn next(availability: &Availability) -> Option<Instant> {
    match availability {
        Availability::Up(_) | Availability::Down { .. } | Availability::Removed => None,
        Availability::Coming { due, .. } => *due,
    }
}

fn with_stderr(mut text: String, why: Option<&Reason>) -> String {
    let lines = why.map_or(&[][..], |why| &why.stderr);
    let last = &lines[lines.len().saturating_sub(STDERR_LINES)..];
    if !last.is_empty() {
        text.push_str("\nits last lines:");
        for line in last {
            text.push_str("\n  ");
            text.push_str(line);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::TestServer;

    #[test]
    fn a_server_that_is_ready_and_silent_does_not_answer() {
        let test = TestServer::http();
        let (up, now, second) = (test.server.availability, test.now, Duration::from_secs(1));
        let check = |text: String, expected: &str| assert!(text.contains(expected), "{text}");
        let silent = "`time` within 5 s, the limit for this call (`--call-timeout`): it does not answer; the call was never sent";
        check(timed_out_unsent("time", "5 s", &Stage::OpeningUpstream, Some(&up)), silent);
        check(waiting("time", &Stage::OpeningUpstream, &up, second), "`time` does not answer");
        check(
            no_answer("time", NoAnswer::Late, &up, now, second),
            "`time` has not answered within 1 s;",
        );
        let down = TestServer::without_run().server.availability;
        check(waiting("time", &Stage::Waiting, &down, second), "`time` is not ready");
        check(
            no_answer("time", NoAnswer::Late, &down, now, second),
            "come back within 1 s: it is not ready",
        );
    }
}

//! The timeline of `why`: events, where changes of several clients' files at once are one step.

use std::time::Duration;

use mainstay_api::EventRecord;
use mainstay_clients::{Client, clients};

use crate::text::{and, plain_line, since};

/// The number of steps, and of those about clients' files: the server comes first.
const STEPS: usize = 12;
const CLIENT_STEPS: usize = 4;

/// The longest time between two files that are changed at once.
const AT_ONCE: Duration = Duration::from_secs(5);

/// An event, or several that are shown as one step.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) first: &'a EventRecord,
    /// The same for other clients, or what else happened to the same run.
    more: Vec<&'a EventRecord>,
}

/// Events that are not shown if another event of the run follows, and so are those about silence.
const TRANSIENT: [&str; 5] = ["starting", "started", "slow-start", "stopping", "hung"];

fn is_transient(event: &str) -> bool {
    TRANSIENT.contains(&event) || EventRecord::VERDICTS.contains(&event)
}

/// The event with the time of the next run.
const SCHEDULED: &str = "scheduled";

/// The last steps, oldest first.
pub(super) fn steps(events: &[EventRecord]) -> Vec<Step<'_>> {
    let mut steps: Vec<Step> = Vec::new();
    for event in events {
        // Events of the server do not divide a step about clients, but other steps about clients do.
        let about_clients = event.event == EventRecord::CLIENT;
        match steps.iter_mut().rfind(|step| step.is_about_clients() == about_clients) {
            Some(step) if step.continues_with(event) => step.more.push(event),
            Some(_) | None => steps.push(Step { first: event, more: Vec::new() }),
        }
    }
    last(steps)
}

/// The client that an event names.
pub(super) fn client_of(event: &EventRecord) -> Option<&'static Client> {
    clients().iter().find(|client| event.detail.contains(&format!(" {} (", client.product)))
}

/// The file in an event about a client.
pub(super) fn file_of(event: &EventRecord) -> Option<&str> {
    Some(event.detail.split_once(" (")?.1.rsplit_once(')')?.0)
}

impl Step<'_> {
    /// What happened, as a sentence.
    pub(super) fn detail(&self) -> String {
        if !self.is_about_clients() {
            return self.run_detail();
        }
        let Some(verb) = verb(self.first).filter(|_| !self.more.is_empty()) else {
            return plain_line(&self.first.detail);
        };
        let all = || std::iter::once(&self.first).chain(&self.more);
        let products: Option<Vec<&str>> =
            all().map(|event| client_of(event).map(|client| client.product)).collect();
        let names = products.map(|products| format!(" ({})", and(&products))).unwrap_or_default();
        format!("{verb} {} clients{names}{}", all().count(), plain_line(reason(self.first)))
    }

    /// The event that the step is shown with: the last one about the run itself.
    pub(super) fn shown(&self) -> &EventRecord {
        let runs = self.more.iter().rfind(|event| event.event != SCHEDULED);
        runs.copied().filter(|_| !self.is_about_clients()).unwrap_or(self.first)
    }

    /// What happened to a run.
    fn run_detail(&self) -> String {
        let shown = self.shown();
        let events: Vec<&EventRecord> =
            std::iter::once(self.first).chain(self.more.iter().copied()).collect();
        let at = events.iter().position(|event| std::ptr::eq(*event, shown)).unwrap_or(0);
        // A narrow terminal has room for one only. What led to it comes last.
        let (before, rest) = events.split_at(at);
        let (shown, after) = rest.split_at(1);
        // The end of a run says how long it was ready.
        let is_ended = shown.iter().any(|event| event.event == "ended");
        let is_shown = |event: &&&EventRecord| {
            !(is_transient(&event.event) || (is_ended && event.event == "ready"))
        };
        let all = shown.iter().chain(after.iter().chain(before).filter(is_shown));
        let mut parts: Vec<String> = Vec::new();
        for detail in all.map(|event| plain_line(&event.detail)).filter(|text| !text.is_empty()) {
            // The end of a run repeats why Mainstay ended it.
            parts.retain(|other| !detail.contains(other.as_str()));
            if !parts.iter().any(|other| other.contains(&detail)) {
                parts.push(detail);
            }
        }
        parts.join("; ")
    }

    /// Whether an event reports the same change of another client, or belongs to the same run.
    fn continues_with(&self, event: &EventRecord) -> bool {
        let last = self.more.last().copied().unwrap_or(self.first);
        if !self.is_about_clients() {
            let same_run = event.run.is_some() && event.run == self.first.run;
            return same_run || (event.event == SCHEDULED && last.event == "ended");
        }
        verb(event).is_some_and(|verb_of| verb(last) == Some(verb_of))
            && reason(last) == reason(event)
            && file_of(last) != file_of(event)
            && since(last.at, event.at) <= AT_ONCE
    }

    fn is_about_clients(&self) -> bool {
        self.first.event == EventRecord::CLIENT
    }
}

/// What was done to a client's file, if it may be done to several at once. Problems are shown one by one.
fn verb(event: &EventRecord) -> Option<&'static str> {
    match event.cause.as_deref().filter(|_| event.event == EventRecord::CLIENT)? {
        "added" => Some("added to"),
        "updated" => Some("updated in"),
        "removed" => Some("removed from"),
        _ => None,
    }
}

/// The text of an event after its file.
fn reason(event: &EventRecord) -> &str {
    event.detail.rsplit_once(')').map_or("", |(_, reason)| reason)
}

fn last(mut steps: Vec<Step<'_>>) -> Vec<Step<'_>> {
    let (mut all, mut about_clients) = (0, 0);
    let mut keep: Vec<bool> = Vec::new();
    for step in steps.iter().rev() {
        let fits = all < STEPS && (!step.is_about_clients() || about_clients < CLIENT_STEPS);
        if fits {
            all += 1;
            about_clients += usize::from(step.is_about_clients());
        }
        keep.push(fits);
    }
    steps.retain(|_| keep.pop().unwrap_or(false));
    steps
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;

    use super::*;

    /// An event about a client's file.
    pub(in super::super) fn client_event(second: i64, cause: &str, detail: &str) -> EventRecord {
        EventRecord {
            at: Timestamp::from_second(second).unwrap(),
            server: None,
            run: None,
            event: EventRecord::CLIENT.to_owned(),
            cause: Some(cause.to_owned()),
            detail: detail.to_owned(),
        }
    }

    fn other(second: i64) -> EventRecord {
        let event = "ended".to_owned();
        EventRecord { event, ..client_event(second, "exited", &format!("end {second}")) }
    }

    fn details(events: &[EventRecord]) -> Vec<String> {
        steps(events).iter().map(Step::detail).collect()
    }

    #[test]
    fn simultaneous_changes_of_files_are_one_step() {
        let why = ": the server has failed; added again when it is ready";
        let removed = |second, product: &str| {
            let detail =
                format!("removed `bad` from {product} (/home/me/{product} (x)/mcp.json){why}");
            client_event(second, "removed", &detail)
        };
        let mut events = vec![removed(10, "Cline"), other(11), removed(13, "VS Code")];
        events.push(removed(15, "Zed"));
        events.push(client_event(15, "removed", "removed `bad` from Codex (/home/me/.codex)"));
        events.push(client_event(16, "added", "added `bad` to Cursor (/home/me/.cursor)"));
        events.push(client_event(60, "added", "put `bad` back into Zed (/home/me/zed)"));
        assert_eq!(
            details(&events),
            [
                &format!("removed from 3 clients (Cline, VS Code and Zed){why}"),
                "end 11",
                "removed `bad` from Codex (/home/me/.codex)",
                "added `bad` to Cursor (/home/me/.cursor)",
                "put `bad` back into Zed (/home/me/zed)",
            ]
        );
    }

    #[test]
    fn a_removal_and_an_addition_are_separate_steps() {
        let step = |second, cause: &str, detail: &str| {
            ["Cline", "Zed"].map(|product| {
                client_event(second, cause, &format!("{detail} {product} (/{product})"))
            })
        };
        let added = step(1, "added", "added `a` to");
        let removed = step(2, "removed", "removed `a` from");
        let back = step(4, "added", "put `a` back into");
        assert_eq!(
            details(&[added, removed, back].concat()),
            [
                "added to 2 clients (Cline and Zed)",
                "removed from 2 clients (Cline and Zed)",
                "added to 2 clients (Cline and Zed)",
            ]
        );
    }

    #[test]
    fn a_run_is_one_step() {
        let event = |second, run, event: &str, detail: &str| EventRecord {
            run,
            event: event.to_owned(),
            ..client_event(second, "", detail)
        };
        let events = [
            event(1, Some(1), "starting", "starting run 1"),
            event(2, Some(1), "started", "run 1 has started"),
            event(3, Some(1), "ready", "ready after 2 s"),
            client_event(3, "added", "added `a` to Zed (/zed)"),
            event(4, Some(1), "ended", "exited 1 after 2 s"),
            event(4, None, "scheduled", "restart 1 of 10 now"),
            event(4, Some(2), "starting", "starting run 2"),
            event(5, Some(2), "started", "run 2 has started"),
        ];
        let steps = steps(&events);
        let shown: Vec<_> = steps.iter().map(|step| step.shown().event.as_str()).collect();
        assert_eq!(shown, ["ended", "client", "started"]);
        assert_eq!(steps[0].detail(), "exited 1 after 2 s; restart 1 of 10 now");
        assert_eq!(steps[2].detail(), "run 2 has started");
    }

    #[test]
    fn the_same_file_twice_is_two_steps_and_failures_are_separate() {
        let events = [
            client_event(1, "added", "added `a` to Zed (/zed)"),
            client_event(2, "added", "added `a` to Zed (/zed)"),
            client_event(2, "failed", "/zed is read-only"),
            client_event(2, "failed", "/kiro is read-only"),
        ];
        assert_eq!(details(&events).len(), 4);
        let unknown = [
            client_event(1, "added", "added `a` to Novelty (/new)"),
            client_event(1, "added", "added `a` to Zed (/zed)"),
        ];
        assert_eq!(details(&unknown), ["added to 2 clients"]);
    }

    #[test]
    fn clients_do_not_crowd_out_the_server() {
        let mut events: Vec<_> = (0..20).map(other).collect();
        let trouble = |n: i64| client_event(20 + n, "left", &format!("trouble {n}"));
        events.extend((0..20).map(trouble));
        let details = details(&events);
        assert_eq!(details.len(), STEPS);
        assert_eq!((details[0].as_str(), details[7].as_str()), ("end 12", "end 19"));
        assert_eq!(details[8..], ["trouble 16", "trouble 17", "trouble 18", "trouble 19"]);
    }
}

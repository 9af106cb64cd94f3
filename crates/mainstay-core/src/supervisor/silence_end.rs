//! Why a run that did not answer is no longer silent.

use std::time::Instant;

use crate::human_duration;
use crate::watchdog::{Evidence, Verdict};

/// What an earlier observation of a run showed of its answers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Answers {
    last_answer: Option<Instant>,
    unawaited_since: Option<Instant>,
}

impl Answers {
    pub(super) fn of(evidence: &Evidence) -> Self {
        Self {
            last_answer: evidence.last_answer,
            unawaited_since: evidence.unawaited.as_ref().map(|request| request.since),
        }
    }

    /// What has ended the silence that `verdict` was about, given the evidence after it.
    pub(super) fn describe_end(
        self,
        now: Instant,
        verdict: &Verdict,
        evidence: &Evidence,
    ) -> String {
        let Some(since) = verdict.since() else {
            return Verdict::Responsive.describe(now).to_string();
        };
        let time = human_duration(now.saturating_duration_since(since));
        let has_answered = evidence.last_answer > self.last_answer;
        let is_given_up = Self::of(evidence).unawaited_since > self.unawaited_since;
        let was = match verdict {
            Verdict::Overdue { oldest: Some(call), unread_since: None, .. } => {
                // It may have answered other calls all the time.
                let what = &call.what;
                return match (has_answered, is_given_up) {
                    (_, true) => format!("no client waits for `{what}` any more, after {time}"),
                    (true, false) => format!("it has answered `{what}` after {time}"),
                    (false, false) => format!("`{what}` is no longer waited for, after {time}"),
                };
            }
            Verdict::Overdue { oldest: Some(call), .. } => {
                format!("; `{}` was overdue", call.what)
            }
            Verdict::Responsive | Verdict::Overdue { oldest: None, .. } => String::new(),
            Verdict::Busy { .. } => "; it was busy".to_owned(),
            Verdict::Blocked { inside, .. } => format!("; it was blocked in `{}`", inside.what),
            Verdict::Hung { .. } => "; it was hung".to_owned(),
            Verdict::Suspended { .. } => "; its process was stopped".to_owned(),
            Verdict::Unresponsive { .. } => "; it was unresponsive".to_owned(),
        };
        let continues = matches!(verdict, Verdict::Suspended { .. })
            && evidence.processes.is_some_and(|processes| processes.suspended.is_none());
        if has_answered {
            format!("it answers again after {time}{was}")
        } else if continues {
            format!("its process continues after {time}")
        } else {
            format!("no client waits for an answer any more, after {time}{was}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watchdog::{Input, OpenRequest, Processes, UnawaitedRequest};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "virtual time needs some origin")]
    fn the_end_of_a_silence_has_a_reason() {
        let since = Instant::now();
        let now = since + Duration::from_secs(120);
        let processes =
            Processes { switches: 1, is_active: false, suspended: None, waits_for: None };
        let silent = Evidence {
            oldest: None,
            overdue: 0,
            being_handled: None,
            unawaited: None,
            unanswered_since: None,
            last_message: None,
            last_answer: None,
            answered_ping: false,
            input: Input::Read,
            processes: Some(processes),
        };
        let answered = Evidence { last_answer: Some(now), ..silent.clone() };
        let unawaited = Some(UnawaitedRequest { what: "sleep".to_owned(), since: now });
        let given_up = Evidence { unawaited, ..silent.clone() };
        let check = |verdict: &Verdict, evidence: &Evidence, expected: &str| {
            assert_eq!(Answers::of(&silent).describe_end(now, verdict, evidence), expected);
        };
        let inside = OpenRequest { what: "sleep".to_owned(), sent: since };
        let blocked = Verdict::Blocked { inside: inside.clone(), since };
        check(&blocked, &answered, "it answers again after 2 min; it was blocked in `sleep`");
        let nobody =
            "no client waits for an answer any more, after 2 min; it was blocked in `sleep`";
        check(&blocked, &given_up, nobody);
        let suspended = Verdict::Suspended { since, pid: 7 };
        check(&suspended, &silent, "its process continues after 2 min");
        check(&suspended, &answered, "it answers again after 2 min; its process was stopped");
        let overdue = |unread_since| Verdict::Overdue {
            requests: 1,
            oldest: Some(inside.clone()),
            unread_since,
        };
        check(&overdue(None), &answered, "it has answered `sleep` after 2 min");
        let other = Evidence { last_answer: Some(now), ..given_up.clone() };
        check(&overdue(None), &other, "no client waits for `sleep` any more, after 2 min");
        check(
            &overdue(Some(since)),
            &answered,
            "it answers again after 2 min; `sleep` was overdue",
        );
        check(&Verdict::Busy { since }, &answered, "it answers again after 2 min; it was busy");
    }
}

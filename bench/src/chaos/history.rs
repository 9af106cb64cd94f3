//! What clients asked and were told, and whether that can be true; pure.

use std::collections::HashMap;
use std::time::Duration;

/// How long before and after a fault a call may still be cut by it.
const SLACK: Duration = Duration::from_secs(2);

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) client: String,
    pub(super) kind: Kind,
    /// Since the start of the run.
    pub(super) begun: Duration,
    pub(super) ended: Duration,
    pub(super) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// Must be answered with this text.
    Echo(String),
    /// Appends this line, which no other call does.
    Append(String),
    /// Does nothing for a while.
    Sleep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered {
        text: String,
        is_error: bool,
    },
    /// A JSON-RPC error.
    Failed(String),
    /// The connection broke, and there is no way to the answer.
    Cut,
    /// An HTTP status that is no answer.
    Status(u16),
    /// Nothing came in time.
    Silent,
}

/// How many calls ended in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) answered: usize,
    /// Answered with an error, whose reason is given.
    pub(super) errors: usize,
    pub(super) cut: usize,
}

impl Counts {
    pub(super) fn of(calls: &[Call]) -> Self {
        let mut counts = Self::default();
        for call in calls {
            match call.outcome {
                Outcome::Answered { is_error: false, .. } => counts.answered += 1,
                Outcome::Answered { is_error: true, .. } | Outcome::Failed(_) => counts.errors += 1,
                Outcome::Cut => counts.cut += 1,
                Outcome::Status(_) | Outcome::Silent => {}
            }
        }
        counts
    }
}

/// Times at which connections may have been cut.
pub(super) type Cuts = [(Duration, Duration)];

/// What is wrong. `effects` are the lines that were appended.
pub(super) fn findings(calls: &[Call], effects: &[String], cuts: &Cuts) -> Vec<String> {
    let mut executed: HashMap<&str, usize> = HashMap::new();
    for line in effects {
        *executed.entry(line.as_str()).or_default() += 1;
    }
    let mut findings = Vec::new();
    for call in calls {
        let times = match &call.kind {
            Kind::Append(line) => executed.remove(line.as_str()).unwrap_or_default(),
            Kind::Echo(_) | Kind::Sleep => 0,
        };
        if let Some(what) = wrong(call, times, cuts) {
            let Call { client, kind, begun, ended, outcome } = call;
            findings.push(format!(
                "{what}: {client} {kind:?}, {:.1} s to {:.1} s: {outcome:?}",
                begun.as_secs_f64(),
                ended.as_secs_f64()
            ));
        }
    }
    findings.extend(executed.keys().map(|line| format!("nobody asked for the effect `{line}`")));
    findings
}

/// What is wrong with a call that was executed so often, if it has an effect.
fn wrong(call: &Call, times: usize, cuts: &Cuts) -> Option<&'static str> {
    if times > 1 {
        return Some("executed twice");
    }
    let may_be_cut = cuts
        .iter()
        .any(|(from, until)| call.begun <= *until + SLACK && call.ended + SLACK >= *from);
    let is_append = matches!(call.kind, Kind::Append(_));
    match (&call.kind, &call.outcome) {
        (_, Outcome::Silent) => Some("no answer"),
        (_, Outcome::Status(404)) => Some("the session is lost"),
        (_, Outcome::Status(_)) => Some("refused"),
        (_, Outcome::Cut) => (!may_be_cut).then_some("cut although nothing was killed"),
        (Kind::Echo(expected), Outcome::Answered { text, is_error: false }) => {
            (text != expected).then_some("the answer of another call")
        }
        (Kind::Append(_), Outcome::Answered { is_error: false, .. }) => {
            (times == 0).then_some("acknowledged, and not executed")
        }
        (Kind::Sleep, Outcome::Answered { is_error: false, .. }) => None,
        (_, Outcome::Answered { text, is_error: true } | Outcome::Failed(text)) => {
            if text.is_empty() {
                Some("an error without a reason")
            } else if is_append && times > 0 && !text.contains("unknown") {
                Some("executed, and said not to be")
            } else {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn call(kind: Kind, outcome: Outcome) -> Call {
        Call { client: "c".into(), kind, begun: 10 * SECOND, ended: 11 * SECOND, outcome }
    }

    fn answered(text: &str, is_error: bool) -> Outcome {
        Outcome::Answered { text: text.into(), is_error }
    }

    #[test]
    fn what_cannot_be_true_is_found() {
        let append = || Kind::Append("x".into());
        let x = |times: usize| vec!["x".to_owned(); times];
        let killed = [(10 * SECOND, 10 * SECOND)];
        let check = |kind: Kind, outcome: Outcome, effects: &[String], cuts: &Cuts, finds: &str| {
            let found = findings(&[call(kind, outcome)], effects, cuts);
            let is_right =
                if finds.is_empty() { found.is_empty() } else { found.concat().contains(finds) };
            assert!(is_right, "{found:?} instead of {finds:?}");
        };
        check(append(), answered("appended", false), &x(1), &[], "");
        check(append(), answered("appended", false), &x(0), &[], "not executed");
        check(append(), answered("appended", false), &x(2), &[], "twice");
        check(append(), answered("its effect is unknown", true), &x(1), &[], "");
        check(append(), answered("it is down", true), &x(1), &[], "said not to be");
        check(append(), answered("it is down", true), &x(0), &[], "");
        check(append(), Outcome::Cut, &x(1), &killed, "");
        check(append(), Outcome::Cut, &x(1), &[], "nothing was killed");
        check(append(), Outcome::Silent, &x(0), &killed, "no answer");
        check(Kind::Echo("a".into()), answered("a", false), &[], &[], "");
        check(Kind::Echo("a".into()), answered("b", false), &[], &[], "another call");
        check(Kind::Echo("a".into()), Outcome::Status(404), &[], &killed, "session is lost");
        check(Kind::Sleep, answered("", true), &[], &[], "without a reason");
        check(Kind::Sleep, answered("slept", false), &x(1), &[], "nobody asked");
    }
}

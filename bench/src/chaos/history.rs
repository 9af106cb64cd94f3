//! What clients asked and were told, and whether that can be true; pure.

use std::collections::HashMap;
use std::time::Duration;

use super::UNHARMED;
use super::faults::Fault;

/// How long before and after a fault a call may still be cut by it.
const SLACK: Duration = Duration::from_secs(2);

/// How long a call that does nothing may take while only other servers are harmed.
const UNHARMED_LIMIT: Duration = Duration::from_secs(2);

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
    /// Must be answered with this text: it ends a long silence, and nothing is harmed any more.
    Idle(String),
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

type Window = (Duration, Duration);

/// When there were faults.
#[derive(Debug, Clone, Default)]
pub(super) struct Windows {
    /// Connections may have been cut.
    cuts: Vec<Window>,
    /// Only single servers were harmed.
    single: Vec<Window>,
}

impl Windows {
    pub(super) fn add(&mut self, fault: Fault, window: Window) {
        if fault.cuts() {
            self.cuts.push(window);
        }
        if fault.spares_others() {
            self.single.push(window);
        }
    }
}

/// What is wrong. `effects` are the lines that were appended.
pub(super) fn findings(calls: &[Call], effects: &[String], windows: &Windows) -> Vec<String> {
    let mut executed: HashMap<&str, usize> = HashMap::new();
    for line in effects {
        *executed.entry(line.as_str()).or_default() += 1;
    }
    let mut findings = Vec::new();
    for call in calls {
        let times = match &call.kind {
            Kind::Append(line) => executed.remove(line.as_str()).unwrap_or_default(),
            Kind::Echo(_) | Kind::Sleep | Kind::Idle(_) => 0,
        };
        if let Some(what) = wrong(call, times, windows) {
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
fn wrong(call: &Call, times: usize, windows: &Windows) -> Option<&'static str> {
    if times > 1 {
        return Some("executed twice");
    }
    let may_be_cut = windows
        .cuts
        .iter()
        .any(|(from, until)| call.begun <= *until + SLACK && call.ended + SLACK >= *from);
    let is_append = matches!(call.kind, Kind::Append(_));
    match (&call.kind, &call.outcome) {
        (
            Kind::Echo(expected) | Kind::Idle(expected),
            Outcome::Answered { text, is_error: false },
        ) => {
            if text != expected {
                Some("the answer of another call")
            } else if is_late(call, windows) {
                Some("delayed although only other servers were harmed")
            } else {
                None
            }
        }
        (Kind::Idle(_), _) => Some("an idle client is not served"),
        (_, Outcome::Silent) => Some("no answer"),
        (_, Outcome::Status(404)) => Some("the session is lost"),
        (_, Outcome::Status(_)) => Some("refused"),
        (_, Outcome::Cut) => (!may_be_cut).then_some("cut although nothing was killed"),
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

/// Whether a client of the server that nothing was done to waited because of another one.
fn is_late(call: &Call, windows: &Windows) -> bool {
    let within = |(from, until): &Window| call.begun >= *from && call.begun <= *until;
    call.client == UNHARMED
        && call.ended.saturating_sub(call.begun) > UNHARMED_LIMIT
        && windows.single.iter().any(within)
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
        let check = |kind, outcome, effects: &[String], cuts: &[Window], finds: &str| {
            let windows = Windows { cuts: cuts.to_vec(), single: Vec::new() };
            let found = findings(&[call(kind, outcome)], effects, &windows);
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
        check(Kind::Idle("a".into()), answered("a", false), &[], &[], "");
        check(Kind::Idle("a".into()), Outcome::Cut, &[], &killed, "idle");
        check(Kind::Idle("a".into()), answered("it is down", true), &[], &[], "idle");
        check(Kind::Sleep, answered("", true), &[], &[], "without a reason");
        check(Kind::Sleep, answered("slept", false), &x(1), &[], "nobody asked");
    }

    #[test]
    fn only_the_unharmed_must_not_wait() {
        let check = |client: &str, seconds: u32, fault: Fault, is_found: bool| {
            let mut windows = Windows::default();
            windows.add(fault, (9 * SECOND, 12 * SECOND));
            let echo = call(Kind::Echo("a".into()), answered("a", false));
            let ended = echo.begun + seconds * SECOND;
            let found = findings(&[Call { client: client.into(), ended, ..echo }], &[], &windows);
            assert_eq!(!found.is_empty(), is_found, "{found:?}");
        };
        check(UNHARMED, 3, Fault::SlowResolver, true);
        check(UNHARMED, 2, Fault::SlowResolver, false);
        check("lines", 3, Fault::SlowResolver, false);
        check(UNHARMED, 3, Fault::KillDaemon, false);
    }
}

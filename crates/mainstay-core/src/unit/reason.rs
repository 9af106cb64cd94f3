//! The status of a unit and the line that explains it.

use std::time::{Duration, Instant};

use super::phase::{Ending, Failure, Phase, Run, StartReason, Wait};
use super::{Outage, Unit};
use crate::{Status, Wanted, human_duration};

pub(super) fn status(unit: &Unit) -> Status {
    use {Phase as P, Wanted as W};
    match (unit.wanted, &unit.phase) {
        (_, P::Removed | P::Finished) | (W::Gone, _) => Status::Removing,
        (W::Off, P::Idle | P::Waiting(_) | P::Failed(_)) => Status::Stopped,
        // The return of its engine would not help it.
        (W::On, P::Failed(_)) => Status::Error,
        _ if unit.away.is_some() => Status::Waiting,
        (W::On, P::Idle) => Status::Starting,
        (W::On, P::Waiting(_)) => Status::Restarting,
        (W::On, P::Stopping { run, ending: Ending::Exited, .. }) if !unit.will_give_up(run) => {
            Status::Restarting
        }
        (W::Off, P::Up(_)) | (_, P::Stopping { .. }) => Status::Stopping,
        (W::On, P::Up(run)) if run.paused => Status::Waiting,
        (W::On, P::Up(run)) if run.ready.is_none() => match run.again {
            None => Status::Starting,
            Some(_) => Status::Restarting,
        },
        (W::On, P::Up(run)) if run.unhealthy => Status::Unhealthy,
        (W::On, P::Up(_)) => Status::Running,
    }
}

pub(super) fn reason(unit: &Unit, now: Instant) -> String {
    use {Phase as P, Wanted as W};
    match (unit.wanted, &unit.phase) {
        (_, P::Removed | P::Finished) => "removed".to_owned(),
        (W::Off, P::Idle | P::Waiting(_) | P::Failed(_)) => stopped(unit),
        (W::On, P::Failed(failure)) => failed(unit, failure),
        (W::Gone, _) => "removing on request".to_owned(),
        (W::On | W::Off, _) if unit.away.is_some() => away(unit, now),
        (W::On, P::Idle) => "starting".to_owned(),
        (W::On, P::Waiting(rest)) => resting(unit, rest, now),
        (W::On, P::Up(run)) if run.paused => "paused by someone else".to_owned(),
        (W::On, P::Up(run)) if run.ready.is_none() => starting(unit, run, now),
        (W::On, P::Up(run)) if run.unhealthy => "does not answer as it used to".to_owned(),
        (W::On, P::Up(_)) => match unit.restarts() {
            0 => "ready".to_owned(),
            1 => "ready, restarted once".to_owned(),
            n => format!("ready, restarted {n} times"),
        },
        (W::On, P::Stopping { ending: Ending::Asked, .. }) => "stopping, then starting".to_owned(),
        (W::On, P::Stopping { ending: Ending::Faulty(fault), .. }) => {
            format!("{}, ending it", fault.cause())
        }
        (W::On, P::Stopping { ending: Ending::Exited, .. }) => {
            "exited; ending what it left behind".to_owned()
        }
        (W::Off, P::Up(_) | P::Stopping { .. }) => "stopping on request".to_owned(),
    }
}

/// A number of restarts, in words.
pub(super) fn times(restarts: u32) -> String {
    match restarts {
        1 => "1 restart".to_owned(),
        n => format!("{n} restarts"),
    }
}

fn stopped(unit: &Unit) -> String {
    match (unit.has_respected(), &unit.last_end) {
        (true, _) => "stopped by someone else; start it to bring it back".to_owned(),
        (false, Some(_)) => "stopped on request".to_owned(),
        (false, None) => "not started".to_owned(),
    }
}

fn failed(unit: &Unit, failure: &Failure) -> String {
    match failure {
        Failure::CannotStart { why, .. } => format!("cannot start: {why}"),
        Failure::GivenUp { .. } if unit.policy.max == 0 => {
            format!("{}, and is not restarted; restart it to try again", last_end(unit))
        }
        Failure::GivenUp { .. } => format!(
            "gave up after {}; last: {}; restart it to try again",
            times(unit.policy.max),
            last_end(unit)
        ),
    }
}

fn away(unit: &Unit, now: Instant) -> String {
    let Some(Outage { since, why }) = &unit.away else { return String::new() };
    let lasted = human_duration(now.saturating_duration_since(*since));
    let then = match (unit.wanted, &unit.phase) {
        (Wanted::Off, _) => "; stopped when it is back",
        (Wanted::On, Phase::Idle | Phase::Waiting(_)) => "; started when it is back",
        // What is to be removed does not wait for its engine.
        (Wanted::On | Wanted::Gone, _) => "",
    };
    format!("{why}, for {lasted}{then}")
}

fn resting(unit: &Unit, rest: &Wait, now: Instant) -> String {
    let left = rest.until.saturating_duration_since(now);
    match rest.again {
        StartReason::Charged { attempt } if left > Duration::ZERO => format!(
            "{}, restart {attempt} of {} in {}",
            last_end(unit),
            unit.policy.max,
            human_duration(whole_seconds(left))
        ),
        StartReason::Postponed { .. } if left > Duration::ZERO => {
            format!("{}, trying again in {}", last_end(unit), human_duration(whole_seconds(left)))
        }
        StartReason::Charged { .. }
        | StartReason::Excused
        | StartReason::Postponed { .. }
        | StartReason::Outage
        | StartReason::HalfOpen
        | StartReason::Adopted => format!("{}, restarting", last_end(unit)),
    }
}

fn starting(unit: &Unit, run: &Run, now: Instant) -> String {
    let Some(doing) = &run.doing else { return start_reason(unit, run) };
    let lasted = human_duration(run.age(now));
    let doing = doing.describe(now);
    match run.again {
        None => format!("starting for {lasted}: {doing}"),
        Some(_) => format!("{}; starting for {lasted}: {doing}", start_reason(unit, run)),
    }
}

fn start_reason(unit: &Unit, run: &Run) -> String {
    match run.again {
        None => "it has not answered `initialize` yet".to_owned(),
        Some(StartReason::Charged { attempt: attempt @ 2.. }) => {
            format!("{}, restart {attempt} of {}", last_end(unit), unit.policy.max)
        }
        Some(
            StartReason::Charged { .. }
            | StartReason::Excused
            | StartReason::Postponed { .. }
            | StartReason::Outage,
        ) => {
            format!("{}, restarting", last_end(unit))
        }
        Some(StartReason::HalfOpen) => {
            format!("gave up after {}, trying once more", times(unit.policy.max))
        }
        Some(StartReason::Adopted) => "restarted by someone else, not ready yet".to_owned(),
    }
}

fn last_end(unit: &Unit) -> String {
    unit.last_end.as_ref().map_or_else(|| "ended".to_owned(), |last| last.cause.after(last.ran_for))
}

/// Rounded up, so that a countdown never shows less than is left.
fn whole_seconds(left: Duration) -> Duration {
    Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
}

//! When restarts came, as events tell; pure.

use std::time::Duration;

use super::stage::check;
use crate::rig::{BenchError, Event};

/// Ends and starts are told a moment after they were decided on.
const TELLING: Duration = Duration::from_millis(10);

/// How long after the end of each run, from the first one on, the next one was started.
pub(super) fn delays(events: &[Event]) -> Vec<Duration> {
    let at = |kind: &str, run: u64| {
        let is_it = |event: &&Event| event.kind == kind && event.run == Some(run);
        events.iter().find(is_it).map(|event| event.at)
    };
    let delay = |run: u64| {
        let (ended, started) = (at("ended", run)?, at("started", run + 1)?);
        Some(Duration::try_from(started.duration_since(ended)).unwrap_or_default())
    };
    (1..).map_while(delay).collect()
}

/// Asserts that there were as many restarts as were due. One may come late on a busy machine, but never
/// early.
pub(super) fn check_schedule(delays: &[Duration], due: &[Duration]) -> Result<(), BenchError> {
    let on_time = |(delay, due): (&Duration, &Duration)| *delay + TELLING >= *due;
    let right = delays.len() == due.len() && delays.iter().zip(due).all(on_time);
    check(right, || format!("restarts came after {delays:?} instead of {due:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ms: i64, kind: &str, run: u64) -> Event {
        let at = jiff::Timestamp::from_millisecond(ms).unwrap();
        Event { at, server: None, run: Some(run), kind: kind.to_owned(), cause: None, detail: None }
    }

    #[test]
    fn delays_are_from_an_end_to_the_next_start() {
        let told = [
            event(0, "started", 1),
            event(50, "ended", 1),
            event(53, "started", 2),
            event(60, "ended", 2),
            event(165, "started", 3),
            event(170, "ended", 3),
        ];
        assert_eq!(delays(&told), [3, 105].map(Duration::from_millis));
    }

    #[test]
    fn no_restart_is_early_and_none_is_missing() {
        let due = [0, 100].map(Duration::from_millis);
        let holds = |delays: &[u64]| {
            let delays: Vec<_> = delays.iter().copied().map(Duration::from_millis).collect();
            check_schedule(&delays, &due).is_ok()
        };
        assert!(holds(&[3, 105]) && holds(&[900, 4000]));
        assert!(!holds(&[3, 60]) && !holds(&[3]) && !holds(&[3, 105, 200]));
    }
}

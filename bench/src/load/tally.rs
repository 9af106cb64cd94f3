//! What the sessions count.

use std::time::Duration;

use tokio::time::Instant;

use super::drive::Window;
use super::{CallError, Mistake};
use crate::chain;

/// The outcome of calls that ended in the measured time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) latencies: Vec<Duration>,
    pub(super) errors: u64,
    pub(super) wrong: u64,
    /// The first failure, as an example.
    pub(super) failure: Option<String>,
}

impl Tally {
    /// Counts one call. Good answers count inside the window only; failures also in the call that
    /// was in flight when it closed, because otherwise a hang at the end would go unseen.
    pub(super) fn count(
        &mut self,
        window: Window,
        begun: Instant,
        ended: Instant,
        outcome: &Result<(), CallError>,
    ) {
        if ended < window.start {
            return;
        }
        match outcome {
            Ok(()) if ended <= window.end => self.latencies.push(ended - begun),
            Ok(()) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Counts a failure.
    pub(super) fn fail(&mut self, error: &CallError) {
        match error {
            CallError::Mistake(Mistake::Wrong(_)) => self.wrong += 1,
            CallError::Mistake(Mistake::Refused(_))
            | CallError::NoCommand
            | CallError::Io(_)
            | CallError::Http(_)
            | CallError::Status(_)
            | CallError::Closed
            | CallError::Late => self.errors += 1,
        }
        self.failure.get_or_insert_with(|| chain(error));
    }

    pub(super) fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.errors += other.errors;
        self.wrong += other.wrong;
        self.failure = self.failure.take().or(other.failure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_window_counts_but_a_failure_at_its_end_too() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let window = Window { start: start + second, end: start + 2 * second };
        let mut tally = Tally::default();
        tally.count(window, start, start + second / 2, &Err(CallError::Late));
        tally.count(window, start, start + second, &Ok(()));
        tally.count(window, start, start + 3 * second, &Ok(()));
        tally.count(window, start, start + 3 * second, &Err(CallError::Late));
        let wrong = Mistake::Wrong("id".to_owned()).into();
        tally.count(window, start, start + 2 * second, &Err(wrong));
        assert_eq!((tally.latencies, tally.errors, tally.wrong), (vec![second], 1, 1));
        assert_eq!(tally.failure.as_deref(), Some("no answer came in time"));
    }
}

//! The order in which the client's messages enter their session.
//!
//! Messages are sent at the same time, each with its number and the lowest number whose response has not begun. The
//! daemon enters them in that order. A daemon of an earlier version does not: it gets the next message when the response
//! to the last one has begun. Which kind it is shows in its responses, so the same holds until the first response of
//! another daemon.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::private_headers::SequenceNumbers;

/// How many messages are sent before the response to the first of them has begun.
const WINDOW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Sequence {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The messages whose responses have not begun.
    pending: BTreeSet<u64>,
    is_kept_by_daemon: bool,
    /// How many lines of the client the daemon has.
    lines: u64,
}

/// The position of a message in the order, until its response has [begun](Self::set_begun) or it is given up.
#[derive(Debug)]
pub(super) struct Position {
    sequence: Arc<Sequence>,
    number: u64,
    lines: u64,
}

impl Sequence {
    /// The position of the next message, which is the last of so many lines.
    pub(super) fn next_position(self: &Arc<Self>, lines: u64) -> Position {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.pending.insert(number);
        Position { sequence: Arc::clone(self), number, lines }
    }

    /// Resolves when another message may be sent.
    pub(super) async fn room(&self) {
        self.until(|state| state.pending.len() < WINDOW).await;
    }

    /// Resolves when the responses to all messages have begun.
    pub(super) async fn all_begun(&self) {
        self.until(|state| state.pending.is_empty()).await;
    }

    /// How many lines of the client the daemon has: it has all messages before one whose response has begun.
    pub(super) fn lines(&self) -> u64 {
        self.lock().lines
    }

    pub(super) fn set_kept_by_daemon(&self, is_kept: bool) {
        let was_kept = std::mem::replace(&mut self.lock().is_kept_by_daemon, is_kept);
        if is_kept && !was_kept {
            self.changed.notify_waiters();
        }
    }

    async fn until(&self, mut is_true: impl FnMut(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_true(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

impl State {
    fn lowest(&self) -> u64 {
        self.pending.first().copied().unwrap_or(self.next)
    }
}

impl Position {
    /// Resolves when the message may be sent.
    pub(super) async fn turn(&self) {
        let is_turn = |state: &State| state.is_kept_by_daemon || state.lowest() == self.number;
        self.sequence.until(is_turn).await;
    }

    pub(super) fn numbers(&self) -> SequenceNumbers {
        SequenceNumbers { number: self.number, lowest: self.sequence.lock().lowest() }
    }

    /// The response has begun, or nothing more is sent.
    pub(super) fn set_begun(&self) {
        let mut state = self.sequence.lock();
        if state.pending.remove(&self.number) {
            state.lines = state.lines.max(self.lines);
            drop(state);
            self.sequence.changed.notify_waiters();
        }
    }

    /// The response was lost, and the message is sent again before later ones.
    pub(super) fn set_lost(&self) {
        self.sequence.lock().pending.insert(self.number);
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        self.set_begun();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn is_ready(wait: impl Future<Output = ()>) -> bool {
        timeout(Duration::from_secs(1), wait).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_sent_at_the_same_time_if_the_daemon_keeps_the_order() {
        let sequence = Arc::new(Sequence::default());
        let [first, second] = [1, 2].map(|lines| sequence.next_position(lines));
        assert!(is_ready(first.turn()).await && !is_ready(second.turn()).await);
        sequence.set_kept_by_daemon(true);
        assert!(is_ready(second.turn()).await);
        let numbers = [&first, &second].map(|position| position.numbers().to_string());
        assert_eq!(numbers, ["0/0", "1/0"]);
        sequence.set_kept_by_daemon(false);
        assert!(!is_ready(second.turn()).await);
        drop(first);
        assert!(is_ready(second.turn()).await && !is_ready(sequence.all_begun()).await);
        assert_eq!((second.numbers().to_string(), sequence.lines()), ("1/1".to_owned(), 1));
        drop(second);
        assert!(is_ready(sequence.all_begun()).await);
        assert_eq!(sequence.lines(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_messages_without_a_response_is_bounded() {
        let sequence = Arc::new(Sequence::default());
        let mut positions: Vec<_> =
            (0..WINDOW as u64).map(|lines| sequence.next_position(lines)).collect();
        assert!(!is_ready(sequence.room()).await);
        positions.pop();
        assert!(is_ready(sequence.room()).await);
    }
}

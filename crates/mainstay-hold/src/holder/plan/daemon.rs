//! A daemon as the plan sees it: an id and the time limits after which it is killed.

use std::time::{Duration, Instant};

use super::{Action, End, Id, with_output};
use crate::limits::{self, WITHOUT_SOCKET};

pub(super) const PREPARE: Limit = Limit { time: limits::PREPARE, fault: "was not prepared" };
pub(super) const HAND_OVER: Limit = Limit { time: limits::HAND_OVER, fault: "did not hand over" };
pub(super) const SERVE: Limit = Limit { time: limits::SERVE, fault: "was not ready" };
pub(super) const LEAVE: Limit = Limit { time: limits::LEAVE, fault: "did not exit" };
pub(super) const REACT_TO_SIGNAL: Limit =
    Limit { time: limits::REACT_TO_SIGNAL, fault: "did not react to a signal" };
pub(super) const END: Limit = Limit { time: limits::END, fault: "did not end" };

/// The time for the next thing that is expected of a daemon, and how it has failed after that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    time: Duration,
    fault: &'static str,
}

/// A daemon that has not exited yet.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) id: Id,
    expected: Option<(Instant, Limit)>,
    /// When it is killed because it has closed its socket.
    closed: Option<Instant>,
    killed: bool,
    /// Why it was killed. The first reason counts.
    fault: Option<String>,
}

impl Daemon {
    pub(super) fn new(id: Id) -> Self {
        Self { id, expected: None, closed: None, killed: false, fault: None }
    }

    /// Replaces the limit that it had.
    pub(super) fn limit(&mut self, limit: Limit, now: Instant) {
        self.expected = Some((now + limit.time, limit));
    }

    pub(super) fn unlimit(&mut self) {
        self.expected = None;
    }

    pub(super) fn limit_without_socket(&mut self, now: Instant) {
        self.closed = Some(now + WITHOUT_SOCKET);
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed
    }

    /// Kills it, once.
    pub(super) fn kill(&mut self) -> Option<Action> {
        let first = !std::mem::replace(&mut self.killed, true);
        first.then_some(Action::Kill(self.id))
    }

    pub(super) fn kill_because(&mut self, fault: impl Into<String>) -> Option<Action> {
        self.fault.get_or_insert_with(|| fault.into());
        self.kill()
    }

    /// Why it has ended like this.
    pub(super) fn why(&self, end: &End) -> String {
        with_output(self.fault.as_ref().unwrap_or(&end.how), &end.last_output)
    }

    /// When [`overdue`](Self::overdue) returns a fault, unless it was killed before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let expected = self.expected.map(|(at, _)| at);
        expected.into_iter().chain(self.closed).min().filter(|_| !self.killed)
    }

    /// What is wrong with it if one of its limits has passed.
    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        if self.killed {
            return None;
        }
        if let Some((at, Limit { time, fault })) = self.expected
            && now >= at
        {
            return Some(format!("it {fault} within {} s", time.as_secs()));
        }
        self.closed.filter(|at| now >= *at).map(|_| "it closed its socket".to_owned())
    }
}

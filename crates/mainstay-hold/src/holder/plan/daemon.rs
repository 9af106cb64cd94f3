//! A daemon as the plan sees it: a name and the moments when it is killed.

use std::time::{Duration, Instant};

use super::{Action, End, Id, with_words};

/// How long a daemon may live without its socket.
const WITHOUT_SOCKET: Limit = Limit::new(1_000, "it closed its socket");

/// How long a standby may take until it could serve.
pub(super) const PREPARE: Limit = Limit::new(10_000, "it was not prepared within 10 s");

/// How long a daemon may take to give way.
pub(super) const YIELD: Limit = Limit::new(3_000, "it did not give way within 3 s");

/// How long a successor may take until it serves.
pub(super) const BE_READY: Limit = Limit::new(10_000, "it was not ready within 10 s");

/// How long one that has yielded may finish what it has begun. It stays up to 10 minutes for calls that only it can
/// finish.
pub(super) const LEAVE: Limit = Limit::new(630_000, "it did not leave within 10.5 minutes");

/// How long a daemon that was sent a signal may take to say that it ends.
pub(super) const HEED: Limit = Limit::new(10_000, "it did not heed a signal within 10 s");

/// How long a daemon may take to end its servers and itself.
pub(super) const END: Limit = Limit::new(130_000, "it did not end within 130 s");

/// A time, and what is said of whoever exceeds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    time: Duration,
    fault: &'static str,
}

impl Limit {
    const fn new(millis: u64, fault: &'static str) -> Self {
        Self { time: Duration::from_millis(millis), fault }
    }
}

/// A daemon that has not ended yet.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) id: Id,
    /// The limit of what it is expected to do, if anything.
    expected: Option<(Instant, Limit)>,
    /// The limit of its life without a socket, which nothing lifts.
    closed: Option<Instant>,
    killed: bool,
    /// Why it is no good, if that is known before its end.
    fault: Option<String>,
}

impl Daemon {
    pub(super) fn new(id: Id) -> Self {
        Self { id, expected: None, closed: None, killed: false, fault: None }
    }

    /// Expects something else from now on.
    pub(super) fn limit(&mut self, limit: Limit, now: Instant) {
        self.expected = Some((now + limit.time, limit));
    }

    /// Expects nothing.
    pub(super) fn unlimit(&mut self) {
        self.expected = None;
    }

    /// It has closed its socket.
    pub(super) fn limit_without_socket(&mut self, now: Instant) {
        self.closed = Some(now + WITHOUT_SOCKET.time);
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed
    }

    /// Kills it, once.
    pub(super) fn kill(&mut self) -> Option<Action> {
        let first = !std::mem::replace(&mut self.killed, true);
        first.then_some(Action::Kill(self.id))
    }

    /// Kills it because it is no good. The first reason counts.
    pub(super) fn condemn(&mut self, fault: &str) -> Option<Action> {
        self.fault.get_or_insert_with(|| fault.into());
        self.kill()
    }

    /// Why it has ended like this.
    pub(super) fn why(&self, end: &End) -> String {
        with_words(self.fault.as_ref().unwrap_or(&end.how), &end.words)
    }

    /// When it is killed next. One that was killed already has nothing to fear.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.limits().map(|(at, _)| at).min()
    }

    /// What it exceeds, if anything.
    pub(super) fn overdue(&self, now: Instant) -> Option<&'static str> {
        self.limits().find(|(at, _)| now >= *at).map(|(_, limit)| limit.fault)
    }

    fn limits(&self) -> impl Iterator<Item = (Instant, Limit)> {
        let closed = self.closed.map(|at| (at, WITHOUT_SOCKET));
        let limits = if self.killed { [None, None] } else { [self.expected, closed] };
        limits.into_iter().flatten()
    }
}

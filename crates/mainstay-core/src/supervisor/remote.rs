//! Servers that run elsewhere and cannot be reached.
//!
//! To the unit, the network between here and such a server is its engine: while the server cannot be reached, the engine
//! counts as away, so nothing is charged, no deadline passes and requests are held. The server is tried again, with
//! growing delays, until it answers or refuses. What the user requests ends the outage first and is then done.

use std::time::{Duration, Instant};

use super::session::PORT_CHECK_INTERVAL;
use super::{Supervisor, unit};
use crate::{Jitter, Wanted, Workload, backoff, human_duration};

/// The delay before the second attempt.
const FIRST_DELAY: Duration = Duration::from_secs(1);

/// The longest delay between two attempts, without jitter.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// A server that was reachable for this long is tried at once when it is lost.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// A remote server cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOutage {
    /// What is wrong, for people.
    pub why: String,
    /// When it is tried again.
    pub next: Instant,
}

impl RemoteOutage {
    /// The reason of its status.
    pub fn reason(&self, now: Instant) -> String {
        let left = self.next.saturating_duration_since(now).as_secs() + 1;
        format!("{}; tried again in {}", self.why, human_duration(Duration::from_secs(left)))
    }
}

/// Whether requests reach a run.
#[derive(Debug)]
pub(super) struct Reachability {
    jitter: Jitter,
    /// The number of attempts since it was last reachable for a while.
    attempts: u32,
    pub(super) outage: Option<RemoteOutage>,
    is_checking_port: bool,
    next_port_check: Option<Instant>,
}

impl Reachability {
    pub(super) fn new(jitter: Jitter) -> Self {
        let (is_checking_port, next_port_check) = (false, None);
        Self { jitter, attempts: 0, outage: None, is_checking_port, next_port_check }
    }

    /// A run is started, which is the first attempt.
    pub(super) fn begin_run(&mut self) {
        (self.attempts, self.outage) = (1, None);
        (self.is_checking_port, self.next_port_check) = (false, None);
    }

    /// Whether the port may be checked now.
    pub(super) fn begin_port_check(&mut self, now: Instant) -> bool {
        let is_due = self.next_port_check.is_none_or(|next| next <= now);
        is_due && !std::mem::replace(&mut self.is_checking_port, true)
    }

    pub(super) fn end_port_check(&mut self, now: Instant, has_moved: bool) {
        self.is_checking_port = false;
        self.next_port_check = (!has_moved).then(|| now + PORT_CHECK_INTERVAL);
    }
}

impl Supervisor {
    /// A remote server did not accept a request, although it had a session since `since`.
    pub(super) fn remote_lost(&mut self, now: Instant, since: Instant) {
        if now.saturating_duration_since(since) >= STABLE_AFTER {
            self.reachability.attempts = 0;
        }
        self.remote_away(now, format!("{} cannot be reached", self.address()));
    }

    pub(super) fn remote_away(&mut self, now: Instant, why: String) {
        self.close_session();
        let reachability = &mut self.reachability;
        // Many servers behind one failure must not all be tried at the same moment.
        let next = now + reachability.jitter.stretch(delay(reachability.attempts));
        reachability.attempts = reachability.attempts.saturating_add(1);
        reachability.outage = Some(RemoteOutage { why: why.clone(), next });
        self.schedule_session(next, false);
        self.feed(now, unit::Event::EngineAway { why });
    }

    /// Whether an outage is over with this event, as far as the unit is concerned. The outage of an engine is over when the
    /// server is to run elsewhere.
    pub(super) fn ends_outage(&mut self, event: &unit::Event) -> bool {
        let changes_engine = matches!(event, unit::Event::Replaced(_))
            && self.spec.workload.kind() != self.engine
            && self.unit.is_engine_away();
        changes_engine || self.reachability.outage.take_if(|_| ends_remote_outage(event)).is_some()
    }

    /// Where the server is, without secrets.
    fn address(&self) -> &str {
        match &self.spec.workload {
            Workload::Remote(remote) => remote.url.without_query(),
            // The spec was replaced, and the run is about to end.
            Workload::Process(_) | Workload::Container(_) => "its URL",
        }
    }
}

/// Whether this is an answer of the server, a report of our own engine, or a request of the user.
fn ends_remote_outage(event: &unit::Event) -> bool {
    use unit::Event as E;
    match event {
        E::Ready { .. }
        | E::StartFailed { .. }
        | E::Hung { .. }
        | E::Exited { .. }
        | E::Gone { .. }
        | E::Restart
        | E::Replaced(_)
        | E::Want(Wanted::Off | Wanted::Gone) => true,
        E::Want(Wanted::On)
        | E::Started { .. }
        | E::Amended { .. }
        | E::Adopted { .. }
        | E::Paused { .. }
        | E::Unpaused { .. }
        | E::Unhealthy { .. }
        | E::Healthy { .. }
        | E::Silent { .. }
        | E::EngineAway { .. }
        | E::EngineBack
        | E::HostResumed
        | E::Demand
        | E::Doing { .. }
        | E::Tick => false,
    }
}

/// The delay before an attempt: none before the first, then 1, 2, 4, ... 30 s.
fn delay(attempt: u32) -> Duration {
    let doublings = attempt.checked_sub(1);
    doublings.map_or(Duration::ZERO, |doublings| backoff(FIRST_DELAY, doublings, LONGEST_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_between_attempts_grow_to_the_longest_one() {
        let nominal = |attempt| delay(attempt).as_secs();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7, u32::MAX].map(nominal),
            [0, 1, 2, 4, 8, 16, 30, 30, 30]
        );
    }
}

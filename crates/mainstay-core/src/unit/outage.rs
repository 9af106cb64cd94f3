//! Outages of the engine and suspends of the host: what ends because of them is not the server's fault.

use std::time::{Duration, Instant};

use super::budget::{PROVISIONAL, WAKING, is_recent};
use super::phase::{Failure, Phase, StartReason, Wait, after};
use super::{LoggedEvent, Outage, Unit};

/// How long ends are not charged after the host woke up.
const RESUME_GRACE: Duration = Duration::from_secs(30);

impl Unit {
    pub(super) fn engine_away(&mut self, now: Instant, why: String) {
        if let Some(outage) = &mut self.away {
            outage.why = why;
            return;
        }
        self.logged.push(LoggedEvent::EngineAway { why: why.clone() });
        self.away = Some(Outage { since: now, why });
        self.refund(now, PROVISIONAL, StartReason::Outage);
    }

    pub(super) fn engine_back(&mut self, now: Instant) {
        let Some(Outage { since, .. }) = self.away.take() else { return };
        self.logged.push(LoggedEvent::EngineBack);
        let lasted = now.saturating_duration_since(since);
        let spread = self.spread(now);
        match &mut self.phase {
            Phase::Waiting(Wait { until, again: StartReason::Outage }) => *until = spread,
            Phase::Waiting(Wait { until, .. }) => *until += lasted,
            Phase::Stopping { kill_at, .. } => *kill_at += lasted,
            Phase::Idle | Phase::Up(_) | Phase::Failed(_) | Phase::Removed | Phase::Finished => {}
        }
    }

    pub(super) fn host_resumed(&mut self, now: Instant) {
        self.excused_until = Some(after(now, RESUME_GRACE));
        self.logged.push(LoggedEvent::HostResumed);
        self.refund(now, WAKING, StartReason::Excused);
    }

    /// Undoes the consequences of recent failures, because they are not the server's fault. `again` is their cause.
    fn refund(&mut self, now: Instant, within: Duration, again: StartReason) {
        let count = self.budget.refund(now, within);
        if count > 0 {
            self.logged.push(LoggedEvent::Refunded { count });
        }
        let undone = match &self.phase {
            // The charge that led here is the latest, so it is among those that were refunded.
            Phase::Waiting(Wait { again: StartReason::Charged { .. }, .. })
            | Phase::Failed(Failure::GivenUp { .. }) => count > 0,
            // Without its engine nothing can start; a host that sleeps does not make a spec wrong.
            Phase::Failed(Failure::CannotStart { since, .. }) => {
                again == StartReason::Outage && is_recent(*since, now, within)
            }
            Phase::Idle
            | Phase::Waiting(_)
            | Phase::Up(_)
            | Phase::Stopping { .. }
            | Phase::Removed
            | Phase::Finished => false,
        };
        if undone {
            self.phase = self.wait(now, again);
        }
    }
}

//! Probes: requests of Mainstay that show whether a run answers.

use std::time::{Duration, Instant};

use super::{Evidence, Input, WatchAction, Watchdog, suspended};

/// A run that answers something else after this time will not answer a ping.
const PING_PATIENCE: Duration = Duration::from_secs(5);

/// The time without a message after which an idle run is probed.
pub(super) const IDLE_PROBE: Duration = Duration::from_secs(5 * 60);

/// A request that shows whether a run answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// `ping`
    Ping,
    /// `tools/list`
    List,
}

impl Probe {
    /// Its method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::List => "tools/list",
        }
    }
}

/// The probes that wait for an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probes {
    pub(super) ping: Option<Instant>,
    pub(super) list: Option<Instant>,
}

impl Probes {
    pub(super) fn last(self) -> Option<Instant> {
        self.ping.max(self.list)
    }
}

impl Watchdog {
    /// Any message proves that the run is alive, whether it answers a probe or not; but of a run that does not read, only an answer
    /// shows that it serves anybody.
    pub(super) fn note_probes(
        &mut self,
        now: Instant,
        evidence: &Evidence,
        actions: &mut Vec<WatchAction>,
    ) {
        self.answers_ping |= evidence.answered_ping;
        let answers_ping = self.answers_ping || self.ignores_ping;
        let before = self.probes.last();
        if self.probes.ping.is_none() || matches!(evidence.input, Input::Unread { .. }) {
            self.ping_read = None;
        } else {
            self.ping_read = self.ping_read.or(Some(now));
        }
        let read = self.ping_read;
        let heard = match evidence.input {
            Input::Unread { .. } => evidence.last_answer,
            Input::Unknown | Input::Read => evidence.last_message,
        };
        let ping = self.probes.ping.take_if(|ping| match heard {
            Some(at) if answers_ping => at >= *ping,
            // Whether it will still answer the ping is known later.
            Some(at) => read.is_some_and(|read| at >= read + PING_PATIENCE),
            None => false,
        });
        if ping.is_some() && !answers_ping {
            self.ignores_ping = true;
            actions.push(WatchAction::IgnoresPing);
        }
        self.probes.list.take_if(|probe| heard >= Some(*probe));
        if before.is_some() && self.probes.last().is_none() {
            self.next_probe = now + self.limits.overdue();
        }
    }

    /// Probes an overdue run by `ping`, and by a list if that has no answer; and an idle one by what it answers.
    pub(super) fn probe(
        &mut self,
        now: Instant,
        evidence: &Evidence,
        actions: &mut Vec<WatchAction>,
    ) {
        let idle_since = evidence.last_message.unwrap_or(self.began);
        let is_due = if self.waiting_since(evidence).is_none() {
            now >= idle_since + IDLE_PROBE
        } else {
            // It may have stopped to read since it answered the last probe.
            let is_silent = match evidence.input {
                Input::Unread { since, .. } => evidence.last_answer <= Some(since),
                Input::Unknown | Input::Read => false,
            };
            self.is_overdue(now, evidence)
                && suspended(evidence).is_none()
                && (is_silent || now >= self.next_probe)
        };
        if !is_due {
            return;
        }
        if self.probes.ping.is_none() && !self.ignores_ping {
            self.probes.ping = Some(now);
            actions.push(WatchAction::Probe(Probe::Ping));
        } else if self.probes.list.is_none() {
            self.probes.list = Some(now);
            actions.push(WatchAction::Probe(Probe::List));
        }
    }
}

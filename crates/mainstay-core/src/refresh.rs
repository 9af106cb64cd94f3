//! Decides when a server's entries are removed from clients' files, and when they are added again. Pure.
//!
//! Some clients reconnect when their entry is removed and added again: a refresh helps them. For the others an
//! entry is removed only if the server does not come back by itself. Clients
//! merge changes that follow each other too fast, and each change disturbs its user (a prompt, an aborted
//! retry), so there is at least [`GAP`] between a removal and the addition, and no refresh within [`CYCLE`] of the last
//! addition. A second death in that time leaves the entry in place.

use std::fmt;
use std::time::{Duration, Instant};

use crate::{RefreshMode, human_duration};

/// The minimum time between removal and addition, so that clients notice.
pub const GAP: Duration = Duration::from_secs(2);

/// The minimum time between an addition and the next refresh.
pub const CYCLE: Duration = Duration::from_secs(60);

/// Whether a server can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    Ready,
    /// It is down, and comes back by itself.
    Down,
    /// It is down, and does not come back by itself.
    Failed,
    /// Its user stopped it, so entries stay as they are.
    Off,
}

/// A change of a server's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Remove them for this reason.
    Remove(RemovalReason),
    Add,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalReason {
    /// The server is down or was restarted, and its user wants clients to see that.
    Restart,
    /// It has been down for longer than requests are held.
    Outlived(Duration),
    /// It does not come back by itself.
    Failed,
    /// Its sessions were lost.
    SessionsLost,
}

impl RemovalReason {
    /// Whether the entry of a client is removed for this reason. `is_helped`: a refresh makes that client
    /// reconnect.
    pub fn concerns(self, is_helped: bool) -> bool {
        match self {
            Self::Failed => true,
            Self::Restart | Self::Outlived(_) | Self::SessionsLost => is_helped,
        }
    }
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restart => f.write_str("the server is restarted"),
            Self::Outlived(hold) => {
                write!(f, "the server has been down for longer than {}", human_duration(*hold))
            }
            Self::Failed => f.write_str("the server has failed"),
            Self::SessionsLost => f.write_str("sessions were lost, so clients have to reconnect"),
        }
    }
}

/// Which entries were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of the clients that a refresh helps.
    Helped,
    /// Those of all clients.
    All,
}

/// The state that an earlier daemon left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefreshHistory {
    /// The entries that were removed, to be added again, if any.
    pub out: Option<Scope>,
    /// The last run of an earlier server of this name. The
    /// run after it is not a restart.
    pub run: u64,
}

/// The state machine for the entries of one server.
#[derive(Debug, Clone)]
pub struct Refresh {
    mode: RefreshMode,
    hold: Duration,
    serving: Serving,
    /// Since when it has been down, if it is.
    down: Option<Instant>,
    /// The number of its present or last run.
    run: u64,
    /// The last run of the past.
    past: u64,
    /// The present run at the last change of the entries.
    known: u64,
    /// Whether it has been ready since then.
    was_ready: bool,
    sessions_lost: bool,
    /// Which entries are removed, and since when.
    out: Option<(Scope, Instant)>,
    added: Option<Instant>,
}

impl Refresh {
    /// Starts with the state of an earlier daemon.
    pub fn new(now: Instant, mode: RefreshMode, hold: Duration, past: RefreshHistory) -> Self {
        Self {
            mode,
            hold,
            serving: Serving::Down,
            down: Some(now),
            run: past.run,
            past: past.run,
            known: past.run,
            was_ready: false,
            sessions_lost: false,
            out: past.out.map(|scope| (scope, now)),
            added: None,
        }
    }

    pub fn set(&mut self, mode: RefreshMode, hold: Duration) {
        self.mode = mode;
        self.hold = hold;
    }

    /// Updates the state of the server, and the number of its present or last run.
    pub fn observe(&mut self, now: Instant, serving: Serving, run: u64) {
        self.down = match serving {
            Serving::Down => self.down.or(Some(now)),
            Serving::Ready | Serving::Failed | Serving::Off => None,
        };
        self.serving = serving;
        self.was_ready |= serving == Serving::Ready;
        self.run = run;
        let is_first = self.known <= self.past;
        // The first run is not a restart, and one so soon after a refresh does not cause another.
        if is_first || (self.out.is_none() && now < self.quiet_until(now)) {
            self.known = run;
            self.was_ready = serving == Serving::Ready;
        }
    }

    /// Its clients have to reconnect: their sessions are gone.
    pub fn lose_sessions(&mut self) {
        self.sessions_lost = true;
    }

    /// Whether all entries should be in their files.
    pub fn is_in(&self) -> bool {
        self.out.is_none()
    }

    /// Whether the entry of a client should be in its file. `is_helped`: a refresh makes that client
    /// reconnect.
    pub fn is_in_for(&self, is_helped: bool) -> bool {
        match self.out {
            None => true,
            Some((Scope::Helped, _)) => !is_helped,
            Some((Scope::All, _)) => false,
        }
    }

    /// The change that is due, if any. Repeated until it is [done](Self::done).
    pub fn due(&self, now: Instant) -> Option<Step> {
        match self.out {
            None => self.reason(now).map(Step::Remove),
            Some((Scope::Helped, _)) if self.is_given_up() => {
                Some(Step::Remove(RemovalReason::Failed))
            }
            Some((_, since)) => (self.may_return() && since + GAP <= now).then_some(Step::Add),
        }
    }

    /// The change was made.
    pub fn done(&mut self, now: Instant, step: Step) {
        match step {
            Step::Remove(why) => {
                let scope = if why.concerns(false) { Scope::All } else { Scope::Helped };
                self.out = Some((scope, now));
            }
            Step::Add => {
                self.out = None;
                self.added = Some(now);
            }
        }
        self.known = self.run;
        self.was_ready = self.serving == Serving::Ready;
        self.sessions_lost = false;
    }

    pub fn deadline(&self) -> Option<Instant> {
        match (self.out, self.down, self.mode) {
            (Some((_, since)), _, _) => self.may_return().then_some(since + GAP),
            (None, Some(down), RefreshMode::Auto) => Some(self.quiet_until(down + self.hold)),
            (None, _, RefreshMode::Auto | RefreshMode::Always)
                if self.sessions_lost && self.serving == Serving::Ready =>
            {
                self.added.map(|added| added + CYCLE)
            }
            (None, _, _) => None,
        }
    }

    fn reason(&self, now: Instant) -> Option<RemovalReason> {
        if self.is_given_up() {
            return Some(RemovalReason::Failed);
        }
        if now < self.quiet_until(now) {
            return None;
        }
        let outlived = || self.down.is_some_and(|down| now >= down + self.hold);
        match (self.mode, self.serving) {
            (RefreshMode::Never, _) | (_, Serving::Off | Serving::Failed) => None,
            (_, Serving::Ready) if self.sessions_lost => Some(RemovalReason::SessionsLost),
            (RefreshMode::Always, Serving::Ready) => {
                self.is_another_run().then_some(RemovalReason::Restart)
            }
            (RefreshMode::Always, Serving::Down) => {
                (self.was_ready || self.is_another_run()).then_some(RemovalReason::Restart)
            }
            (RefreshMode::Auto, Serving::Down) => {
                outlived().then_some(RemovalReason::Outlived(self.hold))
            }
            (RefreshMode::Auto, Serving::Ready) => None,
        }
    }

    /// Whether the entries of all clients have to be removed.
    fn is_given_up(&self) -> bool {
        self.serving == Serving::Failed && self.mode != RefreshMode::Never
    }

    fn is_another_run(&self) -> bool {
        self.run != self.known
    }

    fn may_return(&self) -> bool {
        self.serving == Serving::Ready || self.mode == RefreshMode::Never
    }

    /// A moment, or the later one before which no refresh may begin.
    fn quiet_until(&self, moment: Instant) -> Instant {
        self.added.map_or(moment, |added| moment.max(added + CYCLE))
    }
}

#[cfg(test)]
mod tests;

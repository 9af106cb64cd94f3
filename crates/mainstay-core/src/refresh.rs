//! When a server's entries leave clients' files, and when they come back. Pure.
//!
//! A client whose session cannot be kept connects anew when it sees its entry go and come back. Clients
//! merge changes that follow each other too fast, and each of them costs its user something (a prompt,
//! a retry cut short), so: at least [`GAP`] between a removal and the addition, and at most one addition
//! in each [`CYCLE`]. The limits delay additions, never removals.

use std::fmt;
use std::time::{Duration, Instant};

use crate::{RefreshMode, human_duration};

/// An entry stays out at least this long, or clients do not notice.
pub const GAP: Duration = Duration::from_secs(2);

/// An entry is added again at most once in this time.
pub const CYCLE: Duration = Duration::from_secs(60);

/// How a server stands toward its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// It is ready.
    Ready,
    /// It is down, and comes back by itself.
    Down,
    /// It is down, and does not come back by itself.
    Failed,
    /// Its user turned it off. That is nobody's fault, so entries stay as they are.
    Off,
}

/// What is to be done to a server's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Take them out, and tell why.
    Remove(Why),
    /// Add them again.
    Add,
}

/// Why entries are taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The server is down or was restarted, and its user wants clients to see that.
    Restart,
    /// It has been down for longer than requests are held.
    Outlived(Duration),
    /// It does not come back by itself.
    Failed,
    /// Its sessions were lost.
    SessionsLost,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restart => f.write_str("the server is restarted"),
            Self::Outlived(hold) => {
                write!(f, "the server has been down for longer than {}", human_duration(*hold))
            }
            Self::Failed => f.write_str("the server has failed"),
            Self::SessionsLost => {
                f.write_str("sessions were lost, so clients have to connect anew")
            }
        }
    }
}

/// What there was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Past {
    /// Whether the entries were taken out, to be put back.
    pub out: bool,
    /// The last run that says nothing about the entries: an earlier server of this name had it, so the
    /// run after it is no restart.
    pub run: u64,
}

/// Decides over the entries of one server.
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
    /// The run that was the present one when the entries were put where they are.
    known: u64,
    /// Whether it has been ready since then.
    was_ready: bool,
    sessions_lost: bool,
    /// Since when the entries are out, if they are.
    out: Option<Instant>,
    added: Option<Instant>,
}

impl Refresh {
    /// Decides over the entries of a server from now on.
    pub fn new(now: Instant, mode: RefreshMode, hold: Duration, past: Past) -> Self {
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
            out: past.out.then_some(now),
            added: None,
        }
    }

    /// Its user decided otherwise.
    pub fn set(&mut self, mode: RefreshMode, hold: Duration) {
        self.mode = mode;
        self.hold = hold;
    }

    /// Takes in how the server stands now, and the number of its present or last run.
    pub fn look(&mut self, now: Instant, serving: Serving, run: u64) {
        self.down = match serving {
            Serving::Down => self.down.or(Some(now)),
            Serving::Ready | Serving::Failed | Serving::Off => None,
        };
        self.serving = serving;
        self.was_ready |= serving == Serving::Ready;
        self.run = run;
        // The first run is no restart.
        if self.known <= self.past {
            self.known = run;
        }
    }

    /// Its clients have to connect anew: the sessions they had are gone.
    pub fn lose_sessions(&mut self) {
        self.sessions_lost = true;
    }

    /// Whether the entries are meant to be in the files.
    pub fn is_in(&self) -> bool {
        self.out.is_none()
    }

    /// What is to be done now, if anything. It is asked for again once it is [done](Self::done).
    pub fn due(&self, now: Instant) -> Option<Step> {
        match self.out {
            None => self.reason(now).map(Step::Remove),
            Some(since) => (self.may_return() && self.return_at(since) <= now).then_some(Step::Add),
        }
    }

    /// What was due is done.
    pub fn done(&mut self, now: Instant, step: Step) {
        match step {
            Step::Remove(_) => self.out = Some(now),
            Step::Add => {
                self.out = None;
                self.added = Some(now);
            }
        }
        self.known = self.run;
        self.was_ready = self.serving == Serving::Ready;
        self.sessions_lost = false;
    }

    /// A person wants the entries back: they are, if the server is ready and they have been out for
    /// long enough that clients have noticed.
    pub fn hurry(&mut self, now: Instant) {
        let noticed = self.out.is_some_and(|since| since + GAP <= now);
        if noticed && self.may_return() {
            self.done(now, Step::Add);
        }
    }

    /// When time alone will make something due.
    pub fn deadline(&self) -> Option<Instant> {
        match (self.out, self.down, self.mode) {
            (Some(since), _, _) => self.may_return().then(|| self.return_at(since)),
            (None, Some(down), RefreshMode::Auto) => Some(down + self.hold),
            (None, _, _) => None,
        }
    }

    fn reason(&self, now: Instant) -> Option<Why> {
        let outlived = || self.down.is_some_and(|down| now >= down + self.hold);
        match (self.mode, self.serving) {
            (RefreshMode::Never, _) | (_, Serving::Off) => None,
            (_, Serving::Failed) => Some(Why::Failed),
            (_, Serving::Ready) if self.sessions_lost => Some(Why::SessionsLost),
            (RefreshMode::Always, Serving::Ready) => self.is_another_run().then_some(Why::Restart),
            (RefreshMode::Always, Serving::Down) => {
                (self.was_ready || self.is_another_run()).then_some(Why::Restart)
            }
            (RefreshMode::Auto, Serving::Down) => outlived().then_some(Why::Outlived(self.hold)),
            (RefreshMode::Auto, Serving::Ready) => None,
        }
    }

    fn is_another_run(&self) -> bool {
        self.run != self.known
    }

    fn may_return(&self) -> bool {
        self.serving == Serving::Ready || self.mode == RefreshMode::Never
    }

    fn return_at(&self, since: Instant) -> Instant {
        let noticed = since + GAP;
        match (self.mode, self.added) {
            // It was taken out before its user decided that; what comes back stays.
            (RefreshMode::Never, _) | (_, None) => noticed,
            (RefreshMode::Auto | RefreshMode::Always, Some(added)) => noticed.max(added + CYCLE),
        }
    }
}

#[cfg(test)]
mod tests;

//! Decides what a holder does next: facts and the time come in, actions go out.
//!
//! One daemon serves. When it dies, the next one is started, at first at once, then with growing pauses while daemons are
//! unstable, without limit. When a daemon asks for a successor, one is started in standby and prepares. Then the old one
//! is asked to hand over, and the successor serves when that has handed over or exited, never before. A successor that
//! fails before that costs nothing; one that fails afterwards is killed and rolled back.
//!
//! What always holds:
//!
//! - No daemon is sent `Serve` while another one serves. A killed daemon serves until its process has exited.
//! - After the listeners are released nothing is started. The holder ends when every daemon has exited.
//! - The holder executes another program only while one daemon serves and no other is alive.
//! - Every wait has a limit, and [`Plan::deadline`] is the next of them. A daemon that serves has one only
//!   if it pulses: then a long silence means that it hangs.

mod daemon;
mod events;
mod phase;
mod replacement;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::daemon::{Daemon, END, REACT_TO_SIGNAL};
pub(super) use self::events::{Action, End, Event, Message, Outcome, Start};
use self::phase::{Phase, Serving};
use self::replacement::{Rollback, Stage, Successor, TrialReady};
use crate::limits::{
    FIRST_PAUSE, HUNG, LONG_LIVED, MAX_PAUSE, MAX_PAUSE_OF_CLIENT, SHORT_LIVED_PAUSE, STABLE, TRIAL,
};

/// After this many unstable daemons in a row, their end is reported.
const REPORTED: usize = 3;

/// After this many, connections with a request are closed: the request may be what they die of.
const SUSPICIOUS: usize = 8;

/// This many short-lived daemons in a row are replaced immediately, so that clients notice nothing.
const MAX_IMMEDIATE: usize = 10;

/// Identifies a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u32);

/// The decisions of one holder.
#[derive(Debug, Default)]
pub(super) struct Plan {
    exe: PathBuf,
    phase: Phase,
    successor: Option<Successor>,
    /// Those that have handed over or were killed, and have not exited yet.
    leaving: Vec<Daemon>,
    /// How many daemons in a row were unstable.
    unstable: usize,
    /// How many daemons in a row were short-lived.
    short_lived: usize,
    /// Whether any daemon was ready.
    was_ready: bool,
    replacement_failed: Option<String>,
    /// The program that is restored before the next start.
    rollback: Option<Rollback>,
    /// The program that the holder executes when no other daemon is left.
    reexec: Option<PathBuf>,
    last_output: Option<String>,
    /// Whether there is a report that daemons keep failing.
    reported: bool,
    started: u32,
    actions: Vec<Action>,
}

impl Plan {
    /// A holder that has no daemon yet. The first tick starts one.
    pub(super) fn new(now: Instant, exe: PathBuf) -> Self {
        Self { exe, phase: Phase::rest_until(now), ..Self::default() }
    }

    /// A holder with a daemon that serves already.
    pub(super) fn adopt(now: Instant, exe: PathBuf) -> (Self, Id) {
        let mut plan = Self { was_ready: true, ..Self::new(now, exe) };
        let id = plan.next_id();
        let serving =
            Serving { daemon: Daemon::new(id), ready: Some(now), hung: None, trial: None };
        plan.phase = Phase::Serving(serving);
        (plan, id)
    }

    /// Returns what to do, in this order.
    pub(super) fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Message(id, message) => self.message(now, id, message),
            Event::Closed(id) => self.closed(now, id),
            Event::Gone(id, end) => self.exited(now, id, &end),
            Event::Restored(done) => self.restored(now, done),
            Event::Signal => self.signal(now),
            Event::ClientWaits => self.client_waits(now),
            Event::Tick => {}
        }
        self.enforce_limits(now);
        self.proceed(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Event::Tick`] is due next, if ever.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_phase = match &self.phase {
            Phase::Resting { until, watch_from } => Some(watch_from.unwrap_or(*until).min(*until)),
            Phase::Serving(serving) => serving.deadline(),
            Phase::Ending { daemon, .. } => daemon.as_ref().and_then(Daemon::deadline),
            Phase::Restoring(_) | Phase::Over => None,
        };
        let of_successor = self.successor.as_ref().and_then(|next| next.daemon.deadline());
        let of_leaving = self.leaving.iter().filter_map(Daemon::deadline);
        of_phase.into_iter().chain(of_successor).chain(of_leaving).min()
    }

    /// Whether this daemon is the one that serves, or did so last and is ending.
    pub(super) fn serves(&self, id: Id) -> bool {
        match &self.phase {
            Phase::Serving(Serving { daemon, .. }) | Phase::Ending { daemon: Some(daemon), .. } => {
                daemon.id == id
            }
            Phase::Resting { .. }
            | Phase::Restoring(_)
            | Phase::Ending { daemon: None, .. }
            | Phase::Over => false,
        }
    }

    /// Whether [`Event::ClientWaits`] is wanted when a connection waits at a listener.
    pub(super) fn watches_listeners(&self) -> bool {
        matches!(self.phase, Phase::Resting { watch_from: None, .. })
    }

    /// Whether no daemon is running or being started.
    pub(super) fn is_resting(&self) -> bool {
        matches!(self.phase, Phase::Resting { .. })
    }

    /// Whether so many daemons in a row were unstable that a request which the next one continues may be the cause.
    pub(super) fn suspects_requests(&self) -> bool {
        self.unstable >= SUSPICIOUS
    }

    /// The daemon that is to replace this one.
    pub(super) fn successor_of(&self, id: Id) -> Option<Id> {
        self.successor.as_ref().map(|next| next.daemon.id).filter(|_| self.serves(id))
    }

    fn message(&mut self, now: Instant, id: Id, message: Message) {
        let serves = self.serves(id);
        match message {
            Message::Prepared => self.prepared(now, id),
            Message::Ready { can_hold } if serves => self.ready(now, can_hold),
            Message::HandedOver if serves => self.handed_over(now),
            Message::Failed(error) if serves => self.failed(error),
            Message::Failed(error) => self.withdraw(id, &text_of(&error)),
            Message::Ending => self.ending(now, id),
            Message::Pulse => self.pulse(now, id),
            Message::Replace { exe, fallback } => self.replace(now, id, exe, fallback),
            // Too early, or too late to matter.
            Message::Ready { .. } | Message::HandedOver => {}
        }
    }

    fn ready(&mut self, now: Instant, can_hold: bool) {
        let Phase::Serving(serving) = &mut self.phase else { return };
        // One that was killed just before it was ready stays killed.
        if serving.ready.is_some() || serving.daemon.is_killed() {
            return;
        }
        serving.ready = Some(now);
        match &mut serving.trial {
            Some(trial) => {
                serving.daemon.unlimit();
                let passes_at = if trial.fallback.is_some() { now + TRIAL } else { now };
                trial.ready = Some(TrialReady { passes_at, can_hold });
            }
            None => self.reexec = can_hold.then(|| self.exe.clone()),
        }
        (self.replacement_failed, self.last_output) = (None, None);
        if std::mem::take(&mut self.reported) {
            self.actions.push(Action::ClearReport);
        }
        if !self.was_ready {
            self.was_ready = true;
            self.actions.push(Action::First);
        }
    }

    fn pulse(&mut self, now: Instant, id: Id) {
        if let Phase::Serving(serving) = &mut self.phase
            && serving.daemon.id == id
        {
            serving.hung = Some(now + HUNG);
        }
    }

    /// A first start is not tried again: the command that waits for it reports why. Any later daemon is started again
    /// as if it had died.
    fn failed(&mut self, error: Vec<u8>) {
        let Phase::Serving(serving) = &mut self.phase else { return };
        self.actions.extend(serving.daemon.kill_because(text_of(&error)));
        if !self.was_ready {
            self.end(Outcome::NotStarted(error));
        }
    }

    fn ending(&mut self, now: Instant, id: Id) {
        match &mut self.phase {
            Phase::Serving(serving) if serving.daemon.id == id => {
                serving.daemon.limit(END, now);
                self.actions.push(Action::Release);
                self.end_on_purpose();
            }
            Phase::Ending { daemon: Some(daemon), .. } if daemon.id == id => {
                daemon.limit(END, now);
                self.actions.push(Action::Release);
            }
            Phase::Resting { .. }
            | Phase::Restoring(_)
            | Phase::Serving(_)
            | Phase::Ending { .. }
            | Phase::Over => self.withdraw(id, "it ended"),
        }
    }

    fn closed(&mut self, now: Instant, id: Id) {
        if let Phase::Serving(serving) = &mut self.phase {
            let next = self.successor.as_mut().map(|next| &mut next.daemon);
            let mut both = [Some(&mut serving.daemon), next].into_iter().flatten();
            if let Some(daemon) = both.find(|daemon| daemon.id == id) {
                daemon.limit_without_socket(now);
            }
        }
    }

    fn exited(&mut self, now: Instant, id: Id, end: &End) {
        self.leaving.retain(|daemon| daemon.id != id);
        if self.successor.as_ref().is_some_and(|next| next.daemon.id == id) {
            return self.successor_exited(end);
        }
        match &mut self.phase {
            Phase::Ending { daemon, .. } if daemon.as_ref().is_some_and(|it| it.id == id) => {
                *daemon = None;
            }
            Phase::Serving(serving) if serving.daemon.id == id => {
                let (ready, trial) = (serving.ready, serving.trial.take());
                let why = serving.daemon.why(end);
                self.phase = Phase::rest_until(now);
                match trial {
                    Some(trial) => self.roll_back(trial, why),
                    None => self.replace_dead(now, ready, why),
                }
            }
            Phase::Resting { .. }
            | Phase::Restoring(_)
            | Phase::Serving(_)
            | Phase::Ending { .. }
            | Phase::Over => {}
        }
    }

    /// The daemon that served has exited: its successor serves if that is prepared; otherwise it is started again.
    fn replace_dead(&mut self, now: Instant, ready: Option<Instant>, why: String) {
        match self.successor.take() {
            Some(Successor { daemon, trial, stage: Stage::Waiting }) => {
                return self.serve(now, daemon, trial);
            }
            Some(next) => {
                self.discard_successor(next, "the daemon died before it could be replaced");
            }
            None => {}
        }
        self.start_again(now, ready, why);
    }

    /// The daemon that served has ended for this reason: it is started again.
    pub(super) fn start_again(&mut self, now: Instant, ready: Option<Instant>, text: String) {
        if !self.was_ready {
            return self.end(Outcome::NotStarted(text.into_bytes()));
        }
        let served = ready.map(|ready| now.saturating_duration_since(ready)).unwrap_or_default();
        self.unstable = if served >= STABLE { 0 } else { self.unstable + 1 };
        self.short_lived = if served >= LONG_LIVED { 0 } else { self.short_lived + 1 };
        if self.unstable >= REPORTED {
            self.reported = true;
            self.actions.push(Action::Report(text.clone()));
        }
        let pause =
            if self.short_lived > MAX_IMMEDIATE { SHORT_LIVED_PAUSE } else { Duration::ZERO };
        self.last_output = Some(text);
        self.phase = Phase::Resting {
            until: now + pause.max(pause_after(self.unstable)),
            watch_from: Some(now + MAX_PAUSE_OF_CLIENT),
        };
    }

    /// A client waits for a daemon: the next one is started at once.
    fn client_waits(&mut self, now: Instant) {
        if self.watches_listeners() {
            self.phase = Phase::rest_until(now);
        }
    }

    /// The listeners are not closed before the daemon reports that it has stopped accepting.
    fn signal(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Serving(serving) => {
                serving.daemon.limit(REACT_TO_SIGNAL, now);
                self.actions.push(Action::Term(serving.daemon.id));
                self.end_on_purpose();
            }
            Phase::Resting { .. } | Phase::Restoring(_) => self.end_on_purpose(),
            Phase::Ending { daemon: Some(daemon), .. } => self.actions.extend(daemon.kill()),
            Phase::Ending { daemon: None, .. } | Phase::Over => {}
        }
    }

    /// Kills the daemons whose time limits have passed.
    fn enforce_limits(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Resting { watch_from, .. } if watch_from.is_some_and(|from| now >= from) => {
                *watch_from = None;
            }
            Phase::Serving(serving) => {
                if let Some(fault) = serving.overdue(now) {
                    self.actions.extend(serving.daemon.kill_because(fault));
                } else if serving.trial_passes_at().is_some_and(|at| now >= at) {
                    self.pass_trial();
                }
            }
            Phase::Ending { daemon: Some(daemon), .. } if daemon.overdue(now).is_some() => {
                self.actions.extend(daemon.kill());
            }
            Phase::Resting { .. } | Phase::Restoring(_) | Phase::Ending { .. } | Phase::Over => {}
        }
        let overdue = self
            .successor
            .as_ref()
            .and_then(|next| next.daemon.overdue(now).map(|fault| (next.daemon.id, fault)));
        if let Some((id, fault)) = overdue {
            self.withdraw(id, &fault);
        }
        for daemon in &mut self.leaving {
            if daemon.overdue(now).is_some() {
                self.actions.extend(daemon.kill());
            }
        }
    }

    /// Does what waited for its time, or for the exit of all daemons.
    fn proceed(&mut self, now: Instant) {
        match &self.phase {
            Phase::Resting { until, .. } if now >= *until => match self.rollback.take() {
                Some(rollback) => {
                    let Rollback { from, to } = rollback.clone();
                    self.actions.push(Action::Restore { from, to });
                    self.phase = Phase::Restoring(rollback);
                }
                None => self.start(),
            },
            Phase::Ending { daemon: None, outcome } => {
                let outcome = outcome.clone();
                for daemon in &mut self.leaving {
                    self.actions.extend(daemon.kill());
                }
                if self.leaving.is_empty() {
                    self.actions.push(Action::End(outcome));
                    self.phase = Phase::Over;
                }
            }
            Phase::Serving(serving) if self.successor.is_none() && self.leaving.is_empty() => {
                let is_well = serving.ready.is_some() && !serving.daemon.is_killed();
                let reexec = if is_well { self.reexec.take() } else { None };
                self.actions.extend(reexec.map(Action::Reexec));
            }
            Phase::Resting { .. }
            | Phase::Restoring(_)
            | Phase::Serving(_)
            | Phase::Ending { .. }
            | Phase::Over => {}
        }
    }

    fn start(&mut self) {
        let id = self.next_id();
        self.actions.push(Action::Start(Start {
            id,
            exe: self.exe.clone(),
            standby: false,
            replacement_failed: self.replacement_failed.clone(),
            last_output: self.last_output.clone(),
        }));
        let serving = Serving { daemon: Daemon::new(id), ready: None, hung: None, trial: None };
        self.phase = Phase::Serving(serving);
    }

    fn end_on_purpose(&mut self) {
        self.end(if self.was_ready {
            Outcome::Done
        } else {
            Outcome::NotStarted(b"it was stopped before it was ready".into())
        });
    }

    /// Nothing is started after this.
    fn end(&mut self, outcome: Outcome) {
        if let Some(next) = self.successor.take() {
            self.discard_successor(next, "the daemon is ending");
        }
        let daemon = match std::mem::take(&mut self.phase) {
            Phase::Serving(serving) => Some(serving.daemon),
            Phase::Resting { .. } | Phase::Restoring(_) | Phase::Ending { .. } | Phase::Over => {
                None
            }
        };
        self.phase = Phase::Ending { daemon, outcome };
    }

    fn next_id(&mut self) -> Id {
        self.started += 1;
        Id(self.started)
    }
}

/// The pause after so many unstable daemons in a row.
fn pause_after(unstable: usize) -> Duration {
    let Some(doublings) = unstable.checked_sub(1) else { return Duration::ZERO };
    let factor = u32::try_from(doublings).ok().and_then(|doublings| 1_u32.checked_shl(doublings));
    factor.map_or(MAX_PAUSE, |factor| FIRST_PAUSE.saturating_mul(factor).min(MAX_PAUSE))
}

fn text_of(error: &[u8]) -> String {
    String::from_utf8_lossy(error).into_owned()
}

fn with_output(reason: &str, output: &str) -> String {
    if output.is_empty() { reason.into() } else { format!("{reason}:\n{output}") }
}

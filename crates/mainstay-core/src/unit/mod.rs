//! The supervisor of one server, as a pure state machine.
//!
//! [`Unit::handle`] takes one event and the time, and returns at most one action. If time
//! alone will change something, [`Unit::deadline`] returns when. It works in three steps: `pass_time`
//! applies the passage of time, `learn` the event, and `decide` compares the intent
//! with the known state, so that it is correct from any state.
//!
//! Guarantees:
//! - there are never two runs: one is started only after the one before was reported gone;
//! - events of any run but the present one change nothing;
//! - a run is judged as of its exit, however long it takes to kill its remaining processes;
//! - after an event the deadline is in the future, so a driver that obeys it never spins;
//! - no action is requested of an engine that is away, and the clocks of delay, start and stability
//!   stand still meanwhile;
//! - if the cause of the last end becomes known later, an unjustified charge is refunded,
//!   with all its consequences;
//! - failures outlive the daemon: [`Unit::history`] is what the next one has to know.

mod budget;
mod corrections;
mod end;
mod event;
mod history;
mod logged_event;
mod outage;
mod phase;
mod reason;
#[cfg(test)]
mod tests;
mod view;

use std::time::{Duration, Instant};

use budget::Budget;
use phase::{Ending, Failure, Fault, Phase, Run, StartReason, after};

pub use event::{Action, Event, Found};
pub use history::{RestartState, UnitHistory};
pub use logged_event::LoggedEvent;
pub use view::{Ended, View};

use crate::start_activity::StartActivity;
use crate::{Cause, Jitter, RestartPolicy, RunId, Wanted};

/// The delay of a kill after the stop timeout, and the interval of its repetitions.
const KILL_EVERY: Duration = Duration::from_secs(5);
/// A given-up unit may be tried once after this time, if a client calls it.
const HALF_OPEN_AFTER: Duration = Duration::from_secs(5 * 60);

/// The supervisor of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    policy: RestartPolicy,
    wanted: Wanted,
    phase: Phase,
    last: RunId,
    last_start: Option<Instant>,
    last_end: Option<Ended>,
    budget: Budget,
    restarts_total: u64,
    /// When the last of them was decided on.
    last_restart: Option<Instant>,
    jitter: Jitter,
    away: Option<Outage>,
    excused_until: Option<Instant>,
    /// Set from [`Unit::resume`] to the first event: no decision was made yet.
    undecided_since: Option<Instant>,
    logged: Vec<LoggedEvent>,
}

/// The engine does not answer.
#[derive(Debug, Clone, PartialEq)]
struct Outage {
    since: Instant,
    why: String,
}

impl Unit {
    /// A unit that is off and never ran. The seed is for the jitter of its delays.
    pub fn new(policy: RestartPolicy, seed: u64) -> Self {
        Self {
            policy,
            wanted: Wanted::Off,
            phase: Phase::Idle,
            last: RunId::default(),
            last_start: None,
            last_end: None,
            budget: Budget::default(),
            restarts_total: 0,
            last_restart: None,
            jitter: Jitter::new(seed),
            away: None,
            excused_until: None,
            undecided_since: None,
            logged: Vec::new(),
        }
    }

    /// Handles one event and returns the next action, if any.
    pub fn handle(&mut self, now: Instant, event: Event) -> Option<Action> {
        if self.ignores(&event) {
            return None;
        }
        self.undecided_since = None;
        self.pass_time(now);
        self.learn(now, event);
        self.pass_time(now);
        self.decide(now)
    }

    /// When [`Event::Tick`] is due next, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            _ if self.undecided_since.is_some() => self.undecided_since,
            _ if self.away.is_some() => None,
            Phase::Waiting(rest) => Some(rest.until),
            Phase::Up(run) => run.deadline(&self.policy),
            Phase::Stopping { kill_at, .. } => Some(*kill_at),
            Phase::Idle | Phase::Failed(_) | Phase::Removed | Phase::Finished => None,
        }
    }

    /// The intent. Besides [`Event::Want`], a respected stop and a restart change it.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// The present run: asked for and not yet reported gone.
    pub fn run(&self) -> Option<RunId> {
        self.phase.run().map(|run| run.id)
    }

    pub fn last_run(&self) -> RunId {
        self.last
    }

    /// All restarts that the user did not ask for.
    pub fn restarts_total(&self) -> u64 {
        self.restarts_total
    }

    /// Whether a run exists that has not become ready, and nothing else is known to be wrong.
    pub fn is_starting(&self) -> bool {
        let Phase::Up(run) = &self.phase else { return false };
        run.ready.is_none() && run.pending_end.is_none() && !run.paused && self.away.is_none()
    }

    /// What the present run does, if it takes long to become ready.
    pub fn start_activity(&self) -> Option<&StartActivity> {
        let Phase::Up(run) = &self.phase else { return None };
        run.doing.as_ref()
    }

    /// When the present run is ended if it is not ready until then.
    pub fn start_deadline(&self) -> Option<Instant> {
        let Phase::Up(run) = &self.phase else { return None };
        run.late_at(&self.policy)
    }

    /// Whether the engine is believed to be away.
    pub fn is_engine_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether the run is paused or the engine away, so that nothing it does is a fault.
    pub fn is_frozen(&self) -> bool {
        let is_paused = matches!(&self.phase, Phase::Up(run) if run.paused);
        is_paused || self.is_engine_away()
    }

    /// The events since the last call, in order.
    pub fn take_logged_events(&mut self) -> Vec<LoggedEvent> {
        std::mem::take(&mut self.logged)
    }

    /// Whether this is about another run, or comes after the end.
    fn ignores(&self, event: &Event) -> bool {
        let known = match (event, self.run()) {
            // The workload may be removed before the engine has processed the last start.
            (Event::Gone { run, cause: Cause::Removed }, None) => *run <= self.last,
            (Event::Gone { run, cause: Cause::CannotStart(_) }, None) => *run == self.last,
            (Event::Adopted { old, new }, present) => {
                *old == present.unwrap_or(self.last) && *new > self.last
            }
            (Event::Amended { run, cause }, _) => self.is_amended_by(*run, cause),
            (event, present) => event.subject().is_none_or(|run| present == Some(run)),
        };
        !known || self.phase == Phase::Finished
    }

    /// Applies the passage of time.
    fn pass_time(&mut self, now: Instant) {
        let Phase::Up(run) = &mut self.phase else { return };
        run.freeze(now, run.paused || self.away.is_some());
        if run.stable_at(&self.policy).is_some_and(|at| now >= at) {
            run.stable = true;
            run.forgotten = Some(self.budget.clone());
            if self.budget.clear() {
                self.logged.push(LoggedEvent::BudgetReset { run: run.id });
            }
        }
        if run.late_at(&self.policy).is_some_and(|at| now >= at) {
            let after = self.policy.start_timeout;
            let doing = run.doing.take().map(|doing| doing.describe(now).to_string());
            run.pending_end = Some(Ending::Faulty(Fault::Late(after, doing.clone())));
            self.logged.push(LoggedEvent::StartTimedOut { run: run.id, after, doing });
        }
    }

    /// A run that did nothing but hang is not stable, although it was ready for long enough.
    fn remember_failures(&mut self, silent_since: Instant) {
        let Phase::Up(run) = &mut self.phase else { return };
        if let Some(budget) = run.forgotten_in_silence(&self.policy, silent_since) {
            self.budget = budget;
        }
    }

    fn learn(&mut self, now: Instant, event: Event) {
        match event {
            Event::Want(wanted) => self.want(wanted),
            Event::Restart => self.restart(),
            Event::Replaced(policy) => self.replace(policy),
            // Without its engine nothing can start.
            Event::StartFailed { .. } if self.away.is_some() => self.end(now, Cause::EngineAway),
            Event::StartFailed { why, .. } => self.end(now, Cause::CannotStart(why)),
            Event::Exited { .. } => self.exit(now),
            Event::Gone { cause, .. } => self.end(now, cause),
            Event::Amended { cause, .. } => self.amend(now, cause),
            Event::Adopted { old, new } => self.adopt(now, old, new),
            Event::Started { .. } => self.observe(|run| run.set_started(now)),
            Event::Doing { activity, .. } => self.observe(|run| {
                run.doing = activity.filter(|_| run.ready.is_none());
                None
            }),
            Event::Ready { .. } => self.observe(|run| run.set_ready(now)),
            Event::Paused { .. } => self.observe(|run| run.set_paused(true)),
            Event::Unpaused { .. } => self.observe(|run| run.set_paused(false)),
            Event::Unhealthy { .. } => self.observe(|run| run.set_unhealthy(true)),
            Event::Healthy { .. } => self.observe(|run| run.set_unhealthy(false)),
            Event::Silent { since, .. } => self.remember_failures(since),
            Event::Hung { what, .. } => self.observe(|run| run.set_hung(what)),
            Event::EngineAway { why } => self.engine_away(now, why),
            Event::EngineBack => self.engine_back(now),
            Event::HostResumed => self.host_resumed(now),
            Event::Demand => self.demand(now),
            Event::Tick => {}
        }
    }

    fn decide(&mut self, now: Instant) -> Option<Action> {
        use {Phase as P, Wanted as W};
        match (self.wanted, &self.phase) {
            // The workload is gone, so this needs no engine.
            (_, P::Removed) => Some(self.forget()),
            // Unneeded workloads are removed when the engine is back.
            (W::Gone, _) if self.away.is_some() => Some(self.forget()),
            _ if self.away.is_some() => None,
            (W::Gone, P::Idle | P::Waiting(_) | P::Failed(_)) => Some(self.forget()),
            (W::On, P::Idle) => Some(self.start(now, None)),
            (W::On, P::Waiting(rest)) if now >= rest.until => {
                let again = rest.again;
                Some(self.start(now, Some(again)))
            }
            (W::On, P::Up(Run { pending_end: Some(ending), .. })) => {
                let ending = ending.clone();
                self.stop(now, ending)
            }
            (W::Off | W::Gone, P::Up(_)) => self.stop(now, Ending::Asked),
            (_, P::Stopping { run, kill_at, .. }) if now >= *kill_at => {
                let run = run.id;
                Some(self.kill(now, run))
            }
            (W::On, P::Waiting(_) | P::Up(_) | P::Failed(_))
            | (W::Off, P::Idle | P::Waiting(_) | P::Failed(_))
            | (_, P::Stopping { .. } | P::Finished) => None,
        }
    }
}

/// Effects of events.
impl Unit {
    fn want(&mut self, wanted: Wanted) {
        let failed = matches!(self.phase, Phase::Failed(_));
        if self.wanted == wanted && !(failed && wanted == Wanted::On) {
            return;
        }
        self.wanted = wanted;
        self.logged.push(LoggedEvent::Wanted { wanted });
        match wanted {
            Wanted::On => {
                self.budget.clear();
            }
            Wanted::Off | Wanted::Gone => {
                if let Phase::Stopping { ending, .. } = &mut self.phase {
                    *ending = Ending::Asked;
                }
            }
        }
        self.stop_waiting();
    }

    fn restart(&mut self) {
        if self.wanted == Wanted::Gone {
            return;
        }
        self.wanted = Wanted::On;
        self.logged.push(LoggedEvent::RestartAsked);
        self.renew();
    }

    fn replace(&mut self, policy: RestartPolicy) {
        self.policy = policy;
        self.logged.push(LoggedEvent::Replaced);
        self.renew();
    }

    /// Ends the present run, and clears the budget for the next.
    fn renew(&mut self) {
        self.budget.clear();
        self.stop_waiting();
        match &mut self.phase {
            Phase::Up(run) => run.pending_end = Some(Ending::Asked),
            Phase::Stopping { ending, .. } => *ending = Ending::Asked,
            Phase::Idle
            | Phase::Waiting(_)
            | Phase::Failed(_)
            | Phase::Removed
            | Phase::Finished => {}
        }
    }

    /// Drops a delay or an error, so that the intent alone decides.
    fn stop_waiting(&mut self) {
        if let Phase::Waiting(_) | Phase::Failed(_) = self.phase {
            self.phase = Phase::Idle;
        }
    }

    /// Updates the run, unless it is being stopped.
    fn observe(&mut self, update: impl FnOnce(&mut Run) -> Option<LoggedEvent>) {
        if let Phase::Up(run) = &mut self.phase {
            self.logged.extend(update(run));
        }
    }

    fn demand(&mut self, now: Instant) {
        if let Phase::Failed(Failure::GivenUp { since }) = self.phase
            && self.away.is_none()
            && now >= after(since, HALF_OPEN_AFTER)
        {
            self.phase = self.wait(now, StartReason::HalfOpen);
        }
    }
}

/// Effects of decisions.
impl Unit {
    fn start(&mut self, now: Instant, again: Option<StartReason>) -> Action {
        let run = self.last.next();
        let attempt = match again {
            Some(StartReason::Charged { attempt }) => attempt,
            Some(StartReason::HalfOpen) => {
                self.logged.push(LoggedEvent::HalfOpen { run });
                0
            }
            Some(
                StartReason::Excused
                | StartReason::Postponed { .. }
                | StartReason::Outage
                | StartReason::Adopted,
            )
            | None => 0,
        };
        self.logged.push(LoggedEvent::Starting { run, attempt });
        self.last = run;
        self.last_start = Some(now);
        self.phase = Phase::Up(Run::new(run, again, now));
        Action::Start(run)
    }

    /// Stops the present run. One that hangs is killed at once: it would ignore a signal.
    fn stop(&mut self, now: Instant, ending: Ending) -> Option<Action> {
        let run = self.phase.run()?.clone();
        let id = run.id;
        let hung = matches!(ending, Ending::Faulty(Fault::Hung(_) | Fault::Refused(_)));
        let patience = self.policy.stop_timeout.saturating_add(KILL_EVERY);
        self.phase = Phase::Stopping { run, ending, kill_at: after(now, patience) };
        if hung {
            return Some(self.kill(now, id));
        }
        self.logged.push(LoggedEvent::Stopping { run: id });
        Some(Action::Stop(id))
    }

    fn kill(&mut self, now: Instant, run: RunId) -> Action {
        if let Phase::Stopping { kill_at, .. } = &mut self.phase {
            *kill_at = after(now, KILL_EVERY);
        }
        self.logged.push(LoggedEvent::Killing { run });
        Action::Kill(run)
    }

    fn forget(&mut self) -> Action {
        self.phase = Phase::Finished;
        self.logged.push(LoggedEvent::Removed);
        Action::Forget
    }
}

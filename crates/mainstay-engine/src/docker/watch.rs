//! The state machine that turns an engine's events and inspections of one container into facts. Pure.
//!
//! Two sources report the same history. Events are fast and ordered, but may be late or missing. Inspections
//! are true at one moment, and may be ahead of the events that report the same change. A [`Watch`] accepts both,
//! in any order, and guarantees:
//!
//! * The end of a run is reported once, by [`Fact::Died`] or [`Fact::LostInOutage`], and only while it is
//!   the present run. Runs are reported in the order of their numbers.
//! * After an inspection, and those that its [`Fact::Inspect`] asks for, the watch agrees with it.
//! * A `die` event is reported at once, unless an inspection has shown an end whose event has not arrived yet:
//!   then it may be the event of that end, and an inspection decides.
//!
//! An inspection that contradicts the known state (a run that was reported dead is alive, or a run that began before
//! the present one is there) was most likely overtaken on its way. It is accepted when the next one shows the same.

mod events;

use std::cmp::Ordering;
use std::mem;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_core::{Cause, Exit, RunId};

pub(crate) use self::events::{ContainerEvent, exit, parse_event};

/// How long after the end of a run an event may explain it.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(15);

/// The result of an inspection.
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the engine's answer")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerState {
    pub(crate) id: String,
    pub(crate) running: bool,
    /// Docker reports a paused container as running too, Podman does not.
    pub(crate) paused: bool,
    pub(crate) unhealthy: bool,
    /// When it was started last, whether it runs or not.
    pub(crate) started_at: String,
    pub(crate) exit_code: i64,
    pub(crate) oom: bool,
    /// Whether it is being removed. An event follows when it is gone.
    pub(crate) removing: bool,
}

/// Something that has become known about a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fact {
    Died {
        run: RunId,
        exit: Exit,
    },
    /// It ended during an outage of its engine.
    LostInOutage {
        run: RunId,
    },
    /// The cause of the end of a run that was reported dead a moment ago.
    Amended {
        run: RunId,
        cause: Cause,
    },
    /// Someone started the container again. If the old run was present, it is over.
    Restarted {
        old: RunId,
        new: RunId,
    },
    Paused(RunId),
    Unpaused(RunId),
    /// The health check of the image fails.
    Unhealthy(RunId),
    Healthy(RunId),
    /// The container was removed; this was its last run.
    Removed(RunId),
    /// Something changed that only an inspection shows.
    Inspect,
}

/// The known state of a server's container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Watch {
    /// The present or last run.
    last: RunId,
    /// When the container was started for the last run that was inspected.
    started_at: Option<String>,
    phase: Phase,
    /// The end before the present run, while an event may still explain it.
    ended: Option<Ended>,
    /// Number of ends that inspections have shown and whose events have not arrived yet.
    silent_ends: u32,
    /// The last inspection that contradicted the known state: whether it was alive, and when it was started.
    contradiction: Option<(bool, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Phase {
    /// The container has no run.
    #[default]
    Idle,
    /// This daemon is starting a run.
    Starting(Run),
    Up(Run),
    /// The container does not exist any more.
    Removed,
}

/// The present run.
#[expect(clippy::struct_excessive_bools, reason = "each may be true whatever the others are")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Run {
    /// Whether this daemon is ending it.
    ended_by_us: bool,
    /// Whether memory ran out since it was started.
    oom: bool,
    /// Whether a `die` event arrived that may or may not be its own.
    unmatched_end: bool,
    paused: bool,
    unhealthy: bool,
    /// When a `restart` event arrived while it was alive: Podman sends it before the restart.
    restart_announced: Option<Instant>,
}

/// The end of a run that was reported.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ended {
    run: RunId,
    /// When the first event about it arrived.
    event_at: Option<Instant>,
    explanation: Explanation,
}

/// What is known about who ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Explanation {
    None,
    /// Someone stopped it, perhaps for a restart.
    Stopped,
    /// There is nothing to add.
    Complete,
}

impl Watch {
    /// A container without a run.
    pub(crate) fn idle(last: RunId) -> Self {
        Self { last, ..Self::default() }
    }

    /// The state that an earlier daemon recorded: the run had this `StartedAt`, and `over` is whether its end
    /// was reported.
    pub(crate) fn recorded(run: RunId, started_at: String, over: bool) -> Self {
        let phase = if over { Phase::Idle } else { Phase::Up(Run::default()) };
        Self { started_at: Some(started_at), phase, ..Self::idle(run) }
    }

    /// This daemon starts a run. Until [`Self::started`], events and inspections are about that start.
    pub(crate) fn starting(&mut self, run: RunId) {
        self.last = run;
        self.contradiction = None;
        self.phase = Phase::Starting(Run::default());
    }

    /// The run was started. [`Self::handle_inspection`] must follow with the same inspection, which may show that
    /// the run is already over.
    pub(crate) fn started(&mut self, seen: &ContainerState) {
        if let Phase::Starting(run) = &mut self.phase {
            self.started_at = Some(seen.started_at.clone());
            self.phase = Phase::Up(mem::take(run));
        }
    }

    /// The run could not be started.
    pub(crate) fn not_started(&mut self) {
        if let Phase::Starting(_) = self.phase {
            self.phase = Phase::Idle;
        }
    }

    /// This daemon ends the present run, so its end has no other cause.
    pub(crate) fn ending(&mut self) {
        if let Phase::Starting(run) | Phase::Up(run) = &mut self.phase {
            run.ended_by_us = true;
        }
    }

    /// The run that is alive or being started.
    pub(crate) fn run(&self) -> Option<RunId> {
        match self.phase {
            Phase::Starting(_) | Phase::Up(_) => Some(self.last),
            Phase::Idle | Phase::Removed => None,
        }
    }

    /// The latest run, whether it is alive or not.
    pub(crate) fn last(&self) -> RunId {
        self.last
    }

    pub(crate) fn handle_event(&mut self, now: Instant, event: ContainerEvent) -> Vec<Fact> {
        if self.phase == Phase::Removed {
            return Vec::new();
        }
        match event {
            ContainerEvent::Die { code } => self.on_die(now, code),
            ContainerEvent::Stop => self.on_stop(now),
            ContainerEvent::Restart => self.on_restart(now),
            ContainerEvent::Start => self.on_start(),
            ContainerEvent::Oom => {
                if let Phase::Starting(run) | Phase::Up(run) = &mut self.phase {
                    run.oom = true;
                }
                Vec::new()
            }
            ContainerEvent::Pause => self.update_flags(Some(true), None),
            ContainerEvent::Unpause => self.update_flags(Some(false), None),
            ContainerEvent::Unhealthy => self.update_flags(None, Some(true)),
            ContainerEvent::Healthy => self.update_flags(None, Some(false)),
            ContainerEvent::Destroy => {
                self.phase = Phase::Removed;
                vec![Fact::Removed(self.last)]
            }
        }
    }

    /// With `away`, an outage of the engine has just ended, which is the cause of an end.
    pub(crate) fn handle_inspection(&mut self, seen: &ContainerState, away: bool) -> Vec<Fact> {
        let alive = seen.running || seen.paused;
        let age = self.age(seen);
        let odd = match &self.phase {
            Phase::Starting(_) | Phase::Removed => return Vec::new(),
            Phase::Idle => alive && age.is_some_and(Ordering::is_le),
            Phase::Up(_) => age.is_some_and(Ordering::is_lt),
        };
        let claim = (alive, seen.started_at.clone());
        if odd && self.contradiction.as_ref() != Some(&claim) {
            self.contradiction = Some(claim);
            return vec![Fact::Inspect];
        }
        self.contradiction = None;
        let same = age.is_some_and(Ordering::is_eq);
        match (&mut self.phase, alive) {
            (Phase::Up(run), true) if same => {
                let again = mem::take(&mut run.unmatched_end).then_some(Fact::Inspect);
                let differences = self.update_flags(Some(seen.paused), Some(seen.unhealthy));
                differences.into_iter().chain(again).collect()
            }
            (Phase::Idle | Phase::Up(_), true) => self.found_restarted(seen),
            (Phase::Up(_), false) => self.found_ended(seen, same, away),
            (Phase::Idle, false) | (Phase::Starting(_) | Phase::Removed, _) => Vec::new(),
        }
    }

    fn on_die(&mut self, now: Instant, code: i64) -> Vec<Fact> {
        let is_behind = self.silent_ends > 0;
        self.silent_ends = self.silent_ends.saturating_sub(1);
        match &mut self.phase {
            Phase::Starting(run) => {
                run.unmatched_end = true;
                Vec::new()
            }
            Phase::Up(run) if is_behind => {
                run.unmatched_end = true;
                vec![Fact::Inspect]
            }
            Phase::Up(run) => {
                let run = mem::take(run);
                let exit = exit(code, run.oom);
                self.end(&run, Some(now), Fact::Died { run: self.last, exit })
            }
            Phase::Idle | Phase::Removed => {
                if let Some(ended) = &mut self.ended {
                    ended.event_at.get_or_insert(now);
                }
                Vec::new()
            }
        }
    }

    fn on_stop(&mut self, now: Instant) -> Vec<Fact> {
        match self.explainable_end(now) {
            Some(ended) if ended.explanation == Explanation::None => {
                ended.explanation = Explanation::Stopped;
                vec![Fact::Amended { run: ended.run, cause: Cause::StoppedBySomeone }]
            }
            Some(_) => Vec::new(),
            // It stopped, and no `die` event has arrived.
            None => self.inspect_if_up(),
        }
    }

    fn on_restart(&mut self, now: Instant) -> Vec<Fact> {
        match self.explainable_end(now) {
            Some(ended) if ended.explanation != Explanation::Complete => {
                ended.explanation = Explanation::Complete;
                vec![Fact::Amended { run: ended.run, cause: Cause::RestartedBySomeone }]
            }
            Some(_) => Vec::new(),
            None => {
                if let Phase::Up(run) = &mut self.phase {
                    run.restart_announced = Some(now);
                }
                self.inspect_if_up()
            }
        }
    }

    fn on_start(&mut self) -> Vec<Fact> {
        match &mut self.phase {
            // The events before this one were about the run before.
            Phase::Starting(run) => {
                (run.unmatched_end, run.oom) = (false, false);
                Vec::new()
            }
            Phase::Idle | Phase::Up(_) => vec![Fact::Inspect],
            Phase::Removed => Vec::new(),
        }
    }

    fn inspect_if_up(&self) -> Vec<Fact> {
        match self.phase {
            Phase::Up(_) => vec![Fact::Inspect],
            Phase::Idle | Phase::Starting(_) | Phase::Removed => Vec::new(),
        }
    }

    /// The end that an event of this moment may explain.
    fn explainable_end(&mut self, now: Instant) -> Option<&mut Ended> {
        let ended = self.ended.as_mut()?;
        is_related(*ended.event_at.get_or_insert(now), now).then_some(ended)
    }

    /// Reports the flags of the present run that have changed.
    fn update_flags(&mut self, paused: Option<bool>, unhealthy: Option<bool>) -> Vec<Fact> {
        let Phase::Up(run) = &mut self.phase else { return Vec::new() };
        let changed = |known: &mut bool, new: Option<bool>| {
            let new = new.filter(|new| new != known)?;
            *known = new;
            Some(new)
        };
        let last = self.last;
        let paused = changed(&mut run.paused, paused)
            .map(|paused| if paused { Fact::Paused(last) } else { Fact::Unpaused(last) });
        let unhealthy = changed(&mut run.unhealthy, unhealthy)
            .map(|unhealthy| if unhealthy { Fact::Unhealthy(last) } else { Fact::Healthy(last) });
        paused.into_iter().chain(unhealthy).collect()
    }

    fn found_ended(&mut self, seen: &ContainerState, same: bool, away: bool) -> Vec<Fact> {
        let Phase::Up(run) = &mut self.phase else { return Vec::new() };
        let run = mem::take(run);
        // A container that was started since has died twice.
        self.count_silent_ends(&run, if same { 1 } else { 2 });
        self.started_at = Some(seen.started_at.clone());
        if away {
            self.phase = Phase::Idle;
            self.ended = None;
            return vec![Fact::LostInOutage { run: self.last }];
        }
        let exit = exit(seen.exit_code, seen.oom || (same && run.oom));
        self.end(&run, None, Fact::Died { run: self.last, exit })
    }

    fn found_restarted(&mut self, seen: &ContainerState) -> Vec<Fact> {
        let old = self.last;
        if let Phase::Up(run) = &mut self.phase {
            let run = mem::take(run);
            self.count_silent_ends(&run, 1);
            // Later events about its end add nothing.
            self.ended =
                Some(Ended { run: old, event_at: None, explanation: Explanation::Complete });
        }
        self.last = old.next();
        self.started_at = Some(seen.started_at.clone());
        self.phase = Phase::Up(Run::default());
        let restarted = Fact::Restarted { old, new: self.last };
        let differences = self.update_flags(Some(seen.paused), Some(seen.unhealthy));
        [restarted].into_iter().chain(differences).collect()
    }

    /// Counts ends that an inspection has shown and whose events have yet to arrive.
    fn count_silent_ends(&mut self, run: &Run, ends: u32) {
        // If an unmatched event proves to be of this run, events are not behind inspections.
        self.silent_ends =
            if run.unmatched_end { ends - 1 } else { self.silent_ends.saturating_add(ends) };
    }

    /// The present run is over.
    fn end(&mut self, run: &Run, event_at: Option<Instant>, died: Fact) -> Vec<Fact> {
        self.phase = Phase::Idle;
        let restart_announced = !run.ended_by_us
            && run.restart_announced.zip(event_at).is_some_and(|(at, now)| is_related(at, now));
        let explanation = if run.ended_by_us || restart_announced {
            Explanation::Complete
        } else {
            Explanation::None
        };
        self.ended = Some(Ended { run: self.last, event_at, explanation });
        let cause = Cause::RestartedBySomeone;
        let amended = restart_announced.then_some(Fact::Amended { run: self.last, cause });
        [died].into_iter().chain(amended).collect()
    }

    /// Compares the start that an inspection shows with the start of the last run. None if the latter is not known.
    fn age(&self, seen: &ContainerState) -> Option<Ordering> {
        let known = self.started_at.as_deref()?;
        if known == seen.started_at {
            return Some(Ordering::Equal);
        }
        let times = seen.started_at.parse::<Timestamp>().ok().zip(known.parse().ok());
        Some(times.map_or(Ordering::Greater, |(seen, known)| seen.cmp(&known)))
    }
}

fn is_related(of: Instant, now: Instant) -> bool {
    now.saturating_duration_since(of) <= EXPLAINED_WITHIN
}

#[cfg(test)]
mod tests;

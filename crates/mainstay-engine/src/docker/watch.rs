//! What an engine says about one container, turned into facts. Nothing here acts or reads a clock.
//!
//! Two sources tell the same story. Events are fast and come in the order in which things happened,
//! but late, or never. Inspections are the truth of one moment, and may run ahead of the events that
//! tell the same. A [`Watch`] takes in both, in whatever order they arrive, and guarantees:
//!
//! * The end of a run is told once, by [`Fact::Died`] or [`Fact::EngineTook`], and only while it is
//!   the present run. Runs are told in the order of their numbers.
//! * After an inspection, and those that its [`Fact::Look`] asks for, the watch agrees with it.
//! * An end that is heard is told at once, unless an end that was seen before has not been heard yet:
//!   then it may be that one, and an inspection decides.
//!
//! An inspection that cannot follow from what is believed (a run that was told dead lives, or one
//! that began before the present one is there) was most likely overtaken on its way. It is believed
//! when the next one says the same.

mod events;

use std::cmp::Ordering;
use std::mem;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_core::{Cause, Exit, RunId};

pub(crate) use self::events::{Said, exit, said};

/// How long after an end it may still be told who brought it about.
const AFTERMATH: Duration = Duration::from_secs(15);

/// What an inspection says of a container.
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the engine's answer")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) running: bool,
    /// Docker calls a paused container running too, Podman does not.
    pub(crate) paused: bool,
    pub(crate) unhealthy: bool,
    /// When it was started last, whether it runs or not.
    pub(crate) started_at: String,
    pub(crate) exit_code: i64,
    pub(crate) oom: bool,
    /// Whether it is being removed. An event tells when it is gone.
    pub(crate) removing: bool,
}

/// What has become known of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fact {
    /// It is over.
    Died { run: RunId, exit: Exit },
    /// It is over, and an outage of its engine took it.
    EngineTook { run: RunId },
    /// Why a run ended that was told dead a moment ago.
    Amended { run: RunId, cause: Cause },
    /// Somebody started the container again. If the old run was present, it is over.
    Restarted { old: RunId, new: RunId },
    /// Somebody paused it.
    Paused(RunId),
    /// It goes on.
    Unpaused(RunId),
    /// The image's own check of its health fails.
    Unhealthy(RunId),
    /// That check passes again.
    Healthy(RunId),
    /// The container is no more; this was its last run.
    Removed(RunId),
    /// Something changed that only an inspection can tell.
    Look,
}

/// What is believed of a server's container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watch {
    /// The run that is there, or that was there last.
    last: RunId,
    /// When the container was started for the last run that was seen.
    started_at: Option<String>,
    phase: Phase,
    /// The end before the present run, while it may still be explained.
    ended: Option<Ended>,
    /// How many ends were seen that have not been heard yet.
    owed: u32,
    /// An inspection that could not be: whether it lived, and when it was started.
    doubted: Option<(bool, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The container has no run.
    Idle,
    /// We are starting one.
    Starting(Run),
    /// It has one.
    Up(Run),
    /// There is no container any more.
    Removed,
}

/// The present run.
#[expect(clippy::struct_excessive_bools, reason = "each may be true whatever the others are")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Run {
    /// Whether we are ending it ourselves.
    ours: bool,
    /// Whether memory ran out since it was started.
    oom: bool,
    /// Whether an end was heard that may or may not be its own.
    rumour: bool,
    paused: bool,
    unhealthy: bool,
    /// When it was said to be restarted, while it was there: Podman says so beforehand.
    foretold: Option<Instant>,
}

/// The end of a run that was told.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ended {
    run: RunId,
    /// When it was heard of first.
    heard: Option<Instant>,
    known: Known,
}

/// What is known of who ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// Somebody stopped it, be it for a restart.
    Stopped,
    /// There is nothing to add.
    All,
}

impl Watch {
    /// A container that exists and has no run.
    pub(crate) fn idle(last: RunId) -> Self {
        Self { last, started_at: None, phase: Phase::Idle, ended: None, owed: 0, doubted: None }
    }

    /// As an earlier daemon left it: that run had this `StartedAt`; `over` says whether its end was
    /// told.
    pub(crate) fn recorded(run: RunId, started_at: String, over: bool) -> Self {
        let phase = if over { Phase::Idle } else { Phase::Up(Run::default()) };
        Self { started_at: Some(started_at), phase, ..Self::idle(run) }
    }

    /// We are starting this run: until [`Self::started`], what is seen and said is ours.
    pub(crate) fn starting(&mut self, run: RunId) {
        self.last = run;
        self.doubted = None;
        self.phase = Phase::Starting(Run::default());
    }

    /// It was started. What else the inspection says, such as that it is over already, is told by
    /// [`Self::see`], which must follow with the same inspection.
    pub(crate) fn started(&mut self, seen: &Seen) {
        if let Phase::Starting(run) = &mut self.phase {
            self.started_at = Some(seen.started_at.clone());
            self.phase = Phase::Up(mem::take(run));
        }
    }

    /// It could not be.
    pub(crate) fn not_started(&mut self) {
        if let Phase::Starting(_) = self.phase {
            self.phase = Phase::Idle;
        }
    }

    /// We end the present run ourselves: its end has no other cause.
    pub(crate) fn ending(&mut self) {
        if let Phase::Starting(run) | Phase::Up(run) = &mut self.phase {
            run.ours = true;
        }
    }

    /// The run that is there or being started.
    pub(crate) fn run(&self) -> Option<RunId> {
        match self.phase {
            Phase::Starting(_) | Phase::Up(_) => Some(self.last),
            Phase::Idle | Phase::Removed => None,
        }
    }

    /// The latest run, whether it is there or not.
    pub(crate) fn last(&self) -> RunId {
        self.last
    }

    /// Takes in what an event says.
    pub(crate) fn hear(&mut self, now: Instant, said: Said) -> Vec<Fact> {
        if self.phase == Phase::Removed {
            return Vec::new();
        }
        match said {
            Said::Die { code } => self.hear_end(now, code),
            Said::Stop => self.hear_stop(now),
            Said::Restart => self.hear_restart(now),
            Said::Start => self.hear_start(),
            Said::Oom => {
                if let Phase::Starting(run) | Phase::Up(run) = &mut self.phase {
                    run.oom = true;
                }
                Vec::new()
            }
            Said::Pause => self.differ(Some(true), None),
            Said::Unpause => self.differ(Some(false), None),
            Said::Unhealthy => self.differ(None, Some(true)),
            Said::Healthy => self.differ(None, Some(false)),
            Said::Destroy => {
                self.phase = Phase::Removed;
                vec![Fact::Removed(self.last)]
            }
        }
    }

    /// Takes in what an inspection says; `away` if an outage of the engine has just ended, to which
    /// ends are due.
    pub(crate) fn see(&mut self, seen: &Seen, away: bool) -> Vec<Fact> {
        let alive = seen.running || seen.paused;
        let age = self.age(seen);
        let odd = match &self.phase {
            Phase::Starting(_) | Phase::Removed => return Vec::new(),
            Phase::Idle => alive && age.is_some_and(Ordering::is_le),
            Phase::Up(_) => age.is_some_and(Ordering::is_lt),
        };
        let claim = (alive, seen.started_at.clone());
        if odd && self.doubted.as_ref() != Some(&claim) {
            self.doubted = Some(claim);
            return vec![Fact::Look];
        }
        self.doubted = None;
        let same = age.is_some_and(Ordering::is_eq);
        match (&mut self.phase, alive) {
            (Phase::Up(run), true) if same => {
                let look = mem::take(&mut run.rumour).then_some(Fact::Look);
                let differences = self.differ(Some(seen.paused), Some(seen.unhealthy));
                differences.into_iter().chain(look).collect()
            }
            (Phase::Idle | Phase::Up(_), true) => self.see_restart(seen),
            (Phase::Up(_), false) => self.see_end(seen, same, away),
            (Phase::Idle, false) | (Phase::Starting(_) | Phase::Removed, _) => Vec::new(),
        }
    }

    fn hear_end(&mut self, now: Instant, code: i64) -> Vec<Fact> {
        let owed = self.owed > 0;
        self.owed = self.owed.saturating_sub(1);
        match &mut self.phase {
            Phase::Starting(run) => {
                run.rumour = true;
                Vec::new()
            }
            Phase::Up(run) if owed => {
                run.rumour = true;
                vec![Fact::Look]
            }
            Phase::Up(run) => {
                let run = mem::take(run);
                let exit = exit(code, run.oom);
                self.end(&run, Some(now), Fact::Died { run: self.last, exit })
            }
            Phase::Idle | Phase::Removed => {
                if let Some(ended) = &mut self.ended {
                    ended.heard.get_or_insert(now);
                }
                Vec::new()
            }
        }
    }

    fn hear_stop(&mut self, now: Instant) -> Vec<Fact> {
        match self.aftermath(now) {
            Some(ended) if ended.known == Known::Nothing => {
                ended.known = Known::Stopped;
                vec![Fact::Amended { run: ended.run, cause: Cause::StoppedBySomeone }]
            }
            Some(_) => Vec::new(),
            // It stopped, and nobody has heard how.
            None => self.look_if_up(),
        }
    }

    fn hear_restart(&mut self, now: Instant) -> Vec<Fact> {
        match self.aftermath(now) {
            Some(ended) if ended.known != Known::All => {
                ended.known = Known::All;
                vec![Fact::Amended { run: ended.run, cause: Cause::RestartedBySomeone }]
            }
            Some(_) => Vec::new(),
            None => {
                if let Phase::Up(run) = &mut self.phase {
                    run.foretold = Some(now);
                }
                self.look_if_up()
            }
        }
    }

    fn hear_start(&mut self) -> Vec<Fact> {
        match &mut self.phase {
            // What was heard before was the end of the run before.
            Phase::Starting(run) => {
                (run.rumour, run.oom) = (false, false);
                Vec::new()
            }
            Phase::Idle | Phase::Up(_) => vec![Fact::Look],
            Phase::Removed => Vec::new(),
        }
    }

    fn look_if_up(&self) -> Vec<Fact> {
        match self.phase {
            Phase::Up(_) => vec![Fact::Look],
            Phase::Idle | Phase::Starting(_) | Phase::Removed => Vec::new(),
        }
    }

    /// The end that something said now may explain.
    fn aftermath(&mut self, now: Instant) -> Option<&mut Ended> {
        let ended = self.ended.as_mut()?;
        is_aftermath(*ended.heard.get_or_insert(now), now).then_some(ended)
    }

    /// Tells how the present run differs from what was known of it.
    fn differ(&mut self, paused: Option<bool>, unhealthy: Option<bool>) -> Vec<Fact> {
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

    fn see_end(&mut self, seen: &Seen, same: bool, away: bool) -> Vec<Fact> {
        let Phase::Up(run) = &mut self.phase else { return Vec::new() };
        let run = mem::take(run);
        // A container that was started since has died twice.
        self.unheard(&run, if same { 1 } else { 2 });
        self.started_at = Some(seen.started_at.clone());
        if away {
            self.phase = Phase::Idle;
            self.ended = None;
            return vec![Fact::EngineTook { run: self.last }];
        }
        let exit = exit(seen.exit_code, seen.oom || (same && run.oom));
        self.end(&run, None, Fact::Died { run: self.last, exit })
    }

    fn see_restart(&mut self, seen: &Seen) -> Vec<Fact> {
        let old = self.last;
        if let Phase::Up(run) = &mut self.phase {
            let run = mem::take(run);
            self.unheard(&run, 1);
            // What is still to be said of its end adds nothing.
            self.ended = Some(Ended { run: old, heard: None, known: Known::All });
        }
        self.last = old.next();
        self.started_at = Some(seen.started_at.clone());
        self.phase = Phase::Up(Run::default());
        let restarted = Fact::Restarted { old, new: self.last };
        let differences = self.differ(Some(seen.paused), Some(seen.unhealthy));
        [restarted].into_iter().chain(differences).collect()
    }

    /// Counts ends of the present run's container that were seen, and have yet to be heard.
    fn unheard(&mut self, run: &Run, ends: u32) {
        // A rumour that proves true means that events are abreast of what is seen.
        self.owed = if run.rumour { ends - 1 } else { self.owed.saturating_add(ends) };
    }

    /// The present run is over.
    fn end(&mut self, run: &Run, heard: Option<Instant>, died: Fact) -> Vec<Fact> {
        self.phase = Phase::Idle;
        let foretold =
            !run.ours && run.foretold.zip(heard).is_some_and(|(at, now)| is_aftermath(at, now));
        let known = if run.ours || foretold { Known::All } else { Known::Nothing };
        self.ended = Some(Ended { run: self.last, heard, known });
        let cause = Cause::RestartedBySomeone;
        let amended = foretold.then_some(Fact::Amended { run: self.last, cause });
        [died].into_iter().chain(amended).collect()
    }

    /// Whether an inspection is of the container as it was started for the last run (equal), later
    /// (greater) or before (less); none if nothing is known of that start.
    fn age(&self, seen: &Seen) -> Option<Ordering> {
        let known = self.started_at.as_deref()?;
        if known == seen.started_at {
            return Some(Ordering::Equal);
        }
        let times = seen.started_at.parse::<Timestamp>().ok().zip(known.parse().ok());
        Some(times.map_or(Ordering::Greater, |(seen, known)| seen.cmp(&known)))
    }
}

fn is_aftermath(of: Instant, now: Instant) -> bool {
    now.saturating_duration_since(of) <= AFTERMATH
}

#[cfg(test)]
mod tests;

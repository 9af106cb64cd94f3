//! What a driver hears of its server: news of the engine, and what the engine lists.

use std::time::{Duration, Instant};

use mainstay_core::{Cause, Event, Exit, RunId, Workload};
use mainstay_engine::{FoundState, News, Started};

use super::Driver;
use crate::clock;
use crate::engines::Home;

impl Driver {
    /// Whether news has to wait until the start that is under way is reported: what happened to that
    /// run, and that the engine is back, because the start may yet tell that it is away.
    pub(super) fn is_early(&self, news: &News) -> bool {
        self.starting.is_some_and(|starting| match news {
            News::Back { .. } => true,
            // In the order in which they came.
            News::Away { .. } => !self.early.is_empty(),
            of_a_run => of_a_run.run() == Some(starting),
        })
    }

    /// Turns news into an event for the unit, if it concerns it.
    pub(super) fn hear(&mut self, news: News) -> Option<Event> {
        Some(match news {
            News::Exited { key, exit, stderr } => {
                if self.unit.run() == Some(key.run) {
                    self.exited = Some((clock::wall(), exit));
                    self.last_stderr = Some(stderr.into());
                }
                Event::Exited { run: key.run }
            }
            News::Gone { key, cause } => self.gone(key.run, cause),
            News::Amended { key, cause } => Event::Amended { run: key.run, cause },
            News::Restarted { key, new, started } => self.restarted(key.run, new, started),
            News::Paused { key } => Event::Paused { run: key.run },
            News::Unpaused { key } => Event::Unpaused { run: key.run },
            News::Unhealthy { key } => Event::Unhealthy { run: key.run },
            News::Healthy { key } => Event::Healthy { run: key.run },
            News::Away { why, .. } => {
                let concerned = matches!(self.stored.spec.workload, Workload::Container(_));
                return concerned.then_some(Event::EngineAway { why });
            }
            News::Back { .. } => Event::EngineBack,
        })
    }

    /// What the engine lists is the truth: a run it does not have is gone, one that is not ours any
    /// more must go, and one that is newer than any of ours was started by somebody else. A run that
    /// was started after the list was begun is in no such case, and nothing is concluded about what
    /// cannot be reached.
    pub(super) fn compare(
        &mut self,
        begun: Instant,
        found: Vec<(Home, RunId, FoundState)>,
    ) -> Option<Event> {
        let present = self.unit.run();
        let mut exit = Some(Exit::UNKNOWN);
        for (home, run, state) in found {
            match state {
                FoundState::Alive { pid, container, age } if Some(run) == present => {
                    self.recognize(age, pid, container);
                    exit = None;
                }
                FoundState::Alive { pid, container, .. }
                    if run > self.unit.last_run() && home == self.home =>
                {
                    let old = self.unit.last_run();
                    let started = Started { pid, container, replaced: None };
                    return Some(self.restarted(old, run, started));
                }
                FoundState::Alive { .. } => self.end_at(home, run, None),
                FoundState::Ended(how) if Some(run) == present => exit = Some(how),
                FoundState::Ended(_) => {}
                FoundState::Unknown => exit = None,
            }
        }
        let started = self.unit.view(clock::now()).started?;
        Some(self.gone(present?, Cause::Exited(exit?))).filter(|_| started < begun)
    }

    /// Speaks with the present run again, if that has become possible: the session that there was is
    /// kept if it is still open, and taken up again if it is known.
    pub(super) fn reconnect(&mut self) {
        let Some(run) = self.unit.run() else { return };
        let open = self.session.as_ref().is_some_and(|session| !session.run.is_closed());
        let begins = self.opening || self.starting.is_some();
        let ends = self.exited.is_some() || self.ending.is_some_and(|(ending, _)| ending == run);
        if open || begins || ends || self.unit.is_engine_away() || self.home == Home::Remote {
            return;
        }
        self.leave();
        let known = self.context.memory.recall(&self.key(run)).map(|known| known.hello);
        self.open_session(run, known, Duration::ZERO);
    }

    pub(super) fn gone(&mut self, run: RunId, cause: Cause) -> Event {
        self.context.memory.forget(&self.key(run));
        Event::Gone { run, cause }
    }

    fn restarted(&mut self, old: RunId, new: RunId, started: Started) -> Event {
        self.context.memory.forget(&self.key(old));
        self.newcomer = Some((new, started));
        Event::Adopted { old, new }
    }

    /// Takes in what was not known of a run that an earlier daemon left, because its engine was away.
    fn recognize(&mut self, age: Duration, pid: Option<u32>, container: Option<String>) {
        self.pid = self.pid.or(pid);
        self.container = self.container.take().or(container);
        if self.times.started_at.is_none() {
            self.times.started_at = Some(clock::wall_before(age));
            // No event follows that would publish it.
            self.publish();
        }
    }
}

//! What engines report: results of starts, news and lists.

use std::time::Instant;

use super::{Action, RunDetails, StartFailure, Starting, Supervisor};
use crate::{Cause, Exit, FoundState, News, RunId, RunKey, Started, WorkloadKind, unit};

impl Supervisor {
    /// Whether a report waits until the start in progress is reported: what happened to that run, and that the engine is
    /// back, because the start may still report that it is away.
    pub(super) fn is_early(&self, news: &News) -> bool {
        self.starting.is_some_and(|Starting { run, .. }| match news {
            News::Back { .. } => true,
            // In the order in which they came.
            News::Away { .. } => !self.early.is_empty(),
            of_a_run => of_a_run.run() == Some(run),
        })
    }

    /// Keeps a report until the start in progress is reported. Of several reports about the same thing only the newest is
    /// kept, so that few are kept, however long the start takes.
    pub(super) fn keep_for_later(&mut self, news: News) {
        self.early.retain(|earlier| !is_superseded(earlier, &news));
        self.early.push_back(news);
    }

    pub(super) fn learn_news(&mut self, now: Instant, news: News) {
        let event = match news {
            News::Exited { key, exit, .. } => {
                if self.unit.run() == Some(key.run) {
                    self.exited = Some(exit);
                }
                unit::Event::Exited { run: key.run }
            }
            News::Gone { key, cause } => return self.gone(now, key.run, cause),
            News::Amended { key, cause } => unit::Event::Amended { run: key.run, cause },
            News::Restarted { key, new, started } => {
                return self.adopt(now, key.run, new, started);
            }
            News::Paused { key } => unit::Event::Paused { run: key.run },
            News::Unpaused { key } => unit::Event::Unpaused { run: key.run },
            News::Unhealthy { key } => unit::Event::Unhealthy { run: key.run },
            News::Healthy { key } => unit::Event::Healthy { run: key.run },
            News::Away { why, .. } if self.spec.workload.kind() == WorkloadKind::Container => {
                unit::Event::EngineAway { why }
            }
            News::Away { .. } => return,
            News::Back { .. } => unit::Event::EngineBack,
        };
        self.feed(now, event);
    }

    /// A list is authoritative: a run that is missing is gone, an older one has to end, and a newer one was started by
    /// someone else. Nothing follows for a run that was started after the list was requested, or that is unreachable.
    pub(super) fn compare(
        &mut self,
        now: Instant,
        begun: Instant,
        found: Vec<(WorkloadKind, RunId, FoundState)>,
    ) {
        let present = self.unit.run();
        let mut exit = Some(Exit::UNKNOWN);
        for (engine, run, state) in found {
            match state {
                FoundState::Alive { pid, container, .. } if Some(run) == present => {
                    self.complete_details(RunDetails { pid, container });
                    exit = None;
                }
                FoundState::Alive { pid, container, .. }
                    if run > self.unit.last_run() && engine == self.engine =>
                {
                    let started = Started { pid, container, replaced: None };
                    return self.adopt(now, self.unit.last_run(), run, started);
                }
                FoundState::Alive { .. } => self.end_at(engine, run, None),
                FoundState::Ended(how) if Some(run) == present => exit = Some(how),
                FoundState::Ended(_) => {}
                FoundState::Unknown => exit = None,
            }
        }
        let started = self.unit.view(now).started;
        if let (Some(run), Some(exit)) = (present, exit)
            && started.is_some_and(|started| started < begun)
        {
            self.gone(now, run, Cause::Exited(exit));
        }
    }

    /// Adds what was not known of a run that an earlier daemon left while its engine was away.
    fn complete_details(&mut self, found: RunDetails) {
        if std::mem::take(&mut self.is_assumed) {
            let pid = self.details.pid.or(found.pid);
            let container = self.details.container.take().or(found.container);
            self.details = RunDetails { pid, container };
            self.actions.push(Action::Publish);
        }
    }

    fn gone(&mut self, now: Instant, run: RunId, cause: Cause) {
        self.actions.push(Action::ForgetSession(run));
        self.feed(now, unit::Event::Gone { run, cause });
    }

    fn adopt(&mut self, now: Instant, old: RunId, new: RunId, started: Started) {
        self.actions.push(Action::ForgetSession(old));
        self.adopted = Some((new, started));
        self.feed(now, unit::Event::Adopted { old, new });
    }

    pub(super) fn started(
        &mut self,
        now: Instant,
        run: RunId,
        result: Result<Started, StartFailure>,
    ) {
        self.starting.take_if(|starting| starting.run == run);
        let event = match result {
            Ok(_) if self.unit.run() != Some(run) => return self.end(run, None),
            Ok(started) => {
                self.details = started.into();
                match self.ending {
                    // It was told to end before it existed.
                    Some((ending, grace)) if ending == run => self.end(run, grace),
                    Some(_) | None => self.open_session(run, false),
                }
                unit::Event::Started { run }
            }
            Err(StartFailure::EngineAway { why }) => {
                // Nothing of the run exists, which is reported after the outage.
                let key = RunKey::new(self.spec.name.clone(), run);
                self.early.push_front(News::Gone { key, cause: Cause::EngineAway });
                unit::Event::EngineAway { why }
            }
            Err(StartFailure::Removed) => return self.gone(now, run, Cause::Removed),
            Err(StartFailure::Temporary(why)) => {
                unit::Event::Gone { run, cause: Cause::NotStarted(why) }
            }
            Err(StartFailure::Permanent(why)) => unit::Event::StartFailed { run, why },
        };
        self.feed(now, event);
    }
}

/// Whether the earlier report does not matter after the later one about the same run.
fn is_superseded(earlier: &News, later: &News) -> bool {
    use News as N;
    match later {
        N::Exited { .. } => matches!(earlier, N::Exited { .. }),
        N::Gone { .. } => matches!(earlier, N::Gone { .. }),
        // A restart stays one, whatever is reported after it.
        N::Amended { .. } => earlier == later,
        N::Restarted { .. } => matches!(earlier, N::Restarted { .. }),
        N::Paused { .. } | N::Unpaused { .. } => {
            matches!(earlier, N::Paused { .. } | N::Unpaused { .. })
        }
        N::Unhealthy { .. } | N::Healthy { .. } => {
            matches!(earlier, N::Unhealthy { .. } | N::Healthy { .. })
        }
        N::Away { .. } | N::Back { .. } => matches!(earlier, N::Away { .. } | N::Back { .. }),
    }
}

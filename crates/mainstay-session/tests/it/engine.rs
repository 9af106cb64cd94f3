//! The engine: it starts and ends runs, which takes time or fails, and reports what happens to them. It outlives daemons.

use std::time::Duration;

use mainstay_core::supervisor::{Event as SupervisorEvent, StartFailure};
use mainstay_core::{Cause, Exit, Interruption, News, RunId, RunKey, ServerName, Started};

use crate::driver::{Scope, run_name};
use crate::event::Event;
use crate::model::Run;
use crate::script::{Behaviour, Engine, FailedStart, Kind};
use crate::world::World;

/// An engine that does not answer, and what it reports when it answers again.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    exited: Vec<(usize, u64)>,
    gone: Vec<usize>,
    forgotten: Vec<usize>,
}

impl World {
    /// The newest run of a scope, while its process is alive.
    pub(crate) fn live_run(&self, scope: &Scope) -> Option<usize> {
        self.present_run(scope).filter(|run| self.runs[*run].is_alive)
    }

    /// The run of a scope of which something is left.
    pub(crate) fn present_run(&self, scope: &Scope) -> Option<usize> {
        self.runs.iter().rposition(|run| run.scope == *scope && !run.is_gone)
    }

    pub(crate) fn run_of(&self, scope: &Scope, id: RunId) -> Option<usize> {
        self.runs.iter().rposition(|run| run.scope == *scope && run.id == id)
    }

    /// The name by which the engine knows a run.
    fn key(&self, run: usize) -> RunKey {
        let run = &self.runs[run];
        RunKey::new(run_name(&run.scope), run.id)
    }

    pub(crate) fn start_run(&mut self, daemon: usize, scope: Scope, id: RunId) {
        let takes = self.behaviour.start;
        if self.failing_starts > 0 && self.outage.is_none() {
            self.failing_starts -= 1;
            let failure = match self.failure {
                FailedStart::Temporary => StartFailure::Temporary("no memory".to_owned()),
                FailedStart::Permanent => StartFailure::Permanent("no such program".to_owned()),
            };
            let event = SupervisorEvent::Started(id, Err(failure));
            return self.after(takes.into(), Event::Driver { daemon, scope, event });
        }
        self.after(takes.into(), Event::Create { daemon, scope, id });
    }

    /// The process of a run begins, unless its daemon was killed or its driver has ended before.
    pub(crate) fn create_run(&mut self, daemon: usize, scope: Scope, id: RunId) {
        let driver = self.daemons[daemon].drivers.get_mut(&scope);
        if driver.and_then(|driver| driver.starting.take_if(|run| *run == id)).is_none() {
            return;
        }
        let result = if self.outage.is_some() {
            Err(StartFailure::EngineAway { why: "no answer".to_owned() })
        } else {
            let other = self.present_run(&scope).map(|run| self.runs[run].id);
            assert_eq!(other, None, "another run of {scope:?} is there when run {id} starts");
            let behaviour = self.behaviour;
            self.runs.push(Run {
                id,
                scope: scope.clone(),
                is_alive: true,
                started_at: self.now,
                ready_at: self.now + u64::from(behaviour.initialize),
                behaviour,
                ..Run::default()
            });
            Ok(Started::default())
        };
        let event = SupervisorEvent::Started(id, result);
        self.after(1, Event::Driver { daemon, scope, event });
    }

    /// A daemon ends a run: with TERM and, after the grace period, KILL; or with KILL at once.
    pub(crate) fn end_run(&mut self, scope: &Scope, id: RunId, grace: Option<Duration>) {
        let Some(run) = self.run_of(scope, id).filter(|_| self.outage.is_none()) else { return };
        let Behaviour { stop, kill, .. } = self.runs[run].behaviour;
        let takes = match grace {
            Some(grace) => {
                let grace = u64::try_from(grace.as_millis()).expect("it is short");
                u64::from(stop).min(grace + u64::from(kill))
            }
            None => u64::from(kill),
        };
        self.after(takes, Event::Exit { run });
    }

    /// The process of a run exits, which is noticed after some ms. What it wrote before arrives first.
    pub(crate) fn kill_run(&mut self, run: usize, is_exact: bool, delay: u64) {
        if !self.runs[run].is_alive {
            return;
        }
        self.fail_http_of(run);
        if self.script.engine == Engine::Remote && !self.runs[run].is_told_to_end {
            // It runs elsewhere: a restart there is not the end of the run.
            self.runs[run].http_sessions.clear();
            self.runs[run].away_until = self.now + delay * 20;
            return;
        }
        self.runs[run].is_alive = false;
        let written = if is_exact { self.runs[run].written } else { u64::MAX };
        self.after(delay + 2, Event::Exited { run, written });
    }

    /// The engine notices that a run has exited. Its lines end before or after the exit is reported.
    pub(crate) fn run_exited(&mut self, run: usize, written: u64) {
        if let Some(outage) = &mut self.outage {
            return outage.exited.push((run, written));
        }
        self.runs[run].is_exit_noticed = true;
        let is_stdio = self.script.kind != Kind::Http;
        if is_stdio && written.is_multiple_of(2) {
            self.close_lines(run, written);
        }
        self.report_exit(run);
        if is_stdio {
            self.close_lines(run, written);
        }
        self.after(self.runs[run].behaviour.gone.into(), Event::Gone { run });
    }

    pub(crate) fn report_exit(&mut self, run: usize) {
        let (key, stderr) = (self.key(run), Vec::new());
        let news = News::Exited { key, exit: Exit::code(1), stderr };
        self.tell(&self.runs[run].scope.clone(), SupervisorEvent::News(news));
    }

    fn close_lines(&mut self, run: usize, written: u64) {
        let now = self.instant();
        if let Some((daemon, link, _)) = self.runs[run].link
            && let Some(server) = self.daemons[daemon].server.as_mut()
        {
            server.close_stdio(now, link, written);
            self.settle();
        }
    }

    /// Nothing of a run is left.
    pub(crate) fn run_gone(&mut self, run: usize) {
        if let Some(outage) = &mut self.outage {
            return outage.gone.push(run);
        }
        self.runs[run].is_gone = true;
        let is_removed = self.runs[run].is_removed && self.script.engine == Engine::Container;
        let cause = if is_removed { Cause::Removed } else { Cause::Exited(Exit::code(1)) };
        let news = News::Gone { key: self.key(run), cause };
        self.tell(&self.runs[run].scope.clone(), SupervisorEvent::News(news));
    }

    /// The engine does not answer for so many ms. Only that of containers is away at times.
    pub(crate) fn engine_away(&mut self, ms: u64, loses_lines: bool) {
        if self.script.engine != Engine::Container || self.outage.is_some() {
            return;
        }
        self.outage = Some(Outage::default());
        self.tell_all(|server| News::Away { server, why: "no answer".to_owned() });
        self.after(ms, Event::EngineBack { loses_lines });
    }

    /// The engine removes what it has of a scope; if it is away, when it is back.
    pub(crate) fn forget_runs(&mut self, scope: &Scope) {
        let Some(run) = self.present_run(scope) else { return };
        self.runs[run].is_told_to_end = true;
        match &mut self.outage {
            Some(outage) => outage.forgotten.push(run),
            None => self.after(1, Event::Exit { run }),
        }
    }

    pub(crate) fn engine_back(&mut self, loses_lines: bool) {
        let Some(Outage { exited, gone, forgotten }) = self.outage.take() else { return };
        for run in forgotten {
            self.runs[run].is_alive = false;
            self.close_lines(run, self.runs[run].written);
            self.run_gone(run);
        }
        for (run, written) in exited {
            self.run_exited(run, written);
        }
        for run in gone {
            self.run_gone(run);
        }
        // Everything that happened meanwhile is reported before.
        let ended: Vec<_> = (0..self.runs.len()).collect();
        for run in ended {
            if self.runs[run].is_exit_noticed && !self.runs[run].is_gone {
                self.run_gone(run);
            }
        }
        self.tell_all(|server| News::Back { server });
        self.interrupt(loses_lines);
    }

    fn tell_all(&mut self, news: impl Fn(ServerName) -> News) {
        for scope in self.scopes() {
            let news = news(run_name(&scope));
            self.tell(&scope, SupervisorEvent::News(news));
        }
    }

    /// The connection to the shared run is lost and made again.
    pub(crate) fn interrupt(&mut self, loses_lines: bool) {
        let Some(run) = self.live_run(&None).filter(|_| self.script.kind != Kind::Http) else {
            return;
        };
        let Some((daemon, link, _)) = self.runs[run].link else { return };
        let now = self.instant();
        self.was_interrupted = true;
        for execution in &mut self.executions {
            if execution.run == run && !execution.is_over {
                execution.is_muted |= loses_lines;
                let call = &mut self.calls[execution.call];
                call.interruptions += 3;
                self.responses[call.response].is_lossy = true;
            }
        }
        let written = self.runs[run].written;
        if let Some(server) = self.daemons[daemon].server.as_mut() {
            server.link_interrupted(now, link, Interruption { written, at: now });
        }
    }
}

//! The end of a script: everything becomes well again, must be answered, and is released.

use mainstay_core::{Status, Wanted};

use crate::event::{Event, ExecutionStep};
use crate::model::Call;
use crate::script::{Behaviour, End, Kind};
use crate::world::World;

impl World {
    /// Everything becomes well again, and must come to an end.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
        self.store.state().is_stalled = false;
        self.behaviour = Behaviour::default();
        self.failing_starts = 0;
        self.engine_back(false);
        if self.script.is_removed && self.current.is_some() {
            self.want(Wanted::Gone);
        } else {
            self.want(Wanted::On);
        }
        self.settle();
        for run in 0..self.runs.len() {
            self.read_again(run);
        }
        for execution in 0..self.executions.len() {
            if self.calls[self.executions[execution].call].spec.end == End::Silent {
                self.after(0, Event::Execute { execution, step: ExecutionStep::End });
            }
        }
        let rounds = if self.was_interrupted { 40 } else { 14 };
        for _ in 0..rounds {
            for client in 0..self.clients.len() {
                self.resume(client, true);
                self.settle();
            }
            self.advance(if self.was_interrupted { 20_000 } else { 5_000 });
        }
        for call in &self.calls {
            assert!(!call.is_open(), "call {} has no answer", call.key);
        }
        self.expect_running();
        self.release();
    }

    /// A server that is wanted and can start is running, and so are the runs of sessions that need one.
    fn expect_running(&mut self) {
        if self.is_removed {
            return;
        }
        let has_failed = |status| status == Some(Status::Error);
        if self.scopes().iter().any(|scope| has_failed(self.status(scope))) {
            self.restart();
        }
        self.advance(30_000);
        assert_eq!(self.wanted, Wanted::On);
        assert!(self.scopes().contains(&None), "the server is not supervised");
        for scope in self.scopes() {
            let status = self.status(&scope);
            assert_eq!(status, Some(Status::Running), "the run of {scope:?}");
            assert!(self.live_run(&scope).is_some(), "the run of {scope:?} is not there");
        }
    }

    /// All sessions end, and nothing must be left.
    fn release(&mut self) {
        if self.script.expires {
            self.advance(25 * 60 * 60 * 1000);
            let now = self.instant();
            if let Some(server) = self.server() {
                server.sweep(now);
            }
        }
        for client in 0..self.clients.len() {
            self.close(client);
            self.settle();
        }
        self.advance(130_000);
        let is_unknown = |call: &Call| call.is_initialize && call.is_given_up;
        if self.daemons.len() > 1 || self.calls.iter().any(is_unknown) {
            // Some sessions were opened and their clients do not know it.
            self.advance(25 * 60 * 60 * 1000);
            let now = self.instant();
            if let Some(server) = self.server() {
                server.sweep(now);
            }
            self.settle();
        }
        self.want(Wanted::Off);
        self.advance(130_000);
        for run in &self.runs {
            assert!(run.is_gone, "run {} of {:?} is left", run.id, run.scope);
        }
        let scopes = self.scopes();
        assert!(scopes.iter().all(Option::is_none), "runs are supervised: {scopes:?}");
        let is_http = self.script.kind == Kind::Http;
        if let Some(server) = self.server() {
            assert_eq!(server.usage(), [], "something is left (http: {is_http})");
        }
        let state = self.store.state();
        assert!(state.streams.is_empty(), "journaled streams are left: {:?}", state.streams);
    }
}

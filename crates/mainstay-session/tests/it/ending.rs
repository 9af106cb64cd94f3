//! The end of a script: everything becomes well again, must be answered, and is released.

use std::sync::Arc;

use mainstay_session::Availability;

use crate::event::{Event, ExecutionStep};
use crate::model::ClientState;
use crate::script::{End, Kind};
use crate::world::World;

impl World {
    /// Everything becomes well again, and must come to an end.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
        self.store.state().is_stalled = false;
        if self.script.is_removed && self.current.is_some() {
            self.is_removed = true;
            let now = self.instant();
            if let Some(server) = self.server() {
                server.set_availability(now, Availability::Removed);
            }
            for client in self.clients.iter_mut().filter(|client| client.local.is_none()) {
                client.state = ClientState::Over;
            }
            self.settle();
        }
        for slot in self.slots.values_mut() {
            slot.down_until = 0;
        }
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
        self.release();
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
        if self.daemons.len() > 1 {
            // Some sessions were opened and their clients do not know it.
            self.advance(25 * 60 * 60 * 1000);
            let now = self.instant();
            if let Some(server) = self.server() {
                server.sweep(now);
            }
            self.settle();
        }
        let keys: Vec<_> = self.slots.keys().cloned().collect();
        for key in keys {
            self.is_removed = true;
            self.kill_run(key, true, 0, 0);
        }
        self.advance(130_000);
        let now = self.instant();
        for daemon in 0..self.daemons.len() {
            let links = std::mem::take(&mut self.daemons[daemon].links);
            let Some(server) = self.daemons[daemon].server.as_mut() else { continue };
            // A link is kept while an availability has its run.
            server.set_availability(now, Availability::Down { why: Arc::default() });
            for link in links.into_keys() {
                server.release_link(link);
            }
            self.settle();
        }
        let is_http = self.script.kind == Kind::Http;
        if let Some(server) = self.server() {
            assert_eq!(server.usage(), [], "something is left (http: {is_http})");
        }
        let state = self.store.state();
        assert!(state.streams.is_empty(), "journaled streams are left: {:?}", state.streams);
    }
}

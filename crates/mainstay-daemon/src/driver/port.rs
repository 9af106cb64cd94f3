//! Containers whose published port changes while they run.
//!
//! An engine publishes another port when a container is disconnected from its network and connected again. No event of
//! the container says so. The first request that is not taken makes the driver ask for the port.

use std::time::Duration;

use mainstay_core::{RunId, Transport, Workload};
use tokio::time::sleep;

use super::Driver;
use super::work::Done;

/// A port that is the same as before is asked for again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);

impl Driver {
    /// The present run did not take a request: finds out whether its port is another one now.
    pub(super) fn look_for_port(&mut self, run: RunId) {
        let Workload::Container(container) = &self.stored.spec.workload else { return };
        let Transport::StreamableHttp { port, .. } = container.transport else { return };
        if self.unit.is_engine_away() || std::mem::replace(&mut self.reach.asks_for_port, true) {
            return;
        }
        let (engine, key) = (self.context.engines.at(self.home).clone(), self.key(run));
        self.work.spawn(async move {
            let moved = engine.has_moved(&key, port).await;
            if !moved {
                sleep(ASK_AGAIN).await;
            }
            Done::AskedForPort { run, moved }
        });
    }

    /// Goes on with a run at its new port. Nothing is charged: the run has not ended.
    pub(super) fn follow_port(&mut self, run: RunId) {
        let ends = self.exited.is_some() || self.ending.is_some_and(|(ending, _)| ending == run);
        if self.opening || ends {
            return;
        }
        tracing::info!(server = %self.name(), %run, "its engine published another port");
        self.leave();
        let known = self.context.memory.recall(&self.key(run)).map(|known| known.hello);
        self.open_session(run, known, Duration::ZERO);
        self.publish();
    }
}

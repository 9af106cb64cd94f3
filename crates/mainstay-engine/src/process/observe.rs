//! Evidence about a run that does not answer.

use mainstay_core::watchdog::Processes;
use mainstay_hold::activity::{self, Activity};
use mainstay_hold::record;
use mainstay_hold::wire::ToShim;

use super::{Shared, gone_or};
use crate::tasks::blocking;
use crate::{EngineError, Observation, RunKey};

impl Shared {
    pub(super) async fn observe(&self, key: &RunKey) -> Result<Observation, EngineError> {
        let (mut link, _) = self.connect(key).await?;
        let input = link.count_unread().await.map_err(|error| gone_or(error, key))?;
        let shim = self.shim_pid(key)?;
        // Processes that cannot be read are processes about which nothing is known.
        let activity = blocking(move || activity::of_descendants(shim)).await.ok();
        let processes = |Activity { switches, is_active, is_suspended }| Processes {
            switches,
            is_active,
            is_suspended,
        };
        Ok(Observation { input, processes: activity.map(processes) })
    }

    pub(super) async fn log_stacks(&self, key: &RunKey) -> Result<(), EngineError> {
        let shim = self.shim_pid(key)?;
        let lines = blocking(move || activity::report(shim))
            .await
            .map_err(EngineError::io("reading what the processes wait for"))?;
        let text = format!("what its processes wait for:\n{}", lines.join("\n")).into_bytes();
        self.send_confirmed(key, &ToShim::Log { text }).await.map(drop)
    }

    fn shim_pid(&self, key: &RunKey) -> Result<u32, EngineError> {
        let shim = record::shim_alive(&self.dirs.path(key))
            .map_err(EngineError::io("looking for the shim"))?;
        shim.map(|shim| shim.pid).ok_or_else(|| EngineError::NoSuchRun(key.clone()))
    }
}

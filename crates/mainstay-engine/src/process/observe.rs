//! Evidence about a run that does not answer.

use std::sync::Arc;

use mainstay_core::start_activity::{MAX_PROCESSES, StartEvidence, StartInput, StartProcess};
use mainstay_core::watchdog::{Processes, ReadPosition, UnreadConnection, WaitsFor};
use mainstay_hold::activity::{self, Activity, ProcessActivity};
use mainstay_hold::wire::ToShim;
use mainstay_hold::{record, unread};

use super::{Shared, gone_or};
use crate::tasks::blocking;
use crate::{EngineError, Observation, RunKey};

impl Shared {
    pub(super) async fn observe(
        self: &Arc<Self>,
        key: &RunKey,
    ) -> Result<Observation, EngineError> {
        let port = self.active().get(key).and_then(|active| active.port);
        let (mut input, mut connections) = (None, None);
        if let Some(port) = port {
            connections = self.unread_connections(key, port).await;
        } else {
            let (mut link, _) = self.connect(key).await?;
            input = link.count_unread().await.map_err(|error| gone_or(error, key))?;
        }
        let shim = self.shim_pid(key)?;
        // Processes that cannot be read are processes about which nothing is known.
        let activity = blocking(move || activity::of_descendants(shim)).await.ok();
        Ok(Observation { input, connections, processes: activity.map(processes) })
    }

    /// What is unread on the connections to its port. Nothing is known if another process listens there.
    async fn unread_connections(
        self: &Arc<Self>,
        key: &RunKey,
        port: u16,
    ) -> Option<Vec<UnreadConnection>> {
        if !self.listens_itself(key, port).await {
            return None;
        }
        let found = blocking(move || unread::at_port(port)).await.ok()?;
        let unread = found.iter().map(|connection| UnreadConnection {
            peer: Some(connection.peer),
            bytes: connection.bytes.into(),
        });
        Some(unread.collect())
    }

    pub(super) async fn observe_start(&self, key: &RunKey) -> Result<StartEvidence, EngineError> {
        let (mut link, _) = self.connect(key).await?;
        let input = link.count_unread().await.map_err(|error| gone_or(error, key))?;
        let input = start_input(input);
        let shim = self.shim_pid(key)?;
        let processes = blocking(move || activity::each_descendant(shim, MAX_PROCESSES)).await;
        Ok(StartEvidence { input, processes: start_processes(processes.unwrap_or_default()) })
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

/// The processes of a run, as far as a verdict needs to know.
pub(crate) fn processes(activity: Activity) -> Processes {
    let Activity { switches, is_active, suspended, waits_in } = activity;
    let waits_for = waits_in.as_deref().and_then(WaitsFor::from_channel);
    Processes { switches, is_active, suspended, waits_for }
}

/// Whether a run has read `initialize`.
pub(crate) fn start_input(input: Option<ReadPosition>) -> StartInput {
    match input {
        // Nothing was written yet, or nothing can be counted.
        None | Some(ReadPosition { line: 0, unread: 0 }) => StartInput::Unknown,
        Some(ReadPosition { unread: 0, .. }) => StartInput::Read,
        Some(ReadPosition { unread, .. }) => StartInput::Unread(unread),
    }
}

/// The processes of a run that is starting.
pub(crate) fn start_processes(processes: Vec<ProcessActivity>) -> Vec<StartProcess> {
    let convert = |process: ProcessActivity| StartProcess {
        pid: process.pid,
        parent: process.parent,
        command: process.command,
        switches: process.switches,
        cpu: process.cpu,
        is_suspended: process.is_suspended,
        waits_for_disk: process.waits_for_disk,
        waits_for: process.waits_in.as_deref().and_then(WaitsFor::from_channel),
        connections: process.connections,
    };
    processes.into_iter().map(convert).collect()
}

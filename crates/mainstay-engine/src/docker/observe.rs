//! Evidence about a run in a container that does not answer.
//!
//! What its processes do, and what they have not read, can be seen only if the engine runs them on this machine and this user
//! may look at them. Otherwise nothing is known about them.

use mainstay_core::start_activity::{MAX_PROCESSES, StartEvidence};
use mainstay_core::watchdog::UnreadConnection;
use mainstay_hold::container::Container;

use super::DockerEngine;
use super::api::Inspected;
use super::pump::Stdout;
use super::server::Ports;
use super::watch::ContainerState;
use crate::process::observe::{processes, start_input, start_processes};
use crate::tasks::blocking;
use crate::{EngineError, Observation, RunKey};

/// Where the requests to a run arrive.
#[derive(Debug, Clone, Copy)]
enum Channel {
    Stdin,
    Port(u16),
    /// All servers that use the machine's network share its ports.
    Unknown,
}

impl DockerEngine {
    pub(super) async fn observe_container(&self, key: &RunKey) -> Result<Observation, EngineError> {
        let server = self.server(key)?;
        let (channel, pump) = {
            let state = server.state();
            let channel = match (state.stdout, &state.ports, state.http_port) {
                (Stdout::Protocol, ..) => Channel::Stdin,
                (Stdout::Log, Ports::Published(_), Some(port)) => Channel::Port(port),
                (Stdout::Log, Ports::Published(_) | Ports::HostNetwork, _) => Channel::Unknown,
            };
            (channel, state.pump.clone())
        };
        let Some((container, _)) = self.find_container(key).await? else {
            return Ok(Observation::default());
        };
        let looked = blocking(move || {
            let (mut unread, mut connections) = (None, None);
            match channel {
                Channel::Stdin => {
                    let stdin = container.stdin().ok().flatten();
                    unread = stdin.and_then(|stdin| stdin.unread().ok());
                }
                Channel::Port(port) => connections = container.unread_connections(port).ok(),
                Channel::Unknown => {}
            }
            Ok((container.activity().ok(), unread, connections))
        });
        let (activity, unread, connections) =
            looked.await.map_err(EngineError::io("looking at its processes"))?;
        let input = unread.zip(pump).map(|(unread, pump)| pump.read_position(unread));
        // Engines forward what is sent to a published port over connections of their own.
        let connections = connections.map(|found| {
            let translated = |bytes: u32| UnreadConnection { peer: None, bytes: bytes.into() };
            found.iter().map(|connection| translated(connection.bytes)).collect()
        });
        Ok(Observation { input, connections, processes: activity.map(processes) })
    }

    pub(super) async fn observe_container_start(
        &self,
        key: &RunKey,
    ) -> Result<StartEvidence, EngineError> {
        let pump = {
            let server = self.server(key)?;
            let state = server.state();
            state.pump.clone().filter(|_| state.stdout == Stdout::Protocol)
        };
        let Some((container, _)) = self.find_container(key).await? else {
            return Ok(StartEvidence::default());
        };
        let looked = blocking(move || {
            let stdin = container.stdin().ok().flatten();
            let unread = stdin.and_then(|stdin| stdin.unread().ok());
            Ok((container.each_process(MAX_PROCESSES).unwrap_or_default(), unread))
        });
        let (processes, unread) =
            looked.await.map_err(EngineError::io("looking at its processes"))?;
        let input = unread.zip(pump).map(|(unread, pump)| pump.read_position(unread));
        let (input, processes) = (start_input(input), start_processes(processes));
        Ok(StartEvidence { input, processes })
    }

    /// Before a run is killed because it hangs. Its input stays open, so that it is known afterwards what it has not read.
    pub(super) async fn log_container_stacks(&self, key: &RunKey) -> Result<(), EngineError> {
        let server = self.server(key)?;
        let Some((container, inspected)) = self.find_container(key).await? else { return Ok(()) };
        let is_stdio = server.state().stdout == Stdout::Protocol;
        let looked = blocking(move || {
            let stdin = is_stdio.then(|| container.stdin().ok().flatten()).flatten();
            Ok((container.report()?, stdin))
        });
        let (lines, stdin) =
            looked.await.map_err(EngineError::io("reading what the processes wait for"))?;
        let mut log = self.shared.log_writer.log(&server.name);
        let state = describe(&inspected);
        let text = format!("{state}\nwhat its processes wait for:\n{}", lines.join("\n"));
        log.write_lines(text.as_bytes());
        server.state().stdin = stdin.map(|stdin| (key.run, stdin));
        Ok(())
    }

    /// The container of a run, and what its engine reports about it.
    async fn find_container(
        &self,
        key: &RunKey,
    ) -> Result<Option<(Container, Inspected)>, EngineError> {
        let (_, engine, id) = self.reach(key).await?;
        let inspected = engine.api.inspect(&id).await.map_err(|failure| EngineError::Engine {
            what: "looking at its processes",
            why: failure.to_string(),
        })?;
        let Some(pid) = inspected.pid.filter(|_| !inspected.state.paused) else { return Ok(None) };
        // Where `/proc` cannot be read, nothing is known.
        let has_init = inspected.has_init;
        let found = blocking(move || Container::find(&id, pid, has_init)).await.ok().flatten();
        Ok(found.map(|container| (container, inspected)))
    }
}

/// The state of a container, for people.
fn describe(inspected: &Inspected) -> String {
    let ContainerState { id, running, unhealthy, started_at, removing, .. } = &inspected.state;
    let state = match (removing, running) {
        (true, _) => "is being removed",
        (false, true) => "runs",
        (false, false) => "does not run",
    };
    let health = if *unhealthy { ", unhealthy" } else { "" };
    let pid = inspected.pid.map(|pid| format!(", first process {pid}")).unwrap_or_default();
    format!("container {id:.12} {state} since {started_at}{health}{pid}")
}

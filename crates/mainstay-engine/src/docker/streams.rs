//! Connecting to the standard streams of a run, and reading what was written before the connection.
//!
//! A daemon that dies leaves its stdio containers running. The engine does not repeat to a new stream
//! what was written before, but its log has it. So the stream is opened first and the log is read second:
//! every line is in one of the two, and those written in between are in both. Lines from the log are handed
//! over separately ([`Stdio::earlier_output`](crate::Stdio::earlier_output)); the reader knows by the ids of its
//! requests which of them it has already processed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_core::RunId;
use tokio::time::{Instant, sleep};

use super::api::Failure;
use super::host::{HostRequest, LiveEngine};
use super::pump::{Pump, Stdout};
use super::server::Server;
use super::shared::Shared;

/// How long the last output of a run may take to be read.
const LAST_OUTPUT: Duration = Duration::from_millis(300);

/// Delay before a container is inspected whose connection ended: most often the run has ended, and an event
/// arrives sooner.
const INSPECT_LATER: Duration = Duration::from_millis(500);

/// An engine passes a line to its streams first and writes it to the log a moment later. A line of that moment would
/// be in neither the new stream nor the log.
const LOG_DELAY: Duration = Duration::from_millis(200);

/// No request waits longer for its answer, so older output is of no use.
const MAX_AGE: Duration = Duration::from_secs(600);

/// How much of the output before the first connection is kept.
const MAX_EARLIER: usize = 4 * 1024 * 1024;

/// How much of each stream is kept of the output while the connection was lost.
const MAX_MISSED: usize = 64 * 1024 * 1024;

/// Attempts to read a log that ends in the middle of a line, and the delay between them.
const READ_TRIES: u32 = 4;
const READ_AGAIN: Duration = Duration::from_millis(50);

impl Shared {
    /// Starts a pump for the streams of a run that begins in that container.
    pub(super) fn start_pump(
        &self,
        server: &Arc<Server>,
        run: RunId,
        container: &str,
    ) -> Arc<Pump> {
        let mut log = self.log_writer.log(&server.name);
        let short = container.get(..12).unwrap_or(container);
        log.write_lines(format!("--- run {run}, container {short} ---").as_bytes());
        let (stdout, tails, host) = {
            let mut state = server.state();
            (state.stdout, std::mem::take(&mut state.stream_tails), Arc::clone(&state.host))
        };
        let name = server.name.clone();
        let lost = move || {
            host.request(HostRequest::Inspect(name.clone(), Instant::now() + INSPECT_LATER));
        };
        Arc::new(Pump::start(&self.tasks, stdout, log, tails, lost))
    }

    /// Reconnects to the streams of a run that is alive, if the connection was lost. A stdio run of an earlier
    /// daemon is left alone until its lines are asked for: some engines close the standard input of a
    /// container with each connection that ends.
    pub(super) async fn reconnect_if_lost(&self, server: &Arc<Server>, engine: &LiveEngine) {
        let is_lost = {
            let state = server.state();
            state.watch.run().is_some()
                && match &state.pump {
                    Some(pump) => !pump.is_connected(),
                    None => state.stdout == Stdout::Log,
                }
        };
        if is_lost && let Err(error) = self.connect_streams(server, engine).await {
            tracing::warn!(server = %server.name, %error, "cannot read the output of a container");
            server.inspect_at(Instant::now() + INSPECT_LATER);
        }
    }

    /// Connects to the streams of a run. What it wrote while the connection was lost is taken from the
    /// log. What it wrote to an earlier daemon, or to none, is kept apart from what follows.
    pub(super) async fn connect_streams(
        &self,
        server: &Arc<Server>,
        engine: &LiveEngine,
    ) -> Result<(), Failure> {
        let (run, pump, container, stdout, started_at) = {
            let state = server.state();
            let (Some(run), Some(container)) = (state.watch.run(), state.container.clone()) else {
                return Ok(());
            };
            (run, state.pump.clone(), container, state.stdout, state.started_at.clone())
        };
        let streams = engine.api.attach(&container, stdout).await?;
        // The log is read after the connection, so that every line is in one of the two.
        if let Some(pump) = pump {
            sleep(LOG_DELAY).await;
            let since = unix_seconds(&started_at);
            let missed = engine.api.read_log(&container, since, MAX_MISSED, true).await?;
            pump.connect(streams, Some(missed)).await;
        } else {
            let earlier = match stdout {
                Stdout::Protocol => read_earlier_output(engine, &container, &started_at).await?,
                Stdout::Log => Vec::new(),
            };
            let pump = self.start_pump(server, run, &container);
            pump.set_earlier_output(earlier);
            pump.connect(streams, None).await;
            server.state().pump = Some(pump);
        }
        Ok(())
    }

    /// Closes the streams of a run that is over, and returns its last lines of standard error.
    pub(super) async fn close_streams(
        &self,
        server: &Arc<Server>,
        run: RunId,
        how: &str,
    ) -> Vec<u8> {
        let (pump, stdin) = {
            let mut state = server.state();
            (state.pump.take(), state.stdin.take())
        };
        if let Some(pump) = pump {
            // All processes of the container have ended, so nobody can read any more what is in the pipe.
            let stdin = stdin.filter(|(of, _)| *of == run);
            if let Some(unread) = stdin.and_then(|(_, stdin)| stdin.unread().ok()) {
                pump.set_unread(unread);
            }
            pump.finish(LAST_OUTPUT).await;
            let mut log = self.log_writer.log(&server.name);
            log.write_lines(format!("--- run {run} {how} ---").as_bytes());
            let mut state = server.state();
            state.stream_tails = pump.take_tails();
            state.last_stderr = pump.stderr();
        }
        self.save_record(server).await;
        server.state().last_stderr.clone()
    }
}

/// The last lines of a container's standard output that are of this run and not too old. None if the engine
/// cannot read its log.
async fn read_earlier_output(
    engine: &LiveEngine,
    container: &str,
    started_at: &str,
) -> Result<Vec<Bytes>, Failure> {
    let since = oldest_useful(started_at, Timestamp::now());
    let mut tries = 0;
    loop {
        tries += 1;
        match engine.api.read_log(container, since, MAX_EARLIER, false).await {
            Ok(output) if output.unfinished && tries < READ_TRIES => sleep(READ_AGAIN).await,
            Ok(output) => return Ok(output.stdout),
            Err(failure @ Failure::NoAnswer(_)) => return Err(failure),
            Err(error) => {
                tracing::warn!(container, %error, "cannot read the earlier output of a container");
                return Ok(Vec::new());
            }
        }
    }
}

/// The second of Unix time from which on a log is of use.
fn oldest_useful(started_at: &str, now: Timestamp) -> i32 {
    let recent = now.checked_sub(MAX_AGE).unwrap_or(Timestamp::MIN);
    i32::try_from(recent.as_second()).unwrap_or(0).max(unix_seconds(started_at))
}

/// A timestamp of an engine in whole seconds of Unix time, or 0 if it cannot be parsed.
fn unix_seconds(started_at: &str) -> i32 {
    let parsed: Option<Timestamp> = started_at.parse().ok();
    parsed.and_then(|at| i32::try_from(at.as_second()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_the_start_of_the_run_but_not_for_ever() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let check = |started_at: &str, expected: &str| {
            let expected: Timestamp = expected.parse().unwrap();
            let since = oldest_useful(started_at, now);
            assert_eq!(i64::from(since), expected.as_second(), "{started_at}");
        };
        check("2026-01-01T00:55:00.7Z", "2026-01-01T00:55:00Z");
        check("2025-01-01T00:00:00Z", "2026-01-01T00:50:00Z");
        check("nonsense", "2026-01-01T00:50:00Z");
    }
}

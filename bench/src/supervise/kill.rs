//! From the death of a server to the next one's readiness.
//!
//! Times are those that Mainstay's events carry, minus our wall clock just before the kill. Both
//! read the clock of the same machine.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use crate::rig::{BenchError, Event, Events, Instance, Table, Upstream, kill};
use crate::stats::Percentiles;

/// The server that is killed.
pub(crate) const NAME: &str = "victim";
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long one recovery may take.
const LIMIT: Duration = Duration::from_secs(30);

/// From the kill to each of the three events.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    kills: u32,
    noticed: Percentiles,
    started: Percentiles,
    ready: Percentiles,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        Table::of_times(format!("kill -9, {} times", self.kills))
            .times("noticed", self.noticed)
            .times("next process", self.started)
            .times("ready again", self.ready)
    }
}

pub(super) async fn measure(instance: &Instance, kills: u32) -> Result<Figures, BenchError> {
    instance.add(NAME, Upstream::Stdio).await?;
    instance.ready_servers(1, START_LIMIT).await?;
    let mut events = instance.follow()?;
    let mut recoveries = Vec::new();
    for number in 1..=kills {
        let pid = instance.ready_pid(NAME, LIMIT).await?;
        let killed_at = wall_clock();
        kill(pid);
        recoveries.push(recovery(&mut events, killed_at, number).await?);
    }
    let times = |of: fn(&Recovery) -> Duration| recoveries.iter().map(of).collect();
    Ok(Figures {
        kills,
        noticed: Percentiles::of(times(|recovery| recovery.noticed)),
        started: Percentiles::of(times(|recovery| recovery.started)),
        ready: Percentiles::of(times(|recovery| recovery.ready)),
    })
}

/// Follows a recovery to its end.
pub(crate) async fn recovery(
    events: &mut Events,
    killed_at: Timestamp,
    number: u32,
) -> Result<Recovery, BenchError> {
    let deadline = Instant::now() + LIMIT;
    let mut progress = Progress::new(killed_at);
    loop {
        let Some(event) = events.next(deadline).await? else {
            let what = format!("event `{}` after kill {number}", progress.awaited());
            return Err(BenchError::Late { what, limit: LIMIT });
        };
        if let Some(recovery) = progress.learn(&event) {
            return Ok(recovery);
        }
    }
}

/// The times of one recovery, since the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovery {
    pub(crate) noticed: Duration,
    pub(crate) started: Duration,
    pub(crate) ready: Duration,
}

/// How far a recovery has come: the three events in their order.
#[derive(Debug)]
struct Progress {
    killed_at: Timestamp,
    step: Step,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Killed,
    Noticed(Duration),
    Started { noticed: Duration, started: Duration },
}

impl Progress {
    fn new(killed_at: Timestamp) -> Self {
        Self { killed_at, step: Step::Killed }
    }

    fn awaited(&self) -> &'static str {
        match self.step {
            Step::Killed => "ended",
            Step::Noticed(_) => "started",
            Step::Started { .. } => "ready",
        }
    }

    /// Takes in an event; the last one completes the recovery. Events of others and of earlier
    /// recoveries are passed over.
    fn learn(&mut self, event: &Event) -> Option<Recovery> {
        let since = event.at.duration_since(self.killed_at);
        let ours = event.server.as_deref() == Some(NAME) && event.kind == self.awaited();
        let (true, Ok(since)) = (ours, Duration::try_from(since)) else { return None };
        match self.step {
            Step::Killed => self.step = Step::Noticed(since),
            Step::Noticed(noticed) => self.step = Step::Started { noticed, started: since },
            Step::Started { noticed, started } => {
                return Some(Recovery { noticed, started, ready: since });
            }
        }
        None
    }
}

/// In whole microseconds, downwards, as events may be: so none can seem to come before its kill.
pub(crate) fn wall_clock() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, server: &str, micros: i64) -> Event {
        let at = Timestamp::from_microsecond(micros).unwrap();
        Event {
            at,
            server: Some(server.to_owned()),
            run: None,
            kind: kind.to_owned(),
            cause: None,
            detail: None,
        }
    }

    #[test]
    fn a_recovery_is_three_events_in_order_after_the_kill() {
        let mut progress = Progress::new(Timestamp::from_microsecond(1_000).unwrap());
        for passed_over in
            [event("ended", NAME, 999), event("ended", "other", 1_001), event("ready", NAME, 1_002)]
        {
            assert_eq!(progress.learn(&passed_over), None);
            assert_eq!(progress.awaited(), "ended");
        }
        assert_eq!(progress.learn(&event("ended", NAME, 1_003)), None);
        assert_eq!(progress.learn(&event("started", NAME, 1_010)), None);
        let micros = Duration::from_micros;
        let expected = Recovery { noticed: micros(3), started: micros(10), ready: micros(50) };
        assert_eq!(progress.learn(&event("ready", NAME, 1_050)), Some(expected));
    }
}

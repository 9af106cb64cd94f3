//! Calls of one session at a steady pace, whether or not answers come.
//!
//! The session has several connections. Each of them has its turn at a fixed time; a call that is
//! still waiting for its answer then misses its turn, but holds up none of the others.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::call::Calls;
use super::drive::Transport as _;
use super::http::{Endpoint, Session};
use super::{CallError, LoadError, Work};

/// How many connections share the pace.
const LANES: u32 = 16;
/// More calls than any connection makes, so that all ids differ.
const IDS_PER_LANE: u64 = 1 << 32;

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) outcome: Result<(), CallError>,
}

/// The calls under way; they stop when this is dropped.
pub(crate) struct Pace {
    /// Calls as they end.
    pub(crate) done: UnboundedReceiver<Done>,
    _lanes: JoinSet<()>,
}

impl Pace {
    /// Starts to call in a new session, one call per `period`.
    pub(crate) async fn start(
        endpoint: &Endpoint,
        period: Duration,
        work: &Work,
    ) -> Result<Self, LoadError> {
        let first = endpoint.open().await.map_err(LoadError::Open)?;
        let (sender, done) = unbounded_channel();
        let mut lanes = JoinSet::new();
        let start = Instant::now() + period;
        for number in 0..LANES {
            let session = endpoint.join(&first).await.map_err(LoadError::Open)?;
            let lane = Lane {
                endpoint: endpoint.clone(),
                session,
                calls: Calls::new(number, work).after(u64::from(number) * IDS_PER_LANE),
                limit: work.timeout,
                done: sender.clone(),
            };
            lanes.spawn(lane.call(start + period * number, period * LANES));
        }
        Ok(Self { done, _lanes: lanes })
    }
}

struct Lane {
    endpoint: Endpoint,
    session: Session,
    calls: Calls,
    limit: Duration,
    done: UnboundedSender<Done>,
}

impl Lane {
    async fn call(mut self, start: Instant, period: Duration) {
        let mut turns = interval_at(start, period);
        turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            turns.tick().await;
            let request = self.calls.next();
            let begun = Instant::now();
            let answer = timeout(self.limit, self.endpoint.call(&mut self.session, request)).await;
            let ended = Instant::now();
            let outcome = answer
                .unwrap_or(Err(CallError::Late))
                .and_then(|answer| Ok(self.calls.check(&answer)?));
            let broken =
                outcome.as_ref().is_err_and(|error| !matches!(error, CallError::Mistake(_)));
            if self.done.send(Done { begun, ended, outcome }).is_err() {
                return;
            }
            if broken && let Ok(joined) = self.endpoint.join(&self.session).await {
                self.session = joined;
            }
        }
    }
}

//! The closed loop, whatever the transport.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::call::Calls;
use super::report::CpuUse;
use super::tally::Tally;
use super::{CallError, LoadError, Plan};
use crate::procfs::{ProcError, cpu_time};

/// How long a session rests after a failure, so that a dead server is not hammered.
const REST: Duration = Duration::from_millis(50);

/// A way to reach the server. Time limits are the caller's.
pub(super) trait Transport: Clone + Send + Sync + 'static {
    type Session: Send;

    /// A new session, through `initialize` and its notification.
    fn open(&self) -> impl Future<Output = Result<Self::Session, CallError>> + Send;

    /// Sends a request and returns its answer, unchecked.
    fn call(
        &self,
        session: &mut Self::Session,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Bytes, CallError>> + Send;

    /// Ends a session in good manners.
    fn close(&self, session: Self::Session) -> impl Future<Output = ()> + Send;
}

/// The measured time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) start: Instant,
    pub(super) end: Instant,
}

/// Opens all sessions, lets them call until the end of the measured time and adds up. It all runs
/// on one thread, which leaves the other cores to the server.
pub(super) fn run(
    transport: &impl Transport,
    plan: &Plan,
) -> Result<(Tally, Vec<CpuUse>), LoadError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LoadError::Start)?
        .block_on(load(transport, plan))
}

async fn load(transport: &impl Transport, plan: &Plan) -> Result<(Tally, Vec<CpuUse>), LoadError> {
    let mut open = Vec::new();
    for _ in 0..plan.sessions {
        open.push(within(plan.timeout, transport.open()).await.map_err(LoadError::Open)?);
    }
    let start = Instant::now() + plan.warmup;
    let window = Window { start, end: start + plan.seconds };
    let mut running = JoinSet::new();
    for (number, session) in (0..).zip(open) {
        let calls = Calls::new(number, plan.tool, plan.size);
        let driver = Driver { transport: transport.clone(), calls, window, limit: plan.timeout };
        running.spawn(driver.call_until_end(session));
    }
    sleep_until(window.start).await;
    let before = cpu_times(&plan.cpu_pid)?;
    sleep_until(window.end).await;
    let after = cpu_times(&plan.cpu_pid)?;
    let mut tally = Tally::default();
    while let Some(joined) = running.join_next().await {
        tally.add(joined.map_err(|error| LoadError::Start(io::Error::other(error)))?);
    }
    Ok((tally, cpu_use(&plan.cpu_pid, &before, &after)))
}

/// What drives one session.
struct Driver<T> {
    transport: T,
    calls: Calls,
    window: Window,
    limit: Duration,
}

impl<T: Transport> Driver<T> {
    async fn call_until_end(mut self, session: T::Session) -> Tally {
        let mut tally = Tally::default();
        let mut session = Some(session);
        while Instant::now() < self.window.end {
            let broken = match &mut session {
                Some(open) => self.call(open, &mut tally).await,
                None => self.reopen(&mut session, &mut tally).await,
            };
            if broken {
                session = None;
                sleep(REST).await;
            }
        }
        if let Some(session) = session {
            timeout(self.limit, self.transport.close(session)).await.ok();
        }
        tally
    }

    /// One call; says whether it broke the session.
    async fn call(&mut self, session: &mut T::Session, tally: &mut Tally) -> bool {
        let request = self.calls.next();
        let begun = Instant::now();
        let answer = within(self.limit, self.transport.call(session, request)).await;
        let ended = Instant::now();
        let outcome = answer.and_then(|answer| Ok(self.calls.check(&answer)?));
        tally.count(self.window, begun, ended, &outcome);
        match outcome {
            // The answer was not to our liking, but it was one: the session goes on.
            Ok(()) | Err(CallError::Mistake(_)) => false,
            Err(_) => true,
        }
    }

    /// A new session in place of a broken one; says whether that failed.
    async fn reopen(&self, session: &mut Option<T::Session>, tally: &mut Tally) -> bool {
        match within(self.limit, self.transport.open()).await {
            Ok(opened) => {
                *session = Some(opened);
                false
            }
            Err(error) => {
                tally.fail(&error);
                true
            }
        }
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    timeout(limit, work).await.unwrap_or(Err(CallError::Late))
}

/// The CPU time of the processes so far.
fn cpu_times(pids: &[u32]) -> Result<Vec<Duration>, ProcError> {
    pids.iter().map(|pid| cpu_time(*pid)).collect()
}

/// What each process used between two samples.
fn cpu_use(pids: &[u32], before: &[Duration], after: &[Duration]) -> Vec<CpuUse> {
    let used = before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before));
    pids.iter().zip(used).map(|(pid, time)| CpuUse { pid: *pid, time }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::load::Tool;

    /// Echoes after 100 ms, except that the first session breaks with its second call.
    #[derive(Clone, Default)]
    struct Fragile {
        opened: Arc<AtomicU32>,
    }

    impl Transport for Fragile {
        type Session = (u32, u32);

        async fn open(&self) -> Result<(u32, u32), CallError> {
            Ok((self.opened.fetch_add(1, Ordering::Relaxed), 0))
        }

        async fn call(
            &self,
            session: &mut (u32, u32),
            request: Vec<u8>,
        ) -> Result<Bytes, CallError> {
            sleep(Duration::from_millis(100)).await;
            session.1 += 1;
            if *session == (0, 2) {
                return Err(CallError::Closed);
            }
            let request: Value = serde_json::from_slice(&request).unwrap();
            let content = json!([{"text": request["params"]["arguments"]["text"]}]);
            let answer = json!({"id": request["id"], "result": {"content": content}});
            Ok(answer.to_string().into())
        }

        async fn close(&self, _: (u32, u32)) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_session_is_counted_once_and_replaced() {
        let transport = Fragile::default();
        let session = transport.open().await.unwrap();
        let start = Instant::now();
        let driver = Driver {
            transport: transport.clone(),
            calls: Calls::new(0, Tool::Echo, 16),
            window: Window { start, end: start + Duration::from_secs(1) },
            limit: Duration::from_secs(5),
        };
        let tally = driver.call_until_end(session).await;
        let good = vec![Duration::from_millis(100); 8];
        assert_eq!((tally.latencies, tally.errors, tally.wrong), (good, 1, 0));
        assert_eq!(transport.opened.load(Ordering::Relaxed), 2);
    }
}

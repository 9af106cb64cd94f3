//! The closed loop, whatever the transport.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::call::Calls;
use super::report::{CpuUse, Report};
use super::tally::Tally;
use super::{CallError, LoadError, Plan, Work};
use crate::procfs::{ProcError, cpu_time};

/// How long a session rests after a failure, so that a dead server is not hammered.
const REST: Duration = Duration::from_millis(50);

/// A way to reach the server. Time limits are the caller's.
pub(crate) trait Transport: Clone + Send + Sync + 'static {
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

/// Opens all sessions, lets them call for the measured time and adds up. It all runs on one thread,
/// which leaves the other cores to the server.
pub(super) fn run(transport: &impl Transport, plan: &Plan) -> Result<Report, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(LoadError::Start)?.block_on(async {
        let mut crew = Crew::open(transport, &plan.work).await?;
        let report = crew.slice(plan.warmup, plan.seconds, &plan.cpu_pid).await;
        crew.close().await;
        report
    })
}

/// Open sessions that call in slices of time and are idle between them.
pub(crate) struct Crew<T: Transport> {
    workers: Vec<Worker<T>>,
}

/// What drives one session.
struct Worker<T: Transport> {
    transport: T,
    calls: Calls,
    limit: Duration,
    /// A broken session is replaced before the next call.
    session: Option<T::Session>,
}

impl<T: Transport> Crew<T> {
    pub(crate) async fn open(transport: &T, work: &Work) -> Result<Self, LoadError> {
        let mut workers = Vec::new();
        for number in 0..work.sessions {
            let opened = within(work.timeout, transport.open()).await.map_err(LoadError::Open)?;
            workers.push(Worker {
                transport: transport.clone(),
                calls: Calls::new(number, work),
                limit: work.timeout,
                session: Some(opened),
            });
        }
        Ok(Self { workers })
    }

    /// Lets all sessions call, and measures after the warm-up: their calls and the CPU time of the
    /// given processes.
    pub(crate) async fn slice(
        &mut self,
        warmup: Duration,
        measured: Duration,
        pids: &[u32],
    ) -> Result<Report, LoadError> {
        let start = Instant::now() + warmup;
        let window = Window { start, end: start + measured };
        let mut running = JoinSet::new();
        for worker in self.workers.drain(..) {
            running.spawn(worker.call_until_end(window));
        }
        sleep_until(window.start).await;
        let before = cpu_times(pids)?;
        sleep_until(window.end).await;
        let after = cpu_times(pids)?;
        let mut tally = Tally::default();
        while let Some(joined) = running.join_next().await {
            let (worker, counted) = joined.map_err(io::Error::other).map_err(LoadError::Start)?;
            tally.add(counted);
            self.workers.push(worker);
        }
        Ok(Report::new(tally, measured, cpu_use(pids, &before, &after)))
    }

    /// Ends all sessions in good manners.
    pub(crate) async fn close(self) {
        for Worker { transport, limit, session, .. } in self.workers {
            if let Some(session) = session {
                timeout(limit, transport.close(session)).await.ok();
            }
        }
    }
}

impl<T: Transport> Worker<T> {
    async fn call_until_end(mut self, window: Window) -> (Self, Tally) {
        let mut tally = Tally::default();
        while Instant::now() < window.end {
            let broken = match self.session.take() {
                Some(session) => self.call(session, window, &mut tally).await,
                None => self.reopen(&mut tally).await,
            };
            if broken {
                sleep(REST).await;
            }
        }
        (self, tally)
    }

    /// One call; says whether it broke the session.
    async fn call(&mut self, mut session: T::Session, window: Window, tally: &mut Tally) -> bool {
        let request = self.calls.next();
        let begun = Instant::now();
        let answer = within(self.limit, self.transport.call(&mut session, request)).await;
        let ended = Instant::now();
        let outcome = answer.and_then(|answer| Ok(self.calls.check(&answer)?));
        tally.count(window, begun, ended, &outcome);
        match outcome {
            // The answer was not to our liking, but it was one: the session goes on.
            Ok(()) | Err(CallError::Mistake(_)) => {
                self.session = Some(session);
                false
            }
            Err(_) => true,
        }
    }

    /// A new session in place of a broken one; says whether that failed.
    async fn reopen(&mut self, tally: &mut Tally) -> bool {
        match within(self.limit, self.transport.open()).await {
            Ok(opened) => {
                self.session = Some(opened);
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
        let work = Work {
            sessions: 1,
            tool: Tool::Echo,
            tool_prefix: String::new(),
            size: 16,
            timeout: Duration::from_secs(5),
        };
        let mut crew = Crew::open(&transport, &work).await.unwrap();
        let worker = crew.workers.pop().unwrap();
        let start = Instant::now();
        let window = Window { start, end: start + Duration::from_secs(1) };
        let (worker, tally) = worker.call_until_end(window).await;
        assert_eq!(worker.session, Some((1, 8)));
        let good = vec![Duration::from_millis(100); 8];
        assert_eq!((tally.latencies, tally.errors, tally.wrong), (good, 1, 0));
        assert_eq!(transport.opened.load(Ordering::Relaxed), 2);
    }
}

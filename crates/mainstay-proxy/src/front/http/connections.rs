//! The connections of a listener, and the budget that all listeners share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{debug, info};

use super::connection_state::ConnectionState;
use super::eviction::{SWEEP_TICKS, TICK, TickClock, select_for_eviction};
use super::{Config, ListenerKind};
use crate::intake_gate::IntakeGate;

/// The memory for large bodies that are being read at the same time, in KiB.
const MAX_BODIES_KIB: u32 = 256 << 10;

/// How many large bodies may wait for that memory.
const MAX_WAITING_BODIES: usize = 256;

/// Limits the connections of all listeners together, and the memory for bodies that are being read. Each
/// connection takes a file descriptor, and the rest of the daemon needs some as well.
#[derive(Debug)]
pub struct ConnectionBudget {
    limit: usize,
    used: AtomicUsize,
    bodies: Semaphore,
    waiting_bodies: Semaphore,
}

impl ConnectionBudget {
    /// A budget of `limit` connections.
    pub fn new(limit: usize) -> Arc<Self> {
        let bodies = Semaphore::new(MAX_BODIES_KIB as usize);
        let waiting_bodies = Semaphore::new(MAX_WAITING_BODIES);
        Arc::new(Self { limit: limit.max(1), used: AtomicUsize::new(0), bodies, waiting_bodies })
    }

    /// Whether more than seven eighths are in use.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.used() > self.soft_limit()
    }

    /// Waits until this many bytes of a large body may be read. `None` if too many others wait already: a client
    /// that leaves while it waits is not noticed, so waiting clients could use up all connections.
    pub(super) async fn reserve_body(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let kibibytes =
            u32::try_from(bytes.div_ceil(1024)).unwrap_or(MAX_BODIES_KIB).min(MAX_BODIES_KIB);
        if let Ok(reserved) = self.bodies.try_acquire_many(kibibytes) {
            return Some(reserved);
        }
        let _waiting = self.waiting_bodies.try_acquire().ok()?;
        self.bodies.acquire_many(kibibytes).await.ok()
    }

    fn is_full(&self) -> bool {
        self.used() >= self.limit
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Above this number, connections are evicted with the next sweep.
    fn soft_limit(&self) -> usize {
        self.limit - self.limit / 8
    }

    /// How many connections are evicted at a time, so that not every new connection scans all others.
    fn eviction_batch(&self) -> usize {
        (self.limit / 32).max(1)
    }
}

/// The connection tasks of a listener, each with its activity.
pub(super) struct Connections<T> {
    tasks: JoinSet<T>,
    all: HashMap<Id, Connection>,
    budget: Arc<ConnectionBudget>,
    kind: ListenerKind,
    clock: Arc<TickClock>,
    /// When the clock was advanced.
    advanced: Instant,
    /// The number of connections so far.
    count: u64,
    /// The number of aborted tasks that have not ended yet.
    closing: usize,
    /// The tick at which no connection could be evicted.
    exhausted: Option<u32>,
}

struct Connection {
    /// Increases with each new connection.
    number: u64,
    conn: Arc<ConnectionState>,
    task: AbortHandle,
    is_closing: bool,
}

impl<T: Send + 'static> Connections<T> {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            tasks: JoinSet::new(),
            all: HashMap::new(),
            budget: Arc::clone(&config.budget),
            kind: config.kind,
            clock: Arc::default(),
            advanced: Instant::now(),
            count: 0,
            closing: 0,
            exhausted: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn connection_state(&self, intake_gate: &Arc<IntakeGate>) -> Arc<ConnectionState> {
        ConnectionState::new(intake_gate, &self.clock)
    }

    pub(super) fn add(
        &mut self,
        conn: Arc<ConnectionState>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        self.budget.used.fetch_add(1, Ordering::Relaxed);
        self.count += 1;
        let task = self.tasks.spawn(task);
        let connection = Connection { number: self.count, conn, task, is_closing: false };
        self.all.insert(connection.task.id(), connection);
    }

    /// Waits until a connection ends; `None` if there are no connections.
    pub(super) async fn next_end(&mut self) -> Option<Result<T, JoinError>> {
        let ended = self.tasks.join_next_with_id().await?;
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        self.forget(id);
        Some(ended.map(|(_, given)| given))
    }

    /// Whether another connection may be accepted. If not, evicts some connections, if any may be evicted.
    pub(super) fn can_accept(&mut self) -> bool {
        if self.budget.is_nearly_full() {
            self.reap();
        }
        if self.must_evict() {
            self.evict(self.budget.eviction_batch());
        }
        !self.budget.is_full()
    }

    /// Whether another connection can be accepted only if others are evicted.
    pub(super) fn must_evict(&mut self) -> bool {
        if !self.budget.is_full() || self.closing > 0 {
            return false;
        }
        self.advance_clock();
        self.exhausted != Some(self.clock.now())
    }

    /// Evicts connections because the process is out of file descriptors. Returns how many.
    pub(super) fn evict_for_descriptors(&mut self) -> usize {
        self.evict(self.budget.eviction_batch().max(16))
    }

    /// Called at every sweep: closes connections that are over their time limit, then evicts down to the soft
    /// limit.
    pub(super) fn sweep(&mut self) {
        self.advance_clock();
        let nearly_full = self.budget.is_nearly_full();
        let is_private = self.kind == ListenerKind::Private;
        let is_overdue = |it: &&mut Connection| {
            let activity = it.conn.activity();
            // `connect` limits what it reads ahead of its client, which may be suspended.
            activity.is_overdue(nearly_full) && !(is_private && activity.blocked.is_some())
        };
        let mut overdue = 0;
        for connection in self.all.values_mut().filter(is_overdue) {
            overdue += usize::from(connection.close());
        }
        self.closing += overdue;
        if overdue > 0 {
            debug!(overdue, "closed connections that made no progress");
        }
        let excess = self.budget.used().saturating_sub(self.budget.soft_limit());
        if excess > self.closing {
            self.evict(excess - self.closing);
        }
    }

    fn advance_clock(&mut self) {
        let passed = self.advanced.elapsed().as_millis() / TICK.as_millis();
        let ticks = u32::try_from(passed).unwrap_or(u32::MAX).min(SWEEP_TICKS);
        self.clock.advance(ticks);
        // After a suspension, the rest of the time is not counted.
        let is_all = ticks < SWEEP_TICKS;
        self.advanced = if is_all { self.advanced + TICK * ticks } else { Instant::now() };
    }

    fn evict(&mut self, count: usize) -> usize {
        let open = self.all.values().filter(|it| !it.is_closing);
        let open = open.map(|it| (it.number, it.task.id(), it.conn.activity()));
        // The newest connection was just accepted and may not have been read yet.
        let newest = self.count;
        let open = open.filter(|(number, _, activity)| *number != newest || !activity.is_fresh());
        let evicted = select_for_eviction(open, count);
        for id in &evicted {
            self.all.get_mut(id).expect("the id is from the same map").close();
        }
        self.closing += evicted.len();
        if evicted.is_empty() {
            self.exhausted = Some(self.clock.now());
        } else {
            info!(closed = evicted.len(), "evicted connections to make room for others");
        }
        evicted.len()
    }

    /// Forgets the connections that have ended. In a flood they may end faster than [`Self::next_end`] is called, and
    /// must not count against those that are open.
    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let id = match &ended {
                Ok((id, _)) => *id,
                Err(error) => error.id(),
            };
            self.forget(id);
        }
    }

    fn forget(&mut self, id: Id) {
        if let Some(connection) = self.all.remove(&id) {
            self.budget.used.fetch_sub(1, Ordering::Relaxed);
            self.closing -= usize::from(connection.is_closing);
        }
        if self.all.is_empty() {
            self.all = HashMap::new();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }
}

impl<T> Drop for Connections<T> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.all.len(), Ordering::Relaxed);
    }
}

impl Connection {
    /// Aborts the task, which processes nothing further, not even what it has read. Returns false if it was
    /// aborted before.
    fn close(&mut self) -> bool {
        self.task.abort();
        !std::mem::replace(&mut self.is_closing, true)
    }
}

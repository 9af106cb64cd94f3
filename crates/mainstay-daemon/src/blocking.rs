//! Thread pools for blocking work. Each kind of work has a fixed number of threads, so that a disk or file
//! that does not respond blocks only the work that needs it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The maximum number of blocking threads of the runtime, including those for work without a pool.
pub(crate) const MAX_THREADS: usize = 64;

/// The threads for one kind of work. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct BlockingPool {
    free: Arc<Semaphore>,
    /// The number of spawned jobs that are not done.
    pending: Arc<watch::Sender<usize>>,
}

impl BlockingPool {
    /// A pool of `count` of the [`MAX_THREADS`].
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), pending: Arc::new(watch::Sender::new(0)) }
    }

    /// Runs work on a thread of the pool. Once started, it completes even if the future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let thread = Arc::clone(&self.free).acquire_owned().await;
        let thread = thread.expect("the semaphore is never closed");
        let done = spawn_blocking(move || {
            let done = work();
            drop(thread);
            done
        });
        done.await.expect("a panic ends the daemon, and the work is never cancelled")
    }

    /// Runs work in the background. With one thread, in the order of the calls.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        self.pending.send_modify(|count| *count += 1);
        let pool = self.clone();
        drop(tokio::spawn(async move {
            pool.run(work).await;
            pool.pending.send_modify(|count| *count -= 1);
        }));
    }

    /// Waits until all spawned work is done. Returns false if that takes longer than `limit`.
    pub(crate) async fn finish(&self, limit: Duration) -> bool {
        let mut pending = self.pending.subscribe();
        timeout(limit, pending.wait_for(|count| *count == 0)).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn one_kind_does_not_wait_for_another() {
        let (stalled, well) = (BlockingPool::new(1), BlockingPool::new(1));
        let (release, holder) = mpsc::channel::<()>();
        stalled.spawn(move || holder.recv().unwrap_or(()));
        assert!(!stalled.finish(Duration::from_millis(20)).await);
        assert_eq!(well.run(|| 7).await, 7);
        drop(release);
        assert!(stalled.finish(Duration::from_secs(10)).await);
    }

    #[tokio::test]
    async fn one_thread_keeps_the_order() {
        let pool = BlockingPool::new(1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for n in 0..100 {
            let seen = Arc::clone(&seen);
            pool.spawn(move || seen.lock().unwrap().push(n));
        }
        assert!(pool.finish(Duration::from_secs(10)).await);
        assert_eq!(*seen.lock().unwrap(), (0..100).collect::<Vec<_>>());
    }
}

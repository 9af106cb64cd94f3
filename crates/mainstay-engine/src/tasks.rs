//! The owner of everything the engine spawns.

use std::sync::{Arc, Mutex};

use tokio::task::{JoinError, JoinSet};

/// The spawned tasks of one engine. Clones share them. Each ends by itself when its run, its
/// connection or its reader is gone. Those that are left are aborted when the last clone is dropped, so a task must
/// not hold one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks {
    all: Arc<Mutex<JoinSet<()>>>,
}

impl Tasks {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut all = mainstay_core::lock(&self.all);
        while let Some(ended) = all.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the engine failed");
            }
        }
        all.spawn(task);
    }

    pub(crate) fn abort_all(&self) {
        mainstay_core::lock(&self.all).abort_all();
    }
}

/// Awaits the future; without one, never returns. For branches of `select!` that are optional.
pub(crate) async fn or_pending<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Runs blocking work on a thread for it. A panic there continues here.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down, and with it the caller.
        Err(Err(_)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn tasks_end_with_their_owner() {
        let tasks = Tasks::default();
        let (held, mut released) = oneshot::channel::<()>();
        tasks.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        tasks.spawn(async {});
        assert!(released.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        drop(tasks);
        assert!(released.await.is_err(), "what the task held was dropped");
    }
}

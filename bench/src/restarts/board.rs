//! Where clients and the disrupter meet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::tally::Tally;

/// The tally of all, and the word to stop.
#[derive(Debug, Default)]
pub(crate) struct Board {
    tally: Mutex<Tally>,
    changed: Notify,
    stopped: AtomicBool,
}

impl Board {
    /// Tells the tally something.
    pub(super) fn note(&self, tell: impl FnOnce(&mut Tally)) {
        tell(&mut self.tally());
        self.changed.notify_waiters();
    }

    /// Waits until something is true of the tally; says whether that came.
    pub(super) async fn until(&self, limit: Duration, holds: impl Fn(&Tally) -> bool) -> bool {
        let awaited = async {
            loop {
                let changed = self.changed.notified();
                if holds(&self.tally()) {
                    return;
                }
                changed.await;
            }
        };
        timeout(limit, awaited).await.is_ok()
    }

    /// Clients end after their present call.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The tally, of which no more is to come.
    pub(super) fn take(&self) -> Tally {
        std::mem::take(&mut self.tally())
    }

    /// How many connections were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.tally().counts.refused
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

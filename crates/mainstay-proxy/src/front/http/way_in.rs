//! How requests come in on one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::door::Door;

/// The way from a connection to the core. A request is in the [`Door`] from when the first of it is read
/// until all of it is taken.
#[derive(Debug)]
pub(super) struct WayIn {
    door: Arc<Door>,
    was_read: AtomicBool,
    /// Whether something was read that belongs to no request that was taken.
    is_begun: AtomicBool,
    taken: Notify,
}

impl WayIn {
    pub(super) fn new(door: &Arc<Door>) -> Arc<Self> {
        Arc::new(Self {
            door: Arc::clone(door),
            was_read: AtomicBool::new(false),
            is_begun: AtomicBool::new(false),
            taken: Notify::new(),
        })
    }

    /// Whether anything was ever read.
    pub(super) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// Whether more may be read.
    pub(super) fn may_read(&self) -> bool {
        !self.door.is_closed() || self.is_begun()
    }

    /// Something was read.
    pub(super) fn read(&self) {
        self.was_read.store(true, Ordering::Relaxed);
        if !self.is_begun.swap(true, Ordering::Relaxed) {
            self.door.step_in();
        }
    }

    /// The request that was being read is where it belongs.
    pub(super) fn taken(&self) {
        if self.is_begun.swap(false, Ordering::Relaxed) {
            self.door.step_out();
            self.taken.notify_waiters();
        }
    }

    /// Resolves when no request is half read.
    pub(super) async fn at_rest(&self) {
        let mut taken = std::pin::pin!(self.taken.notified());
        // From here on no word of it is missed.
        taken.as_mut().enable();
        if self.is_begun() {
            taken.await;
        }
    }

    fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed)
    }
}

impl Drop for WayIn {
    fn drop(&mut self) {
        self.taken();
    }
}

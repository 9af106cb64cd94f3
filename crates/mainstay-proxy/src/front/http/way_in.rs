//! How requests come in on one connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::door::{Door, InDoor};

/// The way from a connection to the core. A request is in the [`Door`] from when the first of it is read
/// until all of it is taken.
#[derive(Debug)]
pub(super) struct WayIn {
    door: Arc<Door>,
    was_read: AtomicBool,
    /// Of what was read and belongs to no request that was taken.
    begun: Mutex<Option<InDoor>>,
    taken: Notify,
}

impl WayIn {
    pub(super) fn new(door: &Arc<Door>) -> Arc<Self> {
        Arc::new(Self {
            door: Arc::clone(door),
            was_read: AtomicBool::new(false),
            begun: Mutex::default(),
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
        self.begun().get_or_insert_with(|| self.door.enter());
    }

    /// The request that was being read is where it belongs.
    pub(super) fn taken(&self) {
        drop(self.begun().take());
        if self.door.is_closed() {
            self.taken.notify_one();
        }
    }

    /// Resolves when no request is half read. It is for when the door is closed.
    pub(super) async fn at_rest(&self) {
        while self.is_begun() {
            self.taken.notified().await;
        }
    }

    fn is_begun(&self) -> bool {
        self.begun().is_some()
    }

    fn begun(&self) -> std::sync::MutexGuard<'_, Option<InDoor>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

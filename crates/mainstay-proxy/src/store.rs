//! Where sessions are stored beyond the life of a daemon.

use std::pin::Pin;

use mainstay_session::{SessionRecord, StateStore};

/// Changes on their way to disk.
pub type Written = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A pending lookup of a record; `None` if there is none with that id.
pub type RecordLookup =
    Pin<Box<dyn Future<Output = Result<Option<SessionRecord>, Unreadable>> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sessions cannot be read from disk")]
pub struct Unreadable;

/// A store from which records can be read again.
pub trait SessionStore: StateStore {
    /// Completes when what was changed before is on disk, so that it outlives this process, or when the disk refuses.
    fn written(&self) -> Written;

    /// Finds a session that was [moved to disk](StateStore::move_to_disk), possibly by an earlier daemon. Sees all
    /// changes made before the call.
    fn find(&self, id: &str) -> RecordLookup;
}

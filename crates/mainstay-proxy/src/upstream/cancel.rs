//! Noticing that a caller no longer waits.

use tokio::sync::mpsc::{OwnedPermit, Sender};

/// While armed, its drop tells the owner of the link that nobody waits for this request any more.
///
/// A drop cannot wait for room in a bounded channel, so the room is reserved beforehand. That also
/// bounds how many requests can be in flight.
#[derive(Debug)]
pub(super) struct CancelOnDrop {
    id: u64,
    slot: Option<OwnedPermit<u64>>,
}

impl CancelOnDrop {
    /// Waits for a slot; `None` when the owner of the link is gone.
    pub(super) async fn arm(cancels: &Sender<u64>, id: u64) -> Option<Self> {
        let slot = cancels.clone().reserve_owned().await.ok()?;
        Some(Self { id, slot: Some(slot) })
    }

    /// The request was answered.
    pub(super) fn disarm(mut self) {
        self.slot = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.send(self.id);
        }
    }
}

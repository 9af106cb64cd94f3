//! The gate through which requests reach the servers.
//!
//! A daemon that is replaced must know when the last request has entered: later ones are for its successor. After the
//! gate is [closed](IntakeGate::close) no request enters, and when it [is clear](IntakeGate::is_clear) all that had
//! entered are with their sessions. Both hold only on the thread that closes the gate: others may just have found it
//! open.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub struct IntakeGate {
    is_closed: AtomicBool,
    has_successor: AtomicBool,
    inside: AtomicUsize,
}

impl IntakeGate {
    /// Lets no further request enter. Those inside pass.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Closes it. Another daemon takes over all connections.
    pub fn close_for_successor(&self) {
        self.has_successor.store(true, Ordering::SeqCst);
        self.close();
    }

    /// Whether another daemon takes over all connections.
    pub(crate) fn has_successor(&self) -> bool {
        self.has_successor.load(Ordering::SeqCst)
    }

    /// Whether no request may enter.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Whether no request is inside.
    pub fn is_clear(&self) -> bool {
        self.inside() == 0
    }

    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    /// A request enters, until [`Self::step_out`].
    pub(crate) fn step_in(&self) {
        self.inside.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn step_out(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

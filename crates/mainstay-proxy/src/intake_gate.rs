//! The gate through which requests enter the core.
//!
//! A daemon that gives way to another one must know when the last request is in: what comes later is for
//! the other one. From the moment when the gate is [closed](IntakeGate::close) no request enters it any more,
//! and when it [is clear](IntakeGate::is_clear) those that had entered are where somebody looks after them. Both
//! holds for who enters on the thread that closes it: others may just have found it open.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A gate, which is open at first.
#[derive(Debug, Default)]
pub struct IntakeGate {
    is_closed: AtomicBool,
    has_successor: AtomicBool,
    inside: AtomicUsize,
}

impl IntakeGate {
    /// Lets nobody enter any more. Those who are in it pass.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Closes it, and says that another daemon takes over all connections.
    pub fn close_for_successor(&self) {
        self.has_successor.store(true, Ordering::SeqCst);
        self.close();
    }

    /// Whether another daemon takes over all connections.
    pub(crate) fn has_successor(&self) -> bool {
        self.has_successor.load(Ordering::SeqCst)
    }

    /// Whether nobody may enter.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Whether nobody is in it.
    pub fn is_clear(&self) -> bool {
        self.inside() == 0
    }

    /// How many are in it.
    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    /// Enters, until [`Self::step_out`].
    pub(crate) fn step_in(&self) {
        self.inside.fetch_add(1, Ordering::SeqCst);
    }

    /// Leaves.
    pub(crate) fn step_out(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

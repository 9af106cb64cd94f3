//! The run that serves a session: its own, or the shared one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::Session;
use crate::hub::availability::Availability;
use crate::hub::lock;

/// The availability of a session's own run, if it has one.
#[derive(Debug, Default)]
pub(super) struct OwnRun {
    exists: AtomicBool,
    availability: Mutex<Option<watch::Receiver<Availability>>>,
}

impl Session {
    /// What is to be expected now of the run that serves this session.
    pub(in crate::hub) fn present(&self) -> Availability {
        match self.own_outlook() {
            Some(own) => own.borrow().clone(),
            None if self.lacks_own_run() => nothing_yet(),
            None => self.hub().present(),
        }
    }

    /// The availability of the run that serves this session.
    pub(in crate::hub) fn availability(&self) -> watch::Receiver<Availability> {
        match self.own_outlook() {
            Some(own) => own,
            // It must not use the shared run.
            None if self.lacks_own_run() => watch::channel(nothing_yet()).1,
            None => self.hub().availability(),
        }
    }

    /// Whether the run that serves this session is its own.
    pub(in crate::hub) fn is_isolated(&self) -> bool {
        self.inner.own_run.exists.load(Ordering::Relaxed)
    }

    /// Whether the session needs a run of its own and has none.
    pub(in crate::hub) fn lacks_own_run(&self) -> bool {
        self.hub().isolates() && !self.is_isolated() && !self.is_local()
    }

    /// The run that serves this session is its own from now on.
    pub(in crate::hub) fn set_own_run(&self, availability: watch::Receiver<Availability>) {
        let own = &self.inner.own_run;
        *lock(&own.availability) = Some(availability);
        own.exists.store(true, Ordering::Relaxed);
    }

    /// Removes the run unless a request is open; the next request starts another one. Returns whether the run
    /// was removed.
    pub(in crate::hub) fn clear_unused_own_run(&self) -> bool {
        // A request is registered under this lock before it looks for a run, so it uses no run that is about
        // to be stopped.
        let state = self.state();
        if !state.open.is_empty() {
            return false;
        }
        let own = &self.inner.own_run;
        own.exists.store(false, Ordering::Relaxed);
        *lock(&own.availability) = None;
        true
    }

    pub(in crate::hub) fn own_outlook(&self) -> Option<watch::Receiver<Availability>> {
        if self.is_isolated() { lock(&self.inner.own_run.availability).clone() } else { None }
    }
}

fn nothing_yet() -> Availability {
    Availability::Coming { due: None, why: std::sync::Arc::default() }
}

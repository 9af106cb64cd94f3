//! The way to a [`StateStore`], until it is shut.
//!
//! A daemon that gives way to another one must not write any more: what it would note or forget is
//! the other one's affair from then on. When [`WriteFence::shut`] returns, nothing passes and nothing is on
//! its way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::record::{StateStore, StreamKey, StreamNews};

/// A store that can be shut off. Clones share the fence.
#[derive(Debug, Clone)]
pub(crate) struct WriteFence {
    state_store: Arc<dyn StateStore>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_shut: AtomicBool,
    /// Held by all who pass.
    passing: RwLock<()>,
}

impl WriteFence {
    pub(crate) fn new(state_store: Arc<dyn StateStore>) -> Self {
        Self { state_store, state: Arc::default() }
    }

    /// Calls the store; `None` if the fence is shut.
    pub(crate) fn pass<T>(&self, tell: impl FnOnce(&dyn StateStore) -> T) -> Option<T> {
        let _passing = self.state.passing.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_shut() { None } else { Some(tell(&*self.state_store)) }
    }

    /// Shuts it for good, and waits for those who are passing.
    pub(crate) fn shut(&self) {
        self.state.is_shut.store(true, Ordering::SeqCst);
        drop(self.state.passing.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.state.is_shut.load(Ordering::SeqCst)
    }
}

/// Writes down what becomes of one stream, for a later daemon.
#[derive(Debug, Clone)]
pub(crate) struct StreamJournal {
    write_fence: WriteFence,
    key: StreamKey,
}

impl StreamJournal {
    pub(crate) fn new(write_fence: WriteFence, key: StreamKey) -> Self {
        Self { write_fence, key }
    }

    pub(crate) fn note(&self, news: StreamNews) -> Noted {
        match self.write_fence.pass(|state_store| state_store.note(&self.key, news)) {
            Some(true) => Noted::Yes,
            Some(false) => Noted::NotYet,
            None => Noted::Never,
        }
    }
}

/// Whether something was written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    Yes,
    /// The disk does not respond. It matters for requests that are about to be sent.
    NotYet,
    /// Another daemon takes over, and this one must not act any more.
    Never,
}

impl Noted {
    /// Whether this daemon may go on.
    pub(crate) fn may_act(self) -> bool {
        self != Self::Never
    }
}

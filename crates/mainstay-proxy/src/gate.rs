//! The way to a [`Keeper`], until it is shut.
//!
//! A daemon that gives way to another one must not write any more: what it would note or forget is
//! the other one's affair from then on. When [`Gate::shut`] returns, nothing passes and nothing is on
//! its way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::record::{Keeper, StreamKey, StreamNews};

/// A keeper that can be shut off. Clones are the same gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    keeper: Arc<dyn Keeper>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_shut: AtomicBool,
    /// Held by all who pass.
    passing: RwLock<()>,
}

impl Gate {
    pub(crate) fn new(keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper, state: Arc::default() }
    }

    /// Calls the keeper; `None` if the gate is shut.
    pub(crate) fn pass<T>(&self, tell: impl FnOnce(&dyn Keeper) -> T) -> Option<T> {
        let _passing = self.state.passing.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_shut() { None } else { Some(tell(&*self.keeper)) }
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
pub(crate) struct Scribe {
    gate: Gate,
    key: StreamKey,
}

impl Scribe {
    pub(crate) fn new(gate: Gate, key: StreamKey) -> Self {
        Self { gate, key }
    }

    pub(crate) fn note(&self, news: StreamNews) -> Noted {
        match self.gate.pass(|keeper| keeper.note(&self.key, news)) {
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

//! What sessions ask for, until it is handled.

use std::collections::{HashMap, VecDeque};

use super::{Event, SessionRunKey};
use crate::supervisor::SessionRunEnd;

/// A queue of [`Event::Start`] and [`Event::Stop`]. It has at most one entry per session, because a request replaces what
/// it makes pointless: so it needs no limit of its own, and no request is lost.
#[derive(Debug, Default)]
pub struct Requests {
    pub(super) order: VecDeque<SessionRunKey>,
    pub(super) entries: HashMap<SessionRunKey, Entry>,
}

/// What one session asks for: first the end of its run, then another one.
#[derive(Debug, Default)]
pub(super) struct Entry {
    end: Option<SessionRunEnd>,
    start: bool,
}

impl Requests {
    /// A session needs a run.
    pub fn start(&mut self, key: SessionRunKey) {
        self.entry(key).start = true;
    }

    /// A session does not need its run any more.
    pub fn stop(&mut self, key: SessionRunKey, why: SessionRunEnd) {
        *self.entry(key) = Entry { end: Some(why), start: false };
    }

    /// Takes the requests of the session that has waited for longest.
    pub fn take_next(&mut self) -> Option<impl Iterator<Item = Event> + use<>> {
        let key = self.order.pop_front()?;
        let Entry { end, start } = self.entries.remove(&key).unwrap_or_default();
        let end = end.map(|why| Event::Stop(key.clone(), why));
        Some(end.into_iter().chain(start.then_some(Event::Start(key))))
    }

    fn entry(&mut self, key: SessionRunKey) -> &mut Entry {
        if !self.entries.contains_key(&key) {
            self.order.push_back(key.clone());
        }
        self.entries.entry(key).or_default()
    }
}

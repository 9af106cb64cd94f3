//! What outlives a daemon: sessions, streams and lists, in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use mainstay_session::{
    Abandoned, Sent, SessionRecord, StateStore, StreamChange, StreamKey, StreamRecord,
};

#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<State>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) sessions: BTreeMap<String, SessionRecord>,
    /// Changes of sessions that are not on disk yet.
    unwritten: Vec<Change>,
    pub(crate) streams: BTreeMap<(String, u64), Kept>,
    pub(crate) copy: Option<Vec<u8>>,
    pub(crate) clock: Duration,
    pub(crate) is_stalled: bool,
    begun: usize,
}

#[derive(Debug)]
enum Change {
    Save(Box<SessionRecord>),
    Remove(String),
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Kept {
    request: Option<Bytes>,
    sent: Option<Sent>,
    attempts: u32,
    messages: Vec<(u64, Bytes)>,
    answer: Option<(u64, Bytes)>,
    abandoned: Option<Abandoned>,
    /// Records are read in the order in which they were begun.
    age: usize,
}

impl Store {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }
}

impl State {
    /// All changes reach the disk.
    pub(crate) fn write(&mut self) {
        for change in std::mem::take(&mut self.unwritten) {
            match change {
                Change::Save(record) => drop(self.sessions.insert(record.id.clone(), *record)),
                Change::Remove(id) => drop(self.sessions.remove(&id)),
            }
        }
    }

    /// A daemon was killed: what is not on disk is lost.
    pub(crate) fn lose_unwritten(&mut self) {
        // The end of a session is written at once.
        self.unwritten.retain(|change| matches!(change, Change::Remove(_)));
        self.write();
    }

    /// A session as the daemon reads it.
    pub(crate) fn session(&self, id: &str) -> Option<SessionRecord> {
        let unwritten = self.unwritten.iter().rev().find_map(|change| match change {
            Change::Save(record) if record.id == id => Some(Some((**record).clone())),
            Change::Remove(removed) if removed == id => Some(None),
            Change::Save(_) | Change::Remove(_) => None,
        });
        unwritten.unwrap_or_else(|| self.sessions.get(id).cloned())
    }

    pub(crate) fn records(&self) -> Vec<StreamRecord> {
        let record = |((session, number), kept): (&(String, u64), &Kept)| StreamRecord {
            key: StreamKey { session: session.as_str().into(), number: *number },
            request: kept.request.clone(),
            sent: kept.sent,
            attempts: kept.attempts,
            messages: kept.messages.clone(),
            answer: kept.answer.clone(),
            abandoned: kept.abandoned.clone(),
        };
        let mut streams: Vec<_> = self.streams.iter().collect();
        streams.sort_by_key(|(_, kept)| kept.age);
        streams.into_iter().map(record).collect()
    }

    fn append(&mut self, key: &StreamKey, change: StreamChange) -> bool {
        let key = (key.session.to_string(), key.number);
        self.begun += 1;
        let age = self.begun;
        match change {
            StreamChange::Sent(_) if self.is_stalled => return false,
            StreamChange::Begun(request) => {
                self.streams.insert(key, Kept { request: Some(request), age, ..Kept::default() });
            }
            StreamChange::BegunSent(request, sent, attempts) => {
                let (request, sent) = (Some(request), Some(sent));
                self.streams.insert(key, Kept { request, sent, attempts, age, ..Kept::default() });
            }
            StreamChange::Sent(sent) => {
                if let Some(kept) = self.streams.get_mut(&key) {
                    let is_same = kept.sent.is_some_and(|before| {
                        before.generation == sent.generation
                            && before.line.is_none()
                            && sent.line.is_some()
                    });
                    kept.attempts += u32::from(!is_same);
                    kept.sent = Some(sent);
                }
            }
            StreamChange::Message(number, text) => {
                self.streams.entry(key).or_default().messages.push((number, text));
            }
            StreamChange::Answered(number, text) => {
                if let Some(kept) = self.streams.get_mut(&key) {
                    kept.answer = Some((number, text));
                }
            }
            StreamChange::Abandoned(abandoned) => {
                if let Some(kept) = self.streams.get_mut(&key) {
                    kept.abandoned = Some(abandoned);
                }
            }
            StreamChange::Over => drop(self.streams.remove(&key)),
        }
        true
    }
}

impl StateStore for Store {
    fn save(&self, record: SessionRecord) {
        self.state().unwritten.push(Change::Save(Box::new(record)));
    }

    fn touched(&self, now: Duration, _: Vec<(String, Duration)>) {
        self.state().clock = now;
    }

    fn move_to_disk(&self, record: SessionRecord) -> bool {
        let mut state = self.state();
        state.streams.retain(|(session, _), _| *session != record.id);
        state.unwritten.push(Change::Save(Box::new(record)));
        true
    }

    fn remove(&self, id: &str) {
        let mut state = self.state();
        state.streams.retain(|(session, _), _| session != id);
        state.unwritten.push(Change::Remove(id.to_owned()));
    }

    fn save_copy(&self, _: &str, copy: Vec<u8>) {
        self.state().copy = Some(copy);
    }

    fn remove_server(&self, _: &str) {
        *self.state() = State::default();
    }

    fn append_to_journal(&self, stream: &StreamKey, change: StreamChange) -> bool {
        self.state().append(stream, change)
    }
}

//! The live streams, as the next daemon would recover them. Pure.
//!
//! They are bounded. Of each stream, the newest messages are kept; of all streams, a number of bytes:
//! beyond that, answered streams are discarded first, then general streams, then the oldest. A discarded request
//! is remembered as lost until it is over, so that later changes are not taken for a new stream.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use mainstay_proxy::{Abandoned, Sent, StreamChange, StreamKey, StreamRecord};

use super::entry::{Change, Entry};

/// The limits of messages of a stream, besides its answer.
pub(super) const MAX_MESSAGES: usize = 256;
pub(super) const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// The limit of bytes of all streams.
pub(super) const ALL_BYTES: usize = 64 * 1024 * 1024;

/// The approximate size of an entry besides its text.
const OVERHEAD: usize = 64;

#[derive(Debug, Default)]
pub(super) struct LiveStreams {
    /// By age, oldest first.
    streams: BTreeMap<u64, (StreamKey, Stream)>,
    ages: HashMap<StreamKey, u64>,
    next_age: u64,
    bytes: usize,
}

#[derive(Debug)]
enum Stream {
    Recorded(StreamState),
    /// A request that was discarded.
    Lost,
}

#[derive(Debug, Default)]
struct StreamState {
    request: Option<Bytes>,
    sent: Option<Sent>,
    attempts: u32,
    messages: VecDeque<(u64, Bytes)>,
    message_bytes: usize,
    answer: Option<(u64, Bytes)>,
    abandoned: Option<Abandoned>,
}

impl LiveStreams {
    /// The journal entry for a change; none if it changes nothing.
    pub(super) fn entry(&self, key: &StreamKey, change: StreamChange) -> Option<Entry> {
        let change = match (self.get(key), change) {
            (_, StreamChange::Begun(request)) => Change::Begun(request),
            (Some(Stream::Lost | Stream::Recorded(_)), StreamChange::Over) => Change::Over,
            (Some(Stream::Recorded(state)), StreamChange::Sent(sent))
                if state.is_open_request() =>
            {
                Change::Sent(
                    sent,
                    state.attempts.saturating_add(u32::from(!state.is_attempt(sent))),
                )
            }
            (Some(Stream::Recorded(state)), StreamChange::Answered(number, text))
                if state.is_open_request() =>
            {
                Change::Answered(number, text)
            }
            (Some(Stream::Recorded(state)), StreamChange::Message(number, text))
                if state.answer.is_none() =>
            {
                Change::Message(number, text)
            }
            (None, StreamChange::Message(number, text)) => Change::Message(number, text),
            (Some(Stream::Recorded(_)), StreamChange::Abandoned(abandoned)) => {
                Change::Abandoned(abandoned)
            }
            (Some(Stream::Lost | Stream::Recorded(_)), _)
            | (
                None,
                StreamChange::Sent(_)
                | StreamChange::Answered(..)
                | StreamChange::Abandoned(_)
                | StreamChange::Over,
            )
            | (_, StreamChange::BegunSent(..)) => return None,
        };
        Some(Entry::Stream(key.clone(), change))
    }

    pub(super) fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Ended(session) => self.retain(|key, _| key.session != session),
            Entry::Stream(key, Change::Begun(request)) => {
                self.remove(&key);
                self.insert(
                    key,
                    Stream::Recorded(StreamState {
                        request: Some(request),
                        ..StreamState::default()
                    }),
                );
            }
            Entry::Stream(key, Change::Lost) => {
                self.remove(&key);
                self.insert(key, Stream::Lost);
            }
            Entry::Stream(key, Change::Over) => self.remove(&key),
            Entry::Stream(key, Change::Sent(sent, attempts)) => self.change(&key, |state| {
                state.sent = Some(sent);
                state.attempts = attempts;
            }),
            Entry::Stream(key, Change::Answered(number, text)) => {
                self.change(&key, |state| state.answer = Some((number, text)));
            }
            Entry::Stream(key, Change::Abandoned(abandoned)) => {
                self.change(&key, |state| state.abandoned = Some(abandoned));
            }
            Entry::Stream(key, Change::Message(number, text)) => {
                if !self.ages.contains_key(&key) {
                    self.insert(key.clone(), Stream::Recorded(StreamState::default()));
                }
                self.change(&key, |state| state.add_message(number, text));
            }
        }
        while self.bytes > ALL_BYTES && self.discard_one() {}
    }

    /// Entries that reproduce this state.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.streams.values().flat_map(|(key, stream)| {
            stream.changes().into_iter().map(|change| Entry::Stream(key.clone(), change))
        })
    }

    /// The records for the next daemon, oldest first.
    pub(super) fn records(&self) -> Vec<StreamRecord> {
        let record = |(key, stream): &(StreamKey, Stream)| match stream {
            Stream::Recorded(state) => Some(state.record(key.clone())),
            Stream::Lost => None,
        };
        self.streams.values().filter_map(record).collect()
    }

    /// The approximate size of all entries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &StreamKey> {
        self.ages.keys()
    }

    /// Changes that reproduce a stream.
    pub(super) fn changes(&self, key: &StreamKey) -> Vec<Change> {
        self.get(key).map(Stream::changes).unwrap_or_default()
    }

    /// Whether the session has a stream.
    pub(super) fn has(&self, session: &str) -> bool {
        self.ages.keys().any(|key| &*key.session == session)
    }

    /// Forgets lost streams: the daemon that had them has ended.
    pub(super) fn forget_lost(&mut self) {
        self.retain(|_, stream| matches!(stream, Stream::Recorded(_)));
    }

    fn get(&self, key: &StreamKey) -> Option<&Stream> {
        let (_, stream) = self.streams.get(self.ages.get(key)?)?;
        Some(stream)
    }

    fn insert(&mut self, key: StreamKey, stream: Stream) {
        self.bytes += stream.bytes();
        self.ages.insert(key.clone(), self.next_age);
        self.streams.insert(self.next_age, (key, stream));
        self.next_age += 1;
    }

    fn remove(&mut self, key: &StreamKey) {
        if let Some((_, stream)) = self.ages.remove(key).and_then(|age| self.streams.remove(&age)) {
            self.bytes -= stream.bytes();
        }
    }

    fn retain(&mut self, wanted: impl Fn(&StreamKey, &Stream) -> bool) {
        let unwanted = self.streams.values().filter(|(key, stream)| !wanted(key, stream));
        let unwanted: Vec<StreamKey> = unwanted.map(|(key, _)| key.clone()).collect();
        for key in unwanted {
            self.remove(&key);
        }
    }

    fn change(&mut self, key: &StreamKey, change: impl FnOnce(&mut StreamState)) {
        let stream = self.ages.get(key).and_then(|age| self.streams.get_mut(age));
        if let Some((_, stream @ Stream::Recorded(_))) = stream {
            self.bytes -= stream.bytes();
            if let Stream::Recorded(state) = stream {
                change(state);
            }
            self.bytes += stream.bytes();
        }
    }

    /// Discards the least important stream. Returns false if none is left.
    fn discard_one(&mut self) -> bool {
        let rank = |stream: &Stream| match stream {
            Stream::Recorded(state) if state.answer.is_some() => Some(0),
            Stream::Recorded(state) if state.request.is_none() => Some(1),
            Stream::Recorded(_) => Some(2),
            Stream::Lost => None,
        };
        let ranked = self.streams.iter().filter_map(|(age, (key, stream))| {
            Some((rank(stream)?, *age, key.clone(), stream.is_general()))
        });
        let Some((_, _, key, general)) = ranked.min_by_key(|(rank, age, ..)| (*rank, *age)) else {
            return false;
        };
        self.remove(&key);
        // A general stream may begin again; a request may not.
        if !general {
            self.insert(key, Stream::Lost);
        }
        true
    }
}

impl Stream {
    fn is_general(&self) -> bool {
        matches!(self, Self::Recorded(state) if state.request.is_none())
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Lost => OVERHEAD,
            Self::Recorded(state) => {
                let text = |text: &Option<Bytes>| text.as_ref().map_or(0, Bytes::len);
                let answer = state.answer.as_ref().map_or(0, |(_, answer)| answer.len());
                let entries = state.messages.len() + 4;
                text(&state.request) + state.message_bytes + answer + entries * OVERHEAD
            }
        }
    }

    /// Changes that reproduce this stream.
    fn changes(&self) -> Vec<Change> {
        let state = match self {
            Self::Lost => return vec![Change::Lost],
            Self::Recorded(state) => state,
        };
        let messages =
            state.messages.iter().map(|(number, text)| Change::Message(*number, text.clone()));
        let begun = state.request.clone().map(Change::Begun);
        let sent = state.sent.map(|sent| Change::Sent(sent, state.attempts));
        let answer = state.answer.clone().map(|(number, text)| Change::Answered(number, text));
        let abandoned = state.abandoned.clone().map(Change::Abandoned);
        begun.into_iter().chain(messages).chain(sent).chain(answer).chain(abandoned).collect()
    }
}

impl StreamState {
    fn is_open_request(&self) -> bool {
        self.request.is_some() && self.answer.is_none()
    }

    /// Whether this is the attempt that is recorded already, now with its line.
    fn is_attempt(&self, sent: Sent) -> bool {
        let known = Sent { line: None, ..sent };
        sent.line.is_some() && self.sent == Some(known)
    }

    fn add_message(&mut self, number: u64, text: Bytes) {
        self.message_bytes += text.len();
        self.messages.push_back((number, text));
        while (self.messages.len() > MAX_MESSAGES || self.message_bytes > MAX_MESSAGE_BYTES)
            && let Some((_, oldest)) = self.messages.pop_front()
        {
            self.message_bytes -= oldest.len();
        }
    }

    fn record(&self, key: StreamKey) -> StreamRecord {
        StreamRecord {
            key,
            request: self.request.clone(),
            sent: self.sent,
            attempts: self.attempts,
            messages: self.messages.iter().cloned().collect(),
            answer: self.answer.clone(),
            abandoned: self.abandoned.clone(),
        }
    }
}

//! The streams that are alive, as a later daemon would find them. Pure.
//!
//! What is kept is bounded. Of a stream, the newest messages are kept; of all streams, so many bytes:
//! beyond that, streams that have their answers go first, then general ones, then the oldest. A request
//! that went is remembered as such until it is over, so that what is still said of it is not taken for
//! what it is not.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use mainstay_proxy::{Sent, StreamKey, StreamNews, StreamRecord};

use super::entry::{Entry, Turn};

/// How many messages are kept of a stream, beside its answer, and how many bytes of them.
pub(super) const SAID: usize = 256;
pub(super) const SAID_BYTES: usize = 1024 * 1024;

/// How many bytes are kept of all streams.
pub(super) const ALL_BYTES: usize = 64 * 1024 * 1024;

/// What an entry takes beyond its text, about.
const OVERHEAD: usize = 64;

/// All streams that somebody may still need.
#[derive(Debug, Default)]
pub(super) struct Alive {
    /// By age, oldest first.
    streams: BTreeMap<u64, (StreamKey, Stream)>,
    ages: HashMap<StreamKey, u64>,
    next_age: u64,
    bytes: usize,
}

#[derive(Debug)]
enum Stream {
    Kept(Kept),
    /// A request that was too much to keep.
    Lost,
}

#[derive(Debug, Default)]
struct Kept {
    request: Option<Bytes>,
    sent: Option<Sent>,
    attempts: u32,
    said: VecDeque<(u64, Bytes)>,
    said_bytes: usize,
    answer: Option<(u64, Bytes)>,
}

impl Alive {
    /// What is to be written down of this news; nothing if it changes nothing.
    pub(super) fn entry(&self, key: &StreamKey, news: StreamNews) -> Option<Entry> {
        let turn = match (self.get(key), news) {
            (_, StreamNews::Begun(request)) => Turn::Begun(request),
            (Some(Stream::Lost | Stream::Kept(_)), StreamNews::Over) => Turn::Over,
            (Some(Stream::Kept(kept)), StreamNews::Sent(sent)) if kept.is_open_request() => {
                Turn::Sent(sent, kept.attempts.saturating_add(u32::from(!kept.is_attempt(sent))))
            }
            (Some(Stream::Kept(kept)), StreamNews::Answered(number, text))
                if kept.is_open_request() =>
            {
                Turn::Answered(number, text)
            }
            (Some(Stream::Kept(kept)), StreamNews::Said(number, text)) if kept.answer.is_none() => {
                Turn::Said(number, text)
            }
            (None, StreamNews::Said(number, text)) => Turn::Said(number, text),
            (Some(Stream::Lost | Stream::Kept(_)), _)
            | (None, StreamNews::Sent(_) | StreamNews::Answered(..) | StreamNews::Over)
            | (_, StreamNews::BegunSent(..)) => return None,
        };
        Some(Entry::Stream(key.clone(), turn))
    }

    /// Takes in what was written down.
    pub(super) fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Ended(session) => self.retain(|key, _| key.session != session),
            Entry::Stream(key, Turn::Begun(request)) => {
                self.remove(&key);
                self.insert(key, Stream::Kept(Kept { request: Some(request), ..Kept::default() }));
            }
            Entry::Stream(key, Turn::Lost) => {
                self.remove(&key);
                self.insert(key, Stream::Lost);
            }
            Entry::Stream(key, Turn::Over) => self.remove(&key),
            Entry::Stream(key, Turn::Sent(sent, attempts)) => self.change(&key, |kept| {
                kept.sent = Some(sent);
                kept.attempts = attempts;
            }),
            Entry::Stream(key, Turn::Answered(number, text)) => {
                self.change(&key, |kept| kept.answer = Some((number, text)));
            }
            Entry::Stream(key, Turn::Said(number, text)) => {
                if !self.ages.contains_key(&key) {
                    self.insert(key.clone(), Stream::Kept(Kept::default()));
                }
                self.change(&key, |kept| kept.say(number, text));
            }
        }
        while self.bytes > ALL_BYTES && self.lose_one() {}
    }

    /// Everything, as it is written down anew. Whoever takes it in knows the same.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.streams.values().flat_map(|(key, stream)| {
            stream.turns().into_iter().map(|turn| Entry::Stream(key.clone(), turn))
        })
    }

    /// Everything, as a hub takes it up, oldest first.
    pub(super) fn records(&self) -> Vec<StreamRecord> {
        let record = |(key, stream): &(StreamKey, Stream)| match stream {
            Stream::Kept(kept) => Some(kept.record(key.clone())),
            Stream::Lost => None,
        };
        self.streams.values().filter_map(record).collect()
    }

    /// How many bytes it takes to write everything down, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &StreamKey> {
        self.ages.keys()
    }

    /// How a stream came to be what it is.
    pub(super) fn turns(&self, key: &StreamKey) -> Vec<Turn> {
        self.get(key).map(Stream::turns).unwrap_or_default()
    }

    /// Whether the session has a stream.
    pub(super) fn has(&self, session: &str) -> bool {
        self.ages.keys().any(|key| &*key.session == session)
    }

    /// Forgets what could not be kept: the daemon that knows of it is no more.
    pub(super) fn forget_lost(&mut self) {
        self.retain(|_, stream| matches!(stream, Stream::Kept(_)));
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

    fn change(&mut self, key: &StreamKey, change: impl FnOnce(&mut Kept)) {
        let stream = self.ages.get(key).and_then(|age| self.streams.get_mut(age));
        if let Some((_, stream @ Stream::Kept(_))) = stream {
            self.bytes -= stream.bytes();
            if let Stream::Kept(kept) = stream {
                change(kept);
            }
            self.bytes += stream.bytes();
        }
    }

    /// Gives up the stream that is missed least; false if there is none left.
    fn lose_one(&mut self) -> bool {
        let rank = |stream: &Stream| match stream {
            Stream::Kept(kept) if kept.answer.is_some() => Some(0),
            Stream::Kept(kept) if kept.request.is_none() => Some(1),
            Stream::Kept(_) => Some(2),
            Stream::Lost => None,
        };
        let ranked = self.streams.iter().filter_map(|(age, (key, stream))| {
            Some((rank(stream)?, *age, key.clone(), stream.is_general()))
        });
        let Some((_, _, key, general)) = ranked.min_by_key(|(rank, age, ..)| (*rank, *age)) else {
            return false;
        };
        self.remove(&key);
        // A general stream may begin anew; a request may not.
        if !general {
            self.insert(key, Stream::Lost);
        }
        true
    }
}

impl Stream {
    fn is_general(&self) -> bool {
        matches!(self, Self::Kept(kept) if kept.request.is_none())
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Lost => OVERHEAD,
            Self::Kept(kept) => {
                let text = |text: &Option<Bytes>| text.as_ref().map_or(0, Bytes::len);
                let answer = kept.answer.as_ref().map_or(0, |(_, answer)| answer.len());
                let entries = kept.said.len() + 3;
                text(&kept.request) + kept.said_bytes + answer + entries * OVERHEAD
            }
        }
    }

    /// What became of it so far, in an order that leads here again.
    fn turns(&self) -> Vec<Turn> {
        let kept = match self {
            Self::Lost => return vec![Turn::Lost],
            Self::Kept(kept) => kept,
        };
        let said = kept.said.iter().map(|(number, text)| Turn::Said(*number, text.clone()));
        let begun = kept.request.clone().map(Turn::Begun);
        let sent = kept.sent.map(|sent| Turn::Sent(sent, kept.attempts));
        let answer = kept.answer.clone().map(|(number, text)| Turn::Answered(number, text));
        begun.into_iter().chain(said).chain(sent).chain(answer).collect()
    }
}

impl Kept {
    fn is_open_request(&self) -> bool {
        self.request.is_some() && self.answer.is_none()
    }

    /// Whether this is the attempt that is recorded already, now with its line.
    fn is_attempt(&self, sent: Sent) -> bool {
        let known = Sent { line: None, ..sent };
        sent.line.is_some() && self.sent == Some(known)
    }

    fn say(&mut self, number: u64, text: Bytes) {
        self.said_bytes += text.len();
        self.said.push_back((number, text));
        while (self.said.len() > SAID || self.said_bytes > SAID_BYTES)
            && let Some((_, oldest)) = self.said.pop_front()
        {
            self.said_bytes -= oldest.len();
        }
    }

    fn record(&self, key: StreamKey) -> StreamRecord {
        StreamRecord {
            key,
            request: self.request.clone(),
            sent: self.sent,
            attempts: self.attempts,
            said: self.said.iter().cloned().collect(),
            answer: self.answer.clone(),
        }
    }
}

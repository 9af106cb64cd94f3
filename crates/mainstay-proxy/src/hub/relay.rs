//! Calls that the daemon before this one finishes.
//!
//! A server that speaks HTTP answers on the connection over which it was asked. When another daemon takes over, such a
//! connection stays with the old one, which waits for the answer and relays it, together with what the server says
//! before. Everything else is the new daemon's: it has the client's connection, keeps the stream, and decides what becomes
//! of a call whose server died.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::lock;
use crate::record::{Sent, StreamKey, StreamRecord};
use crate::stream::Reader;

/// How many messages of a call may wait until this daemon has found its server.
const WAITING: usize = 64;

/// A call that this daemon finishes for the next one.
#[derive(Debug)]
pub struct RelayedCall {
    /// Its stream.
    pub key: StreamKey,
    reader: Reader,
}

/// What became of such a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayNews {
    /// The server said this; the number is that of the message in the stream.
    Said(u64, String),
    /// The server answered this.
    Answered(String),
    /// No answer will come.
    Lost,
}

impl RelayedCall {
    pub(super) fn new(key: StreamKey, reader: Reader) -> Self {
        Self { key, reader }
    }

    /// What happens next. The last news are the answer, or that it is lost.
    pub async fn next(&mut self) -> RelayNews {
        let Some(item) = self.reader.next().await else { return RelayNews::Lost };
        // Messages are read as JSON before they are passed on, so they are UTF-8.
        let Ok(text) = String::from_utf8(item.message.to_vec()) else { return RelayNews::Lost };
        if item.is_answer { RelayNews::Answered(text) } else { RelayNews::Said(item.number, text) }
    }
}

/// News of one call.
pub(crate) type News = mpsc::Receiver<RelayNews>;

/// The calls that other daemons finish for this one.
#[derive(Default)]
pub struct Relays {
    awaited: Mutex<HashMap<StreamKey, RecoveredRequest>>,
}

struct RecoveredRequest {
    news: mpsc::Sender<RelayNews>,
    is_claimed: bool,
}

impl Relays {
    /// Expects news of a stream that is taken up, if only the daemon before this one can hear its answer.
    pub(super) fn expect(&self, record: &StreamRecord) -> Option<News> {
        let is_open = record.request.is_some() && record.answer.is_none();
        if !is_open || !matches!(record.sent, Some(Sent { line: None, .. })) {
            return None;
        }
        let (news, receiver) = mpsc::channel(WAITING);
        let awaited = RecoveredRequest { news, is_claimed: false };
        lock(&self.awaited).insert(record.key.clone(), awaited);
        Some(receiver)
    }

    /// Another daemon finishes these calls.
    pub fn claim(&self, keys: &[StreamKey]) {
        let mut all = lock(&self.awaited);
        for key in keys {
            if let Some(awaited) = all.get_mut(key) {
                awaited.is_claimed = true;
            }
        }
    }

    /// Passes on what became of a call. Nobody may wait for it any more. Never waits: if too much was said and not taken
    /// yet, more of it is dropped, but not the end.
    pub fn deliver(&self, key: &StreamKey, news: RelayNews) {
        let is_last = matches!(news, RelayNews::Answered(_) | RelayNews::Lost);
        let mut all = lock(&self.awaited);
        if let Some(RecoveredRequest { news: sender, .. }) = all.get(key)
            && (is_last || sender.capacity() > 1)
        {
            sender.try_send(news).ok();
        }
        if is_last {
            all.remove(key);
        }
    }

    /// No more news of these calls will come.
    pub fn give_up(&self, keys: &[StreamKey]) {
        let mut all = lock(&self.awaited);
        for key in keys {
            all.remove(key);
        }
    }

    /// No news will come of the calls that no daemon has claimed.
    pub fn give_up_unclaimed(&self) {
        lock(&self.awaited).retain(|_, awaited| awaited.is_claimed);
    }
}

impl fmt::Debug for Relays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relays").field("awaited", &lock(&self.awaited).len()).finish()
    }
}

/// Waits for the answer; what comes before it is handed to `push`, with its number. `None` if it is lost.
pub(super) async fn answer(news: &mut News, push: impl Fn(u64, Bytes)) -> Option<Bytes> {
    loop {
        match news.recv().await? {
            RelayNews::Said(number, text) => push(number, text.into()),
            RelayNews::Answered(text) => return Some(text.into()),
            RelayNews::Lost => return None,
        }
    }
}

//! Calls that the daemon before this one finishes, or this one for the next.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use mainstay_session::{RelayNews, StreamKey};

use super::{Reader, ServerHandle};

/// A call that this daemon finishes for the next one.
#[derive(Debug)]
pub struct RelayedCall {
    pub key: StreamKey,
    reader: Reader,
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
        if item.is_answer {
            RelayNews::Answered(text)
        } else {
            RelayNews::Message(item.number, text)
        }
    }
}

/// The calls that other daemons finish for this one.
#[derive(Default)]
pub struct Relays {
    expected: Mutex<HashMap<StreamKey, Expected>>,
}

struct Expected {
    server: ServerHandle,
    is_claimed: bool,
}

impl Relays {
    pub(super) fn expect(&self, key: StreamKey, server: &ServerHandle) {
        let expected = Expected { server: server.clone(), is_claimed: false };
        mainstay_core::lock(&self.expected).insert(key, expected);
    }

    /// Another daemon finishes these calls.
    pub fn claim(&self, keys: &[StreamKey]) {
        let mut all = mainstay_core::lock(&self.expected);
        for key in keys {
            if let Some(expected) = all.get_mut(key) {
                expected.is_claimed = true;
            }
        }
    }

    /// Passes on what became of a call. The client may have left.
    pub fn deliver(&self, key: &StreamKey, news: RelayNews) {
        let is_last = matches!(news, RelayNews::Answered(_) | RelayNews::Lost);
        let server = {
            let mut all = mainstay_core::lock(&self.expected);
            let server = all.get(key).map(|expected| expected.server.clone());
            if is_last {
                all.remove(key);
            }
            server
        };
        if let Some(server) = server {
            server.enter(|machine, now| machine.relay(now, key, news));
        }
    }

    /// No more news of these calls will come.
    pub fn give_up(&self, keys: &[StreamKey]) {
        for key in keys {
            self.deliver(key, RelayNews::Lost);
        }
    }

    /// No news will come of the calls that no daemon has claimed.
    pub fn give_up_unclaimed(&self) {
        let is_unclaimed = |(_, expected): &(&StreamKey, &Expected)| !expected.is_claimed;
        let unclaimed: Vec<_> = {
            let all = mainstay_core::lock(&self.expected);
            all.iter().filter(is_unclaimed).map(|(key, _)| key.clone()).collect()
        };
        self.give_up(&unclaimed);
    }
}

impl fmt::Debug for Relays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = mainstay_core::lock(&self.expected).len();
        f.debug_struct("Relays").field("expected", &expected).finish()
    }
}

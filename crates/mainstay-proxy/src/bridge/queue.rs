//! The client's messages that are not sent yet, in order.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::messages::Content;

/// How many messages wait at most. With so many the client is not read.
const MESSAGES: usize = 1024;

/// The same, in bytes.
const BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Queued {
    pub(super) content: Content,
    pub(super) received: Instant,
    /// How many lines the client has sent up to this one.
    pub(super) lines: u64,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Queued>,
    bytes: usize,
    is_closed: bool,
}

impl Queue {
    pub(super) fn push(&self, queued: Queued) {
        let mut state = self.lock();
        state.bytes += queued.content.bytes();
        state.messages.push_back(queued);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nothing more comes.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_waiters();
    }

    /// Resolves when nothing more comes.
    pub(super) async fn closed(&self) {
        self.wait_for(|state| state.is_closed.then_some(())).await;
    }

    /// The next message; none if it was closed and is empty.
    pub(super) async fn next(&self) -> Option<Queued> {
        self.wait_for(|state| match state.take_first() {
            Some(queued) => Some(Some(queued)),
            None => state.is_closed.then_some(None),
        })
        .await
    }

    /// Waits until there is room for another message.
    pub(super) async fn room(&self) {
        let has_room = |state: &mut State| state.messages.len() < MESSAGES && state.bytes < BYTES;
        self.wait_for(|state| has_room(state).then_some(())).await;
    }

    /// Removes the request with this id, if it is not sent yet.
    pub(super) fn remove_request(&self, id: &str) -> bool {
        let mut state = self.lock();
        let position = state.messages.iter().position(|queued| queued.content.is_request(id));
        let removed = position.and_then(|position| state.messages.remove(position));
        state.bytes -= removed.as_ref().map_or(0, |queued| queued.content.bytes());
        removed.is_some()
    }

    pub(super) fn take_all(&self) -> Vec<Queued> {
        let mut state = self.lock();
        state.bytes = 0;
        state.messages.drain(..).collect()
    }

    async fn wait_for<T>(&self, mut find: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = find(&mut self.lock()) {
                self.changed.notify_waiters();
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

impl State {
    fn take_first(&mut self) -> Option<Queued> {
        let first = self.messages.pop_front()?;
        self.bytes -= first.content.bytes();
        Some(first)
    }
}

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.text().len(),
            Self::Batch { text, .. } | Self::Garbled(text) => text.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::time::timeout;

    use super::*;

    fn queued(text: &str) -> Queued {
        let content = Content::read(Bytes::copy_from_slice(text.as_bytes()));
        Queued { content, received: Instant::now(), lines: 0 }
    }

    fn request(id: u32) -> Queued {
        queued(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#))
    }

    #[tokio::test(start_paused = true)]
    async fn messages_come_in_order_until_it_is_closed() {
        let queue = Queue::default();
        for id in 0..3 {
            queue.push(request(id));
        }
        assert!(queue.remove_request("1") && !queue.remove_request("1"));
        for id in ["0", "2"] {
            assert!(queue.next().await.unwrap().content.is_request(id));
        }
        let nothing = timeout(Duration::from_secs(1), queue.next()).await;
        assert!(nothing.is_err());
        queue.close();
        assert!(queue.next().await.is_none());
        assert_eq!(queue.lock().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_bounded() {
        let queue = Queue::default();
        let has_room = async || timeout(Duration::from_secs(1), queue.room()).await.is_ok();
        for id in 0..u32::try_from(MESSAGES).unwrap() {
            assert!(has_room().await);
            queue.push(request(id));
        }
        assert!(!has_room().await);
        queue.next().await.unwrap();
        assert!(has_room().await);
        queue.take_all();
        queue.push(queued(&"x".repeat(BYTES)));
        assert!(!has_room().await);
    }
}

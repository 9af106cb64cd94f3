//! The order of messages from `mainstay connect`.
//!
//! `connect` sends messages at the same time, each on its own connection, so they arrive in any order. The header
//! [`SEQUENCE`] carries the number of a message, and the lowest number whose response has not begun: all messages from
//! that number on enter the session before this one. If one of them does not arrive soon, this message is refused
//! without effect, and `connect` sends it again. So messages never enter in another order, and a daemon does not wait
//! for messages that only its predecessor has received.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::header::HeaderMap;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Front;
use super::head::SESSION_ID;
use super::reply::Refusal;
use crate::private_headers::{SEQUENCE, SequenceNumbers};

/// How long a message waits for earlier ones.
const TURN_TIMEOUT: Duration = Duration::from_millis(100);

/// Sessions without a message for this long are forgotten, which costs the next message a retry at most.
const FORGET: Duration = Duration::from_secs(60);

/// The order of messages in each session.
#[derive(Debug, Default)]
pub(super) struct Sequences(Mutex<BySession>);

/// With the time of the last message.
type BySession = HashMap<Box<str>, (Arc<Sequence>, Instant)>;

#[derive(Debug, Default)]
struct Sequence {
    /// All messages below this number have entered the session, or were given up.
    next: AtomicU64,
    changed: Notify,
}

/// The turn of one message to enter its session. When it is dropped, it is the turn of the next one.
#[derive(Debug)]
pub(super) struct Turn {
    sequence: Arc<Sequence>,
    number: u64,
}

/// Waits for the turn of a message. `None` if it has no number, or comes from a public listener.
pub(super) async fn turn(front: &Front, headers: &HeaderMap) -> Result<Option<Turn>, Refusal> {
    let Some(sequences) = &front.sequences else { return Ok(None) };
    let Some((session, SequenceNumbers { number, lowest })) = numbers(headers) else {
        return Ok(None);
    };
    let sequence = sequences.get(session);
    sequence.advance(lowest);
    if !sequence.is_turn(number) {
        tokio::select! {
            biased;
            () = sequence.reached(number) => {}
            _ = front.ended() => return Err(Refusal::OutOfOrder),
            () = sleep(TURN_TIMEOUT) => return Err(Refusal::OutOfOrder),
        }
    }
    Ok(Some(Turn { sequence, number }))
}

fn numbers(headers: &HeaderMap) -> Option<(&str, SequenceNumbers)> {
    let numbers = SequenceNumbers::parse(headers.get(&SEQUENCE)?)?;
    let session = headers.get(SESSION_ID)?.to_str().ok()?;
    Some((session, numbers))
}

impl Sequences {
    fn get(&self, session: &str) -> Arc<Sequence> {
        let (mut all, now) = (mainstay_core::lock(&self.0), Instant::now());
        if let Some((sequence, used)) = all.get_mut(session) {
            *used = now;
            return Arc::clone(sequence);
        }
        all.retain(|_, (_, used)| now - *used < FORGET);
        Arc::clone(&all.entry(session.into()).or_insert((Arc::default(), now)).0)
    }
}

impl Sequence {
    fn is_turn(&self, number: u64) -> bool {
        self.next.load(Ordering::Relaxed) >= number
    }

    fn advance(&self, next: u64) {
        if self.next.fetch_max(next, Ordering::Relaxed) < next {
            self.changed.notify_waiters();
        }
    }

    async fn reached(&self, number: u64) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_turn(number) {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.sequence.advance(self.number.saturating_add(1));
    }
}

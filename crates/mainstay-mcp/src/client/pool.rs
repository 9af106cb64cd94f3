//! Idle connections, waiting for the next request.
//!
//! A connection is used only by the runtime that made it: any other would be woken through the
//! first one, and left without wake-ups when that ends. The most recently used connection is taken
//! first, so that those not needed age and go. What has aged is closed by one task, which lives
//! only while there are idle connections and ends with the pool. The memory in which requests are
//! written and answers read waits here too, as long as there are idle connections.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::BytesMut;
use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::conn::Conn;

/// How many connections are kept: as many as there are busy sessions, because between two calls of
/// each its connection is idle, and making a new one costs more than the call.
const MOST: usize = 256;

/// How much memory one call gets at first. Twice as much is not kept.
pub(super) const ROOM: usize = 4 << 10;

#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Idle<Conn>,
    /// Closes what has aged; `None` while there is nothing to close.
    sweeper: Option<JoinHandle<()>>,
    /// Memory of calls that are over.
    rooms: Vec<BytesMut>,
}

impl Pool {
    /// A connection that can be written to, as far as one can know.
    pub(super) fn take(&self) -> Option<Conn> {
        let home = Handle::current().id();
        let now = Instant::now();
        loop {
            let mut conn = self.lock().idle.take(home, now)?;
            if conn.is_quiet() {
                return Some(conn);
            }
        }
    }

    /// Keeps a connection on which nothing is under way.
    pub(super) fn put(self: &Arc<Self>, conn: Conn, keep: Duration) {
        let home = Handle::current().id();
        let until = Instant::now() + keep;
        let surplus = {
            let mut state = self.lock();
            // A runtime that ended took its task with it.
            if state.sweeper.as_ref().is_none_or(JoinHandle::is_finished) {
                state.sweeper = Some(tokio::spawn(sweep(Arc::downgrade(self), until)));
            }
            state.idle.put(conn, home, until)
        };
        // Closing is a system call, so it happens outside the lock.
        drop(surplus);
    }

    /// Empty memory for a call, as a rule that of an earlier one.
    pub(super) fn take_room(&self) -> BytesMut {
        self.lock().rooms.pop().unwrap_or_default()
    }

    /// Keeps the memory of a call, if nothing else refers to a part of it.
    pub(super) fn put_room(&self, mut room: BytesMut) {
        room.clear();
        if room.try_reclaim(ROOM) && room.capacity() < 2 * ROOM {
            let mut state = self.lock();
            if state.rooms.len() < MOST {
                state.rooms.push(room);
            }
        }
    }

    /// Closes all idle connections.
    pub(super) fn close_idle(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// Closes what has aged. Returns when to call it again.
    fn sweep(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let aged = state.idle.sweep(now);
        let next = state.idle.deadline();
        if next.is_none() {
            state.sweeper = None;
            state.rooms = Vec::new();
        }
        drop(state);
        drop(aged);
        next
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(sweeper) = &self.lock().sweeper {
            sweeper.abort();
        }
    }
}

async fn sweep(pool: Weak<Pool>, first: Instant) {
    let mut next = Some(first);
    while let Some(at) = next {
        sleep_until(at).await;
        next = pool.upgrade().and_then(|pool| pool.sweep(Instant::now()));
    }
}

/// What is idle, the longest idle first.
#[derive(Debug)]
struct Idle<C> {
    all: VecDeque<Entry<C>>,
}

#[derive(Debug)]
struct Entry<C> {
    conn: C,
    home: Id,
    until: Instant,
}

impl<C> Default for Idle<C> {
    fn default() -> Self {
        Self { all: VecDeque::new() }
    }
}

impl<C> Idle<C> {
    fn take(&mut self, home: Id, now: Instant) -> Option<C> {
        let usable = |entry: &Entry<C>| entry.home == home && entry.until > now;
        let at = self.all.iter().rposition(usable)?;
        self.all.remove(at).map(|entry| entry.conn)
    }

    /// Gives back the one that has to go, if there are too many.
    fn put(&mut self, conn: C, home: Id, until: Instant) -> Option<C> {
        self.all.push_back(Entry { conn, home, until });
        if self.all.len() <= MOST {
            return None;
        }
        self.all.pop_front().map(|entry| entry.conn)
    }

    fn sweep(&mut self, now: Instant) -> Vec<C> {
        let (aged, kept) =
            self.all.drain(..).partition::<VecDeque<_>, _>(|entry| entry.until <= now);
        self.all = kept;
        aged.into_iter().map(|entry| entry.conn).collect()
    }

    fn deadline(&self) -> Option<Instant> {
        self.all.iter().map(|entry| entry.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn the_last_one_used_is_taken_first_and_the_oldest_goes() {
        let (home, now) = (Handle::current().id(), Instant::now());
        let mut idle = Idle::default();
        let most = u32::try_from(MOST).unwrap();
        for number in 0..most {
            assert_eq!(idle.put(number, home, now + SECOND), None);
        }
        assert_eq!(idle.put(most, home, now + SECOND), Some(0));
        let taken: Vec<_> = std::iter::from_fn(|| idle.take(home, now)).collect();
        assert_eq!(taken, (1..=most).rev().collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_has_aged_is_not_taken_but_swept() {
        let (home, now) = (Handle::current().id(), Instant::now());
        let mut idle = Idle::default();
        idle.put('a', home, now + SECOND * 2);
        idle.put('b', home, now + SECOND);
        assert_eq!(idle.deadline(), Some(now + SECOND));
        assert_eq!(idle.take(home, now + SECOND), Some('a'));
        assert_eq!(idle.take(home, now + SECOND), None);
        assert_eq!(idle.sweep(now), vec![]);
        assert_eq!(idle.sweep(now + SECOND), vec!['b']);
        assert_eq!(idle.deadline(), None);
    }

    #[test]
    fn memory_is_kept_if_it_is_free_and_not_large() {
        let pool = Pool::default();
        let mut room = BytesMut::with_capacity(ROOM);
        room.extend_from_slice(b"head body");
        let place = room.as_ptr();
        let head = room.split_to(5);
        pool.put_room(room.split());
        assert_eq!(pool.take_room().capacity(), 0, "the head is still there");
        drop(head);
        pool.put_room(room);
        let room = pool.take_room();
        assert_eq!((room.as_ptr(), room.capacity() >= ROOM), (place, true));
        pool.put_room(BytesMut::with_capacity(2 * ROOM));
        assert_eq!(pool.take_room().capacity(), 0);
    }

    #[tokio::test]
    async fn a_connection_stays_with_its_runtime() {
        let elsewhere = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.handle().id()
        });
        let (here, there) = (Handle::current().id(), elsewhere.join().unwrap());
        let mut idle = Idle::default();
        let now = Instant::now();
        idle.put('h', here, now + SECOND);
        idle.put('t', there, now + SECOND);
        assert_eq!(idle.take(here, now), Some('h'));
        assert_eq!(idle.take(here, now), None);
        assert_eq!(idle.take(there, now), Some('t'));
    }
}

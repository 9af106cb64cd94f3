//! Connections that exceed a time limit or the connection budget. Time is paused unless it is advanced.

use std::pin::Pin;
use std::task::Poll;

use tokio::time::{advance, sleep};

use super::super::eviction::SWEEP;
use super::*;
use crate::front::tests::call;

impl Site {
    /// Advances time, with all sweeps.
    async fn passes(&mut self, time: Duration) {
        for _ in 0..time.as_secs() / SWEEP.as_secs() {
            advance(SWEEP).await;
            self.connections.sweep();
            self.settle().await;
        }
    }

    /// Runs all tasks until they are blocked, and removes connections that have ended.
    async fn settle(&mut self) {
        // A sleep in paused time ends when no task can do anything.
        sleep(Duration::from_millis(1)).await;
        let mut ended =
            std::pin::pin!(async { while self.connections.next_end().await.is_some() {} });
        std::future::poll_fn(|cx| Poll::Ready(Pin::as_mut(&mut ended).poll(cx).is_ready())).await;
    }
}

impl Wire<DuplexStream> {
    /// Whether the other end has closed it, without an answer.
    async fn is_closed(&mut self) -> bool {
        let read = tokio::time::timeout(Duration::from_millis(1), self.io.read_buf(&mut self.got));
        matches!(read.await, Ok(Ok(0)))
    }
}

const S: fn(u64) -> Duration = Duration::from_secs;

#[tokio::test(start_paused = true)]
async fn a_head_has_ten_seconds_however_it_drips() {
    let mut site = Site::new();
    let (mut half, mut drips, mut fresh) = (site.connect(), site.connect(), site.connect());
    half.send("POST /time/mcp HTTP/1.1\r\nHost: loc").await;
    for _ in 0..5 {
        drips.send("G").await;
        site.passes(S(2)).await;
    }
    assert!(!half.is_closed().await && !drips.is_closed().await, "not before its time");
    drips.send("E").await;
    site.passes(S(4)).await;
    assert!(half.is_closed().await && drips.is_closed().await);
    assert!(!fresh.is_closed().await, "nothing was begun on it, and there is room");
    site.passes(S(300)).await;
    assert!(fresh.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn a_body_may_be_slow_but_not_stand_still() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let text = post(session.id(), BOTH, &call(1, "fast"));
    let begin = text.find("\r\n\r\n").unwrap() + 4;
    let (mut slow, mut stuck) = (site.connect(), site.connect());
    slow.send(&text[..begin]).await;
    stuck.send(&text[..begin + 3]).await;
    for byte in text[begin..text.len() - 1].chars().take(10) {
        slow.send(&byte.to_string()).await;
        site.passes(S(20)).await;
    }
    assert!(stuck.is_closed().await);
    slow.send(&text[begin + 10..]).await;
    assert_eq!(slow.reply().await.status, 200);
}

/// The head of a request with a body of 16 MiB, and the first bytes of the body.
fn large(session: &str, begun: usize) -> String {
    let head = post(session, BOTH, "").replace("Content-Length: 0", "Content-Length: 16777216");
    head + &" ".repeat(begun)
}

/// The bodies that are started here need more memory than the budget allows.
#[tokio::test(start_paused = true)]
async fn large_bodies_wait_for_memory_and_small_ones_do_not() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut stuck = Vec::new();
    for _ in 0..256 {
        let mut wire = site.connect();
        wire.send(&large(session.id(), 100_000)).await;
        stuck.push(wire);
    }
    site.passes(S(10)).await;
    let mut waits = site.connect();
    let body = format!("{}{}", call(1, "fast"), " ".repeat(100_000));
    let text = post(session.id(), BOTH, &body);
    let sending = tokio::spawn(async move {
        waits.io.write_all(text.as_bytes()).await.unwrap();
        waits
    });
    site.settle().await;
    let mut small = site.posts(&session, &call(2, "fast")).await;
    assert_eq!(small.reply().await.status, 200);
    site.passes(S(10)).await;
    assert!(!sending.is_finished());
    // Those that stand still are given up, and the one that waits is not.
    site.passes(S(16)).await;
    assert_eq!(sending.await.unwrap().reply().await.status, 200);
    assert!(stuck[0].is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_large_bodies_wait_for_memory() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut all = Vec::new();
    // The first 256 get memory, as many others wait, and one is refused.
    for _ in 0..513 {
        let mut wire = site.connect();
        let text = large(session.id(), 100_000);
        all.push(tokio::spawn(async move {
            // It is closed before everything is sent.
            wire.io.write_all(text.as_bytes()).await.ok();
            wire
        }));
        site.settle().await;
    }
    let last = all.pop().unwrap().await.unwrap().reply().await;
    assert_eq!(last.status, 429, "{}", last.body);
    let mut small = site.posts(&session, &call(2, "fast")).await;
    assert_eq!(small.reply().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn large_bodies_that_drip_are_given_up() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut drips = Vec::new();
    for _ in 0..256 {
        let mut wire = site.connect();
        wire.send(&large(session.id(), 100_000)).await;
        drips.push(wire);
    }
    for _ in 0..4 {
        for wire in &mut drips {
            wire.io.write_all(b" ").await.ok();
        }
        site.passes(S(12)).await;
    }
    assert_eq!(drips[0].reply().await.status, 408);
    let late = post(session.id(), BOTH, &format!("{}{}", call(1, "fast"), " ".repeat(100_000)));
    let mut wire = site.connect();
    wire.send(&late).await;
    assert_eq!(wire.reply().await.status, 200, "there is memory again");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_five_minutes_and_a_busy_one_never() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut idle = site.posts(&session, &call(1, "fast")).await;
    assert_eq!(idle.reply().await.status, 200);
    let mut slow = site.posts(&session, &call(2, "slow")).await;
    let asked = site.seen.request().await;
    let mut stream = site.gets(&session, None).await;
    let mut json = site.connect();
    json.send(&post(session.id(), "application/json", &call(3, "slow"))).await;
    site.settle().await;
    site.passes(S(298)).await;
    assert!(!idle.is_closed().await);
    site.passes(S(6)).await;
    assert!(idle.is_closed().await);
    site.passes(S(3600)).await;
    for busy in [&mut slow, &mut stream, &mut json] {
        assert!(!busy.is_closed().await);
    }
    // When the call is answered, its connection is idle.
    asked.answers("{}");
    slow.sees("0\r\n\r\n").await;
    site.passes(S(304)).await;
    assert!(slow.is_closed().await && !stream.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn an_unread_answer_times_out_after_half_a_minute() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    // The answer is longer than the buffer of the connection.
    let mut deaf = site.posts(&session, &call(1, "slow")).await;
    let mut slow = site.posts(&session, &call(2, "slow")).await;
    for _ in 0..2 {
        let long = format!(r#""{}""#, "a".repeat(40_000));
        site.seen.request().await.answers(&long);
    }
    site.settle().await;
    for _ in 0..5 {
        site.passes(S(20)).await;
        let mut some = [0; 4096];
        assert_ne!(slow.io.read(&mut some).await.unwrap(), 0);
    }
    assert_eq!(site.connections.len(), 1, "only who reads, if slowly, is waited for");
    while !matches!(deaf.io.read_buf(&mut deaf.got).await, Ok(0) | Err(_)) {}
    assert!(deaf.got.len() < 40_000);
}

#[tokio::test(start_paused = true)]
async fn unused_connections_are_evicted_first_then_the_longest_idle_and_busy_ones_never() {
    let mut site = Site::with_budget(64);
    let session = site.fake.with(NEW);
    let (mut idle, mut busy, mut unused) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..20 {
        let mut wire = site.posts(&session, &call(n, "fast")).await;
        assert_eq!(wire.reply().await.status, 200);
        idle.push(wire);
        site.passes(S(2)).await;
    }
    for n in 0..20 {
        busy.push(site.posts(&session, &call(100 + n, "slow")).await);
    }
    for n in 0..24 {
        let mut wire = site.connect();
        if n % 2 == 0 {
            wire.send("POST /time/mcp HT").await;
        }
        unused.push(wire);
    }
    site.settle().await;
    assert!(!site.connections.can_accept());
    site.settle().await;
    assert!(site.connections.can_accept(), "the first few have gone");
    // Less than an eighth of the budget is free, so more connections are evicted with the next tick.
    site.passes(S(2)).await;
    for wire in &mut idle {
        assert!(!wire.is_closed().await);
    }
    let mut still = 0;
    for wire in &mut unused {
        still += usize::from(!wire.is_closed().await);
    }
    assert_eq!(still, 16);
    assert!(unused.last_mut().unwrap().io.write_all(b"x").await.is_ok(), "the newest stay");
    // For descriptors, all connections without a request in progress are evicted.
    while site.connections.evict_for_descriptors() > 0 {
        site.settle().await;
    }
    assert_eq!(site.connections.len(), 20);
    for wire in &mut busy {
        assert!(!wire.is_closed().await);
    }
}

#[tokio::test(start_paused = true)]
async fn connections_close_after_their_answer_when_the_budget_is_nearly_used_up() {
    let mut site = Site::with_budget(8);
    let session = site.fake.with(NEW);
    let mut others: Vec<_> = (0..7).map(|_| site.connect()).collect();
    let mut wire = site.posts(&session, &call(1, "fast")).await;
    let reply = wire.reply().await;
    assert_eq!(value(&reply.head, "connection"), Some("close"));
    assert!(wire.is_closed().await, "after it was told");
    others.truncate(2);
    site.settle().await;
    let mut wire = site.posts(&session, &call(2, "fast")).await;
    assert_eq!(value(&wire.reply().await.head, "connection"), None);
}

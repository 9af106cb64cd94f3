//! Connections to a stdio server that are lost and made again, while the server goes on.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::World;
use super::client::text;

#[tokio::test(start_paused = true)]
async fn what_was_lost_is_sent_again_if_that_is_safe_and_answered_otherwise() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let (safe, harmful) = (client.calls("peek"), client.calls("poke"));
    let (peek, poke) = (server.reads_call("peek").await, server.reads_call("poke").await);
    server.is_interrupted();
    sleep(Duration::from_secs(2)).await;
    // Should the first one still run, it is cancelled.
    let cancelled = server.reads().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], peek["id"]);
    let again = server.reads_call("peek").await;
    assert_ne!(again["id"], peek["id"]);
    server.returns(&again, "seen").await;
    assert_eq!(safe.text().await, "seen");
    sleep(Duration::from_secs(20)).await;
    assert!(harmful.text().await.contains("its effect is unknown"));
    assert_eq!(server.reads().await["params"]["requestId"], poke["id"]);
    assert!(server.reads_nothing().await);
    assert_eq!(world.notes.causes(), ["replayed", "effect-unknown"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_passed_on() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let harmful = client.calls("poke");
    let poke = server.reads_call("poke").await;
    server.is_interrupted();
    sleep(Duration::from_secs(5)).await;
    server.returns(&poke, "done").await;
    assert_eq!(harmful.text().await, "done");
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_server_has_for_long_is_waited_for() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let (harmful, safe) = (client.calls("poke"), client.calls("peek"));
    let (poke, peek) = (server.reads_call("poke").await, server.reads_call("peek").await);
    sleep(Duration::from_secs(5)).await;
    server.is_interrupted();
    sleep(Duration::from_secs(300)).await;
    server.returns(&peek, "seen").await;
    assert_eq!(safe.text().await, "seen");
    // Not for ever.
    let begun = Instant::now();
    assert!(text(&harmful.answer().await).contains("its effect is unknown"));
    assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", begun.elapsed());
    assert_eq!(server.reads().await["params"]["requestId"], poke["id"]);
}

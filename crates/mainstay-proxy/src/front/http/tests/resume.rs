//! Streams that are cut, replaced and resumed.

use tokio::time::Instant;

use super::*;
use crate::Found;
use crate::front::tests::{call, note};

#[tokio::test(start_paused = true)]
async fn the_general_stream_carries_what_the_server_says_unasked() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    site.fake.says(&note("before"));
    let mut wire = site.gets(&session, None).await;
    let head = wire.head(200).await;
    assert_eq!(value(&head, "content-type"), Some("text/event-stream"));
    assert!(wire.sees("\n\n").await.contains("before"));
    site.fake.says(&note("after"));
    assert!(wire.sees("\n\n").await.contains("after"));
}

#[tokio::test(start_paused = true)]
async fn the_newest_get_replaces_the_older() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let mut old = site.gets(&session, None).await;
    old.head(200).await;
    let mut new = site.gets(&session, None).await;
    new.head(200).await;
    old.ends().await;
    site.fake.says(&note("once"));
    assert_eq!(messages(&new.sees("\n\n").await), 1);
}

#[tokio::test(start_paused = true)]
async fn the_general_stream_is_resumed_without_loss() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.gets(&session, None).await;
    let priming = last_id(&wire.sees("data: \n\n").await);
    site.fake.says(&note("a"));
    site.fake.says(&note("b"));
    let a = last_id(&wire.sees("\n\n").await);
    wire.sees("\n\n").await;
    drop(wire);
    site.fake.says(&note("c"));
    for (last, expected) in [(&a, &["b", "c"][..]), (&priming, &["a", "b", "c"])] {
        let mut wire = site.gets(&session, Some(last)).await;
        wire.sees("data: \n\n").await;
        for name in expected {
            let event = wire.sees("\n\n").await;
            assert!(event.contains(&note(name)) && messages(&event) == 1, "{name}: {event}");
        }
    }
    // The id of another daemon, or of another program.
    site.fake.says(&note("d"));
    for last in ["0000000100000000-7", "whatever"] {
        let mut wire = site.gets(&session, Some(last)).await;
        wire.head(200).await;
        wire.sees("data: \n\n").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_before_the_commit_gives_its_request_up() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let wire = site.posts(&session, &call(1, "slow")).await;
    let asked = site.seen.request().await;
    let start = Instant::now();
    drop(wire);
    asked.given_up().await;
    assert!(start.elapsed() < Duration::from_millis(150));
}

#[tokio::test(start_paused = true)]
async fn a_client_without_an_event_id_cannot_come_back() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    wire.head(200).await;
    let asked = site.seen.request().await;
    let start = Instant::now();
    drop(wire);
    asked.given_up().await;
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_is_resumed_each_message_once() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    let asked = site.seen.request().await;
    asked.says(&note("a"));
    asked.says(&note("b"));
    let a = last_id(&wire.sees("\n\n").await);
    drop(wire);
    wait(Duration::from_secs(29)).await;
    asked.says(&note("c"));
    let mut wire = site.gets(&session, Some(&a)).await;
    wire.head(200).await;
    for name in ["b", "c"] {
        let event = wire.sees("\n\n").await;
        assert!(event.contains(&note(name)) && messages(&event) == 1, "{name}: {event}");
    }
    wait(Duration::from_secs(100)).await;
    let answer = asked.answers("{}");
    wire.sees(&answer).await;
    wire.sees("0\r\n\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_waits_for_the_client_to_come_back() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    let priming = last_id(&wire.sees("data: \n\n").await);
    drop(wire);
    let answer = site.seen.request().await.answers("{}");
    wait(Duration::from_secs(59)).await;
    let mut wire = site.gets(&session, Some(&priming)).await;
    wire.head(200).await;
    let event = wire.sees(&answer).await;
    wire.sees("0\r\n\r\n").await;
    // What comes after the answer is nothing, and no stream that ends at once.
    let mut wire = site.gets(&session, Some(&last_id(&event))).await;
    wire.head(405).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_away_gives_its_request_up() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(7, "slow")).await;
    let priming = last_id(&wire.sees("data: \n\n").await);
    let asked = site.seen.request().await;
    let start = Instant::now();
    drop(wire);
    asked.given_up().await;
    assert_eq!(start.elapsed(), Duration::from_secs(30));
    assert!(
        matches!(session.find(&priming.parse().unwrap()), Found::Gone(Some(id)) if &*id == "7")
    );
    // If it comes back after all, it is told the end of its request.
    let mut wire = site.gets(&session, Some(&priming)).await;
    let reply = wire.reply().await;
    assert_eq!(value(&reply.head, "content-type"), Some("text/event-stream"));
    assert!(reply.body.starts_with("event: message\ndata: {"), "{}", reply.body);
    assert!(reply.body.contains(r#""id":7,"error""#), "{}", reply.body);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_for_a_minute() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(7, "slow")).await;
    let priming = last_id(&wire.sees("data: \n\n").await);
    site.seen.request().await.answers("{}");
    wire.sees("0\r\n\r\n").await;
    wait(Duration::from_secs(61)).await;
    let mut wire = site.gets(&session, Some(&priming)).await;
    assert!(wire.reply().await.body.contains("effect is unknown"));
}

#[tokio::test(start_paused = true)]
async fn an_event_id_with_junk_for_a_request_is_no_request() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    // `{}`, `1}` and `nul` in hexadecimal digits.
    for request in ["7b7d", "317d", "6e756c"] {
        let last = format!("0000000100000001-0-{request}");
        site.gets(&session, Some(&last)).await.head(405).await;
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_other_sessions_are_out_of_reach() {
    let mut site = Site::new();
    let (mine, yours) = (site.fake.with(NEW), site.fake.with(NEW));
    let mut wire = site.posts(&mine, &call(7, "slow")).await;
    let priming = last_id(&wire.sees("data: \n\n").await);
    site.seen.request().await.answers(r#"{"secret":1}"#);
    let mut wire = site.gets(&yours, Some(&priming)).await;
    let reply = wire.reply().await;
    assert!(!reply.body.contains("secret"), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_costs_bounded_memory() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    let asked = site.seen.request().await;
    let large = note(&"x".repeat(100_000));
    for _ in 0..140 {
        asked.says(&large);
    }
    // Nobody reads meanwhile.
    wait(Duration::from_secs(1)).await;
    let answer = asked.answers("{}");
    let all = wire.sees("0\r\n\r\n").await;
    assert!(all.contains(&answer));
    let dropped = 140 + 1 - messages(&all);
    assert!((60..101).contains(&dropped), "{dropped}");
}

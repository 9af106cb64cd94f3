//! Requests that wait for a run, or do not.

use std::sync::Arc;
use std::time::Duration;

use mainstay_proxy::{Availability, Settings};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::client::text;
use super::{HOLD, World, settings};

/// The most requests that are held for one server.
const HELD: usize = 4096;

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_run_that_comes_in_time() {
    let world = World::new();
    let client = down(&world).await;
    world.is_coming(Some(Duration::from_secs(40)));
    let asked = client.calls("poke");
    sleep(Duration::from_secs(41)).await;
    assert!(!asked.is_answered());
    let mut server = world.serves().await;
    let call = server.reads_call("poke").await;
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
    assert_eq!(world.notes.causes(), ["held"]);
}

#[tokio::test(start_paused = true)]
async fn what_will_not_come_in_time_is_said_at_once_and_why() {
    let world = World::new();
    let client = down(&world).await;
    let begun = Instant::now();
    world.is_coming(Some(Duration::from_secs(60)));
    let late = client.calls("poke").text().await;
    world.is_down();
    let stopped = client.calls("poke").text().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(late.contains("the next attempt is in 60 s"), "{late}");
    for told in [late, stopped] {
        assert!(told.starts_with("failed: the MCP server `time` is down: exited 3"), "{told}");
        assert!(told.contains("out of paper"), "{told}");
    }
    let read = crate::soon(client.asks("resources/read", &json!({"uri": "a:"})).answer()).await;
    assert_eq!(read["error"]["data"], json!({"mainstay": "refused"}));
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_turns_out_to_be_vain_ends_at_once() {
    let world = World::new();
    let client = down(&world).await;
    for end in [World::is_down, |world: &World| world.is_coming(Some(HOLD * 2))] {
        world.is_coming(None);
        let (begun, asked) = (Instant::now(), client.calls("poke"));
        sleep(Duration::from_secs(1)).await;
        end(&world);
        assert!(asked.text().await.contains("is down"));
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_held_for_longer_than_the_hold() {
    let world = World::new();
    let client = down(&world).await;
    world.is_coming(None);
    let begun = Instant::now();
    let answer = client.calls("poke").answer().await;
    assert_eq!(begun.elapsed(), HOLD);
    assert!(text(&answer).contains("did not come back within 45 s"));
    assert_eq!(world.notes.causes(), ["hold-expired"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_hold_nothing_is_held() {
    let world = World::with(Settings { hold: Duration::ZERO, ..settings() });
    let client = down(&world).await;
    world.is_coming(None);
    assert!(client.calls("poke").text().await.contains("is down"));
}

#[tokio::test(start_paused = true)]
async fn a_held_call_that_is_given_up_is_never_made() {
    let world = World::new();
    let client = down(&world).await;
    world.is_coming(None);
    let (dropped, cancelled) = (client.calls("poke"), client.calls("poke"));
    sleep(Duration::from_secs(1)).await;
    client.cancels(&cancelled);
    sleep(Duration::from_millis(1)).await;
    assert!(cancelled.ends_unanswered().await);
    drop(dropped);
    assert!(world.serves().await.reads_nothing().await);
    assert_eq!(world.notes.causes(), ["gone", "gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_sent_outlives_a_pause_of_its_run() {
    let world = World::new();
    let mut server = world.serves().await;
    let client = world.client().await;
    let run = server.run.clone().unwrap();
    let (early, late) = (client.calls("poke"), client.calls("poke"));
    let early_call = server.reads_call("poke").await;
    let late_call = server.reads_call("poke").await;
    world.is_coming(None);
    let held = client.calls("poke");
    sleep(HOLD / 2).await;
    server.returns(&early_call, "in the pause").await;
    assert_eq!(early.text().await, "in the pause");
    world.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
    let held_call = server.reads_call("poke").await;
    server.returns(&held_call, "held").await;
    assert_eq!(held.text().await, "held");
    // However long that is: it is with the server, so no hold has an end.
    world.is_coming(None);
    sleep(HOLD * 2).await;
    assert!(!late.is_answered());
    world.proxy.set_availability(Availability::Up(server.run.clone().unwrap().run));
    server.returns(&late_call, "after two pauses").await;
    assert_eq!(late.text().await, "after two pauses");
    assert!(server.reads_nothing().await, "the run has met its sessions already");
    assert_eq!(world.notes.causes(), ["held"]);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_requests_are_held() {
    let world = World::new();
    let client = down(&world).await;
    world.is_coming(None);
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(world.client().await);
    }
    // One session may not have so many.
    let mut held: Vec<_> = (0..HELD).map(|n| others[n % 4].calls("poke")).collect();
    sleep(Duration::from_secs(1)).await;
    assert!(client.calls("poke").text().await.contains("is down"));
    assert!(held.iter().all(|asked| !asked.is_answered()));
    // Whoever goes leaves room.
    drop(held.pop());
    sleep(Duration::from_millis(1)).await;
    let asked = client.calls("poke");
    sleep(Duration::from_millis(1)).await;
    assert!(!asked.is_answered());
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_answered_when_the_server_is_removed() {
    let world = World::new();
    let client = down(&world).await;
    world.is_coming(None);
    let asked = client.calls("poke");
    sleep(Duration::from_secs(1)).await;
    world.proxy.set_availability(Availability::Removed);
    assert_eq!(asked.text().await, "failed: the MCP server `time` was removed");
}

#[tokio::test(start_paused = true)]
async fn a_ping_needs_no_server() {
    let world = World::new();
    let client = down(&world).await;
    world.is_coming(None);
    let answer = crate::soon(client.asks("ping", &json!({})).answer()).await;
    assert_eq!(answer["result"], json!({}));
}

/// A client whose server has gone.
async fn down(world: &World) -> super::Client {
    let _server = world.serves().await;
    let client = world.client().await;
    world.is_down();
    client
}

//! A client over lines that sends many messages before it reads the answers.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_proxy::front::http::ListenerKind;
use proptest::prelude::*;
use serde_json::Value;
use tokio::time::sleep;

use super::stdio_client::StdioClient;
use super::{Server, World};

const CALLS: u64 = 200;

/// Reads the calls that have arrived.
async fn arrived(server: &mut Server) -> Vec<Value> {
    let mut calls = Vec::new();
    sleep(Duration::from_millis(1)).await;
    while let Some(line) = server.reads_if_any() {
        calls.extend((line["method"] == "tools/call").then_some(line));
        sleep(Duration::from_millis(1)).await;
    }
    calls
}

fn key(call: &Value) -> u64 {
    call["params"]["key"].as_u64().unwrap()
}

/// The listener of a public port does not know the order, as a daemon of an earlier version.
#[tokio::test(start_paused = true)]
async fn messages_arrive_in_order_whatever_their_connections_do() {
    for kind in [ListenerKind::Private, ListenerKind::Public] {
        let world = World::new();
        let mut server = world.serves().await;
        let mut stdio_client = StdioClient::opens_delayed(&world, kind).await;
        for id in 1..=CALLS {
            stdio_client.calls(id, "poke").await;
        }
        let mut calls = Vec::new();
        while (calls.len() as u64) < CALLS {
            for call in arrived(&mut server).await {
                server.returns(&call, "done").await;
                calls.push(key(&call));
            }
        }
        assert_eq!(calls, (1..=CALLS).collect::<Vec<_>>(), "{kind:?}");
        let mut answers = BTreeSet::new();
        for _ in 1..=CALLS {
            assert!(answers.insert(stdio_client.reads().await["id"].as_u64()), "{kind:?}");
        }
    }
}

#[derive(Debug, Clone)]
struct Step {
    calls: u64,
    answers: usize,
    wait: u64,
    is_killed: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![Just(0), 1..300_u64];
    (0..30_u64, 0..30_usize, wait, any::<bool>())
        .prop_map(|(calls, answers, wait, is_killed)| Step { calls, answers, wait, is_killed })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn order_and_answers_survive_daemons(steps in prop::collection::vec(step(), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(play(steps));
    }
}

async fn play(steps: Vec<Step>) {
    let mut world = World::new();
    let mut server = world.serves().await;
    let mut stdio_client = StdioClient::opens_delayed(&world, ListenerKind::Private).await;
    let (mut sent, mut first_calls, mut open) = (0, Vec::new(), Vec::new());
    let mut answered = BTreeSet::new();
    let mut settle =
        async |stdio_client: &mut StdioClient, server: &mut Server, open: &mut Vec<Value>| {
            for call in arrived(server).await {
                if !first_calls.contains(&key(&call)) {
                    first_calls.push(key(&call));
                }
                open.push(call);
            }
            for answer in stdio_client.reads_all().await {
                assert!(answered.insert(answer["id"].as_u64()), "{answer} is the second answer");
            }
            (first_calls.clone(), answered.len())
        };
    for step in steps {
        for _ in 0..step.calls {
            sent += 1;
            stdio_client.calls(sent, "peek").await;
        }
        sleep(Duration::from_millis(step.wait)).await;
        settle(&mut stdio_client, &mut server, &mut open).await;
        for call in open.drain(..step.answers.min(open.len())) {
            server.returns(&call, "done").await;
        }
        // A shim would keep what the killed daemon has not received.
        sleep(Duration::from_millis(1)).await;
        if step.is_killed {
            let next = world.killed();
            server = next.finds(&server, &[]).await;
            stdio_client.moves_to(&next).await;
            world = next;
        }
    }
    for _ in 0..100 {
        let (calls, answers) = settle(&mut stdio_client, &mut server, &mut open).await;
        if answers as u64 == sent {
            assert_eq!(calls, (1..=sent).collect::<Vec<_>>());
            return;
        }
        for call in open.drain(..) {
            server.returns(&call, "done").await;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("some of {sent} calls were never answered");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_served_further_until_it_does() {
    const MANY: u64 = 600;
    let answer = "x".repeat(100_000);
    let world = World::new();
    let mut server = world.serves().await;
    let (mut stdio_client, _) = StdioClient::opens(&world).await;
    let mut calls = 0;
    for id in 1..=MANY {
        stdio_client.calls(id, "poke").await;
        for call in arrived(&mut server).await {
            server.returns(&call, &answer).await;
            calls += 1;
        }
    }
    // Longer than a listener waits for other clients to read.
    sleep(Duration::from_secs(300)).await;
    assert!((1..80).contains(&calls), "{calls} calls reached the server");
    let mut answers = BTreeSet::new();
    while (answers.len() as u64) < MANY {
        for call in arrived(&mut server).await {
            server.returns(&call, &answer).await;
        }
        for read in stdio_client.reads_all().await {
            assert_eq!(super::client::text(&read).len(), answer.len());
            assert!(answers.insert(read["id"].as_u64()));
        }
    }
}

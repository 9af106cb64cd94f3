//! What a server asks of clients.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::client::{Asked, text};
use super::stdio_client::StdioClient;
use super::{Client, Server, World};
use crate::soon;

#[tokio::test(start_paused = true)]
async fn a_question_goes_to_the_only_caller_and_its_answer_back() {
    let (world, mut server) = served().await;
    let [one, two] = [able(&world).await, able(&world).await];
    let mut asked = one.calls("poke");
    let call = server.reads_call("poke").await;
    let question = asks(&server, &mut asked, &json!("q")).await;
    assert_eq!(question["params"], json!({"message": "well?"}));
    one.posts(&json!({"id": question["id"], "result": {"action": "accept"}}));
    let answer = server.reads().await;
    assert_eq!(answer["id"], "q");
    assert_eq!(answer["result"], json!({"action": "accept"}));
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
    assert!(two.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn an_idle_server_may_ask_the_only_client() {
    let (world, mut server) = served().await;
    let client = able(&world).await;
    server.says(&elicitation(&json!(1))).await;
    let question = client.hears().await;
    client.posts(&json!({"id": question["id"], "error": {"code": -1, "message": "no"}}));
    assert_eq!(
        server.reads().await,
        json!({
            "jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"},
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_question_that_may_be_for_several_is_refused() {
    let (world, mut server) = served().await;
    let [one, two] = [able(&world).await, able(&world).await];
    server.says(&elicitation(&json!(1))).await;
    expect_refused(&server.reads().await, &json!(1), "--isolate");
    let (_first, _second) = (one.calls("a"), two.calls("b"));
    server.reads_call("a").await;
    server.reads_call("b").await;
    server.says(&elicitation(&json!(2))).await;
    expect_refused(&server.reads().await, &json!(2), "--isolate");
    assert!(one.hears_nothing().await && two.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_client_is_not_asked_what_it_cannot_answer() {
    let (world, mut server) = served().await;
    let client = world.client_with(&json!({"sampling": {}})).await;
    let mut asked = client.calls("poke");
    server.reads_call("poke").await;
    for method in ["elicitation/create", "roots/list"] {
        server.says(&json!({"id": 1, "method": method})).await;
        expect_refused(&server.reads().await, &json!(1), "did not announce");
    }
    server.says(&json!({"id": 1, "method": "sampling/createMessage"})).await;
    assert_eq!(asked.hears().await["method"], "sampling/createMessage");
}

#[tokio::test(start_paused = true)]
async fn a_ping_of_the_server_is_answered_without_asking_anybody() {
    let (world, mut server) = served().await;
    let client = able(&world).await;
    server.says(&json!({"id": "p", "method": "ping"})).await;
    assert_eq!(server.reads().await, json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    assert!(client.hears_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_question_ends_with_its_run_and_a_late_answer_is_dropped() {
    let (world, mut server) = served().await;
    let client = able(&world).await;
    let mut asked = client.calls("peek");
    server.reads_call("peek").await;
    let question = asks(&server, &mut asked, &json!(1)).await;
    drop(server);
    let cancelled = asked.hears().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], question["id"]);
    let mut server = world.serves().await;
    client.posts(&json!({"id": question["id"], "result": {}}));
    // The client had not answered, so the call is still safe.
    let call = server.reads_call("peek").await;
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_call_in_which_the_client_was_asked_is_not_replayed() {
    let (world, mut server) = served().await;
    let client = able(&world).await;
    let mut asked = client.calls("peek");
    server.reads_call("peek").await;
    let question = asks(&server, &mut asked, &json!(1)).await;
    client.posts(&json!({"id": question["id"], "result": {}}));
    server.reads().await;
    drop(server);
    let mut server = world.serves().await;
    assert!(asked.text().await.contains("its effect is unknown"));
    assert!(server.reads_nothing().await);
}

/// It cannot be told for which of two calls the client answered.
#[tokio::test(start_paused = true)]
async fn calls_in_which_the_client_may_have_been_asked_are_not_replayed() {
    let (world, mut server) = served().await;
    let client = able(&world).await;
    let calls = [client.calls("peek"), client.calls("peek")];
    for _ in &calls {
        server.reads_call("peek").await;
    }
    server.says(&elicitation(&json!(1))).await;
    let question = client.hears().await;
    client.posts(&json!({"id": question["id"], "result": {}}));
    server.reads().await;
    drop(server);
    let mut server = world.serves().await;
    for asked in calls {
        assert!(asked.text().await.contains("its effect is unknown"));
    }
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_server_may_take_its_question_back() {
    let (world, mut server) = served().await;
    let client = able(&world).await;
    let mut asked = client.calls("poke");
    server.reads_call("poke").await;
    let question = asks(&server, &mut asked, &json!(1)).await;
    let params = json!({"requestId": 1, "reason": "never mind"});
    server.says(&json!({"method": "notifications/cancelled", "params": params})).await;
    let cancelled = asked.hears().await;
    assert_eq!(cancelled["params"], json!({"requestId": question["id"], "reason": "never mind"}),);
    client.posts(&json!({"id": question["id"], "result": {}}));
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn an_answer_nobody_asked_for_reaches_no_server() {
    let (world, mut server) = served().await;
    let [one, two] = [able(&world).await, able(&world).await];
    let mut asked = one.calls("poke");
    server.reads_call("poke").await;
    let question = asks(&server, &mut asked, &json!(1)).await;
    // Another session does not answer it, whatever id it guesses.
    two.posts(&json!({"id": question["id"], "result": {"stolen": true}}));
    one.posts(&json!({"id": "mainstay-99", "result": {}}));
    one.posts(&json!({"id": 1, "result": {}}));
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_question_of_a_call_that_was_given_up_is_forgotten() {
    let (world, mut server) = served().await;
    let client = able(&world).await;
    let mut asked = client.calls("poke");
    let call = server.reads_call("poke").await;
    let question = asks(&server, &mut asked, &json!(1)).await;
    drop(asked);
    assert_eq!(server.reads().await["params"]["requestId"], call["id"]);
    client.posts(&json!({"id": question["id"], "result": {}}));
    assert!(server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_question_outlives_the_daemon_that_put_it() {
    for answered_at_once in [false, true] {
        let (world, mut server) = served().await;
        let (mut stdio_client, _) = StdioClient::opens(&world).await;
        stdio_client.calls(7, "poke").await;
        let call = server.reads_call("poke").await;
        server.says(&elicitation(&json!("q-1"))).await;
        let question = stdio_client.reads().await;
        assert_eq!(question["method"], "elicitation/create");
        // Longer than a call takes to be written down.
        sleep(Duration::from_millis(200)).await;

        let world = world.killed();
        stdio_client.moves_to(&world).await;
        let answer = json!({"id": question["id"], "result": {"action": "accept"}});
        if answered_at_once {
            stdio_client.says(&answer).await;
        }
        let mut server = world.finds(&server, &[]).await;
        if !answered_at_once {
            stdio_client.says(&answer).await;
        }
        let heard = server.reads().await;
        assert_eq!((&heard["id"], &heard["result"]["action"]), (&json!("q-1"), &json!("accept")));
        server.returns(&call, "done").await;
        assert_eq!(text(&stdio_client.reads().await), "done");
        stdio_client.says(&answer).await;
        assert!(server.reads_nothing().await, "the call that it was part of is over");
    }
}

async fn served() -> (World, Server) {
    let world = World::new();
    let server = world.serves().await;
    (world, server)
}

async fn able(world: &World) -> Client {
    world.client_with(&json!({"elicitation": {}})).await
}

fn elicitation(id: &Value) -> Value {
    json!({"id": id, "method": "elicitation/create", "params": {"message": "well?"}})
}

/// The server asks, and the client sees it on the stream of its call.
async fn asks(server: &Server, asked: &mut Asked, id: &Value) -> Value {
    server.says(&elicitation(id)).await;
    let question = soon(asked.hears()).await;
    assert_eq!(question["method"], "elicitation/create");
    question
}

fn expect_refused(answer: &Value, id: &Value, why: &str) {
    assert_eq!((&answer["id"], &answer["error"]["code"]), (id, &json!(-32601)), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{answer}");
}

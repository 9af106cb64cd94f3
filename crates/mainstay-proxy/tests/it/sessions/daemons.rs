//! Daemons that die in the middle of calls, and what the next one makes of what was noted.

use std::time::Duration;

use mainstay_proxy::{EventId, Found, Sent, Settings};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::client::text;
use super::server::tool_result;
use super::stdio_client::StdioClient;
use super::{NAME, SETTLE, Server, World, settings};
use crate::soon;

/// Longer than a call takes to be written down.
const A_WHILE: Duration = Duration::from_millis(160);

/// A daemon with a server and a client over lines that has called a tool, a while ago.
struct Scene {
    world: World,
    server: Server,
    stdio_client: StdioClient,
    session: String,
    call: Value,
}

impl Scene {
    async fn new(tool: &str) -> Self {
        Self::with(tool, settings()).await
    }

    async fn with(tool: &str, settings: Settings) -> Self {
        let world = World::with(settings);
        let mut server = world.serves().await;
        let (mut stdio_client, session) = StdioClient::opens(&world).await;
        stdio_client.calls(7, tool).await;
        let call = server.reads_call(tool).await;
        sleep(A_WHILE).await;
        Self { world, server, stdio_client, session, call }
    }
}

fn answer(call: &Value, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": call["id"], "result": tool_result(text)})
}

#[tokio::test(start_paused = true)]
async fn a_fast_call_is_not_written_down() {
    let world = World::new();
    let mut server = world.serves().await;
    let (mut stdio_client, _) = StdioClient::opens(&world).await;
    for id in 1..4 {
        stdio_client.calls(id, "poke").await;
        let call = server.reads_call("poke").await;
        server.returns(&call, "done").await;
        assert_eq!(stdio_client.reads().await["id"], id);
    }
    assert_eq!(world.notes.noted(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_is_written_down_until_its_answer_is_written() {
    let mut scene = Scene::new("poke").await;
    let [record] = &scene.world.notes.requests()[..] else { panic!("one call is open") };
    let line = scene.call["id"].as_u64();
    assert_eq!(record.sent, Some(Sent { generation: 1, line }));
    assert_eq!((record.attempts, &*record.key.session), (1, &*scene.session));
    scene.server.returns(&scene.call, "done").await;
    assert_eq!(text(&scene.stdio_client.reads().await), "done");
    assert!(scene.stdio_client.reads_nothing().await);
    // Until then the client may have lost it.
    sleep(Duration::from_secs(61)).await;
    assert_eq!(scene.world.notes.requests(), []);
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_is_answered_by_its_run_through_the_next_daemon() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    assert_eq!(pending(&world, &scene.session), ["7"]);
    let mut server = world.finds(&scene.server, &[]).await;
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    server.tells_progress(&scene.call, 0.5).await;
    let progress = stdio_client.reads().await;
    assert_eq!(progress["params"], json!({"progressToken": 7, "progress": 0.5}));
    server.says(&answer(&scene.call, "done")).await;
    server.says(&answer(&scene.call, "again")).await;
    let answer = stdio_client.reads().await;
    assert_eq!((&answer["id"], &*text(&answer)), (&json!(7), "done"));
    assert!(stdio_client.reads_nothing().await && server.reads_nothing().await);
    assert!(pending(&world, &scene.session).is_empty());
    // The session goes on as if nothing had happened.
    stdio_client.calls(8, "poke").await;
    let call = server.reads_call("poke").await;
    server.returns(&call, "more").await;
    assert_eq!(text(&stdio_client.reads().await), "more");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_came_while_nobody_listened_is_found() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    let stray = json!({"jsonrpc": "2.0", "id": 5, "result": {}});
    let told = json!({"jsonrpc": "2.0", "method": "notifications/message",
        "params": {"level": "error", "data": "heard before"}});
    let past = [stray, told, answer(&scene.call, "done"), answer(&scene.call, "again")];
    let mut server = world.finds(&scene.server, &past).await;
    assert_eq!(text(&stdio_client.reads().await), "done");
    assert!(stdio_client.reads_nothing().await && server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn the_answer_may_be_the_first_line_that_is_heard() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    let (server, link) = Server::new();
    server.wrote(scene.server.lines());
    server.says(&answer(&scene.call, "done")).await;
    let known = scene.server.run.as_ref().unwrap().run.hello.as_ref().clone();
    let arrival =
        mainstay_proxy::RunInfo { generation: 1, known: Some(known), epoch: 2, ..world.arrival() };
    let run = soon(world.proxy.attach_run(mainstay_proxy::UpstreamTransport::Lines(link), arrival))
        .await
        .unwrap();
    sleep(A_WHILE).await;
    world.proxy.set_availability(mainstay_proxy::Availability::Up(run.run));
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    assert_eq!(text(&stdio_client.reads().await), "done");
}

#[tokio::test(start_paused = true)]
async fn an_unsafe_call_whose_run_died_meanwhile_has_an_unknown_effect() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    let mut server = world.serves().await;
    let told = text(&stdio_client.reads().await);
    assert!(told.starts_with("failed: the server stopped during this call"), "{told}");
    assert!(told.contains("exited 3 after 2 h"), "{told}");
    assert!(stdio_client.reads_nothing().await && server.reads_nothing().await);
}

/// As it is when the request was sent over HTTP.
#[tokio::test(start_paused = true)]
async fn a_run_that_lives_but_cannot_answer_any_more_is_asked_again_if_that_is_safe() {
    for (tool, is_safe) in [("peek", true), ("poke", false)] {
        let scene = Scene::new(tool).await;
        for record in scene.world.notes.streams.lock().unwrap().values_mut() {
            record.sent = record.sent.map(|sent| Sent { line: None, ..sent });
        }
        let world = scene.world.killed();
        let mut stdio_client = StdioClient::resumes(&world, &scene.session);
        let mut server = world.finds(&scene.server, &[]).await;
        check_repeated(tool, is_safe, &mut server, &mut stdio_client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_safe_call_is_replayed_once_across_daemons() {
    let scene = Scene::new("peek").await;
    let world = scene.world.killed();
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    let mut server = world.serves().await;
    server.reads_call("peek").await;
    assert_eq!(world.notes.requests()[0].attempts, 2);
    // The second daemon dies too, and the run with it.
    let world = world.killed();
    let mut last = world.serves().await;
    assert!(stdio_client.reads_nothing().await);
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    assert!(text(&stdio_client.reads().await).contains("stopped twice"));
    assert!(last.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn a_safe_call_is_answered_by_the_next_run() {
    let scene = Scene::new("peek").await;
    let world = scene.world.killed();
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    let mut server = world.serves().await;
    let call = server.reads_call("peek").await;
    server.returns(&call, "seen").await;
    assert_eq!(text(&stdio_client.reads().await), "seen");
    assert!(server.reads_nothing().await);
    assert_eq!(world.notes.causes(), ["replayed"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_noted_is_told_without_any_run() {
    let scene = Scene::new("poke").await;
    // Nobody reads what is written to the client.
    let Scene { world, server, session, call, stdio_client } = scene;
    let filling = json!({"method": "notifications/message",
        "params": {"level": "error", "data": "x".repeat(1 << 16)}});
    server.says(&filling).await;
    server.returns(&call, "done").await;
    soon(async {
        while world.notes.requests()[0].answer.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let next = world.killed();
    drop(stdio_client);
    assert_eq!(pending(&next, &session), ["7"]);
    let mut stdio_client = StdioClient::resumes(&next, &session);
    let mut read = stdio_client.reads_all().await;
    assert_eq!(text(&read.pop().unwrap()), "done");
    assert!(read.iter().all(|message| message["method"] == "notifications/message"), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_sent_is_sent_by_the_next_daemon() {
    let world = World::new();
    let server = world.serves().await;
    let (mut stdio_client, session) = StdioClient::opens(&world).await;
    drop(server);
    world.is_coming(None);
    stdio_client.calls(7, "poke").await;
    sleep(A_WHILE).await;
    let [record] = &world.notes.requests()[..] else { panic!("one call is held") };
    assert_eq!((record.sent, record.attempts), (None, 0));
    let world = world.killed();
    let mut stdio_client = StdioClient::resumes(&world, &session);
    let mut server = world.serves().await;
    let call = server.reads_call("poke").await;
    server.returns(&call, "done").await;
    assert_eq!(text(&stdio_client.reads().await), "done");
    assert!(server.reads_nothing().await);
}

/// The daemon died between its note and the line.
#[tokio::test(start_paused = true)]
async fn a_call_whose_line_never_reached_the_server_is_sent_again() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    scene.server.wrote(scene.server.lines() - 1);
    let mut server = world.finds(&scene.server, &[]).await;
    let call = server.reads_call("poke").await;
    assert_ne!(call["id"], scene.call["id"]);
    server.returns(&call, "done").await;
    assert_eq!(text(&stdio_client.reads().await), "done");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_come_back_gives_its_call_up() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    let mut server = world.finds(&scene.server, &[]).await;
    sleep(Duration::from_secs(31)).await;
    let cancelled = server.reads().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], scene.call["id"]);
    assert_eq!(world.notes.requests(), []);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_taken_up_can_be_cancelled() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    let mut server = world.finds(&scene.server, &[]).await;
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    let params = json!({"requestId": 7});
    stdio_client.says(&json!({"method": "notifications/cancelled", "params": params})).await;
    assert_eq!(server.reads().await["params"]["requestId"], scene.call["id"]);
    assert!(stdio_client.reads_nothing().await);
    assert_eq!(world.notes.requests(), []);
}

#[tokio::test(start_paused = true)]
async fn streams_are_found_by_their_events_in_the_next_daemon() {
    let scene = Scene::new("poke").await;
    let world = scene.world.killed();
    let session = world.servers.session(NAME, &scene.session).unwrap();
    let record = &world.notes.requests()[0];
    let event: EventId = format!("{:016x}-0-37", record.key.number).parse().unwrap();
    let Found::Request(stream, start) = session.find(&event) else { panic!("it was taken up") };
    let mut reader = session.resume(stream, start).unwrap();
    let server = world.finds(&scene.server, &[]).await;
    server.says(&answer(&scene.call, "done")).await;
    let item = soon(reader.next()).await.unwrap();
    assert_eq!((item.number, item.is_answer), (1, true));
    assert!(matches!(session.find(&event.at(1)), Found::Over));
    assert!(world.notes.requests()[0].answer.is_some(), "its client may have lost it");
    sleep(Duration::from_secs(61)).await;
    assert_eq!(world.notes.requests(), []);
    assert!(matches!(session.find(&event), Found::Gone(_)));
}

/// Nothing is written down of a call that is this young, so the client sends it again.
#[tokio::test(start_paused = true)]
async fn a_quick_call_that_is_cut_is_executed_again_only_if_that_is_safe() {
    for (tool, is_safe) in [("peek", true), ("poke", false)] {
        let world = World::new();
        let mut server = world.serves().await;
        let (mut stdio_client, _) = StdioClient::opens(&world).await;
        stdio_client.calls(7, tool).await;
        server.reads_call(tool).await;
        let world = world.killed();
        stdio_client.moves_to(&world).await;
        let mut server = world.finds(&server, &[]).await;
        check_repeated(tool, is_safe, &mut server, &mut stdio_client).await;
    }
}

/// Each of its requests is decided about by itself.
#[tokio::test(start_paused = true)]
async fn of_a_batch_that_is_cut_what_is_safe_is_executed_again() {
    let world = World::new();
    let mut server = world.serves().await;
    let (mut stdio_client, _) = StdioClient::opens_as(&world, "2025-03-26").await;
    let call = |id: u64, tool: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool}});
    stdio_client.writes(&json!([call(1, "peek"), call(2, "poke")])).await;
    server.reads_call("peek").await;
    server.reads_call("poke").await;
    let world = world.killed();
    stdio_client.moves_to(&world).await;
    let mut server = world.finds(&server, &[]).await;
    let peek = server.reads_call("peek").await;
    server.returns(&peek, "seen").await;
    let mut answers = [stdio_client.reads().await, stdio_client.reads().await];
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(text(&answers[0]), "seen");
    assert!(text(&answers[1]).contains("its effect is unknown"), "{}", answers[1]);
    assert!(stdio_client.reads_nothing().await && server.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_a_daemon_as_long_as_other_messages() {
    for (away, is_answered) in [(40, true), (50, false)] {
        let world = World::new();
        let mut server = world.serves().await;
        let (mut stdio_client, _) = StdioClient::opens(&world).await;
        stdio_client.calls(1, "peek").await;
        stdio_client.calls(2, "peek").await;
        server.reads_call("peek").await;
        server.reads_call("peek").await;
        stdio_client.is_cut().await;
        sleep(Duration::from_secs(away)).await;
        let world = world.killed();
        stdio_client.moves_to(&world).await;
        let mut server = world.finds(&server, &[]).await;
        for _ in 0..2 {
            if is_answered {
                let call = server.reads_call("peek").await;
                server.returns(&call, "seen").await;
                assert_eq!(text(&stdio_client.reads().await), "seen");
            } else {
                let told = text(&stdio_client.reads().await);
                assert!(told.contains("its effect is unknown"), "{told}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_session_of_a_client_that_is_killed_ends_and_that_of_one_that_is_cut_does_not() {
    let world = World::new();
    let _server = world.serves().await;
    let (mut stdio_client, session) = StdioClient::opens(&world).await;
    let is_there = || world.servers.session(NAME, &session).is_ok();
    sleep(Duration::from_secs(60)).await;
    stdio_client.moves_to(&world).await;
    sleep(Duration::from_secs(60)).await;
    assert!(is_there());
    stdio_client.killed().await;
    sleep(Duration::from_secs(11)).await;
    assert!(!is_there());
}

#[tokio::test(start_paused = true)]
async fn every_request_is_answered_also_those_with_the_same_id() {
    let world = World::new();
    let mut server = world.serves().await;
    let (mut stdio_client, _) = StdioClient::opens(&world).await;
    stdio_client.calls(7, "poke").await;
    let first = server.reads_call("poke").await;
    stdio_client.calls(7, "peek").await;
    let second = server.reads_call("peek").await;
    server.returns(&second, "second").await;
    server.returns(&first, "first").await;
    let mut answers = [text(&stdio_client.reads().await), text(&stdio_client.reads().await)];
    answers.sort();
    assert_eq!(answers, ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_hub_does_nothing_any_more() {
    let mut scene = Scene::new("poke").await;
    let consumed = *scene.server.consumed.borrow();
    soon(scene.world.servers.hand_over(false, SETTLE)).await;
    let noted = scene.world.notes.noted();
    let records = scene.world.notes.records();
    scene.server.returns(&scene.call, "done").await;
    scene.stdio_client.dropped().await;
    assert!(scene.world.proxy.close(&scene.session), "it goes on elsewhere");
    assert!(scene.server.reads_nothing().await, "nothing was cancelled");
    assert_eq!(*scene.server.consumed.borrow(), consumed);
    assert_eq!((scene.world.notes.noted(), scene.world.notes.records()), (noted, records));
    // The next daemon hears the answer.
    let world = scene.world.killed();
    let mut stdio_client = StdioClient::resumes(&world, &scene.session);
    let server = world.finds(&scene.server, &[]).await;
    server.says(&answer(&scene.call, "done")).await;
    assert_eq!(text(&stdio_client.reads().await), "done");
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_waits_for_requests_to_be_answered_or_written_down() {
    let world = World::new();
    let mut server = world.serves().await;
    let (mut stdio_client, session) = StdioClient::opens(&world).await;
    stdio_client.calls(1, "fast").await;
    let fast = server.reads_call("fast").await;
    stdio_client.calls(2, "slow").await;
    server.reads_call("slow").await;
    let consumed = *server.consumed.borrow();
    let servers = std::sync::Arc::clone(&world.servers);
    let handing_over = tokio::spawn(async move { servers.hand_over(false, SETTLE).await });
    server.returns(&fast, "done").await;
    server.logs("error", "also heard").await;
    assert_eq!(text(&stdio_client.reads().await), "done");
    soon(handing_over).await.unwrap();
    assert_eq!(*server.consumed.borrow(), consumed + 2, "the next daemon does not hear them again");
    assert_eq!(pending(&world.killed(), &session), ["2"]);
}

/// A daemon that drops a client is not a client that goes.
#[tokio::test(start_paused = true)]
async fn a_dropped_connection_leaves_the_session() {
    let scene = Scene::new("poke").await;
    scene.stdio_client.dropped().await;
    assert!(scene.world.servers.session(NAME, &scene.session).is_ok());
    assert_eq!(scene.world.notes.records().len(), 1);
}

/// The ids of requests that a session has open since an earlier daemon.
fn pending(world: &World, session: &str) -> Vec<String> {
    world.servers.pending(NAME, session).into_iter().map(|(id, _)| id).collect()
}

/// A call that was cut is executed again if that is safe; otherwise its effect is unknown.
async fn check_repeated(
    tool: &str,
    is_safe: bool,
    server: &mut Server,
    stdio_client: &mut StdioClient,
) {
    if is_safe {
        let call = server.reads_call(tool).await;
        server.returns(&call, "seen").await;
        assert_eq!(text(&stdio_client.reads().await), "seen");
    } else {
        let told = text(&stdio_client.reads().await);
        assert!(told.contains("Mainstay was restarted during this call"), "{told}");
        assert!(told.contains("its effect is unknown"), "{told}");
    }
    assert!(stdio_client.reads_nothing().await && server.reads_nothing().await);
}

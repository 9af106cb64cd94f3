//! In which form an answer comes, and when.

use tokio::time::Instant;

use super::*;
use crate::front::tests::{call, initialize, note};

#[tokio::test(start_paused = true)]
async fn a_quick_answer_is_plain_json() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(1, "fast")).await;
    let start = Instant::now();
    for id in [1, 2] {
        let reply = wire.reply().await;
        assert_eq!(reply.status, 200);
        assert_eq!(value(&reply.head, "content-type"), Some("application/json"));
        assert_eq!(value(&reply.head, "mcp-session-id"), None);
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"fast": true}}}}"#);
        assert_eq!(reply.body, expected);
        wire.send(&post(session.id(), BOTH, &call(2, "fast"))).await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_149_ms_is_plain_json() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    let asked = site.seen.request().await;
    wait(Duration::from_millis(149)).await;
    let answer = asked.answers("{}");
    let reply = wire.reply().await;
    assert_eq!(value(&reply.head, "content-type"), Some("application/json"));
    assert_eq!(reply.body, answer);
}

#[tokio::test(start_paused = true)]
async fn a_slow_request_becomes_an_event_stream() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let start = Instant::now();
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    let head = wire.head(200).await;
    assert_eq!(start.elapsed(), Duration::from_millis(150));
    assert_eq!(value(&head, "content-type"), Some("text/event-stream"));
    assert_eq!(value(&head, "cache-control"), Some("no-cache"));
    assert_eq!(value(&head, "x-accel-buffering"), Some("no"));
    let asked = site.seen.request().await;
    asked.says(&note("first"));
    let first = wire.sees("\n\n").await;
    let id = last_id(&first);
    let expected = format!("event: message\nid: {id}\nretry: 1000\ndata: {}\n\n", note("first"));
    assert!(first.ends_with(&expected), "{first}");
    let answer = asked.answers("{}");
    let last = wire.sees("\n\n").await;
    let id = last_id(&last);
    assert!(last.ends_with(&format!("event: message\nid: {id}\ndata: {answer}\n\n")), "{last}");
    wire.ends().await;
    wire.send(&post(session.id(), BOTH, &call(2, "fast"))).await;
    assert_eq!(wire.reply().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_message_before_the_answer_begins_the_stream_at_once() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let start = Instant::now();
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    let asked = site.seen.request().await;
    asked.says(&note("progress"));
    let head = wire.head(200).await;
    assert_eq!(value(&head, "content-type"), Some("text/event-stream"));
    assert!(wire.sees("\n\n").await.contains("progress"));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn clients_of_the_newest_version_get_an_id_first() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    wire.head(200).await;
    let priming = wire.sees("\n\n").await;
    let id = last_id(&priming);
    assert!(priming.ends_with(&format!("id: {id}\nretry: 1000\ndata: \n\n")), "{priming}");
    site.seen.request().await.answers("{}");
    let last = wire.sees("\n\n").await;
    assert!(!last.contains("retry"), "{last}");
    assert_ne!(last_id(&last), id);
    wire.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive_by_comments() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    wire.head(200).await;
    let start = Instant::now();
    for seconds in [10, 20, 30] {
        assert_eq!(wire.sees(":\n").await.trim_start(), "2\r\n:\n");
        assert_eq!(start.elapsed(), Duration::from_secs(seconds));
    }
    let asked = site.seen.request().await;
    wait(Duration::from_secs(5)).await;
    asked.says(&note("sign of life"));
    wire.sees("\n\n").await;
    wire.sees(":\n").await;
    assert_eq!(start.elapsed(), Duration::from_secs(45));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_only_json_gets_white_space_first() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.connect();
    wire.send(&post(session.id(), "application/json", &call(1, "slow"))).await;
    let head = wire.head(200).await;
    assert_eq!(value(&head, "content-type"), Some("application/json"));
    assert_eq!(value(&head, "transfer-encoding"), Some("chunked"));
    let start = Instant::now();
    for seconds in [10, 20] {
        wire.sees("1\r\n \r\n").await;
        assert_eq!(start.elapsed(), Duration::from_secs(seconds));
    }
    let asked = site.seen.request().await;
    asked.says(&note("progress"));
    let answer = asked.answers("{}");
    let rest = wire.sees("0\r\n\r\n").await;
    assert!(rest.contains(&answer) && !rest.contains("progress"), "{rest}");
    let mut stream = site.gets(&session, None).await;
    stream.sees("progress").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_only_json_is_given_up_when_it_goes() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.connect();
    wire.send(&post(session.id(), "application/json", &call(1, "slow"))).await;
    wire.head(200).await;
    let asked = site.seen.request().await;
    let start = Instant::now();
    drop(wire);
    asked.given_up().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_only_events_gets_a_quick_answer_as_one() {
    let mut site = Site::new();
    let session = site.fake.with(OLD);
    let mut wire = site.connect();
    wire.send(&post(session.id(), "text/event-stream", &call(1, "fast"))).await;
    let head = wire.head(200).await;
    assert_eq!(value(&head, "content-type"), Some("text/event-stream"));
    assert!(wire.sees("\n\n").await.contains(r#"{"fast": true}"#));
    wire.ends().await;
}

#[tokio::test(start_paused = true)]
async fn notifications_and_answers_are_accepted() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    // The server has asked this client something.
    site.fake.says(r#"{"jsonrpc":"2.0","id":1,"method":"ask"}"#);
    let mut stream = site.gets(&session, None).await;
    let client_id = r#""mainstay-1-1""#;
    stream.sees(client_id).await;
    let answer = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    for (message, seen) in
        [(note("cancelled"), note("cancelled")), (answer(client_id), answer("1"))]
    {
        let mut wire = site.posts(&session, &message).await;
        let reply = wire.reply().await;
        assert_eq!((reply.status, &*reply.body), (202, ""));
        assert_eq!(site.seen.post().await, seen);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_has_no_answer() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(1, "slow")).await;
    site.seen.request().await.cancelled_by(&session).await;
    assert_eq!(wire.reply().await.status, 202);
    let mut wire = site.posts(&session, &call(2, "slow")).await;
    wire.head(200).await;
    wire.sees("data: \n\n").await;
    site.seen.request().await.cancelled_by(&session).await;
    wire.ends().await;
}

#[tokio::test(start_paused = true)]
async fn initialize_opens_a_session() {
    let mut site = Site::new();
    let mut wire = site.connect();
    wire.send(&begin(&initialize("2025-11-25"))).await;
    let reply = wire.reply().await;
    let id = value(&reply.head, "mcp-session-id").expect("a session has begun");
    assert_eq!(id.len(), 72);
    wire.send(&post(id, BOTH, &call(1, "fast"))).await;
    assert_eq!(wire.reply().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_slow_initialize_tells_the_session_before_the_answer() {
    let mut site = Site::starting();
    let mut wire = site.connect();
    wire.send(&begin(&initialize("2025-11-25"))).await;
    let head = wire.head(200).await;
    assert!(value(&head, "mcp-session-id").is_some(), "{head}");
    wire.sees("data: \n\n").await;
    site.fake.starts();
    wire.sees(r#""id":0,"result""#).await;
    wire.sees("\n\n").await;
    wire.ends().await;
    assert_eq!(site.fake.sessions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_initialize_leaves_no_session() {
    let mut site = Site::starting();
    site.fake.is_down();
    let mut wire = site.connect();
    wire.send(&begin(&initialize("2025-11-25"))).await;
    let reply = wire.reply().await;
    assert_eq!(reply.status, 200);
    assert_eq!(value(&reply.head, "mcp-session-id"), None);
    assert_eq!(site.fake.sessions(), 0);

    site.fake.is_coming();
    wire.send(&begin(&initialize("2025-11-25"))).await;
    site.fake.has_sessions(1).await;
    drop(wire);
    site.fake.has_sessions(0).await;

    let mut wire = site.connect();
    wire.send(&begin(&initialize("2025-11-25"))).await;
    wire.head(200).await;
    site.fake.is_down();
    wire.sees(r#""id":0,"error""#).await;
    wire.sees("0\r\n\r\n").await;
    assert_eq!(site.fake.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_answered_with_an_array_or_with_events() {
    let mut site = Site::new();
    let session = site.fake.with(ProtocolVersion::V2025_03_26);
    let batch = |method| format!("[{},{},{}]", call(1, method), note("n"), call(2, "fast"));
    let mut wire = site.posts(&session, &batch("fast")).await;
    let reply = wire.reply().await;
    let answer = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"fast": true}}}}"#);
    assert_eq!(reply.body, format!("[{},{}]", answer(1), answer(2)));
    assert_eq!(site.seen.post().await, note("n"));

    let mut wire = site.posts(&session, &batch("slow")).await;
    wire.head(200).await;
    let first = site.seen.request().await.answers("{}");
    wire.sees(&format!("data: {first}\n\n")).await;
    wire.sees(&format!("data: {}\n\n", answer(2))).await;
    wire.ends().await;

    let mut wire = site.posts(&session, &format!("[{}]", note("n"))).await;
    assert_eq!(wire.reply().await.status, 202);
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_line_ends_stays_one_event() {
    // Lines have no line ends, but what a server answered to `initialize` may have been stored with some.
    let mut site = Site::starting();
    let mut wire = site.connect();
    wire.send(&begin(&initialize("2025-06-18"))).await;
    wire.head(200).await;
    let long = "x".repeat(5000);
    let hello = format!("{{\r\n\"protocolVersion\":\n\"2025-06-18\",\r\n\"a\":\n\"{long}\"}}");
    site.fake.starts_with(&hello);
    let all = wire.sees("0\r\n\r\n").await;
    assert_eq!(all.matches("data: ").count(), 1);
    assert!(all.contains(&hello.replace(['\r', '\n'], " ")), "{all}");
}

#[tokio::test(start_paused = true)]
async fn python_clients_that_refuse_large_events_get_json_until_the_connection_closes() {
    let mut site = Site::new();
    for version in [NEW, OLD] {
        let session = site.fake.with(version);
        let mut wire = site.connect();
        wire.send(&from_httpx2(&post(session.id(), BOTH, &call(7, "slow")))).await;
        let asked = site.seen.request().await;
        let head = wire.sees("\r\n\r\n").await;
        assert!(head.contains("HTTP/1.0 200") && head.contains("application/json"), "{head}");
        assert!(!head.contains("chunked"), "{head}");
        wait(Duration::from_secs(25)).await;
        let answer = asked.answers("{}");
        assert_eq!(wire.sees(&answer).await, format!("  {answer}"));
        assert_eq!(soon(wire.io.read_buf(&mut wire.got)).await.unwrap(), 0, "it is closed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_its_request_and_nothing_else() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut wire = site.posts(&session, &call(1, "mainstay/test-panic")).await;
    let reply = wire.reply().await;
    assert!(reply.body.contains(r#""id":1,"error""#), "{}", reply.body);
    assert!(reply.body.contains("effect is unknown"), "{}", reply.body);

    // What the server writes ends its run.
    wire.send(&post(session.id(), BOTH, &call(2, "slow"))).await;
    wire.head(200).await;
    site.seen.request().await.says(&note("mainstay/test-panic"));
    wire.sees("\"id\":2,\"error\"").await;
    wire.sees("\n\n").await;
    wire.ends().await;

    site.fake.starts();
    wire.send(&post(session.id(), BOTH, &call(3, "fast"))).await;
    assert!(wire.reply().await.body.contains("fast"), "the connection goes on");
}

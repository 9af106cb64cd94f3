use mainstay_core::watchdog::{Input, ReadPosition};
use mainstay_mcp::frame::Parsed;
use serde_json::Value;

use super::*;
use crate::calls::Arrival;
use crate::session::SessionKey;
use crate::silence::LinkObservation;
use crate::stream::Read;
use crate::tests::{TestCall, TestServer};

const S: fn(u64) -> Duration = Duration::from_secs;

/// A server that was read, and the session of a client.
fn with_copy(mut test: TestServer) -> (TestServer, SessionKey) {
    let page = r#"{"tools":[{"name":"copied","inputSchema":{}}]}"#;
    test.server.copies.lists.offer(ListKind::Tools, vec![page.into()]).unwrap();
    let session = test.session(1);
    (test, session)
}

fn list(test: &mut TestServer, session: SessionKey) -> TestCall {
    let request = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#;
    let message = Parsed::read(request.into()).unwrap();
    let (stream, turn) = test.server.request(test.now, session, message, Arrival::New);
    test.take_actions();
    TestCall { stream, turn, run_id: test.last_run_id() }
}

/// The first tool of the answer, if there is one.
fn answer(test: &mut TestServer, call: &TestCall) -> Option<String> {
    let Read::Item(item) = test.read(call) else { return None };
    assert!(item.is_answer);
    assert_eq!(test.read(call), Read::End, "there is one answer");
    let answer: Value = serde_json::from_slice(&item.message).unwrap();
    Some(answer["result"]["tools"][0]["name"].as_str().unwrap_or("none").to_owned())
}

#[test]
fn a_silent_server_is_waited_for_8_seconds() {
    let (mut test, session) = with_copy(TestServer::new());
    let call = list(&mut test, session);
    test.commit(&call);
    test.passes(Duration::from_millis(7999));
    assert_eq!(answer(&mut test, &call), None);
    test.passes(Duration::from_millis(1));
    assert_eq!(answer(&mut test, &call).as_deref(), Some("copied"));
    // Nothing is sent to it, and its late answer does no harm.
    assert!(test.lines().is_empty());
    test.answers(&call);
    assert_eq!(test.read(&call), Read::End);
    assert!(!test.server.usage().iter().any(|(what, _)| *what == "at stdio"), "no request is left");
}

#[test]
fn without_a_copy_the_server_is_waited_for() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = list(&mut test, session);
    test.commit(&call);
    test.passes(S(600));
    assert_eq!(answer(&mut test, &call), None);
    test.answers(&call);
    assert_eq!(answer(&mut test, &call).as_deref(), Some("none"));
}

#[test]
fn lists_are_answered_from_the_copy_while_requests_are_held() {
    let (mut test, session) = with_copy(TestServer::new());
    let link = test.link();
    let before = list(&mut test, session);
    test.commit(&before);
    test.server.link_full(link);
    let queued = list(&mut test, session);
    test.commit(&queued);
    test.server.hold_requests(link);
    let after = list(&mut test, session);
    assert_eq!(answer(&mut test, &after).as_deref(), Some("copied"));
    assert_eq!(answer(&mut test, &queued), None);
    test.passes(PATIENCE);
    for call in [&before, &queued] {
        assert_eq!(answer(&mut test, call).as_deref(), Some("copied"));
    }
    test.server.send_held_requests(test.now, link);
    assert!(test.lines().is_empty(), "what was answered is not sent");
}

#[test]
fn lists_of_commands_and_batches_are_answered_too() {
    let (mut test, session) = with_copy(TestServer::new());
    let local = test.server.open_local(test.now);
    test.server.sessions.get_mut(local).unwrap().version = "2025-11-25".parse().ok();
    let command = list(&mut test, local);
    let request = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#;
    let messages = vec![Parsed::read(request.into()).unwrap()];
    let (stream, turn) = test.server.batch(test.now, session, messages);
    let batch = TestCall { stream, turn, run_id: Value::Null };
    test.commit(&batch);
    test.passes(PATIENCE);
    assert_eq!(answer(&mut test, &command).as_deref(), Some("copied"));
    let (_, is_answered) = test.read_all(&batch);
    assert!(is_answered);
}

#[test]
fn a_silent_http_server_is_left_alone() {
    let (mut test, session) = with_copy(TestServer::http());
    let call = list(&mut test, session);
    let operation = test.http_request();
    test.commit(&call);
    test.passes(PATIENCE);
    assert_eq!(answer(&mut test, &call).as_deref(), Some("copied"));
    let is_abort =
        |action: &crate::Action| matches!(action, crate::Action::AbortHttp(it) if *it == operation);
    assert!(test.actions.iter().any(is_abort));
    assert!(test.server.is_given_up(operation), "it is evidence until it is read");
    let is_message = |action: &crate::Action| {
        matches!(action, crate::Action::Http(_, _, crate::HttpOperation::Notify { .. }))
    };
    assert!(!test.actions.iter().any(is_message));
}

#[test]
fn one_list_that_was_answered_from_the_copy_stays_as_evidence() {
    let (mut test, session) = with_copy(TestServer::new());
    let (link, begun) = (test.link(), test.now);
    for _ in 0..100 {
        let call = list(&mut test, session);
        test.commit(&call);
        test.passes(S(1));
    }
    test.passes(PATIENCE);
    assert_eq!(test.server.usage().iter().find(|(what, _)| *what == "at stdio").unwrap().1, 1);
    let mut evidence = |read_through| {
        let observed = LinkObservation {
            input: Some(ReadPosition { line: read_through, unread: 9 }),
            ..LinkObservation::default()
        };
        test.server.take_evidence(test.now, link, &observed, S(30)).unwrap()
    };
    let found = evidence(0);
    let oldest = found.oldest.unwrap();
    assert_eq!((oldest.what.as_str(), oldest.sent, found.overdue), ("tools/list", begun, 1));
    assert_eq!(found.being_handled, None);
    assert_eq!(found.input, Input::Unread { since: begun, bytes: 9 });
    assert_eq!(evidence(1).being_handled.unwrap().what, "tools/list", "no client waits");
}

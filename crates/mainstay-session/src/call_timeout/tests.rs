use mainstay_mcp::frame::Parsed;
use serde_json::Value;

use super::*;
use crate::action::{Action, HttpOperation, Report};
use crate::calls::Arrival;
use crate::session::SessionKey;
use crate::stream::{Read, Start};
use crate::tests::{TestCall, TestServer};

const S: fn(u64) -> Duration = Duration::from_secs;

/// A server whose calls may take a minute, those of `quick` 5 s, and those of `endless` any time.
fn limited(mut test: TestServer) -> (TestServer, SessionKey) {
    let tools = [("quick", Some(S(5))), ("endless", None)];
    let tools = tools.map(|(tool, limit)| (tool.to_owned(), limit)).into();
    test.server.settings.call_timeouts = CallTimeouts { all: Some(S(60)), tools };
    let session = test.session(1);
    test.passes(S(1));
    (test, session)
}

fn message(tool: &str) -> Parsed {
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{tool}"}}}}"#);
    Parsed::read(text.into()).unwrap()
}

fn call(test: &mut TestServer, session: SessionKey, tool: &str) -> TestCall {
    let (stream, turn) = test.server.request(test.now, session, message(tool), Arrival::New);
    test.take_actions();
    TestCall { stream, turn, run_id: test.last_run_id() }
}

/// The text of the answer, if there is one.
fn answer(test: &mut TestServer, call: &TestCall) -> Option<String> {
    let Read::Item(item) = test.read(call) else { return None };
    assert!(item.is_answer);
    assert_eq!(test.read(call), Read::End, "there is one answer");
    let answer: Value = serde_json::from_slice(&item.message).unwrap();
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    Some(answer["result"]["content"][0]["text"].as_str().unwrap().to_owned())
}

fn decisions(test: &TestServer) -> Vec<&'static str> {
    let decisions = test.actions.iter().filter_map(|action| match action {
        Action::Report(Report::Decision(decision)) => Some(decision.cause),
        _ => None,
    });
    decisions.collect()
}

const UNKNOWN: &str = "no answer from `time` within 5 s, the limit for this call (`--call-timeout`): it was cancelled, and its effect is \
                       unknown; check before you repeat it";

#[test]
fn a_call_without_an_answer_is_answered_and_cancelled() {
    let (mut test, session) = limited(TestServer::new());
    let slow = call(&mut test, session, "quick");
    test.passes(Duration::from_millis(150));
    assert_eq!(test.server.deadline(), None, "a fast call costs no timer");
    test.commit(&slow);
    test.passes(Duration::from_millis(4849));
    assert_eq!(answer(&mut test, &slow), None);
    test.passes(Duration::from_millis(1));
    assert_eq!(answer(&mut test, &slow).as_deref(), Some(UNKNOWN));
    assert!(test.is_cancelled(&slow));
    assert_eq!(decisions(&test), ["call-timeout"]);
    // A late answer does no harm.
    test.answers(&slow);
    assert_eq!(test.read(&slow), Read::End);
}

#[test]
fn tools_have_their_own_limits() {
    let (mut test, session) = limited(TestServer::new());
    let calls = ["quick", "other", "endless"].map(|tool| call(&mut test, session, tool));
    for call in &calls {
        test.commit(call);
    }
    let is_answered = |test: &mut TestServer| calls.clone().map(|call| test.read_all(&call).1);
    test.passes(S(59));
    assert_eq!(is_answered(&mut test), [true, false, false]);
    test.passes(S(1));
    assert_eq!(is_answered(&mut test), [false, true, false]);
    test.passes(S(36_000));
    assert_eq!(is_answered(&mut test), [false; 3]);
    // Other requests have no limit.
    let other = test.request(session);
    test.commit(&other);
    test.passes(S(36_000));
    assert_eq!(test.read_all(&other), (Vec::new(), false));
}

#[test]
fn an_answer_in_time_leaves_no_timer() {
    let (mut test, session) = limited(TestServer::new());
    let call = call(&mut test, session, "quick");
    test.commit(&call);
    test.answers(&call);
    assert!(test.read_all(&call).1);
    // Only the stream is kept for a while.
    test.passes(S(120));
    assert_eq!(test.server.deadline(), None);
    assert!(decisions(&test).is_empty());
}

#[test]
fn a_call_that_was_never_sent_was_not_executed() {
    let (mut test, session) = limited(TestServer::new());
    test.server.hold_requests(test.link());
    let queued = call(&mut test, session, "quick");
    test.commit(&queued);
    test.passes(S(5));
    let expected = "no answer from `time` within 5 s, the limit for this call (`--call-timeout`): it does not answer; the call was \
                    never sent to it, and not executed";
    assert_eq!(answer(&mut test, &queued).as_deref(), Some(expected));
    test.server.send_held_requests(test.now, test.link());
    assert!(test.lines().is_empty(), "it is not sent later");

    let (mut test, session) = limited(TestServer::without_run());
    let held = call(&mut test, session, "quick");
    test.commit(&held);
    test.passes(S(5));
    let expected = "no answer from `time` within 5 s, the limit for this call (`--call-timeout`): it was not ready; the call was never sent \
                    to it, and not executed";
    assert_eq!(answer(&mut test, &held).as_deref(), Some(expected));
    assert!(!test.server.usage().iter().any(|(what, _)| *what == "held"));
}

#[test]
fn the_time_at_two_runs_counts_together() {
    let (mut test, session) = limited(TestServer::new());
    test.server.settings.replay.insert("quick".to_owned());
    let replayed = call(&mut test, session, "quick");
    test.commit(&replayed);
    test.passes(S(3));
    test.server.close_stdio(test.now, test.link(), 1);
    test.passes(Duration::from_millis(1999));
    assert_eq!(answer(&mut test, &replayed), None);
    test.passes(Duration::from_millis(1));
    assert_eq!(answer(&mut test, &replayed).as_deref(), Some(UNKNOWN));
}

#[test]
fn calls_of_http_servers_batches_and_commands_have_limits() {
    let (mut test, session) = limited(TestServer::http());
    let slow = call(&mut test, session, "quick");
    let operation = test.http_request();
    test.commit(&slow);
    test.passes(S(5));
    assert_eq!(answer(&mut test, &slow).as_deref(), Some(UNKNOWN));
    let is_aborted = |action: &Action| matches!(action, Action::AbortHttp(it) if *it == operation);
    assert!(test.actions.iter().any(is_aborted));
    let is_cancelled = |action: &Action| match action {
        Action::Http(_, _, HttpOperation::Notify { message, .. }) => {
            String::from_utf8_lossy(message).contains("notifications/cancelled")
        }
        _ => false,
    };
    assert!(test.actions.iter().any(is_cancelled));

    let (mut test, session) = limited(TestServer::new());
    let messages = vec![message("quick"), message("endless")];
    let (stream, turn) = test.server.batch(test.now, session, messages);
    let batch = TestCall { stream, turn, run_id: Value::Null };
    test.commit(&batch);
    test.passes(S(60));
    assert_eq!(test.read_all(&batch), (Vec::new(), false), "the other one has no limit");
    assert_eq!(decisions(&test), ["call-timeout"]);

    let local = test.server.open_local(test.now);
    test.server.sessions.get_mut(local).unwrap().version = "2025-11-25".parse().ok();
    let command = call(&mut test, local, "quick");
    test.passes(S(5));
    let Read::Item(item) = test.read(&command) else { panic!("it is answered") };
    let answer: Value = serde_json::from_slice(&item.message).unwrap();
    assert_eq!(answer["error"]["data"]["mainstay"], "call-timeout");
    assert_eq!(answer["error"]["message"], UNKNOWN);
}

#[test]
fn the_next_daemon_limits_the_call_again() {
    let (mut test, session) = limited(TestServer::new());
    let slow = call(&mut test, session, "quick");
    test.commit(&slow);
    test.passes(S(4));
    let record = test.store.record().unwrap();
    test.server.freeze();
    test.passes(S(4));
    assert_eq!(test.read(&slow), Read::End, "another daemon answers it");
    assert!(decisions(&test).is_empty());
    let (mut test, session) = limited(TestServer::without_run());
    assert!(test.server.recover(test.now, record.clone(), false));
    let stream = test.server.stream_of_number(session, record.key.number).unwrap();
    let mut recovered = TestCall { stream, ..slow };
    test.resumes(&mut recovered, Start::After(0));
    test.passes(S(5));
    assert_eq!(answer(&mut test, &recovered).as_deref(), Some(UNKNOWN));
}

use mainstay_core::watchdog::ReadPosition;
use mainstay_mcp::lists::ListKind;
use serde_json::{Value, json};

use super::*;
use crate::calls::Arrival;
use crate::presence::Presence;
use crate::silence::LinkObservation;
use crate::stream::{Read, Start};
use crate::tests::{TestCall, TestServer};

const S: fn(u64) -> Duration = Duration::from_secs;
const TIMEOUT: &str = "request timeout";

impl TestServer {
    /// A client calls the tool with an argument.
    fn calls(&mut self, session: SessionKey, id: u32, argument: u32) -> TestCall {
        let params = json!({"name": "write", "arguments": {"x": argument}, "_meta": {"n": id}});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let message = Parsed::read(message.to_string().into()).unwrap();
        let (stream, turn) = self.server.request(self.now, session, message, Arrival::New);
        let run_id = self.last_run_id();
        TestCall { stream, turn, run_id }
    }

    fn gives_up(&mut self, session: SessionKey, id: u32, reason: &str) {
        let params = json!({"requestId": id, "reason": reason});
        let method = "notifications/cancelled";
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        let message = Parsed::read(message.to_string().into()).unwrap();
        self.server.post(self.now, session, &message);
        self.take_actions();
    }

    /// The run answers a call with a text.
    fn returns(&mut self, call: &TestCall, text: &str) {
        let result = json!({"content": [{"type": "text", "text": text}]});
        let answer = json!({"jsonrpc": "2.0", "id": call.run_id, "result": result});
        self.says(answer.to_string().into());
    }

    /// The texts of the answer to a call, if it has one.
    fn texts(&mut self, call: &TestCall) -> Vec<String> {
        while let Read::Item(item) = self.read(call) {
            if item.is_answer {
                let answer: Value = serde_json::from_slice(&item.message).unwrap();
                let content = answer["result"]["content"].as_array().unwrap();
                return content.iter().map(|it| it["text"].as_str().unwrap().to_owned()).collect();
            }
        }
        Vec::new()
    }

    #[track_caller]
    fn expect_late(&mut self, call: &TestCall, text: &str) {
        assert_eq!(self.texts(call), [messages::LATE_RESULT, text]);
    }

    fn is_executed(call: &TestCall) -> bool {
        !call.run_id.is_null()
    }

    /// A call that its client has given up by its timeout.
    fn abandoned(&mut self, session: SessionKey, id: u32, argument: u32) -> TestCall {
        let call = self.calls(session, id, argument);
        self.commit(&call);
        self.gives_up(session, id, TIMEOUT);
        assert!(self.server.is_abandoned(call.stream));
        call
    }
}

#[test]
fn an_abandoned_call_over_its_limit_is_cancelled_and_keeps_no_result() {
    let mut test = TestServer::new();
    test.server.settings.call_timeouts.all = Some(S(60));
    let session = test.session(1);
    let earlier = test.abandoned(session, 1, 1);
    test.passes(S(60));
    assert!(test.is_cancelled(&earlier) && test.is_forgotten(&earlier));
    assert!(!test.calls(session, 2, 1).run_id.is_null(), "the repeat is executed");

    let earlier = test.abandoned(session, 3, 2);
    test.passes(S(40));
    let repeat = test.calls(session, 4, 2);
    assert!(repeat.run_id.is_null(), "it waits for the earlier one");
    test.commit(&repeat);
    test.passes(S(59));
    assert!(!test.is_cancelled(&earlier), "the repeat has a limit of its own");
    test.passes(S(1));
    assert!(test.is_cancelled(&earlier));
}

#[test]
fn only_known_reasons_are_timeouts() {
    let check = |reason: Value, expected: bool| {
        let params = json!({"requestId": 1, "reason": reason});
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        let message = Parsed::read(message.to_string().into()).unwrap();
        assert_eq!(is_timeout(&message), expected, "{message:?}");
    };
    for timeout in [
        "McpError: MCP error -32001: Request timed out",
        "SdkError: Request timed out",
        "TimeoutError: The operation was aborted due to timeout",
        "timed out after 0.8s",
        "timed out after 60s",
        "request timeout",
    ] {
        check(timeout.into(), true);
    }
    for other in [
        "AbortError: This operation was aborted",
        "user cancelled",
        "caller cancelled",
        "timed out after a quarrel",
        "the user asked why the request timed out",
        "",
    ] {
        check(other.into(), false);
    }
    check(Value::Null, false);
    check(7.into(), false);
}

#[test]
fn a_repeat_joins_the_call_that_runs() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.abandoned(session, 1, 7);
    assert!(!test.is_cancelled(&call));
    assert_eq!(test.read(&call), Read::End, "its reader gets no more");
    let other = test.calls(session, 2, 8);
    assert!(TestServer::is_executed(&other), "it has other arguments");
    let repeat = test.calls(session, 3, 7);
    assert!(!TestServer::is_executed(&repeat));
    assert!(TestServer::is_executed(&test.calls(session, 4, 7)), "only one can join");
    test.returns(&call, "done");
    test.expect_late(&repeat, "done");
    assert!(test.is_forgotten(&call));
    assert!(TestServer::is_executed(&test.calls(session, 5, 7)), "it is delivered once");
}

#[test]
fn a_result_is_kept_for_a_while_and_delivered_once() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.abandoned(session, 1, 7);
    test.returns(&call, "done");
    test.passes(S(599));
    let repeat = test.calls(session, 2, 7);
    assert!(!TestServer::is_executed(&repeat));
    test.expect_late(&repeat, "done");
    assert!(TestServer::is_executed(&test.calls(session, 3, 7)));

    let call = test.abandoned(session, 4, 9);
    test.returns(&call, "done");
    test.passes(KEEP_RESULT);
    assert!(test.is_forgotten(&call));
    assert!(TestServer::is_executed(&test.calls(session, 5, 9)));
}

#[test]
fn a_client_that_vanishes_abandons_its_call() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.calls(session, 1, 7);
    test.leaves(&call);
    assert!(!test.is_cancelled(&call) && test.server.is_abandoned(call.stream));

    let call = test.calls(session, 2, 8);
    test.commit(&call);
    test.leaves(&call);
    test.passes(S(29));
    assert!(!test.server.is_abandoned(call.stream), "its client may come back");
    test.passes(S(1));
    assert!(test.server.is_abandoned(call.stream) && !test.is_cancelled(&call));
    test.returns(&call, "done");
    let repeat = test.calls(session, 3, 8);
    test.expect_late(&repeat, "done");
}

#[test]
fn a_cancellation_by_the_user_reaches_the_server() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.calls(session, 1, 7);
    test.gives_up(session, 1, "user cancelled");
    assert!(test.is_cancelled(&call) && test.is_forgotten(&call));
    // Also when the client had given the call up before, or has repeated it.
    let call = test.abandoned(session, 2, 7);
    test.gives_up(session, 2, "user cancelled");
    assert!(test.is_cancelled(&call) && test.is_forgotten(&call));
    let call = test.abandoned(session, 3, 7);
    let repeat = test.calls(session, 4, 7);
    test.gives_up(session, 4, "user cancelled");
    assert!(test.is_cancelled(&call) && test.is_forgotten(&call) && test.is_forgotten(&repeat));
}

#[test]
fn a_repeat_that_is_given_up_leaves_the_call_running() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.abandoned(session, 1, 7);
    let repeat = test.calls(session, 2, 7);
    test.commit(&repeat);
    test.gives_up(session, 2, TIMEOUT);
    assert!(test.is_forgotten(&repeat) && !test.is_cancelled(&call));
    test.returns(&call, "done");
    let third = test.calls(session, 3, 7);
    test.expect_late(&third, "done");
}

#[test]
fn other_sessions_get_nothing_unless_their_client_has_the_same_token() {
    let mut test = TestServer::new();
    let (first, other) = (test.session(1), test.session(2));
    let call = test.abandoned(first, 1, 7);
    assert!(TestServer::is_executed(&test.calls(other, 1, 7)));
    test.returns(&call, "done");
    assert!(TestServer::is_executed(&test.calls(other, 2, 7)));

    test.server.set_token(first, "a".into());
    let same = test.session(3);
    test.server.set_token(same, "a".into());
    test.server.set_token(other, "b".into());
    let call = test.abandoned(first, 3, 8);
    let waiting = test.calls(first, 4, 1);
    assert!(TestServer::is_executed(&test.calls(same, 1, 8)), "the other window is open");
    test.returns(&waiting, "answered");
    test.passes(GRACE);
    assert!(TestServer::is_executed(&test.calls(same, 3, 8)), "it may only be between two calls");
    let (stream, turn, _) = test.server.listen(test.now, first, Start::Unread, false).unwrap();
    test.passes(GRACE);
    assert!(TestServer::is_executed(&test.calls(same, 4, 8)), "the other window is open");
    test.server.reader_left(test.now, stream, turn);
    test.passes(GRACE);
    assert!(TestServer::is_executed(&test.calls(other, 3, 8)), "the token is another one");
    let repeat = test.calls(same, 2, 8);
    assert!(!TestServer::is_executed(&repeat));
    test.returns(&call, "done");
    test.expect_late(&repeat, "done");
}

#[test]
fn a_joined_call_is_answered_when_the_session_of_the_earlier_one_ends() {
    let mut test = TestServer::new();
    let (first, same) = (test.session(1), test.session(2));
    test.server.set_token(first, "a".into());
    test.server.set_token(same, "a".into());
    let call = test.abandoned(first, 1, 7);
    let (stream, turn, _) = test.server.listen(test.now, first, Start::Unread, false).unwrap();
    test.server.reader_left(test.now, stream, turn);
    test.passes(GRACE);
    let repeat = test.calls(same, 1, 7);
    test.server.close(test.now, &crate::tests::session_id(1));
    test.take_actions();
    assert!(test.is_cancelled(&call));
    assert_eq!(test.texts(&repeat), [messages::CANCELLED_EARLIER]);
    assert_eq!(test.server.abandoned.len(), 0);
}

#[test]
fn a_repeat_does_not_wait_for_a_call_that_may_never_end() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.abandoned(session, 1, 7);
    test.passes(S(15 * 60 - 1));
    let repeat = test.calls(session, 2, 7);
    assert!(!TestServer::is_executed(&repeat));
    test.gives_up(session, 2, TIMEOUT);
    test.passes(S(1));
    let repeat = test.calls(session, 3, 7);
    assert!(test.is_forgotten(&call));
    assert_eq!(test.texts(&repeat), [messages::OVERLONG_EARLIER]);
    assert!(TestServer::is_executed(&test.calls(session, 4, 7)));
}

#[test]
fn a_server_is_left_to_finish_an_abandoned_call_unless_a_client_needs_it() {
    let mut test = TestServer::new();
    let (session, other) = (test.session(1), test.session(2));
    test.abandoned(session, 1, 7);
    let inside = |test: &mut TestServer| {
        let (link, input) = (test.link(), Some(ReadPosition { line: 1, unread: 9 }));
        let observed = LinkObservation { input, ..LinkObservation::default() };
        let evidence = test.server.take_evidence(test.now, link, &observed, S(30)).unwrap();
        evidence.being_handled.map(|request| request.what)
    };
    assert_eq!(inside(&mut test).as_deref(), Some("write"));
    let level = json!({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "info"}});
    let level = Parsed::read(level.to_string().into()).unwrap();
    test.server.request(test.now, other, level, Arrival::New);
    assert_eq!(inside(&mut test).as_deref(), Some("write"), "every new client sets its level");
    test.calls(other, 2, 7);
    assert_eq!(inside(&mut test), None);
}

#[test]
fn a_call_that_the_server_has_not_got_is_given_up() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    test.server.hold_requests(link);
    let call = test.calls(session, 1, 7);
    test.gives_up(session, 1, TIMEOUT);
    assert!(test.is_forgotten(&call));
}

#[test]
fn errors_and_results_of_tools_that_only_read_are_not_kept() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.abandoned(session, 1, 7);
    let error = json!({"jsonrpc": "2.0", "id": call.run_id, "error": {"code": 1, "message": "no"}});
    test.says(error.to_string().into());
    assert!(test.is_forgotten(&call));

    let tool = json!({"name": "write", "inputSchema": {}, "annotations": {"readOnlyHint": true}});
    let page = json!({"tools": [tool]}).to_string().into();
    test.server.copies.lists.offer(ListKind::Tools, vec![page]).unwrap();
    let call = test.abandoned(session, 2, 7);
    let repeat = test.calls(session, 3, 7);
    assert!(!TestServer::is_executed(&repeat), "it joins the one that runs");
    test.gives_up(session, 3, TIMEOUT);
    test.returns(&call, "done");
    assert!(test.is_forgotten(&call));
}

#[test]
fn the_number_of_abandoned_calls_is_limited() {
    let mut test = TestServer::new();
    let (session, other) = (test.session(1), test.session(2));
    let first = test.abandoned(other, 1, 0);
    let calls: Vec<_> = (1..32).map(|number| test.abandoned(session, number, number)).collect();
    let beyond = test.calls(session, 32, 32);
    test.gives_up(session, 32, TIMEOUT);
    assert!(test.is_cancelled(&beyond), "all others run");
    test.returns(&first, "first");
    test.returns(&calls[0], "done");
    test.abandoned(session, 33, 33);
    assert!(test.is_forgotten(&calls[0]), "a result of the same session gives way");
    let beyond = test.calls(session, 34, 34);
    test.gives_up(session, 34, TIMEOUT);
    assert!(test.is_cancelled(&beyond) && !test.is_forgotten(&first), "it has more than others");
}

#[test]
fn large_results_give_way_to_newer_ones() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let large = "x".repeat(12 << 20);
    let calls: Vec<_> = (1..=5).map(|number| test.abandoned(session, number, number)).collect();
    for call in &calls {
        test.returns(call, &large);
    }
    let kept: Vec<_> = calls.iter().map(|call| !test.is_forgotten(call)).collect();
    assert_eq!(kept, [false, false, true, true, true]);
}

#[test]
fn what_a_dead_server_left_undone_is_reported_once() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    let (unread, read) = (test.abandoned(session, 1, 1), test.abandoned(session, 2, 2));
    // The first line was written, and the second was not.
    let written = unread.run_id.as_u64().unwrap() & 0xffff_ffff;
    test.server.close_stdio(test.now, link, written);
    test.passes(S(1));
    assert!(test.is_forgotten(&read), "it was not executed");
    let repeat = test.calls(session, 3, 1);
    let texts = test.texts(&repeat);
    assert!(texts[1].contains("its effect is unknown"), "{texts:?}");
}

#[test]
fn an_abandoned_call_does_not_count_as_a_client_that_waits() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    test.abandoned(session, 1, 7);
    test.passes(S(40));
    let observed = crate::silence::LinkObservation {
        input: Some(ReadPosition { line: 1, unread: 0 }),
        ..Default::default()
    };
    let evidence = test.server.take_evidence(test.now, link, &observed, S(30)).unwrap();
    assert_eq!((evidence.oldest, evidence.overdue), (None, 0));
    assert_eq!(evidence.being_handled.unwrap().what, "write", "it is left to finish the call");
    let facts = |test: &TestServer| test.server.facts(test.server.sessions.get(session).unwrap());
    assert!(facts(&test).presence != Presence::Present);
    let other = test.calls(session, 3, 8);
    let evidence = test.server.take_evidence(test.now, link, &observed, S(30)).unwrap();
    assert_eq!(evidence.being_handled, None, "another call waits for it");
    test.returns(&other, "done");
    test.calls(session, 2, 7);
    let evidence = test.server.take_evidence(test.now, link, &observed, S(30)).unwrap();
    assert!(evidence.being_handled.is_some() && facts(&test).presence == Presence::Present);
}

#[test]
fn a_session_with_many_abandoned_calls_leaves_room_for_others() {
    let mut test = TestServer::new();
    let (greedy, other) = (test.session(1), test.session(2));
    let calls: Vec<_> = (0..32).map(|id| test.abandoned(greedy, id, id)).collect();
    let call = test.abandoned(other, 1, 100);
    assert!(test.is_cancelled(&calls[0]) && test.is_forgotten(&calls[0]));
    test.returns(&call, "done");
    let one_more = test.calls(greedy, 50, 50);
    test.commit(&one_more);
    test.gives_up(greedy, 50, TIMEOUT);
    let repeat = test.calls(other, 2, 100);
    test.expect_late(&repeat, "done");
}

#[test]
fn a_call_is_counted_once_however_often_it_is_given_up() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    let overdue = |test: &mut TestServer| {
        let unread = crate::silence::LinkObservation {
            input: Some(ReadPosition { line: 0, unread: 9 }),
            ..Default::default()
        };
        test.server.take_evidence(test.now + S(40), link, &unread, S(30)).unwrap().overdue
    };
    test.abandoned(session, 1, 7);
    for id in 2..5 {
        let repeat = test.calls(session, id, 7);
        test.commit(&repeat);
        assert_eq!(overdue(&mut test), 1, "the repeat waits for it");
        test.gives_up(session, id, TIMEOUT);
        assert_eq!(overdue(&mut test), 1, "it was given up again");
    }
}

#[test]
fn a_server_cannot_ask_a_client_that_has_given_up() {
    let mut test = TestServer::new();
    let session = test.session(1);
    test.abandoned(session, 1, 7);
    test.lines();
    let question = json!({"jsonrpc": "2.0", "id": "q", "method": "vendor/ask"});
    test.says(question.to_string().into());
    let refusal = test.last_line();
    assert_eq!((&refusal["id"], &refusal["error"]["code"]), (&"q".into(), &(-32601).into()));
    let repeat = test.calls(session, 2, 7);
    test.says(question.to_string().into());
    let Read::Item(item) = test.read(&repeat) else { panic!("it was not asked") };
    assert!(!item.is_answer);
}

#[test]
fn turning_late_results_off_ends_them() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let (running, finished) = (test.abandoned(session, 1, 1), test.abandoned(session, 2, 2));
    test.returns(&finished, "done");
    let settings = crate::Settings { late_results: false, ..test.server.settings.clone() };
    test.server.set_settings(test.now, settings);
    test.take_actions();
    assert!(test.is_cancelled(&running) && test.is_forgotten(&running));
    assert!(test.is_forgotten(&finished));
    let call = test.calls(session, 3, 3);
    test.gives_up(session, 3, TIMEOUT);
    assert!(test.is_cancelled(&call));
}

/// The next daemon, which has recovered the only stream of the last one, and a session.
fn next_daemon(test: &TestServer) -> (TestServer, SessionKey) {
    let mut next = TestServer::without_run();
    next.now = test.now;
    let session = next.session(1);
    let record = test.store.record().expect("it is in the journal");
    assert!(next.server.recover(next.now, record, false));
    next.attach_again();
    (next, session)
}

#[test]
fn abandoned_calls_outlive_the_daemon() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.abandoned(session, 1, 7);
    let (mut next, session) = next_daemon(&test);
    let repeat = next.calls(session, 2, 7);
    assert!(!TestServer::is_executed(&repeat), "it joins the one that runs");
    next.returns(&call, "done");
    next.expect_late(&repeat, "done");
}

#[test]
fn results_outlive_the_daemon_and_expire_when_they_would_have() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.abandoned(session, 1, 7);
    test.returns(&call, "done");
    let kept = test.store.record().unwrap().abandoned.unwrap();
    assert_eq!(kept.keep_until, Some(KEEP_RESULT));
    let (mut next, session) = next_daemon(&test);
    next.passes(S(599));
    let repeat = next.calls(session, 2, 7);
    next.expect_late(&repeat, "done");
    let (mut next, session) = next_daemon(&test);
    next.passes(KEEP_RESULT);
    assert!(TestServer::is_executed(&next.calls(session, 2, 7)));
}

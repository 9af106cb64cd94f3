use mainstay_mcp::frame::Parsed;
use proptest::prelude::*;

use super::retention::{KEPT, KEPT_SHORTLY, LARGE_KEPT};
use super::*;
use crate::stream::Item;
use crate::tests::{JOURNALED, TestCall, TestServer, notification, session_id};

const S: fn(u64) -> Duration = Duration::from_secs;

/// What a client that got this event may still read, in short.
fn found(test: &TestServer, session: SessionKey, event: &EventId) -> String {
    match test.server.find(session, event) {
        Found::General(start) => format!("general {start:?}"),
        Found::Request(_, start) => format!("request {start:?}"),
        Found::Over => "over".to_owned(),
        Found::Gone(request) => format!("gone {request:?}"),
    }
}

fn kept(test: &TestServer, session: SessionKey) -> usize {
    test.server.sessions.get(session).unwrap().streams.all.len()
}

#[test]
fn a_waiting_reader_is_woken() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.request(session);
    assert_eq!(test.read(&call), Read::Wait);
    assert!(!test.is_woken(&call));
    test.says(notification("a"));
    assert!(test.is_woken(&call));
    let (number, message) = (1, notification("a"));
    assert_eq!(test.read(&call), Read::Item(Item { number, message, is_answer: false }));
    assert_eq!(test.read(&call), Read::Wait);
    test.answers(&call);
    assert!(test.is_woken(&call));
    let (number, message) = (2, r#"{"id":7,"jsonrpc":"2.0","result":{}}"#.into());
    assert_eq!(test.read(&call), Read::Item(Item { number, message, is_answer: true }));
    assert_eq!(test.read(&call), Read::End);
}

#[test]
fn a_request_is_given_up_with_its_reader_unless_it_may_be_resumed() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.request(session);
    assert!(!test.is_cancelled(&call));
    test.leaves(&call);
    assert!(test.is_forgotten(&call) && test.is_cancelled(&call));
    assert!(!test.server.push(call.stream, notification("a")));

    let call = test.request(session);
    test.commit(&call);
    test.leaves(&call);
    assert!(!test.is_forgotten(&call) && !test.is_cancelled(&call));
    test.cancels(session);
    assert!(test.is_forgotten(&call) && test.is_cancelled(&call));
}

#[test]
fn a_cancelled_stream_ends_for_its_reader() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.request(session);
    test.says(notification("a"));
    test.cancels(session);
    assert!(test.is_woken(&call));
    assert_eq!(test.read(&call), Read::End);
}

/// A request at an HTTP server that has sent as many messages as there is room for.
fn full() -> (TestServer, SessionKey, TestCall) {
    let mut test = TestServer::http();
    let session = test.session(1);
    let call = test.request(session);
    let (operation, message) = (test.http_request(), Parsed::read(notification("a")).unwrap());
    for number in 1..=64 {
        let has_room = test.server.http_message(test.now, operation, &message);
        assert_eq!(has_room, number < 64, "{number}");
    }
    test.take_actions();
    (test, session, call)
}

#[test]
fn room_comes_with_reading() {
    let (mut test, _, call) = full();
    let operation = test.http_request();
    let is_resumed = |test: &TestServer| {
        let is_it = |action: &Action| matches!(action, Action::ResumeHttp(it) if *it == operation);
        test.actions.iter().any(is_it)
    };
    assert!(!is_resumed(&test));
    test.read(&call);
    assert!(is_resumed(&test));
}

#[test]
fn no_server_waits_for_room_in_a_closed_stream() {
    let (mut test, session, call) = full();
    let operation = test.http_request();
    test.cancels(session);
    assert!(test.is_forgotten(&call));
    let is_aborted = |action: &Action| matches!(action, Action::AbortHttp(it) if *it == operation);
    assert!(test.actions.iter().any(is_aborted));
    let message = Parsed::read(notification("a")).unwrap();
    assert!(test.server.http_message(test.now, operation, &message));
}

#[test]
fn a_request_is_given_up_when_its_client_does_not_come_back_in_time() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let mut call = test.request(session);
    let event = test.commit(&call);
    test.passes(S(100));
    test.leaves(&call);
    test.passes(S(29));
    test.resumes(&mut call, Start::Unread);
    test.passes(S(100));
    assert!(!test.is_cancelled(&call));
    test.leaves(&call);
    test.passes(Duration::from_millis(29_999));
    assert!(!test.is_cancelled(&call));
    test.passes(Duration::from_millis(1));
    assert!(test.is_cancelled(&call) && test.is_forgotten(&call));
    assert_eq!(found(&test, session, &event), r#"gone Some("7")"#);
}

#[test]
fn a_request_is_given_up_at_once_if_its_client_cannot_come_back() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let (open, answered) = (test.request(session), test.request(session));
    for call in [&open, &answered] {
        test.commit(call);
        test.server.end_resumption(call.stream);
    }
    test.answers(&answered);
    assert_eq!(test.read_all(&answered), (vec![1], true));
    for call in [&open, &answered] {
        assert!(!test.is_forgotten(call));
        test.leaves(call);
        assert!(test.is_forgotten(call));
    }
    assert!(test.is_cancelled(&open) && !test.is_cancelled(&answered));
}

#[test]
fn an_answer_is_kept_for_a_minute() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.request(session);
    let event = test.commit(&call);
    test.leaves(&call);
    test.passes(S(29));
    test.answers(&call);
    test.passes(S(59));
    assert_eq!(found(&test, session, &event), "request After(0)");
    test.passes(S(1));
    assert_eq!(found(&test, session, &event), r#"gone Some("7")"#);
}

#[test]
fn of_a_request_that_its_client_has_cancelled_nothing_more_is_sent() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let requests: Vec<_> = (0..=FINISHED)
        .map(|_| {
            let call = test.request(session);
            let event = test.commit(&call);
            test.cancels(session);
            assert_eq!(found(&test, session, &event), "over");
            event
        })
        .collect();
    assert_eq!(found(&test, session, &requests[1]), "over");
    let first = found(&test, session, &requests[0]);
    assert!(first.starts_with("gone"), "only some are remembered");
    let given_up = test.request(session);
    let event = test.commit_without_id(&given_up);
    test.leaves(&given_up);
    let given_up = found(&test, session, &event);
    assert!(given_up.starts_with("gone"), "its client did not cancel it");
}

#[test]
fn streams_are_found_by_their_events() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let check = |test: &TestServer, event: &EventId, expected: &str| {
        assert_eq!(found(test, session, event), expected, "{event}");
    };
    let general = test.server.general_event(session).unwrap();
    check(&test, &general, "general After(0)");
    check(&test, &general.at(3), "general Unread");
    for _ in 0..3 {
        test.says(notification("a"));
    }
    check(&test, &general.at(3), "general After(3)");
    let call = test.request(session);
    let event = test.commit(&call);
    check(&test, &event, "request After(0)");
    test.answers(&call);
    check(&test, &event, "request After(0)");
    check(&test, &event.at(1), "over");
    let other = EventId { stream: event.stream ^ (1 << 40), ..event.clone() };
    check(&test, &other, r#"gone Some("7")"#);
    let others_general = EventId { stream: other.stream & !COUNT, ..other };
    check(&test, &others_general, "general Unread");
    test.server.forget_stream(call.stream);
    check(&test, &event, r#"gone Some("7")"#);
    let streams = &test.server.sessions.get(session).unwrap().streams;
    assert_eq!(streams.all.capacity(), 0);
}

#[test]
fn finished_streams_are_bounded_and_unread_ones_go_last() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let mut all = Vec::new();
    for number in 0..40 {
        let call = test.request(session);
        test.commit(&call);
        if number == 0 {
            // Its client is gone, but may come back for the answer.
            test.leaves(&call);
            test.answers(&call);
        } else {
            test.answers(&call);
            assert_eq!(test.read_all(&call), (vec![1], true));
            test.leaves(&call);
        }
        all.push(call);
    }
    assert_eq!(kept(&test, session), FINISHED);
    assert!(!test.is_forgotten(&all[0]), "unread");
    assert!(test.is_forgotten(&all[1]), "read long ago");
    assert!(!test.is_forgotten(&all[39]));
}

#[test]
fn the_end_of_a_session_cuts_no_answer() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let [open, answered, left] = [(); 3].map(|()| {
        let call = test.request(session);
        test.commit(&call);
        call
    });
    test.answers(&answered);
    test.leaves(&left);
    test.answers(&left);
    let general = test.server.general_stream(session).unwrap();
    assert!(test.server.close(test.now, &session_id(1)));
    test.take_actions();
    assert!(test.server.stream_state(general).is_none());
    assert!(test.is_forgotten(&open) && test.is_cancelled(&open) && test.is_forgotten(&left));
    assert_eq!(test.read_all(&answered), (vec![1], true));
    test.leaves(&answered);
    assert!(test.is_forgotten(&answered));
}

/// Clients have numbers of earlier versions of Mainstay.
#[test]
fn the_number_of_a_session_never_changes() {
    assert_eq!(fingerprint("0123456789abcdef0123456789abcdef"), 0x0152_7c97_31f0_ff55);
}

#[test]
fn an_idle_session_has_small_streams() {
    assert!(size_of::<Stream>() + size_of::<NumberedStreams>() < 512);
}

#[test]
fn large_finished_streams_go_first_come_first_served() {
    let mut test = TestServer::new();
    let session = test.session(1);
    for _ in 0..3 {
        let call = test.request(session);
        test.commit(&call);
        test.leaves(&call);
        test.answers_with(&call, vec![b' '; 3 << 20].into());
        assert_eq!(kept(&test, session), 1);
    }
}

#[test]
fn memory_for_large_answers_is_never_exceeded_and_is_free_again_in_the_end() {
    let mut test = TestServer::new();
    let large = Bytes::from(vec![b' '; LARGE_KEPT / 4]);
    let calls: Vec<_> = (0..5)
        .map(|number| {
            let session = test.session(number);
            let call = test.request(session);
            test.commit(&call);
            test.leaves(&call);
            test.answers_with(&call, large.clone());
            call
        })
        .collect();
    assert_eq!(test.server.kept_bytes, LARGE_KEPT);
    test.passes(KEPT_SHORTLY);
    assert!(test.is_forgotten(&calls[4]));
    assert!(!calls[..4].iter().any(|call| test.is_forgotten(call)));
    test.passes(KEPT);
    assert!(calls.iter().all(|call| test.is_forgotten(call)));
    assert_eq!(test.server.kept_bytes, 0);
}

/// What happens to a stream.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Push,
    Read,
    Journal,
    Finish,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => Just(Deed::Push),
        2 => Just(Deed::Read),
        1 => Just(Deed::Journal),
        1 => Just(Deed::Finish),
    ]
}

proptest! {
    /// Whenever the daemon dies: a client that comes back at another one with the id of any event it got reads on from
    /// there, each message once.
    #[test]
    fn a_stream_goes_on_where_its_client_stopped(
        deeds in prop::collection::vec(deed(), 0..60),
        back in 0..60_u64,
    ) {
        let mut test = TestServer::new();
        let session = test.session(1);
        let call = test.request(session);
        let event = test.commit(&call);
        let (mut said, mut seen, mut is_answered, mut is_journaled) = (0, 0, false, false);
        for deed in deeds {
            match deed {
                Deed::Push if !is_answered => {
                    test.says(notification("n"));
                    said += 1;
                }
                Deed::Finish if !is_answered => {
                    test.answers(&call);
                    (said, is_answered) = (said + 1, true);
                }
                Deed::Journal if !is_journaled => {
                    test.passes(JOURNALED);
                    is_journaled = !is_answered;
                }
                Deed::Read => {
                    let (numbers, _) = test.read_all(&call);
                    seen = numbers.last().copied().unwrap_or(seen);
                }
                Deed::Push | Deed::Finish | Deed::Journal => {}
            }
        }
        let record = test.store.record();
        prop_assert_eq!(record.is_some(), is_journaled);
        if let Some(record) = record {
            let mut next = TestServer::without_run();
            let session = next.session(1);
            prop_assert!(next.server.recover(next.now, record, false));
            let last = back.min(seen);
            match next.server.find(session, &event.at(last)) {
                Found::Request(stream, start) => {
                    let (turn, _) = next.server.attach_reader(next.now, stream, start).unwrap();
                    let call = TestCall { stream, turn, ..call };
                    let expected: Vec<u64> = (last + 1..=said).collect();
                    prop_assert_eq!(next.read_all(&call), (expected, is_answered));
                }
                Found::Over => prop_assert!(is_answered && last == said),
                found => prop_assert!(false, "{:?}", found),
            }
            // New streams have other numbers.
            let other = next.request(session);
            prop_assert_ne!(next.commit(&other), event);
        }
    }
}

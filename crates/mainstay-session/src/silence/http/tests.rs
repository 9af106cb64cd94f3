use bytes::Bytes;
use mainstay_core::watchdog::Probe;
use mainstay_mcp::frame::Parsed;
use mainstay_mcp::upstream::UpstreamError;
use proptest::prelude::*;

use super::*;
use crate::action::{Action, HttpFailure, HttpOperation, HttpOutcome};
use crate::availability::{Availability, Reason};
use crate::http::UpstreamSession;
use crate::record::UpstreamRecord;
use crate::tests::TestServer;

const OVERDUE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// What the run got since the last call, in short.
fn sent(test: &mut TestServer) -> Vec<&'static str> {
    test.take_actions();
    let of = |action: Action| match action {
        Action::Http(_, _, operation) => Some(match operation {
            HttpOperation::Open { .. } => "initialize",
            HttpOperation::Request { .. } => "call",
            HttpOperation::Ask { method, .. } => method,
            HttpOperation::Notify { .. } => "notify",
            HttpOperation::Listen { .. } => "listen",
            HttpOperation::Delete { .. } => "delete",
        }),
        Action::AbortHttp(_) => Some("abort"),
        Action::RenewConnections(_) => Some("renew"),
        _ => None,
    };
    test.actions.drain(..).filter_map(of).collect()
}

/// The last operation of this kind.
fn last(test: &mut TestServer, is_meant: impl Fn(&HttpOperation) -> bool) -> OperationKey {
    test.take_actions();
    let found = test.actions.iter().rev().find_map(|action| match action {
        Action::Http(key, _, operation) if is_meant(operation) => Some(*key),
        _ => None,
    });
    found.expect("it was begun")
}

fn evidence(test: &mut TestServer, unread: &[OperationKey]) -> Evidence {
    let unread = unread.iter().map(|key| (*key, 100)).collect();
    let requests = Some(UnreadRequests { at: test.now, unread });
    let (link, observed) =
        (test.link(), LinkObservation { requests, ..LinkObservation::default() });
    test.server.take_evidence(test.now, link, &observed, OVERDUE).unwrap()
}

/// When a client last gave up a request that the run had read.
fn given_up_at(found: &Evidence) -> Option<Instant> {
    found.unawaited.as_ref().map(|request| request.since)
}

#[test]
fn requests_are_told_apart_by_what_was_read() {
    let mut test = TestServer::http();
    let session = test.session(1);
    let begun = test.now;
    test.request(session);
    let first = test.http_request();
    test.now += 20 * SECOND;
    test.request(session);
    let second = test.http_request();
    test.now += 20 * SECOND;
    let request = |sent| Some(OpenRequest { what: "slow".to_owned(), sent });
    let found = evidence(&mut test, &[second]);
    assert_eq!((found.oldest, found.overdue), (request(begun), 1));
    assert_eq!(found.being_handled, request(begun));
    assert_eq!(found.input, Input::Unread { since: begun + 20 * SECOND, bytes: 100 });
    let found = evidence(&mut test, &[first, second]);
    assert_eq!((found.being_handled, found.last_message), (None, None));
    assert_eq!(evidence(&mut test, &[]).input, Input::Read);

    // What is sent after the connections were looked at says nothing.
    let requests = Some(UnreadRequests::find(begun, &[], &[]));
    let (link, observed) =
        (test.link(), LinkObservation { requests, ..LinkObservation::default() });
    let found = test.server.take_evidence(test.now, link, &observed, OVERDUE).unwrap();
    assert_eq!((found.being_handled, found.input), (None, Input::Read));

    let (link, observed) = (test.link(), LinkObservation::default());
    let found = test.server.take_evidence(test.now, link, &observed, OVERDUE).unwrap();
    assert_eq!((found.input, found.being_handled), (Input::Unknown, request(begun)));
}

#[test]
fn a_cancelled_request_counts_until_it_is_read() {
    let mut test = TestServer::http();
    let session = test.session(1);
    let begun = test.now;
    let call = test.request(session);
    test.commit(&call);
    let operation = test.http_request();
    test.now += 40 * SECOND;
    assert!(!test.server.is_given_up(operation));
    test.cancels(session);
    assert!(test.server.is_given_up(operation));
    let sent = |bytes| {
        let sent = SentRequest { operation, port: Some(7), bytes: 100, is_closed: true };
        UnreadRequests::find(begun + SECOND, &[sent], &[UnreadConnection { peer: Some(7), bytes }])
    };
    let (link, now) = (test.link(), test.now);
    let mut found = |bytes| {
        let observed =
            LinkObservation { requests: Some(sent(bytes)), ..LinkObservation::default() };
        test.server.take_evidence(now, link, &observed, OVERDUE).unwrap()
    };
    // The end of the connection counts as a byte.
    for bytes in [100, 101] {
        let found = found(bytes);
        assert_eq!(found.oldest, Some(OpenRequest { what: "slow".to_owned(), sent: begun }));
        assert_eq!((found.overdue, found.being_handled), (1, None));
        assert_eq!(found.input, Input::Unread { since: begun, bytes: 100 });
    }
    let found = found(1);
    assert_eq!((given_up_at(&found), found.input), (Some(now), Input::Read));
    assert_eq!(found.oldest, None);
    assert!(!test.server.is_given_up(operation));
}

#[test]
fn of_a_server_that_has_answered_since_only_the_time_of_a_cancellation_counts() {
    for is_read in [true, false] {
        let mut test = TestServer::http();
        let (session, link) = (test.session(1), test.link());
        test.request(session);
        let operation = test.http_request();
        test.now += SECOND;
        test.server.message_received(test.now, link);
        test.now += SECOND;
        test.cancels(session);
        let unread: &[_] = if is_read { &[] } else { &[operation] };
        let found = evidence(&mut test, unread);
        assert_eq!(given_up_at(&found), is_read.then_some(test.now));
        assert_eq!((found.oldest, found.input), (None, Input::Read));
    }
}

#[test]
fn a_request_for_which_no_connection_is_accepted_is_unread() {
    let mut test = TestServer::http();
    let session = test.session(1);
    test.request(session);
    let operation = test.http_request();
    let sent = SentRequest { operation, port: None, bytes: 0, is_closed: false };
    let found = UnreadRequests::find(test.now, &[sent], &[]);
    assert_eq!(found.unread_bytes(operation), Some(0));
}

#[test]
fn the_end_of_a_session_is_left_to_finish() {
    let mut test = TestServer::http();
    let (session, other) = (test.session(1), test.session(2));
    let call = test.request(session);
    let answer = Parsed::read(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}"));
    let operation = test.http_request();
    test.server.http_done(test.now, operation, HttpOutcome::Answered(answer.unwrap()));
    drop(call);
    test.server.close(test.now, &crate::tests::session_id(1));
    let delete = last(&mut test, |it| matches!(it, HttpOperation::Delete { .. }));
    test.request(other);
    let waiting = test.http_request();
    test.now += SECOND;
    let found = evidence(&mut test, &[waiting]);
    assert_eq!(found.being_handled.unwrap().what, "DELETE");
    assert_eq!(evidence(&mut test, &[waiting, delete]).being_handled, None);
    let link = test.link();
    test.server.answer_received(test.now, link);
    assert_eq!(evidence(&mut test, &[waiting]).being_handled, None, "it has passed it over");
}

#[test]
fn a_call_that_is_answered_by_events_was_read() {
    let mut test = TestServer::http();
    let session = test.session(1);
    test.request(session);
    let operation = test.http_request();
    test.server.http_streaming(test.now, operation);
    test.now += SECOND;
    // What is unread is the request to resume the events.
    let found = evidence(&mut test, &[operation]);
    assert_eq!((found.being_handled.unwrap().what.as_str(), found.input), ("slow", Input::Read));
}

#[test]
fn of_a_call_that_an_earlier_daemon_has_sent_counts_when_its_client_gave_it_up() {
    let mut test = TestServer::http();
    let session = test.session(1);
    test.request(session);
    let call = test.server.calls.keys()[0];
    test.server.calls.get_mut(call).unwrap().stage = Stage::Relayed;
    assert_eq!(evidence(&mut test, &[]).being_handled.unwrap().what, "slow");
    test.now += SECOND;
    test.cancels(session);
    let found = evidence(&mut test, &[]);
    assert_eq!((given_up_at(&found), found.being_handled), (Some(test.now), None));
}

#[test]
fn a_server_that_answers_anything_is_alive() {
    let mut test = TestServer::http();
    let link = test.link();
    test.server.probe(test.now, link, Probe::Ping);
    let ping = last(&mut test, |it| matches!(it, HttpOperation::Ask { .. }));
    assert_eq!(evidence(&mut test, &[ping]).oldest, None, "no client waits for it");
    let refused =
        UpstreamError::Http { method: "ping".to_owned(), status: 500, body: String::new() };
    let outcome = HttpOutcome::Failed(HttpFailure::Unusable(refused));
    test.server.http_done(test.now, ping, outcome);
    let found = evidence(&mut test, &[]);
    assert_eq!((found.last_message, found.answered_ping), (Some(test.now), true));

    // A connection that was lost says nothing.
    let before = test.now;
    test.now += SECOND;
    test.server.probe(test.now, link, Probe::Ping);
    let ping = last(&mut test, |it| matches!(it, HttpOperation::Ask { .. }));
    test.server.http_done(test.now, ping, HttpOutcome::Failed(HttpFailure::Lost));
    let found = evidence(&mut test, &[]);
    assert_eq!((found.last_message, found.answered_ping), (Some(before), false));
}

#[test]
fn held_calls_are_not_sent_and_then_sent_in_order() {
    let mut test = TestServer::http();
    let (session, link) = (test.session(1), test.link());
    test.server.hold_requests(link);
    let calls = [test.request(session), test.request(session)];
    let given_up = test.request(session);
    assert!(sent(&mut test).is_empty());
    test.leaves(&given_up);
    // A probe overtakes them, and replaces the one before it.
    test.server.probe(test.now, link, Probe::Ping);
    test.server.probe(test.now, link, Probe::Ping);
    assert_eq!(sent(&mut test), ["ping", "abort", "ping"]);
    test.server.send_held_requests(test.now, link);
    test.take_actions();
    let requests = test.actions.iter().filter_map(|action| match action {
        Action::Http(key, _, HttpOperation::Request { .. }) => Some(*key),
        _ => None,
    });
    let requests: Vec<_> = requests.collect();
    let streams = requests.iter().map(|key| match test.server.operations.get(*key) {
        Some(operation) => match operation.purpose {
            Purpose::Call(call) => test.server.calls.get(call).unwrap().stream,
            _ => panic!("it is a call"),
        },
        None => panic!("it is open"),
    });
    let streams: Vec<_> = streams.collect();
    assert_eq!(streams, calls.map(|call| call.stream));
}

#[test]
fn calls_that_were_held_when_the_run_ended_wait_for_the_next_one() {
    let mut test = TestServer::http();
    let (session, link) = (test.session(1), test.link());
    test.server.hold_requests(link);
    let call = test.request(session);
    let reason = std::sync::Arc::new(Reason { text: "hung".to_owned(), stderr: Vec::new() });
    let coming = Availability::Coming { due: None, why: reason };
    test.server.set_availability(test.now, coming);
    assert_eq!(test.read_all(&call), (Vec::new(), false));
    assert!(
        test.server.links.get(link).is_none_or(|link| link.as_http().unwrap().queue.is_empty())
    );
    assert!(sent(&mut test).is_empty());
}

fn opened(test: &TestServer) -> HttpOutcome {
    let run = test.server.availability.run().unwrap();
    let record = UpstreamRecord { run: 1, id: Some("new".into()), version: "2025-11-25".into() };
    let session = UpstreamSession::resume(record).unwrap();
    HttpOutcome::Opened(std::sync::Arc::new(session), (*run.hello).clone())
}

/// A call to a silent server, which is probed and whose connections are renewed. Returns the new session that is being opened.
fn renewed(test: &mut TestServer) -> OperationKey {
    let (session, link) = (test.session(1), test.link());
    test.request(session);
    test.server.probe(test.now, link, Probe::Ping);
    sent(test);
    test.now += OVERDUE;
    test.server.hold_requests(link);
    test.server.renew_connections(test.now, link);
    last(test, |it| matches!(it, HttpOperation::Open { .. }))
}

#[test]
fn a_silent_server_is_probed_again_over_new_connections() {
    let mut test = TestServer::http();
    renewed(&mut test);
    assert_eq!(sent(&mut test), ["renew", "abort", "ping", "initialize"]);
    // Few sessions are opened, and one at a time.
    let link = test.link();
    let mut opened = 0;
    for _ in 0..120 {
        test.now += OVERDUE;
        test.server.renew_connections(test.now, link);
        opened += sent(&mut test).iter().filter(|it| **it == "initialize").count();
    }
    assert_eq!(opened, 6);
    let is_open = |it: &&crate::http::Operation| matches!(it.purpose, Purpose::Open(_));
    assert_eq!(test.server.operations.values().filter(is_open).count(), 1);
}

#[test]
fn sessions_are_opened_again_if_only_a_new_one_is_answered() {
    for (answer_after, is_forgotten) in [(SECOND, true), (20 * SECOND, false)] {
        let mut test = TestServer::http();
        let opening = renewed(&mut test);
        sent(&mut test);
        let key = test.session(1);
        test.now += answer_after;
        let outcome = opened(&test);
        test.server.http_done(test.now, opening, outcome);
        let session = test.server.sessions.get(key).unwrap();
        assert_eq!(session.upstream.is_open_with(1), !is_forgotten, "{answer_after:?}");
        assert_eq!(sent(&mut test), ["delete"], "the session before it is ended");
    }
}

#[test]
fn sessions_are_kept_if_the_server_answers_in_them() {
    let mut test = TestServer::http();
    let opening = renewed(&mut test);
    let ping = last(&mut test, |it| matches!(it, HttpOperation::Ask { .. }));
    let key = test.session(1);
    let result = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
    test.server.http_done(test.now, ping, HttpOutcome::Result(result));
    let outcome = opened(&test);
    test.server.http_done(test.now, opening, outcome);
    assert!(test.server.sessions.get(key).unwrap().upstream.is_open_with(1));
}

fn request() -> impl Strategy<Value = (u16, u64)> {
    (1_u16..6, 1_u64..6)
}

fn connection() -> impl Strategy<Value = UnreadConnection> {
    let peer = prop_oneof![Just(None), (1_u16..6).prop_map(Some)];
    (peer, 1_u64..6).prop_map(|(peer, bytes)| UnreadConnection { peer, bytes })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_request_is_unread_without_a_connection_of_its_own(
        sent in prop::collection::vec(request(), 0..8),
        connections in prop::collection::vec(connection(), 0..8),
    ) {
        let mut test = TestServer::http();
        let session = test.session(1);
        let mut request = |(port, bytes): &(u16, u64)| {
            test.request(session);
            SentRequest { operation: test.http_request(), port: Some(*port), bytes: *bytes, is_closed: false }
        };
        let sent: Vec<SentRequest> = sent.iter().map(&mut request).collect();
        let found = UnreadRequests::find(test.now, &sent, &connections);
        for request in sent.iter().filter(|it| found.unread.contains_key(&it.operation)) {
            // None of the requests that may be on such a connection was read.
            let is_proof = |seen: &UnreadConnection| {
                let requests = sent.iter().filter(|it| it.may_be_on(*seen)).count();
                let equal = connections.iter().filter(|it| *it == seen).count();
                request.may_be_on(*seen) && equal >= requests
            };
            prop_assert!(connections.iter().any(is_proof));
        }
        prop_assert!(found.unread.len() <= connections.len());
    }
}

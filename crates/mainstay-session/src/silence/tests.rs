use super::*;
use crate::action::Action;
use crate::tests::TestServer;

const OVERDUE: Duration = Duration::from_secs(30);

fn evidence(test: &mut TestServer, read_through: u64) -> Evidence {
    let observed = LinkObservation {
        input: Some(ReadPosition { line: read_through, unread: 0 }),
        ..LinkObservation::default()
    };
    let link = test.link();
    test.server.take_evidence(test.now, link, &observed, OVERDUE).unwrap()
}

fn watched(test: &mut TestServer) -> usize {
    let actions = std::mem::take(&mut test.actions);
    actions.iter().filter(|action| matches!(action, Action::Report(Report::Observe(..)))).count()
}

#[test]
fn open_requests_are_told_apart_by_what_was_read() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let begun = test.now;
    test.request(session);
    test.now += Duration::from_secs(20);
    test.request(session);
    test.now += Duration::from_secs(20);
    let found = evidence(&mut test, 1);
    let request = |sent| Some(OpenRequest { what: "slow".to_owned(), sent });
    assert_eq!(found.oldest, request(begun));
    assert_eq!((found.overdue, found.being_handled), (1, request(begun)));
    let since = begun + Duration::from_secs(20);
    assert_eq!(found.input, Input::Unread { since, bytes: 0 });
    assert_eq!(evidence(&mut test, 0).being_handled, None);
    assert_eq!(evidence(&mut test, 2).input, Input::Read);
}

#[test]
fn a_slow_request_is_reported_once() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.request(session);
    assert_eq!(watched(&mut test), 0);
    test.commit(&call);
    let second = test.request(session);
    test.commit(&second);
    assert_eq!(watched(&mut test), 1);
    test.answers(&call);
    test.answers(&second);
    assert_eq!(evidence(&mut test, 2).oldest, None);
    let third = test.request(session);
    test.commit(&third);
    assert_eq!(watched(&mut test), 1);
}

#[test]
fn a_request_that_was_held_is_reported_when_it_is_sent() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    test.server.hold_requests(link);
    let call = test.request(session);
    test.commit(&call);
    assert_eq!(watched(&mut test), 0);
    test.server.send_held_requests(test.now, link);
    test.lines();
    assert_eq!(watched(&mut test), 1);
}

#[test]
fn a_cancelled_request_counts_until_it_is_read() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let begun = test.now;
    test.request(session);
    test.now += Duration::from_secs(40);
    test.cancels(session);
    let cancelled = test.now;
    test.now += Duration::from_secs(1);
    let found = evidence(&mut test, 0);
    assert_eq!((found.oldest.unwrap().sent, found.overdue), (begun, 1));
    assert_eq!(found.input, Input::Unread { since: begun, bytes: 0 });
    assert_eq!((found.being_handled, found.unawaited), (None, None));
    let found = evidence(&mut test, 1);
    assert_eq!((found.oldest, found.input), (None, Input::Read));
    let inside = UnawaitedRequest { what: "slow".to_owned(), since: cancelled };
    assert_eq!(found.unawaited, Some(inside));
    assert_eq!(evidence(&mut test, 0).oldest, None, "it was read");
}

#[test]
fn an_observation_that_has_failed_says_nothing_about_what_was_read() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    test.request(session);
    evidence(&mut test, 0);
    test.now += Duration::from_secs(5);
    test.cancels(session);
    let failed = LinkObservation::default();
    test.server.take_evidence(test.now, link, &failed, OVERDUE).unwrap();
    let found = evidence(&mut test, 0);
    assert_eq!((found.oldest.unwrap().what.as_str(), found.unawaited), ("slow", None));
}

#[test]
fn what_is_unread_counts_although_nothing_is_known_about_it() {
    let mut test = TestServer::without_run();
    test.attach_again();
    let link = test.link();
    assert!(test.server.is_waiting_for(link), "an earlier daemon may have sent something");
    let begun = test.now;
    let mut found = |line, unread| {
        let input = Some(ReadPosition { line, unread });
        let observed = LinkObservation { input, ..LinkObservation::default() };
        test.now += Duration::from_secs(1);
        let input = test.server.take_evidence(test.now, link, &observed, OVERDUE).unwrap().input;
        (input, test.server.is_waiting_for(link))
    };
    let unread = |seconds, bytes| {
        let since = begun + Duration::from_secs(seconds);
        (Input::Unread { since, bytes }, true)
    };
    assert_eq!([found(8, 50), found(8, 90)], [unread(1, 50), unread(1, 90)]);
    assert_eq!(found(9, 40), unread(3, 40), "it has read since");
    assert_eq!(found(9, 0), (Input::Read, false));
}

#[test]
fn few_cancelled_requests_are_remembered_and_the_first_and_last_ones_count() {
    let mut test = TestServer::new();
    let (session, begun) = (test.session(1), test.now);
    for _ in 0..1000 {
        test.request(session);
        test.now += Duration::from_secs(1);
        test.cancels(session);
    }
    let found = evidence(&mut test, 0);
    assert_eq!(found.oldest.unwrap().sent, begun);
    assert!(found.overdue <= 64, "{}", found.overdue);
    let last = test.now;
    assert_eq!(evidence(&mut test, 2000).unawaited.unwrap().since, last);
}

#[test]
fn lists_that_mainstay_has_requested_are_left_to_finish() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    test.server.probe(test.now, link, Probe::List);
    test.request(session);
    let found = evidence(&mut test, 1);
    assert_eq!(found.being_handled.unwrap().what, "tools/list");
    assert_eq!(evidence(&mut test, 0).being_handled, None);
}

#[test]
fn held_requests_are_not_written_and_are_sent_in_order() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    let first = test.request(session);
    test.server.hold_requests(link);
    assert!(test.request(session).run_id.is_null() && test.request(session).run_id.is_null());
    // A probe overtakes them.
    test.server.probe(test.now, link, Probe::Ping);
    assert_eq!(test.lines(), ["ping"]);
    test.answers(&first);
    assert_eq!(watched(&mut test), 1, "it has sent something");
    assert!(!test.server.send_held_requests(test.now, link));
    assert_eq!(test.lines(), ["slow", "slow"]);
}

#[test]
fn requests_that_were_held_when_the_run_died_go_to_the_next_one() {
    let mut test = TestServer::new();
    let (session, link) = (test.session(1), test.link());
    test.server.hold_requests(link);
    let call = test.request(session);
    test.server.close_stdio(test.now, link, 0);
    assert_eq!(test.read_all(&call), (Vec::new(), false), "it waits for the next run");
}

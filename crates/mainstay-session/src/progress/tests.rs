use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::calls::Arrival;
use crate::session::SessionKey;
use crate::stream::{Read, Start};
use crate::tests::{TestCall, TestServer};

const S: fn(u64) -> Duration = Duration::from_secs;

fn request() -> Parsed {
    let text = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call",
        "params":{"name":"a","_meta":{"progressToken":"t"}}}"#;
    Parsed::read(text.into()).unwrap()
}

fn progress() -> Progress {
    Progress::of(&request(), [].iter()).unwrap().unwrap()
}

/// What a server reports for a call.
fn report(token: &Value, value: f64, message: &str) -> Bytes {
    let params = json!({"progressToken": token, "progress": value, "total": 3, "message": message});
    let report = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
    report.to_string().into()
}

/// The value that the client is sent when the server reports this one.
fn sent(progress: &mut Progress, now: Instant, value: f64) -> f64 {
    let message = Parsed::read(report(&json!(9), value, "")).unwrap();
    let text = progress.report(now, &message, message.progress().unwrap()).unwrap();
    Parsed::read(text).unwrap().progress().unwrap().value
}

fn call(test: &mut TestServer, session: SessionKey) -> TestCall {
    let (stream, turn) = test.server.request(test.now, session, request(), Arrival::New);
    test.take_actions();
    TestCall { stream, turn, run_id: test.last_run_id() }
}

/// The values and messages that the client gets now.
fn read(test: &mut TestServer, call: &TestCall) -> Vec<(f64, String)> {
    let mut read = Vec::new();
    while let Read::Item(item) = test.read(call) {
        let message: Value = serde_json::from_slice(&item.message).unwrap();
        let params = &message["params"];
        assert_eq!((&params["progressToken"], item.is_answer), (&json!("t"), false));
        let said = params["message"].as_str().unwrap().to_owned();
        read.push((params["progress"].as_f64().unwrap(), said));
    }
    read
}

#[track_caller]
fn assert_rises(values: &[(f64, String)]) {
    assert!(values.windows(2).all(|pair| pair[0].0 < pair[1].0), "{values:?}");
}

proptest! {
    #[test]
    fn values_always_rise_and_steps_stay_small(
        reports in prop::collection::vec(prop_oneof![
            Just(None),
            (-5..20_i32).prop_map(|value| Some(f64::from(value))),
            prop_oneof![Just(1e9), Just(3e10), Just(1e300), Just(-1e300), Just(0.5)].prop_map(Some),
        ], 1..300),
    ) {
        let now = tokio::time::Instant::now().into_std();
        let mut progress = progress();
        let (mut last, mut highest) = (f64::NEG_INFINITY, 0_f64);
        for reported in reports {
            let value = match reported {
                Some(reported) => sent(&mut progress, now, reported),
                None => progress.step().unwrap(),
            };
            prop_assert!(value > last, "{value} after {last}");
            if last == f64::NEG_INFINITY || reported.is_some_and(|reported| reported > last) {
                highest = reported.unwrap_or(0.0);
            }
            let coarse = 300.0 * (highest.next_up() - highest);
            prop_assert!(value <= highest + MAX_SUM.max(coarse), "{value} after {highest}");
            last = value;
        }
    }
}

#[test]
fn years_of_steps_reach_no_whole_number() {
    let mut progress = progress();
    assert!(progress.rises_to(1.0));
    let mut last = 1.0;
    for _ in 0..1_000_000 {
        let value = progress.step().unwrap();
        assert!(value > last);
        last = value;
    }
    assert!(last < 1.001, "{last}");
    assert!(progress.rises_to(1.01));
}

#[test]
fn numbers_without_a_higher_one_are_not_reported() {
    let mut progress = progress();
    assert!(progress.rises_to(f64::MAX));
    assert_eq!(progress.step(), None);
    assert!(!progress.rises_to(f64::INFINITY));
}

#[test]
fn a_client_that_wants_progress_gets_it_every_10_seconds() {
    let mut test = TestServer::new();
    let session = test.session(1);
    test.passes(S(1));
    let call = call(&mut test, session);
    test.passes(Duration::from_millis(150));
    assert_eq!(test.server.deadline(), None, "a fast call costs no timer");
    test.commit(&call);
    test.passes(S(9));
    assert_eq!(read(&mut test, &call), []);
    test.passes(S(21));
    let values = read(&mut test, &call);
    // Only the last is there if the client does not read, and the first, which is recorded.
    assert_eq!(values.len(), 2);
    assert_rises(&values);
    assert_eq!(values[1].1, "waiting for the answer of `time` for 30 s");
    test.answers(&call);
    assert!(test.read_all(&call).1);
    test.passes(S(600));
    assert_eq!(test.read(&call), Read::End);
}

#[test]
fn who_wants_no_progress_gets_none() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = test.request(session);
    test.commit(&call);
    test.passes(S(60));
    assert_eq!(test.read_all(&call), (Vec::new(), false));
}

#[test]
fn a_call_of_10_hours_leaves_a_short_log_and_journal() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = call(&mut test, session);
    test.commit(&call);
    let mut values = Vec::new();
    for _ in 0..3600 {
        test.passes(INTERVAL);
        let new = read(&mut test, &call);
        assert_eq!(new.len(), 1);
        values.extend(new);
    }
    assert_rises(&values);
    assert!(values.last().unwrap().0 < MAX_SUM);
    let stream = test.server.streams.get(call.stream).unwrap();
    assert_eq!(stream.log.messages().count(), 60);
    assert_eq!(test.store.record().unwrap().messages.len(), 60);
}

#[test]
fn the_report_of_the_server_is_repeated_with_its_message() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let call = call(&mut test, session);
    test.commit(&call);
    let says = |test: &mut TestServer, value, text| test.says(report(&call.run_id, value, text));
    test.passes(S(5));
    says(&mut test, 1.0, "one");
    test.passes(S(9));
    assert_eq!(read(&mut test, &call), [(1.0, "one".to_owned())]);
    test.passes(S(1));
    let repeated = read(&mut test, &call);
    assert!(repeated[0].0 > 1.0 && repeated[0].1 == "one", "{repeated:?}");
    says(&mut test, 1.0, "still one");
    says(&mut test, 0.0, "back");
    let fallen = read(&mut test, &call);
    assert_rises(&[repeated, fallen.clone()].concat());
    assert_eq!([&fallen[0].1, &fallen[1].1], ["still one", "back"]);
    assert!(fallen[1].0 < 1.001);
    says(&mut test, 2.0, "two");
    assert_eq!(read(&mut test, &call), [(2.0, "two".to_owned())]);
}

#[test]
fn what_is_shown_gives_way_to_what_follows() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let mut call = call(&mut test, session);
    test.commit(&call);
    test.passes(S(20));
    assert_eq!(read(&mut test, &call).len(), 2);
    test.passes(S(10));
    test.says(report(&call.run_id, 1.0, "one"));
    assert_eq!(read(&mut test, &call), [(1.0, "one".to_owned())], "it would fall otherwise");
    test.passes(S(10));
    let Read::Item(shown) = test.read(&call) else { panic!("it is shown") };
    assert_eq!(shown.number, 2, "a client that resumes after it misses nothing");
    test.leaves(&call);
    test.passes(S(20));
    test.resumes(&mut call, Start::After(shown.number));
    assert_eq!(test.read(&call), Read::Wait, "nobody was there");
    test.passes(S(10));
    assert_eq!(read(&mut test, &call).len(), 1);
    test.answers(&call);
    assert!(test.read_all(&call).1);
}

#[test]
fn held_requests_say_why_they_are() {
    let mut test = TestServer::new();
    let session = test.session(1);
    test.server.hold_requests(test.link());
    let queued = call(&mut test, session);
    test.commit(&queued);
    test.passes(S(10));
    let said = |values: Vec<(f64, String)>| values.last().unwrap().1.clone();
    assert_eq!(said(read(&mut test, &queued)), "held for 10 s: `time` does not answer");
    let mut test = TestServer::without_run();
    let session = test.session(1);
    let held = call(&mut test, session);
    test.commit(&held);
    test.passes(S(20));
    assert_eq!(said(read(&mut test, &held)), "held for 20 s: `time` is not ready");
}

#[test]
fn the_next_daemon_continues_above_what_was_sent() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let first = call(&mut test, session);
    test.commit(&first);
    let mut values = Vec::new();
    // The last 59 are not recorded.
    for _ in 0..60 {
        test.passes(INTERVAL);
        values.extend(read(&mut test, &first));
    }
    let record = test.store.record().unwrap();
    assert_eq!(record.messages.len(), 1);
    let mut test = TestServer::without_run();
    test.session(1);
    assert!(test.server.recover(test.now, record.clone(), false));
    let session = test.server.session(&record.key.session).unwrap();
    let stream = test.server.stream_of_number(session, record.key.number).unwrap();
    let mut second = TestCall { stream, ..first };
    test.resumes(&mut second, Start::After(1));
    test.passes(S(30));
    let later = read(&mut test, &second);
    assert!(!later.is_empty());
    values.extend(later);
    assert_rises(&values);
}

#[test]
fn each_request_of_a_batch_has_its_own_progress() {
    let mut test = TestServer::new();
    let session = test.session(1);
    let other = Parsed::read(
        r#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"b","_meta":{"progressToken":2}}}"#
            .into(),
    );
    let messages = vec![request(), other.unwrap()];
    let (stream, turn) = test.server.batch(test.now, session, messages);
    let call = TestCall { stream, turn, run_id: Value::Null };
    test.commit(&call);
    test.passes(S(30));
    let mut tokens = Vec::new();
    while let Read::Item(item) = test.read(&call) {
        let message: Value = serde_json::from_slice(&item.message).unwrap();
        tokens.push(message["params"]["progressToken"].clone());
    }
    assert_eq!(tokens, [json!("t"), json!(2), json!("t"), json!(2), json!("t"), json!(2)]);
}

#[test]
fn values_of_an_http_server_rise_too() {
    let mut test = TestServer::http();
    let session = test.session(1);
    let call = call(&mut test, session);
    let operation = test.http_request();
    test.commit(&call);
    for (value, text) in [(1.0, "one"), (1.0, "again"), (0.0, "back"), (2.0, "two")] {
        let message = Parsed::read(report(&json!("t"), value, text)).unwrap();
        test.server.http_message(test.now, operation, &message);
    }
    test.passes(S(10));
    let values = read(&mut test, &call);
    assert_rises(&values);
    let texts: Vec<_> = values.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["one", "again", "back", "two", "two"]);
    assert_eq!((values[0].0, values[3].0), (1.0, 2.0));
}

#[test]
fn relayed_progress_rises_too() {
    let mut test = TestServer::http();
    let session = test.session(1);
    let first = call(&mut test, session);
    test.commit(&first);
    test.passes(S(1));
    let record = test.store.record().unwrap();
    // The daemon that waits for the answer sends progress.
    let relayed = test.server.relayed_calls().remove(0).1;
    test.server.freeze();
    test.passes(S(20));
    let reader = TestCall { turn: relayed.turn, ..first.clone() };
    let mut own = Vec::new();
    while let Read::Item(item) = test.read(&reader) {
        own.push((item.number, String::from_utf8(item.message.to_vec()).unwrap()));
    }
    assert_eq!(own.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);

    let mut test = TestServer::without_run();
    test.session(1);
    assert!(test.server.recover(test.now, record.clone(), true));
    test.attach(crate::links::LinkTarget::Http);
    let session = test.server.session(&record.key.session).unwrap();
    let stream = test.server.stream_of_number(session, record.key.number).unwrap();
    let mut second = TestCall { stream, ..first };
    test.resumes(&mut second, Start::After(0));
    let one = String::from_utf8(report(&json!("t"), 1.0, "one").to_vec()).unwrap();
    let news = own.into_iter().chain((3..6).map(|number| (number, one.clone())));
    let mut values = Vec::new();
    for (number, said) in news {
        test.passes(S(20));
        test.server.relay(test.now, &record.key, crate::RelayNews::Message(number, said));
        values.extend(read(&mut test, &second));
    }
    assert_eq!(values.len(), 5, "{values:?}");
    assert_rises(&values);
    test.server.relay(test.now, &record.key, crate::RelayNews::Lost);
    test.passes(S(20));
    assert!(test.read_all(&second).1, "its effect is unknown");
}

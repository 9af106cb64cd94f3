//! What is said on each connection, and what the client gets.

use std::sync::LazyLock;

use super::*;

pub(super) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
pub(super) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
pub(super) const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
pub(super) const CALL: &str =
    r#"{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"x"}}"#;
pub(super) const LEVEL: &str = r#"{"jsonrpc":"2.0","id":3,"method":"logging/setLevel"}"#;

pub(super) fn answer_to(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

pub(super) fn cancel(id: &str) -> String {
    let params = format!(r#"{{"requestId":{id}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
}

/// So many seconds after the beginning. No clock is read but once.
pub(super) fn at(seconds: u64) -> Instant {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(|| tokio::time::Instant::now().into_std());
    *BEGINNING + Duration::from_secs(seconds)
}

pub(super) fn offer(exchange: &mut Exchange, line: &str, second: u64) {
    exchange.offer(format!("{line}\n").into_bytes(), at(second));
}

/// Sends a line of the client, and whatever goes before it.
pub(super) fn send(exchange: &mut Exchange, line: &str) -> Vec<String> {
    offer(exchange, line, 0);
    drain(exchange)
}

/// Everything that is to be sent now.
pub(super) fn drain(exchange: &mut Exchange) -> Vec<String> {
    let next = |exchange: &mut Exchange| {
        let line = exchange.next()?;
        exchange.sent();
        Some(text(&line))
    };
    std::iter::from_fn(|| next(exchange)).collect()
}

fn text(line: &[u8]) -> String {
    let line = std::str::from_utf8(line).unwrap();
    line.strip_suffix('\n').expect("lines are whole").to_owned()
}

pub(super) fn texts(lines: &[Vec<u8>]) -> Vec<String> {
    lines.iter().map(|line| text(line)).collect()
}

/// Connects, and gives what the client is told for it.
pub(super) fn connect(exchange: &mut Exchange, session: &str) -> Vec<String> {
    connect_pending(exchange, session, &[])
}

pub(super) fn connect_pending(
    exchange: &mut Exchange,
    session: &str,
    pending: &[&str],
) -> Vec<String> {
    let pending = pending.iter().map(|&id| id.to_owned()).collect();
    texts(&exchange.connected(&Connected { session: Some(session.to_owned()), pending }))
}

/// An exchange with an open session `s1`.
pub(super) fn open() -> Exchange {
    let mut exchange = Exchange::default();
    connect(&mut exchange, "s1");
    assert_eq!(send(&mut exchange, INITIALIZE), [INITIALIZE]);
    assert_eq!(exchange.session(), None, "there is nothing to go on with yet");
    assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Pass);
    assert_eq!(send(&mut exchange, INITIALIZED), [INITIALIZED]);
    assert_eq!(exchange.session(), Some("s1"));
    exchange
}

const CALL_ENDED: &str = r#"{"id":"two","jsonrpc":"2.0","result":{"content":[{"text":"the Mainstay daemon ended during this request; its effect is unknown","type":"text"}],"isError":true}}"#;
const LEVEL_ENDED: &str = r#"{"error":{"code":-32603,"message":"the Mainstay daemon ended during this request; its effect is unknown"},"id":3,"jsonrpc":"2.0"}"#;

#[test]
fn a_session_that_is_still_known_goes_on() {
    let mut exchange = open();
    for line in [LIST, CALL, LEVEL] {
        send(&mut exchange, line);
    }
    exchange.broken(at(0));
    assert!(texts(&exchange.overdue(at(7))).is_empty(), "the next connection decides");
    assert_eq!(connect(&mut exchange, "s1"), [CALL_ENDED, LEVEL_ENDED]);
    assert_eq!(drain(&mut exchange), [LIST]);
    assert!(exchange.wants_line() && !exchange.is_settled());
    assert_eq!(exchange.received(answer_to("1").as_bytes()), Heard::Pass);
    assert!(exchange.is_settled());
}

#[test]
fn a_session_that_is_forgotten_is_opened_again_behind_the_clients_back() {
    let mut exchange = open();
    send(&mut exchange, LIST);
    exchange.broken(at(0));
    connect(&mut exchange, "s2");
    offer(&mut exchange, CALL, 0);
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    assert!(!exchange.wants_line(), "nothing is said before the answer");
    assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Swallow);
    assert_eq!(drain(&mut exchange), [INITIALIZED, LIST, CALL]);
    assert_eq!(exchange.session(), Some("s2"));
}

#[test]
fn a_break_while_a_session_is_opened_again_starts_over() {
    let mut exchange = open();
    exchange.broken(at(0));
    connect(&mut exchange, "s2");
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    exchange.broken(at(0));
    assert!(connect(&mut exchange, "s3").is_empty());
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    let refused = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"removed"}}"#;
    assert_eq!(exchange.received(refused.as_bytes()), Heard::Lost("removed".to_owned()));
}

#[test]
fn an_initialize_in_flight_is_said_again_and_its_answer_passed_on() {
    let mut exchange = Exchange::default();
    connect(&mut exchange, "s1");
    send(&mut exchange, INITIALIZE);
    exchange.broken(at(0));
    assert_eq!(exchange.session(), None);
    assert!(connect(&mut exchange, "s2").is_empty());
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Pass);
    assert_eq!(exchange.session(), Some("s2"));
}

#[test]
fn a_line_that_was_not_sent_whole_is_sent_whatever_it_is() {
    let mut exchange = open();
    offer(&mut exchange, CALL, 0);
    assert!(exchange.next().is_some());
    exchange.broken(at(0));
    assert!(connect(&mut exchange, "s1").is_empty());
    assert_eq!(drain(&mut exchange), [CALL]);
}

#[test]
fn a_request_is_said_again_only_once() {
    let mut exchange = open();
    send(&mut exchange, LIST);
    exchange.broken(at(0));
    connect(&mut exchange, "s1");
    assert_eq!(drain(&mut exchange), [LIST]);
    exchange.broken(at(0));
    let answers = connect(&mut exchange, "s1");
    assert!(matches!(&answers[..], [one] if one.contains("ended twice")), "{answers:?}");
    assert!(drain(&mut exchange).is_empty() && exchange.is_settled());
}

#[test]
fn a_repetition_that_never_left_is_none() {
    let mut exchange = open();
    send(&mut exchange, LIST);
    for _ in 0..3 {
        exchange.broken(at(0));
        assert!(connect(&mut exchange, "s1").is_empty());
    }
    assert_eq!(drain(&mut exchange), [LIST]);
}

#[test]
fn what_outlived_the_daemon_is_left_in_flight() {
    let mut exchange = open();
    for line in [LIST, CALL, LEVEL] {
        send(&mut exchange, line);
    }
    exchange.broken(at(0));
    let answers = connect_pending(&mut exchange, "s1", &["1", " \"t\\u0077o\"", "77"]);
    assert_eq!(answers, [LEVEL_ENDED]);
    assert!(drain(&mut exchange).is_empty(), "what is pending is not said again");
    assert!(exchange.wants_line() && !exchange.is_settled());
    assert_eq!(exchange.received(answer_to("\"two\"").as_bytes()), Heard::Pass);
    assert_eq!(exchange.received(answer_to("\"two\"").as_bytes()), Heard::Swallow);

    exchange.broken(at(1));
    assert!(connect(&mut exchange, "s1").is_empty());
    assert_eq!(drain(&mut exchange), [LIST], "it had been said only once");
}

#[test]
fn what_another_session_has_open_is_none_of_ours() {
    let mut exchange = open();
    send(&mut exchange, CALL);
    exchange.broken(at(0));
    assert_eq!(connect_pending(&mut exchange, "s2", &["\"two\""]), [CALL_ENDED]);
}

#[test]
fn without_a_connection_time_decides() {
    let mut exchange = open();
    for line in [LIST, CALL, LEVEL] {
        send(&mut exchange, line);
    }
    assert_eq!(exchange.deadline(), None);
    exchange.broken(at(10));
    assert_eq!(exchange.deadline(), Some(at(18)));
    assert!(exchange.overdue(at(17)).is_empty());
    assert_eq!(texts(&exchange.overdue(at(18))), [CALL_ENDED, LEVEL_ENDED]);
    assert_eq!(exchange.deadline(), Some(at(55)));
    let absent = texts(&exchange.overdue(at(55)));
    assert!(matches!(&absent[..], [one] if one.contains("daemon is not running")), "{absent:?}");
    assert!(exchange.is_settled() && exchange.deadline().is_none());

    assert!(connect_pending(&mut exchange, "s1", &["\"two\""]).is_empty());
    assert_eq!(exchange.received(answer_to("\"two\"").as_bytes()), Heard::Swallow, "too late");
}

#[test]
fn what_is_said_while_the_daemon_is_away_waits_its_time() {
    let mut exchange = open();
    exchange.broken(at(0));
    offer(&mut exchange, CALL, 1);
    offer(&mut exchange, r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#, 2);
    offer(&mut exchange, LIST, 3);
    assert!(exchange.wants_line());
    assert_eq!(exchange.deadline(), Some(at(46)));
    assert!(exchange.overdue(at(45)).is_empty());
    let [refused] = &texts(&exchange.overdue(at(47)))[..] else { panic!("one answer") };
    assert!(refused.contains("the Mainstay daemon is not running"), "{refused}");
    assert!(refused.contains(r#""id":"two""#) && refused.contains(r#""isError":true"#));
    assert_eq!(exchange.deadline(), Some(at(48)));
    connect(&mut exchange, "s1");
    assert_eq!(drain(&mut exchange), [LIST]);
}

#[test]
fn a_session_is_opened_however_late() {
    let mut exchange = Exchange::default();
    connect(&mut exchange, "s1");
    send(&mut exchange, INITIALIZE);
    exchange.received(answer_to("0").as_bytes());
    exchange.broken(at(0));
    offer(&mut exchange, INITIALIZED, 0);
    assert!(exchange.overdue(at(1000)).is_empty() && exchange.deadline().is_none());
    connect(&mut exchange, "s1");
    assert_eq!(drain(&mut exchange), [INITIALIZED]);
}

#[test]
fn what_is_cancelled_while_the_daemon_is_away_is_forgotten() {
    let mut exchange = open();
    send(&mut exchange, CALL);
    exchange.broken(at(0));
    for line in [LIST, LEVEL, &cancel("1"), &cancel("\"two\"")] {
        offer(&mut exchange, line, 0);
    }
    assert!(connect(&mut exchange, "s1").is_empty());
    assert_eq!(drain(&mut exchange), [LEVEL, &cancel("\"two\"")]);
    assert_eq!(exchange.received(answer_to("\"two\"").as_bytes()), Heard::Swallow);
}

#[test]
fn a_client_that_says_too_much_is_not_read() {
    let mut exchange = open();
    exchange.broken(at(0));
    let mut lines = 0;
    while exchange.wants_line() {
        offer(&mut exchange, r#"{"method":"notifications/x"}"#, 0);
        lines += 1;
    }
    assert_eq!(lines, 1024);
    exchange.overdue(at(45));
    assert!(exchange.wants_line(), "there is room again");
    offer(&mut exchange, &"x".repeat(16 << 20), 45);
    assert!(!exchange.wants_line());
}

#[test]
fn giving_up_claims_no_more_than_is_known() {
    let mut exchange = open();
    for line in [LIST, CALL] {
        send(&mut exchange, line);
    }
    exchange.broken(at(0));
    offer(&mut exchange, LEVEL, 0);
    let [list, call, level] = &texts(&exchange.give_up("over"))[..] else { panic!("three") };
    assert!(list.contains("over") && level.contains("over"), "{list} {level}");
    assert_eq!(call, CALL_ENDED);
    assert!(exchange.is_settled());
}

#[test]
fn no_request_is_answered_twice() {
    let mut exchange = open();
    send(&mut exchange, CALL);
    exchange.broken(at(0));
    connect(&mut exchange, "s1");
    assert_eq!(exchange.received(answer_to("\"two\"").as_bytes()), Heard::Swallow);
    send(&mut exchange, LIST);
    assert_eq!(texts(&exchange.give_up("over")).len(), 1);
    assert_eq!(exchange.received(answer_to("1").as_bytes()), Heard::Swallow);
}

#[test]
fn a_cancelled_request_is_neither_answered_nor_said_again() {
    let mut exchange = open();
    send(&mut exchange, LIST);
    send(&mut exchange, CALL);
    for id in ["1", "\"two\""] {
        send(&mut exchange, &cancel(id));
    }
    exchange.broken(at(0));
    assert!(connect(&mut exchange, "s1").is_empty());
    assert!(drain(&mut exchange).is_empty());
}

#[test]
fn a_batch_is_many_requests() {
    let mut exchange = open();
    let batch = format!("[{LIST},{CALL}]");
    assert_eq!(send(&mut exchange, &batch), [batch]);
    exchange.broken(at(0));
    assert_eq!(connect(&mut exchange, "s1"), [CALL_ENDED]);
    assert_eq!(drain(&mut exchange), [LIST]);
    assert_eq!(exchange.received(format!("[{}]", answer_to("1")).as_bytes()), Heard::Pass);
    assert!(exchange.is_settled());
}

#[test]
fn what_was_never_sent_is_answered_too() {
    let mut exchange = open();
    exchange.broken(at(0));
    connect(&mut exchange, "s2");
    drain(&mut exchange);
    offer(&mut exchange, CALL, 0);
    let answers = texts(&exchange.give_up("over"));
    assert!(matches!(&answers[..], [one] if one.contains(r#""text":"over""#)), "{answers:?}");
    assert!(exchange.give_up("over").is_empty());
}

#[test]
fn what_is_no_answer_is_passed_on() {
    let mut exchange = open();
    for line in [
        "junk",
        r#"{"jsonrpc":"2.0","method":"notifications/message"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#,
        &format!(r#"[{},{{"method":"notifications/progress"}}]"#, answer_to("9")),
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#,
    ] {
        assert_eq!(exchange.received(line.as_bytes()), Heard::Pass, "{line}");
    }
    for line in ["junk", &answer_to("9")] {
        assert_eq!(send(&mut exchange, line), [line]);
    }
    assert!(exchange.is_settled());
}

#[test]
fn a_client_may_initialize_again_after_a_refusal() {
    let mut exchange = Exchange::default();
    connect(&mut exchange, "s1");
    send(&mut exchange, INITIALIZE);
    let refused = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}"#;
    assert_eq!(exchange.received(refused.as_bytes()), Heard::Pass);
    exchange.broken(at(0));
    connect(&mut exchange, "s2");
    assert!(drain(&mut exchange).is_empty() && exchange.wants_line());
}

#[test]
fn ids_are_compared_as_json() {
    let mut exchange = open();
    send(&mut exchange, r#"{"jsonrpc":"2.0","id":"ä","method":"ping"}"#);
    assert_eq!(exchange.received(answer_to("\"\\u00e4\"").as_bytes()), Heard::Pass);
    assert!(exchange.is_settled());
}

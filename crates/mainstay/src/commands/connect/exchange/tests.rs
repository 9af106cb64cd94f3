//! What is said on each connection, and what the client gets.

use super::*;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"x"}}"#;
const LEVEL: &str = r#"{"jsonrpc":"2.0","id":3,"method":"logging/setLevel"}"#;

fn answer_to(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

/// Sends a line of the client, and whatever goes before it.
fn send(exchange: &mut Exchange, line: &str) -> Vec<String> {
    exchange.offer(format!("{line}\n").into_bytes());
    drain(exchange)
}

/// Everything that is to be sent now.
fn drain(exchange: &mut Exchange) -> Vec<String> {
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

fn texts(lines: &[Vec<u8>]) -> Vec<String> {
    lines.iter().map(|line| text(line)).collect()
}

fn connect(exchange: &mut Exchange, session: &str) {
    exchange.connected(&Connected { session: Some(session.to_owned()), pending: Vec::new() });
}

/// An exchange with an open session `s1`.
fn open() -> Exchange {
    let mut exchange = Exchange::default();
    connect(&mut exchange, "s1");
    assert_eq!(send(&mut exchange, INITIALIZE), [INITIALIZE]);
    assert_eq!(exchange.session(), None, "there is nothing to go on with yet");
    assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Pass);
    assert_eq!(send(&mut exchange, INITIALIZED), [INITIALIZED]);
    assert_eq!(exchange.session(), Some("s1"));
    exchange
}

const CALL_ENDED: &str = r#"{"id":"two","jsonrpc":"2.0","result":{"content":[{"text":"the Mainstay daemon was restarted during this request; its effect is unknown","type":"text"}],"isError":true}}"#;
const LEVEL_ENDED: &str = r#"{"error":{"code":-32603,"message":"the Mainstay daemon was restarted during this request; its effect is unknown"},"id":3,"jsonrpc":"2.0"}"#;

#[test]
fn a_session_that_is_still_known_goes_on() {
    let mut exchange = open();
    for line in [LIST, CALL, LEVEL] {
        send(&mut exchange, line);
    }
    assert_eq!(texts(&exchange.broken()), [CALL_ENDED, LEVEL_ENDED]);
    connect(&mut exchange, "s1");
    assert_eq!(drain(&mut exchange), [LIST]);
    assert!(exchange.wants_line() && !exchange.is_settled());
    assert_eq!(exchange.received(answer_to("1").as_bytes()), Heard::Pass);
    assert!(exchange.is_settled());
}

#[test]
fn a_session_that_is_forgotten_is_opened_again_behind_the_clients_back() {
    let mut exchange = open();
    send(&mut exchange, LIST);
    exchange.broken();
    connect(&mut exchange, "s2");
    exchange.offer(format!("{CALL}\n").into_bytes());
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    assert!(!exchange.wants_line(), "nothing is said before the answer");
    assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Swallow);
    assert_eq!(drain(&mut exchange), [INITIALIZED, LIST, CALL]);
    assert_eq!(exchange.session(), Some("s2"));
}

#[test]
fn a_break_while_a_session_is_opened_again_starts_over() {
    let mut exchange = open();
    exchange.broken();
    connect(&mut exchange, "s2");
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    assert!(exchange.broken().is_empty());
    connect(&mut exchange, "s3");
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    let refused = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"removed"}}"#;
    assert_eq!(exchange.received(refused.as_bytes()), Heard::Lost("removed".to_owned()));
}

#[test]
fn an_initialize_in_flight_is_said_again_and_its_answer_passed_on() {
    let mut exchange = Exchange::default();
    connect(&mut exchange, "s1");
    send(&mut exchange, INITIALIZE);
    assert!(exchange.broken().is_empty());
    assert_eq!(exchange.session(), None);
    connect(&mut exchange, "s2");
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Pass);
    assert_eq!(exchange.session(), Some("s2"));
}

#[test]
fn a_line_that_was_not_sent_whole_is_sent_whatever_it_is() {
    let mut exchange = open();
    exchange.offer(format!("{CALL}\n").into_bytes());
    assert!(exchange.next().is_some());
    assert!(exchange.broken().is_empty());
    connect(&mut exchange, "s1");
    assert_eq!(drain(&mut exchange), [CALL]);
}

#[test]
fn a_request_is_said_again_only_once() {
    let mut exchange = open();
    send(&mut exchange, LIST);
    exchange.broken();
    connect(&mut exchange, "s1");
    assert_eq!(drain(&mut exchange), [LIST]);
    let answers = texts(&exchange.broken());
    assert!(matches!(&answers[..], [one] if one.contains("restarted twice")), "{answers:?}");
    connect(&mut exchange, "s1");
    assert!(drain(&mut exchange).is_empty() && exchange.is_settled());
}

#[test]
fn no_request_is_answered_twice() {
    let mut exchange = open();
    send(&mut exchange, CALL);
    exchange.broken();
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
        let params = format!(r#"{{"requestId":{id}}}"#);
        let line =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
        send(&mut exchange, &line);
    }
    assert!(exchange.broken().is_empty());
    connect(&mut exchange, "s1");
    assert!(drain(&mut exchange).is_empty());
}

#[test]
fn a_batch_is_many_requests() {
    let mut exchange = open();
    let batch = format!("[{LIST},{CALL}]");
    assert_eq!(send(&mut exchange, &batch), [batch]);
    assert_eq!(texts(&exchange.broken()), [CALL_ENDED]);
    connect(&mut exchange, "s1");
    assert_eq!(drain(&mut exchange), [LIST]);
    assert_eq!(exchange.received(format!("[{}]", answer_to("1")).as_bytes()), Heard::Pass);
    assert!(exchange.is_settled());
}

#[test]
fn what_was_never_sent_is_answered_too() {
    let mut exchange = open();
    exchange.broken();
    connect(&mut exchange, "s2");
    drain(&mut exchange);
    exchange.offer(format!("{CALL}\n").into_bytes());
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
    exchange.broken();
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

//! What a daemon did not take before it left is said to the next one, as if it had never been sent.

use super::tests::{
    CALL, INITIALIZE, INITIALIZED, LEVEL, LIST, answer_to, at, cancel, connect, connect_pending,
    drain, offer, open, send, texts,
};
use super::*;

const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;

/// The daemon leaves, with so many lines of this connection taken.
fn leave(exchange: &mut Exchange, taken: u64) {
    let farewell = serde_json::to_vec(&Farewell::Leaving { taken }).unwrap();
    assert_eq!(exchange.received(&farewell), Heard::Swallow, "the client knows no daemons");
    exchange.broken(at(0));
}

/// An exchange with an open session `s1`, on a connection that has carried nothing else.
fn resumed() -> Exchange {
    let mut exchange = open();
    exchange.broken(at(0));
    connect(&mut exchange, "s1");
    exchange
}

#[test]
fn what_was_not_taken_is_said_again_in_order_whatever_it_is() {
    let lines = [LIST, NOTE, CALL, &answer_to("9"), LEVEL];
    for taken in 0..=lines.len() {
        let mut exchange = resumed();
        for line in lines {
            send(&mut exchange, line);
        }
        leave(&mut exchange, taken.try_into().unwrap());
        offer(&mut exchange, r#"{"method":"later"}"#, 1);
        let pending: Vec<&str> = [(0, "1"), (2, "\"two\""), (4, "3")]
            .into_iter()
            .filter_map(|(line, id)| (line < taken).then_some(id))
            .collect();
        assert!(connect_pending(&mut exchange, "s1", &pending).is_empty(), "{taken}");
        assert_eq!(drain(&mut exchange), [&lines[taken..], &[r#"{"method":"later"}"#]].concat());
        for id in ["3", "1", "\"two\""] {
            assert_eq!(exchange.received(answer_to(id).as_bytes()), Heard::Pass, "{taken}");
        }
        assert!(exchange.is_settled());
    }
}

#[test]
fn what_was_taken_and_is_not_pending_follows_the_rules() {
    let mut exchange = resumed();
    for line in [LIST, CALL, LEVEL] {
        send(&mut exchange, line);
    }
    leave(&mut exchange, 2);
    let answers = connect(&mut exchange, "s1");
    assert!(matches!(&answers[..], [one] if one.contains("effect is unknown")), "{answers:?}");
    assert_eq!(drain(&mut exchange), [LIST, LEVEL]);
}

#[test]
fn lines_that_are_sent_after_the_farewell_are_not_lost() {
    let mut exchange = resumed();
    send(&mut exchange, LIST);
    let farewell = serde_json::to_vec(&Farewell::Leaving { taken: 1 }).unwrap();
    exchange.received(&farewell);
    assert_eq!(send(&mut exchange, CALL), [CALL]);
    exchange.broken(at(0));
    assert!(connect_pending(&mut exchange, "s1", &["1"]).is_empty());
    assert_eq!(drain(&mut exchange), [CALL]);
}

#[test]
fn a_farewell_counts_for_its_connection_only() {
    let mut exchange = resumed();
    leave(&mut exchange, 0);
    connect(&mut exchange, "s1");
    send(&mut exchange, CALL);
    exchange.broken(at(0));
    let answers = connect(&mut exchange, "s1");
    assert!(matches!(&answers[..], [one] if one.contains("effect is unknown")), "{answers:?}");
}

#[test]
fn a_repetition_that_was_not_taken_is_none() {
    let mut exchange = resumed();
    send(&mut exchange, LIST);
    exchange.broken(at(0));
    for _ in 0..3 {
        assert!(connect(&mut exchange, "s1").is_empty());
        assert_eq!(drain(&mut exchange), [LIST]);
        leave(&mut exchange, 0);
    }
}

#[test]
fn nobody_hears_of_what_was_cancelled_before_it_was_taken() {
    let mut exchange = resumed();
    send(&mut exchange, CALL);
    send(&mut exchange, LIST);
    send(&mut exchange, &cancel("\"two\""));
    offer(&mut exchange, &cancel("1"), 0);
    leave(&mut exchange, 0);
    assert!(exchange.is_settled());

    let mut exchange = resumed();
    send(&mut exchange, CALL);
    send(&mut exchange, &cancel("\"two\""));
    leave(&mut exchange, 1);
    assert!(connect_pending(&mut exchange, "s1", &["\"two\""]).is_empty());
    assert_eq!(drain(&mut exchange), [cancel("\"two\"")], "its server has to know");
}

#[test]
fn what_was_not_taken_waits_no_longer_than_anything() {
    let mut exchange = resumed();
    send(&mut exchange, CALL);
    leave(&mut exchange, 0);
    assert_eq!(exchange.deadline(), Some(at(45)));
    let answers = texts(&exchange.overdue(at(45)));
    assert!(matches!(&answers[..], [one] if one.contains("nothing was changed")), "{answers:?}");
    assert!(exchange.is_settled());
}

#[test]
fn a_session_that_nobody_opened_is_opened_by_the_client() {
    let mut exchange = Exchange::default();
    connect(&mut exchange, "s1");
    send(&mut exchange, INITIALIZE);
    leave(&mut exchange, 0);
    assert_eq!(exchange.session(), None);
    connect(&mut exchange, "s2");
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Pass);
    assert_eq!(send(&mut exchange, INITIALIZED), [INITIALIZED]);
    for (taken, session) in [(1, "s2"), (0, "s2"), (0, "s3")] {
        leave(&mut exchange, taken);
        connect(&mut exchange, session);
        if session == "s3" {
            assert_eq!(drain(&mut exchange), [INITIALIZE]);
            assert_eq!(exchange.received(answer_to("0").as_bytes()), Heard::Swallow);
        }
        assert_eq!(drain(&mut exchange), [INITIALIZED], "once");
    }
}

#[test]
fn a_session_that_was_opened_again_is_opened_whole() {
    let mut exchange = open();
    send(&mut exchange, LIST);
    exchange.broken(at(0));
    connect(&mut exchange, "s2");
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    leave(&mut exchange, 0);
    connect(&mut exchange, "s3");
    assert_eq!(drain(&mut exchange), [INITIALIZE]);
    exchange.received(answer_to("0").as_bytes());
    assert_eq!(drain(&mut exchange), [INITIALIZED, LIST]);
    leave(&mut exchange, 1);
    assert!(connect(&mut exchange, "s3").is_empty());
    assert_eq!(drain(&mut exchange), [INITIALIZED, LIST], "it had one half only");
    leave(&mut exchange, 1);
    assert!(connect(&mut exchange, "s3").is_empty());
    assert_eq!(drain(&mut exchange), [LIST]);
}

#[test]
fn what_looks_like_a_farewell_and_is_a_message_is_passed_on() {
    let mut exchange = resumed();
    send(&mut exchange, CALL);
    for line in [
        r#"{"jsonrpc":"2.0","method":"notifications/message","leaving":{"taken":0}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1},"leaving":{"taken":0}}"#,
        r#"[{"leaving":{"taken":0}},{"leaving":{"taken":0}}]"#,
    ] {
        assert_eq!(exchange.received(line.as_bytes()), Heard::Pass, "{line}");
    }
    exchange.broken(at(0));
    assert_eq!(connect(&mut exchange, "s1").len(), 1, "nobody left");
}

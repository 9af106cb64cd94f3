//! The order of messages that have numbers.

use super::*;
use crate::front::tests::call;

fn numbered(session: &Session, sequence: &str, body: &str) -> String {
    let number = format!("\r\nMainstay-Sequence: {sequence}\r\nContent-Type:");
    post(session.id(), BOTH, body).replacen("\r\nContent-Type:", &number, 1)
}

fn site(kind: ListenerKind) -> (Site, Session) {
    let site = Site::of(Config { kind, ..config(Limits::default()) });
    let session = site.fake.with(NEW);
    (site, session)
}

async fn posts(site: &mut Site, session: &Session, sequence: &str, id: u32) -> Wire<DuplexStream> {
    let mut wire = site.connect();
    wire.send(&numbered(session, sequence, &call(id, "slow"))).await;
    wait(Duration::from_millis(1)).await;
    wire
}

#[tokio::test(start_paused = true)]
async fn a_message_waits_for_those_before_it() {
    let (mut site, session) = site(ListenerKind::Private);
    let mut second = posts(&mut site, &session, "8/7", 2).await;
    let mut first = posts(&mut site, &session, "7/7", 1).await;
    for (id, wire) in [("1", &mut first), ("2", &mut second)] {
        let asked = site.seen.request().await;
        assert_eq!(asked.id(), id);
        asked.answers("{}");
        assert_eq!(value(&wire.reply().await.head, "mainstay-sequence"), Some("ordered"));
    }
    // A message that is sent again has had its turn.
    let mut again = posts(&mut site, &session, "7/7", 3).await;
    site.seen.request().await.answers("{}");
    assert_eq!(again.reply().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_those_before_it_is_refused_without_effect() {
    let (mut site, session) = site(ListenerKind::Private);
    let mut second = posts(&mut site, &session, "8/7", 2).await;
    assert_eq!(second.reply().await.status, 425);
    // Another daemon had the first one.
    let mut second = posts(&mut site, &session, "8/8", 3).await;
    let asked = site.seen.request().await;
    assert_eq!(asked.id(), "3");
    asked.answers("{}");
    assert_eq!(second.reply().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_message_does_not_wait_for_the_next_daemon() {
    let (mut site, session) = site(ListenerKind::Private);
    let mut second = posts(&mut site, &session, "8/7", 2).await;
    let start = tokio::time::Instant::now();
    site.front.ending.send_replace(Some(Drain::HandOver));
    assert_eq!(second.reply().await.status, 425);
    assert!(start.elapsed() < Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn numbers_of_public_clients_are_ignored() {
    let (mut site, session) = site(ListenerKind::Public);
    let mut wire = posts(&mut site, &session, "8/7", 2).await;
    site.seen.request().await.answers("{}");
    let reply = wire.reply().await;
    assert_eq!((reply.status, value(&reply.head, "mainstay-sequence")), (200, None));
}

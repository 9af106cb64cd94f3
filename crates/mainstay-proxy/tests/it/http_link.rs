//! Where an HTTP server is looked for, and what is left behind of a session.

use std::time::Duration;

use mainstay_proxy::{Fault, HttpLink, Link, Upstream};
use tokio::io::AsyncReadExt;

use crate::site::{Site, asks, link, opens, silent};
use crate::{HELLO, alive_tasks, identity, no_task_is_left, soon};

#[tokio::test]
async fn a_session_stays_where_it_was_opened() {
    let (first, second) = (silent(), Site::new().await);
    let opening = opens(&[first.1, second.addr()]);
    let turn = second.turn().await;
    assert_eq!(turn.header("host"), Some(second.addr().to_string().as_str()));
    turn.gives("", HELLO).await;
    second.turn().await.answers("202 Accepted", "").await;
    let (upstream, _) = soon(opening).await.unwrap().unwrap();

    // That somebody listens at the first address by now is none of our business.
    let first = Site { listener: first.0.listen(8).unwrap() };
    let request = asks(&upstream);
    second.turn().await.gives("", "1").await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "1");

    let gone = second.addr();
    drop((first, second));
    let error = soon(upstream.ping()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot connect to {gone} to send `ping`"));
}

#[tokio::test]
async fn a_resumed_session_is_looked_for_at_every_address() {
    let (first, second) = (silent(), Site::new().await);
    let upstream = Site::resumed_at(&[first.1, second.addr()], Some("s"));
    let request = asks(&upstream);
    second.turn().await.gives("", "2").await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "2");

    let first = Site { listener: first.0.listen(8).unwrap() };
    let request = asks(&upstream);
    let turn = first.turn().await;
    assert_eq!(turn.header("host"), Some(first.addr().to_string().as_str()));
    turn.gives("", "1").await;
    assert_eq!(soon(request).await.unwrap().unwrap(), "1");

    let addrs = [first.addr(), second.addr()];
    drop((first, second));
    let error = soon(upstream.ping()).await.unwrap_err();
    let expected = format!("cannot connect to {} or {} to send `ping`", addrs[0], addrs[1]);
    assert_eq!(error.to_string(), expected);
    assert!(error.retry_is_safe());
}

#[tokio::test]
async fn a_handshake_given_up_leaves_nothing_behind() {
    let (_socket, nobody) = silent();
    let me = identity();
    let opening = Upstream::initialize(link(&[nobody]), &me, 1);
    tokio::time::timeout(Duration::from_millis(120), opening).await.unwrap_err();
    no_task_is_left().await;

    let site = Site::new().await;
    let mut turn = tokio::select! {
        _ = Upstream::initialize(link(&[site.addr()]), &me, 1) => unreachable!("nobody answers"),
        turn = site.turn() => turn,
    };
    no_task_is_left().await;
    assert_eq!(soon(turn.stream.read(&mut [0])).await.unwrap(), 0, "the connection is closed");
}

#[tokio::test]
async fn the_last_handle_takes_the_errands_along() {
    let site = Site::new().await;
    let upstream = site.resumed(Some("s"));
    let request = asks(&upstream);
    let turn = site.turn().await;
    request.abort();
    drop(upstream);
    // A last cancellation is still delivered, and then nothing is left.
    site.turn().await.answers("202 Accepted", "").await;
    no_task_is_left().await;
    drop(turn);

    let idle = site.resumed(None);
    assert_eq!(alive_tasks(), 1);
    drop(idle);
    no_task_is_left().await;
}

#[tokio::test]
async fn a_path_that_cannot_be_one_is_no_fault_of_the_server() {
    let link = HttpLink { addrs: Vec::new(), path: "/a b".to_owned() };
    let error = Upstream::initialize(Link::Http(link), &identity(), 1).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot send `initialize` to `/a b`");
    assert_eq!((error.fault(), error.retry_is_safe()), (Fault::Ours, false));
}

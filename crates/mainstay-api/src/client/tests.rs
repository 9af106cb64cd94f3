use std::io::{Read as _, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const GRACE: Grace = Grace { every: Duration::from_millis(200), total: Duration::from_secs(8) };
const QUICK: Grace = Grace { every: Duration::from_millis(1), total: Duration::from_millis(500) };

fn hello_line(protocol: u32) -> Vec<u8> {
    let hello = Hello { mainstay: "0.0.0".to_owned(), protocol };
    let mut line = serde_json::to_vec(&hello).unwrap();
    line.push(b'\n');
    line
}

#[test]
fn two_kinds_of_errors_are_transient() {
    use io::ErrorKind as K;
    let table = [
        (K::NotFound, true),
        (K::ConnectionRefused, true),
        (K::PermissionDenied, false),
        (K::NotADirectory, false),
        (K::AddrNotAvailable, false),
        (K::ConnectionReset, false),
        (K::ConnectionAborted, false),
        (K::BrokenPipe, false),
        (K::TimedOut, false),
        (K::WouldBlock, false),
        (K::Interrupted, false),
        (K::OutOfMemory, false),
        (K::InvalidInput, false),
        (K::Other, false),
    ];
    for (kind, expected) in table {
        assert_eq!(is_transient(kind), expected, "{kind:?}");
        assert_eq!(CallError::Unreachable(kind.into()).is_absence(), expected, "{kind:?}");
    }
}

/// Fails with this error: after how long, and after how many attempts.
async fn failing(kind: io::ErrorKind, connect: Connect) -> (Duration, usize, CallError) {
    let tries = AtomicUsize::new(0);
    let dial = || {
        tries.fetch_add(1, Ordering::Relaxed);
        Err(kind.into())
    };
    let begun = Instant::now();
    let error = match connect {
        Connect::WithGrace => connect_with_restart_grace(&dial, GRACE).await,
        Connect::IfPresent => connect_if_present(&dial, GRACE).await,
    };
    (begun.elapsed(), tries.into_inner(), error.unwrap_err())
}

#[derive(Clone, Copy)]
enum Connect {
    WithGrace,
    IfPresent,
}

#[tokio::test(start_paused = true)]
async fn connecting_fails_after_eight_seconds_without_a_daemon() {
    for kind in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused] {
        let (took, tries, error) = failing(kind, Connect::WithGrace).await;
        assert!(matches!(error, CallError::Unreachable(error) if error.kind() == kind));
        assert_eq!((took, tries), (Duration::from_secs(8), 41), "an attempt every 200 ms");
        let (took, tries, error) = failing(kind, Connect::IfPresent).await;
        assert!(error.is_absence(), "{error:?}");
        assert_eq!((took, tries), (Duration::ZERO, 1), "it does not wait for a daemon");
    }
}

#[tokio::test(start_paused = true)]
async fn all_other_errors_are_final() {
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::NotADirectory] {
        for connect in [Connect::WithGrace, Connect::IfPresent] {
            let (took, tries, error) = failing(kind, connect).await;
            assert!(matches!(error, CallError::Unreachable(error) if error.kind() == kind));
            assert_eq!((took, tries), (Duration::ZERO, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_counts_as_a_missing_hello() {
    for connect in [Connect::WithGrace, Connect::IfPresent] {
        let (took, tries, error) = failing(io::ErrorKind::WouldBlock, connect).await;
        assert!(matches!(error, CallError::NoHello), "{error:?}");
        assert_eq!((took, tries), (Duration::from_secs(8), 41));
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_starts_late_is_reached() {
    let begun = Instant::now();
    let held = Mutex::new(Vec::new());
    let dial = || {
        if begun.elapsed() < Duration::from_millis(7900) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (client, mut daemon) = StdStream::pair()?;
        daemon.write_all(&hello_line(PROTOCOL))?;
        held.lock().unwrap().push(daemon);
        Ok(client)
    };
    connect_with_restart_grace(&dial, GRACE).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_to_a_connection_without_a_hello() {
    let begun = Instant::now();
    let held = Mutex::new(Vec::new());
    let dial = || {
        let (client, daemon) = StdStream::pair()?;
        held.lock().unwrap().push(daemon);
        Ok(client)
    };
    let error = connect_if_present(&dial, GRACE).await.unwrap_err();
    assert!(matches!(error, CallError::NoHello), "{error:?}");
    assert_eq!(begun.elapsed(), Duration::from_secs(8));
    let mut held = held.into_inner().unwrap();
    assert_eq!(held.len(), 1, "there is no second connection");
    let mut received = Vec::new();
    held[0].read_to_end(&mut received).unwrap();
    assert_eq!(received, b"", "no byte is written before the hello");
}

#[tokio::test]
async fn a_connection_that_closes_before_the_hello_is_retried() {
    let tries = AtomicUsize::new(0);
    let held = Mutex::new(Vec::new());
    let dial = || {
        let (client, mut daemon) = StdStream::pair()?;
        if tries.fetch_add(1, Ordering::Relaxed) >= 2 {
            daemon.write_all(&hello_line(PROTOCOL))?;
            held.lock().unwrap().push(daemon);
        }
        Ok(client)
    };
    let connection = connect_with_restart_grace(&dial, QUICK).await.unwrap();
    assert_eq!(connection.hello().mainstay, "0.0.0");
    assert_eq!(tries.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_refusal_in_place_of_the_hello_is_final() {
    let refusal = ApiError::new(ErrorKind::Invalid, "it serves another user").with_help("go");
    let tries = AtomicUsize::new(0);
    let dial = || {
        tries.fetch_add(1, Ordering::Relaxed);
        let (client, mut daemon) = StdStream::pair()?;
        let mut line = serde_json::to_vec(&Frame::Error(refusal.clone()))?;
        line.push(b'\n');
        daemon.write_all(&line)?;
        Ok(client)
    };
    let error = connect_with_restart_grace(&dial, QUICK).await.unwrap_err();
    assert!(matches!(&error, CallError::Api(error) if *error == refusal), "{error:?}");
    assert_eq!(tries.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn another_protocol_version_is_an_error() {
    let dial = || {
        let (client, mut daemon) = StdStream::pair()?;
        daemon.write_all(&hello_line(PROTOCOL + 1))?;
        Ok(client)
    };
    let error = connect_with_restart_grace(&dial, QUICK).await.unwrap_err();
    assert!(matches!(error, CallError::Skew { theirs, .. } if theirs == PROTOCOL + 1));
}

#[tokio::test]
async fn a_connection_can_be_turned_into_one_that_carries_http() {
    let peer = Mutex::new(None);
    let dial = || {
        let (client, mut daemon) = StdStream::pair()?;
        daemon.write_all(&hello_line(PROTOCOL))?;
        daemon.write_all(b"{\"ok\":null}\n")?;
        *peer.lock().unwrap() = Some(daemon);
        Ok(client)
    };
    let connection = connect_with_restart_grace(&dial, QUICK).await.unwrap();
    let mut stream = connection.http("time".parse().unwrap()).await.unwrap();
    let mut daemon = peer.lock().unwrap().take().unwrap();
    daemon.write_all(b"HTTP/1.1").unwrap();
    let mut text = [0; 8];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"HTTP/1.1");
}

#[tokio::test]
async fn an_incomplete_answer_is_an_error() {
    let dial = || {
        let (client, mut daemon) = StdStream::pair()?;
        daemon.write_all(&hello_line(PROTOCOL))?;
        daemon.write_all(b"{\"ok\":[")?;
        // It disconnects when it has the request.
        std::thread::spawn(move || daemon.read(&mut [0; 64]));
        Ok(client)
    };
    let connection = connect_with_restart_grace(&dial, QUICK).await.unwrap();
    let error = connection.call::<Vec<u8>>(&Request::List).await.unwrap_err();
    assert!(matches!(error, CallError::Cut(_)), "{error:?}");
}

#[tokio::test]
async fn a_request_that_could_not_be_written_was_not_sent() {
    let dial = || {
        let (client, mut daemon) = StdStream::pair()?;
        daemon.write_all(&hello_line(PROTOCOL))?;
        Ok(client)
    };
    let connection = connect_with_restart_grace(&dial, QUICK).await.unwrap();
    let error = connection.call::<Vec<u8>>(&Request::List).await.unwrap_err();
    assert!(matches!(error, CallError::Unsent(_)), "{error:?}");
}

//! Calls that a daemon finishes after another one has taken its place.
//!
//! The old daemon has let go of the state, the shims, the listeners and the clients by then. It connects to the control
//! socket, says which calls it finishes ([`Request::Relay`]), and then what becomes of them, a line each. If the connection
//! ends because yet another daemon takes over, it connects to that one and says everything again.

use std::io;
use std::path::Path;
use std::time::Duration;

use mainstay_api::{ApiError, ErrorKind, Frame, Hello, Request};
use mainstay_proxy::{RelayNews, RelayedCall, Relays, StreamKey};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a daemon stays for such calls.
const STAY: Duration = Duration::from_secs(600);

/// How long a new daemon waits for the one before it to say which calls it finishes, and how long that tries to.
const CONNECT: Duration = Duration::from_secs(5);

/// How often it tries.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How many news may wait to be sent.
const NEWS: usize = 64;

/// What became of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    session: String,
    stream: u64,
    news: RelayNews,
}

/// Finishes these calls for the daemon at this control socket.
pub(crate) async fn finish(socket: &Path, calls: Vec<RelayedCall>) {
    if calls.is_empty() {
        return;
    }
    tracing::info!(calls = calls.len(), "staying to finish calls for the next daemon");
    let keys: Vec<_> = calls.iter().map(|call| call.key.clone()).collect();
    let (sender, news) = mpsc::channel(NEWS);
    let mut tasks = JoinSet::new();
    for call in calls {
        tasks.spawn(follow(call, sender.clone()));
    }
    drop(sender);
    if timeout(STAY, relay_all(socket, &keys, news)).await.is_err() {
        tracing::warn!("some calls are not finished after 10 minutes; their answers are lost");
    }
}

/// Passes on the news of one call until its end.
async fn follow(mut call: RelayedCall, sender: mpsc::Sender<Line>) {
    loop {
        let news = call.next().await;
        let is_last = !matches!(news, RelayNews::Said(..));
        let (session, stream) = (call.key.session.to_string(), call.key.number);
        if sender.send(Line { session, stream, news }).await.is_err() || is_last {
            return;
        }
    }
}

/// Sends all news, to one daemon after another if need be.
async fn relay_all(socket: &Path, keys: &[StreamKey], mut news: mpsc::Receiver<Line>) {
    // What a daemon was told shortly before its end may not have been heard.
    let mut told: Vec<Line> = Vec::new();
    while let Some(mut peer) = connect(socket, keys).await {
        let resent = send_all(&mut peer, &told).await;
        let mut scrap = [0];
        while resent.is_ok() {
            let line = tokio::select! {
                line = news.recv() => line,
                // It says nothing, so this is its end.
                _ = peer.readable() => match peer.try_read(&mut scrap) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    _ => break,
                },
            };
            let Some(line) = line else { return hung_up(&peer).await };
            told.retain(|it| !matches!(&it.news, RelayNews::Said(..)) || !is_over(&line, it));
            told.push(line);
            if send_all(&mut peer, &told[told.len() - 1..]).await.is_err() {
                break;
            }
        }
    }
    tracing::warn!("no daemon hears of the calls that were to be finished");
}

/// Whether the first ends the call that the second is about.
fn is_over(last: &Line, other: &Line) -> bool {
    !matches!(last.news, RelayNews::Said(..))
        && (&last.session, last.stream) == (&other.session, other.stream)
}

/// Resolves when the daemon has read all that it was told.
async fn hung_up(peer: &UnixStream) {
    rustix::net::shutdown(peer, rustix::net::Shutdown::Write).ok();
    let mut scrap = [0; 64];
    let end = async {
        loop {
            if peer.readable().await.is_err() {
                return;
            }
            match peer.try_read(&mut scrap) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    };
    drop(timeout(CONNECT, end).await);
}

/// A connection to the daemon that serves, which knows the calls by then. `None` if there is none in time.
async fn connect(socket: &Path, keys: &[StreamKey]) -> Option<UnixStream> {
    let until = Instant::now() + CONNECT;
    while Instant::now() < until {
        match timeout_at(until, introduce(socket, keys)).await {
            Ok(Ok(peer)) => return Some(peer),
            Ok(Err(error)) => tracing::debug!(%error, "cannot reach the next daemon yet"),
            Err(_) => return None,
        }
        sleep(TRY_AGAIN).await;
    }
    None
}

async fn introduce(socket: &Path, keys: &[StreamKey]) -> io::Result<UnixStream> {
    let mut peer = BufReader::new(UnixStream::connect(socket).await?);
    let mut line = String::new();
    peer.read_line(&mut line).await?;
    serde_json::from_str::<Hello>(&line)?;
    let streams = keys.iter().map(|key| (key.session.to_string(), key.number)).collect();
    let mut request = serde_json::to_vec(&Request::Relay { streams })?;
    request.push(b'\n');
    peer.write_all(&request).await?;
    line.clear();
    peer.read_line(&mut line).await?;
    match serde_json::from_str(&line)? {
        Frame::Ok(_) => Ok(peer.into_inner()),
        Frame::Item(_) | Frame::Error(_) => Err(io::Error::other("it does not know such calls")),
    }
}

async fn send_all(peer: &mut UnixStream, lines: &[Line]) -> io::Result<()> {
    for line in lines {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        peer.write_all(&text).await?;
    }
    Ok(())
}

/// Hears what becomes of calls from the daemon that finishes them, until its connection ends.
pub(crate) async fn hear(
    relays: &Relays,
    streams: Vec<(String, u64)>,
    reader: impl AsyncBufRead + Unpin,
) -> io::Result<()> {
    let keys: Vec<_> = streams.into_iter().map(|(session, number)| key(&session, number)).collect();
    let mut lines = reader.lines();
    let heard = async {
        while let Some(line) = lines.next_line().await? {
            let Line { session, stream, news } = serde_json::from_str(&line)?;
            relays.deliver(&key(&session, stream), news).await;
        }
        Ok(())
    };
    let heard = heard.await;
    relays.give_up(&keys);
    heard
}

/// Remembers that another daemon finishes these calls.
pub(crate) fn claim(relays: &Relays, streams: &[(String, u64)]) -> Result<(), ApiError> {
    if streams.len() > MAX_STREAMS {
        return Err(ApiError::new(ErrorKind::Invalid, "too many calls"));
    }
    let keys: Vec<_> = streams.iter().map(|(session, number)| key(session, *number)).collect();
    relays.claim(&keys);
    Ok(())
}

/// More than a daemon can have open.
const MAX_STREAMS: usize = 1 << 20;

/// Gives up the calls that no daemon finishes. To be awaited once a daemon that gave way may have connected.
pub(crate) async fn give_up_unclaimed(relays: &Relays) {
    sleep(CONNECT).await;
    relays.give_up_unclaimed();
}

fn key(session: &str, number: u64) -> StreamKey {
    StreamKey { session: session.into(), number }
}

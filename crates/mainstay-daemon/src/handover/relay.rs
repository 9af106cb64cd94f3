//! Calls that the old daemon finishes after a hand-over.
//!
//! The old daemon has released the state, the shims, the listeners and the clients by then. It connects to the control
//! socket, sends which calls it finishes ([`Request::Relay`]), and then their results, a line each. If the connection
//! ends because yet another daemon takes over, it connects to that one and sends everything again.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use mainstay_api::{ApiError, ErrorKind, Frame, Hello, Request};
use mainstay_hold::limits::{RELAY, RELAY_CLAIM, RELAY_CONNECT, RELAY_END};
use mainstay_proxy::{RelayNews, RelayedCall, Relays, StreamKey};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The file that daemons lock while they finish calls, in the run directory.
const MARK: &str = "relaying";

/// How many bytes of results are kept, in case they have to be sent to another daemon.
const KEPT_BYTES: usize = 16 << 20;

/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// How many lines may wait to be sent.
const QUEUE: usize = 64;

/// A message or the result of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    session: String,
    stream: u64,
    news: RelayNews,
}

/// Marks for later daemons that this one finishes calls, until the file is closed.
pub(crate) fn set_mark(run_dir: &Path) -> io::Result<File> {
    let file = open_mark(run_dir)?;
    flock(&file, FlockOperation::LockShared)?;
    Ok(file)
}

/// Whether a running daemon has set the mark.
pub(crate) fn is_marked(run_dir: &Path) -> bool {
    let free = open_mark(run_dir)
        .and_then(|file| Ok(flock(&file, FlockOperation::NonBlockingLockExclusive)?));
    free.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn open_mark(run_dir: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(run_dir.join(MARK))
}

/// Finishes these calls for the daemon at this control socket.
pub(crate) async fn finish(socket: &Path, calls: Vec<RelayedCall>) {
    if calls.is_empty() {
        return;
    }
    tracing::info!(calls = calls.len(), "staying to finish calls for the next daemon");
    let keys: Vec<_> = calls.iter().map(|call| call.key.clone()).collect();
    let (sender, lines) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    for call in calls {
        tasks.spawn(follow(call, sender.clone()));
    }
    drop(sender);
    if timeout(RELAY, relay_all(socket, keys, lines)).await.is_err() {
        tracing::warn!("some calls did not finish within 10 minutes; their answers are lost");
    }
}

/// Sends the messages of one call until its end.
async fn follow(mut call: RelayedCall, sender: mpsc::Sender<Line>) {
    loop {
        let news = call.next().await;
        let is_last = !matches!(news, RelayNews::Message(..));
        let (session, stream) = (call.key.session.to_string(), call.key.number);
        if sender.send(Line { session, stream, news }).await.is_err() || is_last {
            return;
        }
    }
}

/// Sends all lines, to one daemon after another if necessary.
async fn relay_all(socket: &Path, keys: Vec<StreamKey>, mut lines: mpsc::Receiver<Line>) {
    let mut sent = Sent { keys, lines: VecDeque::new() };
    while let Some(peer) = connect(socket, &sent.keys).await {
        let (mut read, mut write) = peer.into_split();
        // The daemon sends nothing, so this ends with the connection.
        let mut closed = pin!(async move {
            drop(tokio::io::copy(&mut read, &mut tokio::io::sink()).await);
        });
        let mut result = send_all(&mut write, &sent.lines).await;
        while result.is_ok() {
            let line = tokio::select! {
                line = lines.recv() => line,
                () = &mut closed => break,
            };
            let Some(line) = line else {
                drop(write);
                // The daemon closes the connection when it has read everything.
                drop(timeout(RELAY_END, closed).await);
                return;
            };
            result = send_all(&mut write, [&line]).await;
            sent.add(line);
        }
    }
    tracing::warn!("no daemon can be reached for the results of calls");
}

/// What was sent so far: a daemon that ends shortly after may not have read it.
struct Sent {
    /// The calls that are not lost.
    keys: Vec<StreamKey>,
    lines: VecDeque<Line>,
}

impl Sent {
    fn add(&mut self, line: Line) {
        if !matches!(line.news, RelayNews::Message(..)) {
            self.lines.retain(|other| other.key() != line.key());
        }
        match line.news {
            // The daemon that receives this decides what becomes of the call.
            RelayNews::Lost => self.keys.retain(|key| *key != line.key()),
            RelayNews::Message(..) | RelayNews::Answered(_) => self.lines.push_back(line),
        }
        let mut bytes: usize = self.lines.iter().map(Line::bytes).sum();
        while bytes > KEPT_BYTES
            && let Some(oldest) = self.lines.pop_front()
        {
            bytes -= oldest.bytes();
        }
    }
}

impl Line {
    fn key(&self) -> StreamKey {
        key(&self.session, self.stream)
    }

    fn bytes(&self) -> usize {
        match &self.news {
            RelayNews::Message(_, text) | RelayNews::Answered(text) => text.len(),
            RelayNews::Lost => 0,
        }
    }
}

/// Connects to the daemon that serves, and sends it the calls. `None` if none can be reached in time.
async fn connect(socket: &Path, keys: &[StreamKey]) -> Option<UnixStream> {
    let connect = async {
        loop {
            match introduce(socket, keys).await {
                Ok(peer) => return peer,
                Err(error) => tracing::debug!(%error, "cannot reach the next daemon yet"),
            }
            sleep(RETRY).await;
        }
    };
    timeout(RELAY_CONNECT, connect).await.ok()
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
        Frame::Item(_) | Frame::Error(_) => Err(io::Error::other("it refuses to relay calls")),
    }
}

async fn send_all(
    peer: &mut OwnedWriteHalf,
    lines: impl IntoIterator<Item = &Line>,
) -> io::Result<()> {
    for line in lines {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        peer.write_all(&text).await?;
    }
    Ok(())
}

/// Receives the results of calls from the daemon that finishes them, until its connection ends.
pub(crate) async fn receive(
    relays: &Relays,
    streams: Vec<(String, u64)>,
    reader: impl AsyncBufRead + Unpin,
) -> io::Result<()> {
    let mut lines = reader.lines();
    let receive = async {
        while let Some(line) = lines.next_line().await? {
            let line: Line = serde_json::from_str(&line)?;
            relays.deliver(&line.key(), line.news);
        }
        Ok(())
    };
    let received = receive.await;
    relays.give_up(&keys(&streams));
    received
}

/// Records that another daemon finishes these calls.
pub(crate) fn claim(relays: &Relays, streams: &[(String, u64)]) -> Result<(), ApiError> {
    if streams.len() > MAX_STREAMS {
        return Err(ApiError::new(ErrorKind::Invalid, "too many calls"));
    }
    relays.claim(&keys(streams));
    Ok(())
}

/// More than a daemon can have open.
const MAX_STREAMS: usize = 1 << 20;

/// Gives up the calls that no daemon finishes. Call it when this daemon serves.
pub(crate) async fn give_up_unclaimed(relays: &Relays) {
    sleep(RELAY_CLAIM).await;
    relays.give_up_unclaimed();
}

fn keys(streams: &[(String, u64)]) -> Vec<StreamKey> {
    streams.iter().map(|(session, number)| key(session, *number)).collect()
}

fn key(session: &str, number: u64) -> StreamKey {
    StreamKey { session: session.into(), number }
}

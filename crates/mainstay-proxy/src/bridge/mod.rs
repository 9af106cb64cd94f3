//! Connects a client that speaks MCP over standard input and output to the HTTP front.
//!
//! Every message of the client becomes a POST. The next one is sent when the response to the last one has begun, so the
//! server gets messages in the order of the client. A GET receives what belongs to no request.
//!
//! The daemon may be killed, replaced or away. A connection that breaks is made again, and a request whose response was
//! lost is sent again with the last event that was received. The front then continues the stream, or decides by the
//! replay contract what becomes of the request: nothing of that is decided here. If there is no daemon for too long, the
//! request gets an error.
//!
//! Guarantees: every request gets one answer, unless its client cancels it; messages reach the server in order.

mod exchange;
mod lines;
mod link;
mod messages;
mod queue;

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::exchange::Exchange;
use self::lines::{Incoming, Lines};
use self::link::{Link, Tasks};
use self::messages::{Content, too_long};
use self::queue::{Queue, Queued};
use crate::client::{Client, ConnectError};
use crate::frame::{self, INVALID_REQUEST, Kind, Method};
use mainstay_session::NOT_INITIALIZED;

/// How many lines wait to be written to the client.
const OUTGOING: usize = 64;

/// How long the last answers are waited for when the client has closed its input.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How long the daemon may take to end the session then.
const CLOSE: Duration = Duration::from_secs(1);

/// The answer to requests that were not answered by then.
const CLOSED: &str = "the connection was closed before there was an answer";

/// How long a message that is being sent may take when another daemon takes over.
const LAST_MESSAGE: Duration = Duration::from_millis(200);

/// Why a bridge ended early.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The client does not read.
    #[error("the client's input cannot be written to")]
    Output(#[source] io::Error),
    /// There will be no connection.
    #[error("{0}")]
    Connect(ConnectError),
    /// The session has ended, and could not be opened again.
    #[error("the session could not be opened again: {0}")]
    SessionLost(String),
}

/// How a bridge ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client has closed its input.
    Done,
    /// It was to stop, and has sent so many lines of the client.
    Left {
        /// Their number.
        taken: u64,
    },
}

/// A session that an earlier bridge opened.
#[derive(Debug)]
pub struct Resumed {
    /// Its id.
    pub session: String,
    /// Requests without an answer, by their ids as JSON, and the event from which their streams are read.
    pub requests: Vec<(String, String)>,
}

/// Carries the messages of one client until it closes its input, or until `leave` resolves. Lines are at most `max_line`
/// bytes long.
pub async fn run(
    client: Client,
    resumed: Option<Resumed>,
    max_line: usize,
    (input, output): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    leave: impl Future<Output = ()>,
) -> Result<Ended, BridgeError> {
    let (lines, outgoing) = mpsc::channel(OUTGOING);
    let link = Link::new(client, lines, max_line);
    let mut carried = pin!(carry(link, resumed, Lines::new(input, max_line), leave));
    let mut written = pin!(write_lines(outgoing, output));
    tokio::select! {
        written = &mut written => {
            let gone = || io::ErrorKind::BrokenPipe.into();
            Err(BridgeError::Output(written.err().unwrap_or_else(gone)))
        }
        ended = &mut carried => {
            written.await.map_err(BridgeError::Output)?;
            ended
        }
    }
}

/// Writes each message as a line, until there is nobody to send another one.
async fn write_lines(
    mut messages: mpsc::Receiver<Bytes>,
    output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    while let Some(message) = messages.recv().await {
        let mut next = Some(message);
        while let Some(message) = next {
            output.write_all(&frame::in_one_line(message)).await?;
            output.write_all(b"\n").await?;
            next = messages.try_recv().ok();
        }
        output.flush().await?;
    }
    Ok(())
}

async fn carry(
    link: Arc<Link>,
    resumed: Option<Resumed>,
    input: Lines<impl AsyncRead + Unpin>,
    leave: impl Future<Output = ()>,
) -> Result<Ended, BridgeError> {
    let queue = Queue::default();
    let mut tasks = JoinSet::new();
    if let Some(Resumed { session, requests }) = resumed {
        link.resume(session, &mut tasks);
        for (id, event) in requests {
            let exchange = Exchange::resumed(&link, &id, event);
            tasks.spawn(exchange.follow());
        }
    }
    let failed = async {
        let error = link.failed().await;
        refuse_all(&link, &queue, &error.to_string()).await;
        error
    };
    let late = async {
        queue.closed().await;
        sleep(LAST_ANSWERS).await;
        refuse_all(&link, &queue, CLOSED).await;
    };
    let ended = tokio::select! {
        ended = send_all(&link, &queue, &mut tasks, leave) => Ok(ended),
        error = failed => Err(error),
        () = late => Ok(Ended::Done),
        never = receive_all(&link, &queue, input) => match never {},
    };
    if let Ok(Ended::Done) = ended {
        let _late = timeout(CLOSE, link.close()).await;
    }
    tasks.shutdown().await;
    ended
}

/// Answers all requests with an error.
async fn refuse_all(link: &Link, queue: &Queue, why: &str) {
    link.refuse_open(why).await;
    for answer in queue.take_all().iter().flat_map(|queued| queued.content.refusals(why)) {
        link.write(answer).await;
    }
}

/// Reads what the client sends.
async fn receive_all(
    link: &Link,
    queue: &Queue,
    mut input: Lines<impl AsyncRead + Unpin>,
) -> Infallible {
    loop {
        queue.room().await;
        match input.next().await {
            Ok(Incoming::Line(text)) => receive(link, queue, text.into()).await,
            Ok(Incoming::TooLong) => link.write(too_long(link.max_line())).await,
            // The last message may come without the end of its line.
            Ok(Incoming::End(rest)) => {
                receive(link, queue, rest.into()).await;
                break;
            }
            // A client that cannot be read has ended too.
            Err(_) => break,
        }
    }
    queue.close();
    std::future::pending().await
}

async fn receive(link: &Link, queue: &Queue, text: Bytes) {
    if text.trim_ascii().is_empty() {
        return;
    }
    let content = Content::read(text);
    if let Content::Message(message) = &content {
        match (message.method(), message.id()) {
            // It may come while a server takes long to start.
            (Some(Method::Ping), Some(id)) if !link.is_open() => {
                return link.write(frame::empty_result(id)).await;
            }
            (Some(Method::Cancelled), None) => {
                if let Some(id) = message.cancelled_id().map(|place| message.get(place)) {
                    link.cancel(id);
                    if queue.remove_request(id) {
                        return;
                    }
                }
            }
            _ => {}
        }
    }
    queue.push(Queued { content, received: Instant::now() });
}

/// Sends the client's messages, one after the other.
async fn send_all(
    link: &Arc<Link>,
    queue: &Queue,
    tasks: &mut Tasks,
    leave: impl Future<Output = ()>,
) -> Ended {
    let mut leave = pin!(leave);
    let mut taken = 0;
    loop {
        let queued = tokio::select! {
            biased;
            () = &mut leave => return left(link, tasks, taken).await,
            queued = queue.next() => queued,
        };
        let Some(queued) = queued else { break };
        let mut sent = Box::pin(send(link, queued, tasks));
        let leaves = tokio::select! {
            biased;
            () = &mut sent => None,
            () = &mut leave => Some(timeout(LAST_MESSAGE, &mut sent).await.is_ok()),
        };
        drop(sent);
        if let Some(is_sent) = leaves {
            return left(link, tasks, taken + u64::from(is_sent)).await;
        }
        taken += 1;
    }
    link.all_answered().await;
    Ended::Done
}

/// Waits for what comes on the streams until they end.
async fn left(link: &Link, tasks: &mut Tasks, taken: u64) -> Ended {
    link.set_leaving();
    while tasks.join_next().await.is_some() {}
    Ended::Left { taken }
}

async fn send(link: &Arc<Link>, queued: Queued, tasks: &mut Tasks) {
    let Queued { content, received } = queued;
    match content {
        Content::Message(message) => match message.kind() {
            Kind::Request if message.method() == Some(&Method::Initialize) && !link.is_open() => {
                link.open(message, received, tasks).await;
            }
            Kind::Request if !link.is_open() && message.method() != Some(&Method::Discover) => {
                let id = message.id();
                if let Some(answer) =
                    id.map(|id| frame::error(id, INVALID_REQUEST, NOT_INITIALIZED))
                {
                    link.write(answer).await;
                }
            }
            Kind::Request => {
                let is_initialize = message.method() == Some(&Method::Initialize);
                let mut exchange = Exchange::new(link, message, received);
                if exchange.begin().await {
                    if is_initialize {
                        // Until then nothing else may be sent.
                        return exchange.follow().await;
                    }
                    while tasks.try_join_next().is_some() {}
                    tasks.spawn(exchange.follow());
                }
            }
            Kind::Notification | Kind::Result | Kind::Error => {
                link.notify(message, received).await;
            }
        },
        Content::Batch { text, requests } => link.send_batch(text, requests, received, tasks).await,
        Content::Garbled(text) => link.send_batch(text, Vec::new(), received, tasks).await,
    }
}

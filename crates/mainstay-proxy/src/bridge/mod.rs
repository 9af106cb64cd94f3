//! Connects a client that speaks MCP over standard input and output to the HTTP front.
//!
//! Every message of the client becomes a POST, with a number by which the front restores the order ([`sequence`]). A GET
//! receives what belongs to no request. A client that does not read is sent no more than fits in memory ([`output`]).
//!
//! The daemon may be killed, replaced or away. A connection that breaks is made again, and a request whose response was
//! lost is sent again with the last event that was received. The front then continues the stream, or decides by the
//! replay contract what becomes of the request. Only if no daemon runs for too long, the request is answered here: with an
//! error that says whether its effect is unknown.
//!
//! Guarantees: every request gets one answer, unless its client cancels it; messages reach the server in order.

mod batch;
mod exchange;
mod lines;

mod messages;
mod output;
mod queue;
mod sequence;
mod session;
mod shared;

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_hold::limits::LAST_MESSAGES;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::batch::Batch;
use self::exchange::Exchange;
use self::lines::{Incoming, Lines};
use self::messages::{Content, too_long};
use self::output::{Output, write_lines};
use self::queue::{Queue, Queued};
use self::shared::{Shared, Tasks};
use crate::client::{Client, ConnectError};
use crate::frame::{self, INVALID_REQUEST, Kind, Method, Parsed};
use mainstay_session::NOT_INITIALIZED;

/// How long the last answers are waited for when the client has closed its input.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How long the daemon may take to end the session then.
const CLOSE: Duration = Duration::from_secs(1);

/// The answer to requests that were not answered by then.
const CLOSED: &str = "the connection was closed before there was an answer";

#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error("the client's input cannot be written to")]
    Output(#[source] io::Error),
    /// There will be no connection.
    #[error("{0}")]
    Connect(ConnectError),
    /// The session has ended, and could not be opened again.
    #[error("the session could not be opened again: {0}")]
    SessionLost(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client has closed its input.
    Done,
    /// It was to stop, and has sent so many lines of the client.
    Left { taken: u64 },
}

/// A session that an earlier bridge opened.
#[derive(Debug)]
pub struct Resumed {
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
    let (output_queue, messages) = Output::new();
    let shared = Shared::new(client, output_queue, max_line);
    let mut carried = pin!(carry(shared, resumed, Lines::new(input, max_line), leave));
    let mut written = pin!(write_lines(messages, output));
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

async fn carry(
    shared: Arc<Shared>,
    resumed: Option<Resumed>,
    input: Lines<impl AsyncRead + Unpin>,
    leave: impl Future<Output = ()>,
) -> Result<Ended, BridgeError> {
    let queue = Queue::default();
    let mut tasks = JoinSet::new();
    if let Some(Resumed { session, requests }) = resumed {
        shared.resume(session, &mut tasks);
        for (id, event) in requests {
            let exchange = Exchange::resumed(&shared, &id, event);
            tasks.spawn(exchange.follow());
        }
    }
    let failed = async {
        let error = shared.failed().await;
        refuse_all(&shared, &queue, &error.to_string()).await;
        error
    };
    let late = async {
        queue.closed().await;
        sleep(LAST_ANSWERS).await;
        refuse_all(&shared, &queue, CLOSED).await;
    };
    let ended = tokio::select! {
        ended = send_all(&shared, &queue, &mut tasks, leave) => Ok(ended),
        error = failed => Err(error),
        () = late => Ok(Ended::Done),
        never = receive_all(&shared, &queue, input) => match never {},
    };
    if let Ok(Ended::Done) = ended {
        let _late = timeout(CLOSE, shared.close()).await;
    }
    tasks.shutdown().await;
    ended
}

/// Answers all requests with an error.
async fn refuse_all(shared: &Shared, queue: &Queue, why: &str) {
    shared.refuse_open(why).await;
    for answer in queue.take_all().iter().flat_map(|queued| queued.content.refusals(why)) {
        shared.write(answer).await;
    }
}

/// Reads what the client sends.
async fn receive_all(
    shared: &Shared,
    queue: &Queue,
    mut input: Lines<impl AsyncRead + Unpin>,
) -> Infallible {
    let mut lines = 0;
    loop {
        queue.room().await;
        match input.next().await {
            Ok(Incoming::Line(text)) => receive(shared, queue, text.into(), &mut lines).await,
            Ok(Incoming::TooLong) => shared.write(too_long(shared.max_line())).await,
            // The last message may come without the end of its line.
            Ok(Incoming::End(rest)) => {
                receive(shared, queue, rest.into(), &mut lines).await;
                break;
            }
            // A client that cannot be read has ended too.
            Err(_) => break,
        }
    }
    queue.close();
    std::future::pending().await
}

async fn receive(shared: &Shared, queue: &Queue, text: Bytes, lines: &mut u64) {
    if text.trim_ascii().is_empty() {
        return;
    }
    *lines += 1;
    let content = Content::read(text);
    if let Content::Message(message) = &content {
        match (message.method(), message.id()) {
            // It may come while a server takes long to start.
            (Some(Method::Ping), Some(id)) if !shared.is_open() => {
                return shared.write(frame::empty_result(id)).await;
            }
            (Some(Method::Cancelled), None) => {
                if let Some(id) = message.cancelled_id().map(|position| message.get(position)) {
                    shared.cancel(id);
                    if queue.remove_request(id) {
                        return;
                    }
                }
            }
            _ => {}
        }
    }
    queue.push(Queued { content, received: Instant::now(), lines: *lines });
}

/// Sends the client's messages.
async fn send_all(
    shared: &Arc<Shared>,
    queue: &Queue,
    tasks: &mut Tasks,
    leave: impl Future<Output = ()>,
) -> Ended {
    let mut leave = pin!(leave);
    let next = async || {
        shared.sequence.room().await;
        shared.output.room().await;
        queue.next().await
    };
    loop {
        let sent = async {
            let Some(queued) = next().await else { return false };
            send(shared, queued, tasks).await;
            true
        };
        tokio::select! {
            biased;
            () = &mut leave => break,
            is_sent = sent => if !is_sent {
                shared.all_answered().await;
                return Ended::Done;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    let _late = timeout(LAST_MESSAGES, shared.sequence.all_begun()).await;
    let taken = shared.sequence.lines();
    shared.set_leaving();
    // What comes on the streams until they end is passed on.
    while tasks.join_next().await.is_some() {}
    Ended::Left { taken }
}

async fn send(shared: &Arc<Shared>, queued: Queued, tasks: &mut Tasks) {
    let Queued { content, received, lines } = queued;
    let (text, requests) = match content {
        Content::Message(message) => {
            return send_message(shared, message, received, lines, tasks).await;
        }
        Content::Batch { text, requests } => (text, requests),
        Content::Garbled(text) => (text, Vec::new()),
    };
    let batch = Batch::new(shared, text, requests, received);
    tasks.spawn(batch.run(Arc::clone(shared), shared.sequence.next_position(lines)));
}

async fn send_message(
    shared: &Arc<Shared>,
    message: Parsed,
    received: Instant,
    lines: u64,
    tasks: &mut Tasks,
) {
    let is_initialize = message.method() == Some(&Method::Initialize);
    match message.kind() {
        Kind::Request if is_initialize && !shared.is_open() => {
            shared.open(message, received, tasks).await;
        }
        Kind::Request if !shared.is_open() && message.method() != Some(&Method::Discover) => {
            let id = message.id();
            if let Some(answer) = id.map(|id| frame::error(id, INVALID_REQUEST, NOT_INITIALIZED)) {
                shared.write(answer).await;
            }
        }
        Kind::Request => {
            let position = Some(shared.sequence.next_position(lines));
            tasks.spawn(Exchange::new(shared, message, received, position).run());
            if is_initialize {
                // Until then nothing else may be sent.
                shared.all_answered().await;
            }
        }
        Kind::Notification | Kind::Result | Kind::Error => {
            if message.method() == Some(&Method::Initialized) {
                shared.set_initialized(&message);
            }
            let sent =
                Arc::clone(shared).notify(message, received, shared.sequence.next_position(lines));
            tasks.spawn(sent);
        }
    }
}

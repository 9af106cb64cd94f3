//! Streamable HTTP, protocol versions 2025-03-26 to 2025-11-25 (the header of 2024-11-05 is accepted).
//!
//! An answer within 150 ms without messages before it is plain JSON. Otherwise the response is committed: its head is
//! sent, and the body reads the stream ([`post`]). The session keeps an event stream for clients that resume with
//! `Last-Event-ID`.
//!
//! Order of the checks: the caller ([`caller`]), Host and Origin, path, method, headers, length, body, session. What
//! fails afterwards is a JSON-RPC error within a 200, because clients end their session on
//! most other answers.
//!
//! When the daemon is killed, its connections stay open ([`ConnectionStore`]), and the next one answers what was not
//! answered ([`interrupted`]).
//!
//! A listener ends in one of two ways ([`Drain`]): requests may finish, because no other daemon continues
//! them; or another daemon takes over, to which connections are passed on, at rest or in the middle of a response
//! ([`serve()`], [`unfinished`]).

mod body;
mod caller;
mod connection_state;
mod connections;
mod cors;
mod eviction;
mod get;
mod guard;
mod head;
mod interrupted;
mod io;
mod listener;
mod post;
mod reply;
mod sequence;
mod serve;
mod socket;
mod store;
mod unfinished;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use mainstay_hold::limits::{FINISH_REQUESTS, JOURNAL_AFTER, PASS_CONNECTIONS};
use tokio::sync::watch;

use self::body::{Body, Opening};
use self::caller::Caller;
use self::connection_state::ConnectionState;
use self::post::Taken;
use self::reply::Refusal;
use self::sequence::Sequences;
use self::store::{ACCEPTED, ANSWERING, id_to_record};
use self::unfinished::{Form, Framing};
use super::ProtocolVersion;
use crate::Servers;
use crate::private_headers::{ORDERED, SEQUENCE};

pub use self::caller::{Callers, Token, Tokens, digest, token_text};
pub use self::connections::ConnectionBudget;
pub use self::guard::Allowed;
pub use self::serve::{Drain, PassedOn, Pending, serve, serve_private};
pub use self::store::{
    ConnectionStore, IDLE, Interrupted, MAX_DATA, RESPONSE, STREAMING, StoredConnection,
};
pub use self::unfinished::UnfinishedResponse;

/// When the response of the private listener begins: `connect` then knows that its message has arrived.
const PRIVATE_RESPONSE_DELAY: Duration = Duration::from_millis(50);

/// The same for a `connect` without sequence numbers, which sends the next message only then.
const UNNUMBERED_RESPONSE_DELAY: Duration = Duration::from_millis(2);

#[derive(Debug, Clone)]
pub struct Config {
    pub scope: Scope,
    pub callers: Callers,
    /// Hosts that requests with a token may name, in addition to loopback.
    pub allowed: Allowed,
    pub limits: Limits,
    /// Which clients it is for.
    pub kind: ListenerKind,
    /// Limits the connections; further ones wait in the accept queue.
    pub budget: Arc<ConnectionBudget>,
    /// Keeps connections open when this daemon is killed.
    pub store: Option<Arc<dyn ConnectionStore>>,
    /// The version of Mainstay, part of the answer for an unknown path.
    pub version: String,
}

/// Which servers a listener serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All of them, at `/NAME/mcp`.
    AllServers,
    /// One, at `/mcp` and at `/NAME/mcp`.
    One(String),
}

/// Which clients a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// All that reach a TCP port.
    Public,
    /// `mainstay connect`, at the control socket.
    Private,
}

impl ListenerKind {
    /// When the response to a request begins that is not answered yet.
    fn response_delay(self, is_numbered: bool) -> Duration {
        match self {
            // Until then the answer can be plain JSON, which some clients handle better than events.
            Self::Public => JOURNAL_AFTER,
            Self::Private if is_numbered => PRIVATE_RESPONSE_DELAY,
            Self::Private => UNNUMBERED_RESPONSE_DELAY,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a head; more is answered 431.
    pub head: usize,
    /// Bytes of a body; more is answered 413.
    pub body: usize,
    /// How long requests may continue after the shutdown.
    pub drain: Duration,
    /// How long connections may take to be handed over to another daemon.
    pub hand_over: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 64 << 10, body: 16 << 20, drain: FINISH_REQUESTS, hand_over: PASS_CONNECTIONS }
    }
}

/// What all connections of a listener share.
struct Front {
    servers: Arc<Servers>,
    config: Config,
    /// Only for the private listener: others have no right to delay messages.
    sequences: Option<Sequences>,
    /// Set when the end has begun.
    ending: watch::Sender<Option<Drain>>,
}

impl Front {
    fn new(servers: Arc<Servers>, config: Config) -> Self {
        let sequences = (config.kind == ListenerKind::Private).then(Sequences::default);
        Self { servers, config, sequences, ending: watch::Sender::new(None) }
    }

    /// Resolves when the end begins.
    fn ended(&self) -> impl Future<Output = Drain> + Send + 'static {
        let mut ending = self.ending.subscribe();
        async move {
            let ending = ending.wait_for(Option::is_some).await;
            // An error means that the front is gone, which ends all the more.
            ending.ok().and_then(|drain| *drain).unwrap_or(Drain::Finish)
        }
    }

    /// The form of event streams for clients of this version.
    fn form(&self, version: Option<ProtocolVersion>) -> Form {
        let is_private = self.config.kind == ListenerKind::Private;
        let has_priming = is_private || head::has_priming(version);
        Form::Events(if has_priming { Opening::Priming } else { Opening::FirstMessage })
    }
}

async fn handle(
    front: &Front,
    caller: Caller,
    conn: &Arc<ConnectionState>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    conn.head_read();
    let only_listens = request.method() == Method::GET;
    let is_last = head::is_last(&request);
    if request.version() == Version::HTTP_10 {
        // hyper answers without chunks.
        conn.require(Framing::UntilClose);
    }
    let origin = cors::origin(request.headers());
    let length = head::length(&request);
    let taken = take(front, caller, conn, request).await;
    if let Some(length) = length {
        conn.request_ends(length);
    }
    match &taken {
        Ok((Taken::Request(asked, _), _)) => {
            conn.record_taken(ANSWERING, asked.id.as_deref().map_or(b"", id_to_record));
        }
        Ok((Taken::Done(response), _)) if response.status() == StatusCode::ACCEPTED => {
            conn.record_taken(ACCEPTED, b"");
        }
        // Reading it again does no harm.
        Ok((Taken::Done(_), _)) if only_listens => {}
        Err(_) => {}
        Ok((Taken::Done(_), _)) => conn.record(STREAMING, b""),
    }
    conn.taken();
    let mut response = match taken {
        Ok((Taken::Request(asked, request), headers)) => {
            post::ask(front, asked, request, headers).await
        }
        Ok((Taken::Done(response), _)) => response,
        Err(refusal) => refusal.into_response(),
    };
    if let Some(origin) = origin {
        cors::allow(response.headers_mut(), origin);
    }
    if front.sequences.is_some() {
        response.headers_mut().insert(&SEQUENCE, ORDERED);
    }
    if response.version() == Version::HTTP_10 {
        conn.require(Framing::UntilClose);
    }
    let nearly_full = front.config.budget.is_nearly_full();
    if is_last || nearly_full {
        conn.require(Framing::ChunkedThenClose);
    }
    if response.body_mut().track_stream(conn) {
        conn.start_streaming(only_listens);
    } else {
        conn.answered();
    }
    if nearly_full {
        // Some clients fail when an idle connection is closed without `Connection: close` before.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Reads a request. Its header map is returned cleared, so that the response can reuse it.
async fn take(
    front: &Front,
    caller: Caller,
    conn: &ConnectionState,
    request: Request<Incoming>,
) -> Result<(Taken, HeaderMap), Refusal> {
    let (mut head, body) = request.into_parts();
    let server = head::server(head.uri.path(), &front.config.scope);
    let has_token = |server| front.config.callers.tokens.admit(&head.headers, server);
    if let Caller::NeedsToken(why) = caller
        && !has_token(server)
    {
        let sent = Tokens::is_sent(&head.headers);
        return Err(if sent { Refusal::BadToken } else { Refusal::NoToken(why) });
    }
    // A rootless container connects through a process of its user, and names a host that is not loopback.
    let allowed = &front.config.allowed;
    if head.version == Version::HTTP_11 && !head.headers.contains_key(HOST) {
        return Err(Refusal::NoHost);
    }
    let is_for_us =
        guard::admits(&head, None) || (has_token(server) && guard::admits(&head, Some(allowed)));
    if !is_for_us {
        return Err(Refusal::Foreign);
    }
    let no_such_path = || Refusal::NoSuchPath { version: front.config.version.clone() };
    let server = server.ok_or_else(no_such_path)?;
    let taken = match head.method {
        Method::POST => {
            let is_admitted = || caller == Caller::Trusted || has_token(Some(server));
            post::take(front, server, &head.headers, body, conn, is_admitted).await?
        }
        Method::GET => Taken::Done(get::get(front, server, &head.headers).await?),
        Method::DELETE => {
            let id = head::session_id(&head.headers)?;
            let if_lost = Some(head::version(&head.headers).unwrap_or(head::OLDEST_VERSION));
            front.servers.find(server, id, if_lost).await.map_err(Refusal::Lookup)?;
            front.servers.close(server, id).map_err(Refusal::Lookup)?;
            Taken::Done(reply::empty(StatusCode::NO_CONTENT))
        }
        _ if cors::is_preflight(&head) => Taken::Done(cors::preflight()),
        _ => return Err(Refusal::Method),
    };
    // Meanwhile hyper reads on, to notice a client that disconnects. If nothing refers to what it has read so far, it
    // needs no new buffer for that. The map is part of the response, after which hyper uses it for the next request.
    let mut headers = std::mem::take(&mut head.headers);
    headers.clear();
    Ok((taken, headers))
}

#[cfg(test)]
mod tests;

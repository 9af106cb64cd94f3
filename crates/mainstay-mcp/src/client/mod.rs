//! A small HTTP/1.1 client for one server, made for calls that must cost next to nothing.
//!
//! A [`Client`] is a cheap handle on a [`Target`] and its idle connections. It guarantees that
//!
//! - a connection carries one request at a time, and is used again only after the answer's last
//!   byte;
//! - [`SendError::sent`] is false only if not one byte of the request can have reached the server.
//!   A request is never sent twice: only one of which nothing was written moves to a new
//!   connection;
//! - every future can be dropped at any point, which closes its connection;
//! - no header, path or address can add a line to a request.
//!
//! It follows no redirect, decodes no content coding and has no limit in time but for connecting:
//! the caller limits the time of an answer. A usual call is one check of the idle connection, one write and one read,
//! and at most one allocation.

mod body;
mod chunked;
mod conn;
mod connector;
mod dial;
mod error;
mod exchange;
mod head;
mod pool;
mod request;
mod resolve;
mod response;
mod target;
#[cfg(test)]
mod tests;
mod tls;
mod trace;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::chunked::BadChunk;
use self::conn::Conn;
pub use self::connector::{ConnectError, Connecting, Connector};
use self::dial::Dialer;
pub use self::error::{BodyError, SendError};
use self::exchange::exchange;
pub use self::head::{ContentType, HeadError};
use self::pool::Pool;
use self::request::Outgoing;
pub use self::request::{BadHeader, Headers, Method, Request};
pub use self::response::Response;
pub use self::target::{BadTarget, Target};
pub use self::tls::Trust;
pub use self::trace::Trace;

/// Sends requests to one server. A cheap handle: clones share the idle connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    dialer: Dial,
    pool: Arc<Pool>,
}

/// Where connections come from.
enum Dial {
    Network(Dialer),
    Connector(Box<dyn Connector>),
}

/// How long a connection that was made in advance may idle.
const IN_ADVANCE: Duration = Duration::from_secs(2);

impl Client {
    /// A client with the certificate authorities of this machine.
    pub fn new(target: Target) -> Self {
        Self::trusting(target, Trust::machine())
    }

    /// A client with these certificate authorities.
    pub fn trusting(target: Target, trust: Trust) -> Self {
        let tls = target.tls.clone().map(|name| (name, trust));
        let dialer = Dial::Network(Dialer::new(target.place.clone(), tls));
        Self { shared: Arc::new(Shared { target, dialer, pool: Arc::default() }) }
    }

    /// A client that gets its connections from elsewhere.
    pub fn over(target: Target, connector: impl Connector + 'static) -> Self {
        let dialer = Dial::Connector(Box::new(connector));
        Self { shared: Arc::new(Shared { target, dialer, pool: Arc::default() }) }
    }

    /// A client of the same server that shares no connection with this one.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self::new(self.target().clone())
    }

    /// Closes the connections that wait for a request.
    pub fn close_idle(&self) {
        self.shared.pool.close_idle();
    }

    pub fn target(&self) -> &Target {
        &self.shared.target
    }

    /// Makes a connection for the next request, unless there is one.
    pub async fn connect(&self) -> Result<(), SendError> {
        let conn = match self.shared.pool.take() {
            Some(conn) => conn,
            None => self.dial().await?,
        };
        let limit = conn.idle_limit(IN_ADVANCE);
        self.shared.pool.put(conn, limit);
        Ok(())
    }

    /// Whether a connection can be made.
    pub async fn check(&self) -> Result<(), SendError> {
        self.dial().await.map(drop)
    }

    /// Sends a request. Resolves when the head of the answer is there.
    pub async fn send(&self, request: Request<'_>) -> Result<Response, SendError> {
        self.send_with(&[], request).await
    }

    /// As [`Client::send`], with headers that were written before.
    pub async fn send_with(
        &self,
        headers: &[&Headers],
        request: Request<'_>,
    ) -> Result<Response, SendError> {
        self.send_traced(headers, request, &Trace::default()).await
    }

    /// As [`Client::send_with`], and notes what is sent over which connection.
    pub async fn send_traced(
        &self,
        headers: &[&Headers],
        request: Request<'_>,
        trace: &Trace,
    ) -> Result<Response, SendError> {
        let Shared { target, pool, .. } = &*self.shared;
        let mut out = Outgoing::new(pool.take_room(), &target.preamble, headers, &request)?;
        if let Some(mut conn) = pool.take() {
            trace.set(conn.local_port(), out.len());
            match exchange(&mut conn, &mut out).await {
                Ok(answer) => return Ok(Response::new(answer, conn, pool)),
                Err(error) if error.sent() => return Err(error),
                // It was closed between the check and the write.
                Err(_) => {}
            }
        }
        // Boxed, because it is rare and large: the usual call has no part of it in its future.
        Box::pin(self.send_on_new_connection(out, trace)).await
    }

    async fn send_on_new_connection(
        &self,
        mut out: Outgoing<'_>,
        trace: &Trace,
    ) -> Result<Response, SendError> {
        trace.clear();
        let mut conn = self.dial().await?;
        trace.set(conn.local_port(), out.len());
        let answer = exchange(&mut conn, &mut out).await?;
        Ok(Response::new(answer, conn, &self.shared.pool))
    }

    async fn dial(&self) -> Result<Conn, SendError> {
        match &self.shared.dialer {
            Dial::Network(dialer) => dialer.dial().await,
            Dial::Connector(connector) => {
                connector.connect().await.map(Conn::Unix).map_err(SendError::NoConnection)
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.shared.target).finish()
    }
}

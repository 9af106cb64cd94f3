//! Clients of `mainstay connect` 0.1.0, which runs in editors for days after an update.
//!
//! Its connection carries JSON-RPC messages, a line each. A [`bridge`] inside the daemon connects them to the HTTP
//! listener. When another daemon takes over, the client gets the number of lines that were read, and sends
//! the others to the next daemon.

use std::io;
use std::sync::Arc;

use mainstay_api::{Connected, Farewell, MAX_MESSAGE};
use mainstay_core::ServerName;
use mainstay_proxy::bridge::{self, Ended, Resumed};
use mainstay_proxy::client::{Client, ConnectError, Connecting, Connector, Target};
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;

use super::{Peer, try_acquire};
use crate::service::Service;

/// Serves one client.
pub(super) async fn serve(
    service: &Arc<Service>,
    (name, session): (&ServerName, Option<String>),
    farewell: bool,
    reader: BufReader<OwnedReadHalf>,
    mut peer: Peer,
) -> io::Result<()> {
    if service.holder.is_draining() {
        // The next daemon continues the session.
        return Ok(());
    }
    let limits = &service.limits;
    let _permit = match try_acquire(&limits.connected, limits.capacity.connected, "clients") {
        Ok(permit) => permit,
        Err(error) => return peer.fail(error).await,
    };
    let session = match service.session(name, session.as_deref()).await {
        Ok(session) => session,
        Err(error) => return peer.fail(error).await,
    };
    let requests = service.gateway.servers.pending(name.as_str(), &session);
    let pending = requests.iter().map(|(id, _)| id.clone()).collect();
    let answered = peer.answer(Ok(Connected { session: Some(session.clone()), pending })).await;
    if answered.is_err() {
        service.gateway.close(name, &session);
        return answered;
    }
    let target = Target::private(&format!("/{name}/mcp")).map_err(io::Error::other)?;
    let client = Client::over(target, InProcess(service.http.clone()));
    let leave = async {
        service.holder.draining().await;
    };
    let resumed = Some(Resumed { session, requests });
    let io = (reader, &mut peer.write);
    match bridge::run(client, resumed, MAX_MESSAGE, io, leave).await.map_err(io::Error::other)? {
        Ended::Left { taken } if farewell => peer.line(&Farewell::Leaving { taken }).await,
        Ended::Left { .. } | Ended::Done => Ok(()),
    }
}

/// Connects to the HTTP listener of this daemon.
struct InProcess(mpsc::Sender<UnixStream>);

impl Connector for InProcess {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let failed = |error: io::Error| ConnectError::Final(error.into());
            let (client, server) = UnixStream::pair().map_err(failed)?;
            self.0.send(server).await.map_err(|_| ConnectError::Absent)?;
            Ok(client)
        })
    }
}

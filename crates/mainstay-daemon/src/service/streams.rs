//! Requests with streamed answers: logs and events.

use std::io;
use std::sync::Arc;

use mainstay_api::{ApiError, ErrorKind, LogLine};
use mainstay_core::ServerName;
use mainstay_engine::LogRange;
use tokio::sync::{broadcast, mpsc};

use super::Service;
use crate::control::Peer;
use crate::state::event_log::Part;

/// Lines of a log that are sent together.
const BATCH: usize = 256;

impl Service {
    /// A server's log.
    pub(super) async fn logs(
        &self,
        name: &ServerName,
        range: LogRange,
        peer: &mut Peer,
    ) -> io::Result<()> {
        let follow = range.follow;
        let mut lines = match self.open_log(name, range).await {
            Ok(lines) => lines,
            Err(error) => return peer.fail(error).await,
        };
        let mut batch = Vec::new();
        loop {
            let count = tokio::select! {
                biased;
                count = lines.recv_many(&mut batch, BATCH) => count,
                () = self.lifecycle_requests.closed(), if follow => 0,
            };
            if count == 0 {
                return peer.answer(Ok(())).await;
            }
            let item = |line: mainstay_engine::LogLine| LogLine {
                server: Some(name.clone()),
                at: line.at,
                line: line.text,
            };
            let items: Vec<LogLine> = batch.drain(..).map(item).collect();
            peer.items(&items).await?;
        }
    }

    async fn open_log(
        &self,
        name: &ServerName,
        range: LogRange,
    ) -> Result<mpsc::Receiver<mainstay_engine::LogLine>, ApiError> {
        let spec = Arc::clone(&self.find(name).await?.view.borrow().spec);
        let lines = self.context.engines.of(&spec.workload).logs(name, range).await;
        lines.map_err(|error| ApiError::new(ErrorKind::Internal, error.to_string()))
    }

    /// The event log. The name of an unknown server without events is an error, because it may be misspelt.
    pub(super) async fn events(
        &self,
        name: Option<ServerName>,
        tail: Option<usize>,
        follow: bool,
        peer: &mut Peer,
    ) -> io::Result<()> {
        if let Some(name) = &name
            && let Err(unknown) = self.known(name).await
        {
            return peer.fail(unknown).await;
        }
        // Subscribe before reading, so that no event is missed.
        let mut coming = self.context.event_log.follow();
        let mut last = 0;
        if let Some(tail) = tail {
            for (number, event) in self.context.event_log.read(name.clone(), Part::Last(tail)).await
            {
                peer.item(&event).await?;
                last = number;
            }
        } else {
            self.catch_up(name.as_ref(), &mut last, peer).await?;
        }
        if !follow {
            return peer.answer(Ok(())).await;
        }
        loop {
            // Before the daemon ends, followers get all events.
            let event = tokio::select! {
                biased;
                event = coming.recv() => event,
                () = self.lifecycle_requests.closed() => Err(broadcast::error::RecvError::Closed),
            };
            match event {
                Ok((number, event)) if number > last => {
                    last = number;
                    if name.is_none() || event.server == name {
                        peer.item(&event).await?;
                    }
                }
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    self.catch_up(name.as_ref(), &mut last, peer).await?;
                }
                Err(broadcast::error::RecvError::Closed) => return peer.answer(Ok(())).await,
            }
        }
    }

    /// Fails if there is neither such a server nor an event about it.
    async fn known(&self, name: &ServerName) -> Result<(), ApiError> {
        let Err(unknown) = self.registry.get(name) else { return Ok(()) };
        let left = self.context.event_log.read(Some(name.clone()), Part::Last(1)).await;
        if left.is_empty() { Err(unknown) } else { Ok(()) }
    }

    /// Sends all events after the last one, page by page.
    async fn catch_up(
        &self,
        name: Option<&ServerName>,
        last: &mut u64,
        peer: &mut Peer,
    ) -> io::Result<()> {
        loop {
            let page = self.context.event_log.read(name.cloned(), Part::After(*last)).await;
            if page.is_empty() {
                return Ok(());
            }
            for (number, event) in page {
                peer.item(&event).await?;
                *last = number;
            }
        }
    }
}

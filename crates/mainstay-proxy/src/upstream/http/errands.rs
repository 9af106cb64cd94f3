//! Messages that are sent without anybody waiting for them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::debug;

use super::endpoint::Endpoint;
use crate::upstream::cancelled;

/// How many are under way at the same time.
const AT_ONCE: usize = 16;
/// How long one may take, so that a hung server does not hold up the others for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends cancellations and answers until nobody is left to give any.
pub(super) async fn run(
    endpoint: Arc<Endpoint>,
    mut cancels: mpsc::Receiver<u64>,
    mut answers: mpsc::Receiver<Bytes>,
) {
    let mut errands = JoinSet::new();
    loop {
        let free = errands.len() < AT_ONCE;
        let message = tokio::select! {
            Some(id) = cancels.recv(), if free => cancelled(id),
            Some(answer) = answers.recv(), if free => answer,
            Some(_) = errands.join_next() => continue,
            else => return,
        };
        errands.spawn(deliver(Arc::clone(&endpoint), message));
    }
}

async fn deliver(endpoint: Arc<Endpoint>, message: Bytes) {
    let post = endpoint.post("notification or answer", message);
    match tokio::time::timeout(PATIENCE, post).await {
        Ok(Ok(sent)) => debug!(status = sent.response.status().as_u16(), "message delivered"),
        Ok(Err(error)) => debug!(%error, "message not delivered"),
        Err(_) => debug!("message not taken in time"),
    }
}

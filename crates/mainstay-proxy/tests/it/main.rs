//! The parts of the proxy over real sockets.
#![cfg(test)]

mod client;

use std::time::Duration;

/// Waits for an event, with a limit.
async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("the event should come")
}

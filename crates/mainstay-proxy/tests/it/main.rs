//! Servers over scripted servers.
#![cfg(test)]

mod sessions;

use std::time::Duration;

/// Waits for an event, with a limit.
async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("the event should come")
}

/// Waits until every task of the present runtime has ended; the test itself is none.
async fn no_task_is_left() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    soon(async {
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

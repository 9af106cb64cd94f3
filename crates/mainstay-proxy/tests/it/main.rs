//! Upstream sessions against scripted servers.
#![cfg(test)]

mod fake;
mod http;
mod http_link;
mod lines;
mod site;
mod too_long;

use std::time::Duration;

use mainstay_proxy::Identity;
use serde_json::value::RawValue;

/// A handshake result with a name.
const HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"fake","version":"1.2"}}"#;

fn identity() -> Identity {
    Identity { name: "mainstay".to_owned(), version: "0.1".to_owned() }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// Waits for an event, with a limit.
async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("the event should come")
}

/// The tasks of the present runtime; the test itself is none.
fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Waits until every task has ended.
async fn no_task_is_left() {
    soon(async {
        while alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

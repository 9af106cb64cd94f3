//! Upstream sessions against scripted servers.
#![cfg(test)]

mod http;
mod lines;

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

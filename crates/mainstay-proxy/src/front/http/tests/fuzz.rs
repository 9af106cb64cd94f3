//! Whatever a client sends, it harms nobody.

use proptest::prelude::*;

use super::*;
use crate::front::tests::{call, initialize};

/// Pieces of which a request may be made.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let text = |text: &'static str| Just(text.as_bytes().to_vec());
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        text("POST /time/mcp HTTP/1.1\r\n"),
        text("GET /time/mcp HTTP/1.1\r\n"),
        text("Host: localhost\r\n"),
        text("Accept: */*\r\nContent-Type: application/json\r\n"),
        text("Mcp-Session-Id: 00000000000000000000000000000000\r\n"),
        text("Last-Event-ID: 0000000000000001-1-37\r\n"),
        text("Last-Event-ID: \u{e4}-\r\n"),
        text("Content-Length: 40\r\n"),
        text("Transfer-Encoding: chunked\r\n"),
        text("5\r\n{\"a\":\r\n"),
        text("0\r\n\r\n"),
        text("\r\n"),
        Just(call(1, "fast").into_bytes()),
        Just(initialize("2025-11-25").into_bytes()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_bytes_make_a_connection_panic(pieces in prop::collection::vec(piece(), 0..16)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut site = Site::new();
            site.fake.with(NEW);
            let mut wire = site.connect();
            // The connection may be closed before all is written.
            wire.io.write_all(&pieces.concat()).await.ok();
            wire.io.shutdown().await.ok();
            let mut rest = Vec::new();
            // A stream whose client has sent more than its request ends only when the client has gone.
            let read = wire.io.read_to_end(&mut rest);
            tokio::time::timeout(Duration::from_secs(1), read).await.ok();
            drop(wire);
            while let Some(ended) = soon(site.connections.next_end()).await {
                ended.unwrap();
            }
        });
    }
}

//! Sessions whose records were lost, with the file that had them.
//!
//! Their ids show that they were ours ([`SessionIds`](crate::SessionIds)). Such a session is created again, without
//! subscriptions and log level, because to some clients "no such session" is the end. What ended is remembered, so
//! that it is not created again.

use std::time::Duration;

use serde_json::json;

use super::{Decision, Hub, Session};
use crate::frame;
use crate::front::{ProtocolVersion, Session as _};
use crate::record::SessionRecord;

/// What the client is told.
const LOSS: &str = "Mainstay has lost the record of this session and goes on without it: subscriptions and the log \
                    level have to be set again";

impl Hub {
    /// A record for a session without one, if that may have been lost.
    pub(super) fn record_of_lost(
        &self,
        id: &str,
        version: ProtocolVersion,
    ) -> Option<SessionRecord> {
        let is_ours = self.ports.ids.is_of_earlier_era(&self.name, id);
        is_ours.then(|| record(id, &self.name, version, self.now()))
    }

    /// Keeps a session from being created again after its end. One of this era needs nothing for that.
    pub(super) fn remember_end(&self, id: &str) {
        if !self.ports.ids.is_of_earlier_era(&self.name, id) {
            return;
        }
        // A record of no server: nobody finds a session by it.
        let ended = record(id, "", ProtocolVersion::V2025_11_25, self.now());
        self.write_fence.pass(|state_store| state_store.save(ended));
    }
}

impl Session {
    /// Tells the client and the event log what was lost. The client has been told to read its lists again.
    pub(super) fn report_loss(&self) {
        self.hear(frame::log_message("warning", LOSS), None);
        let short = self.id().get(..8).unwrap_or_default();
        self.hub().record_decision(Decision {
            server: self.hub().name().to_owned(),
            run: None,
            cause: "session-lost",
            detail: format!(
                "session {short} goes on without its record: subscriptions and log level are lost"
            ),
        });
    }
}

/// The record of a session of which nothing but the id and the version is known.
fn record(id: &str, server: &str, version: ProtocolVersion, now: Duration) -> SessionRecord {
    let params = json!({
        "protocolVersion": version.as_str(),
        "capabilities": {},
        "clientInfo": {"name": "unknown", "version": "unknown"},
    });
    SessionRecord {
        id: id.to_owned(),
        server: server.to_owned(),
        params: params.to_string().into(),
        version: version.as_str().to_owned(),
        initialized: true,
        level: None,
        subscriptions: Vec::new(),
        run: None,
        upstream: None,
        used_at: now,
    }
}

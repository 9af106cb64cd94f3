//! The part of the command line's JSON that the measures read. Unknown fields are no error.

use jiff::Timestamp;
use serde::Deserialize;

/// One element of `mainstay ls --json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) pid: Option<u32>,
    #[serde(default)]
    pub(crate) container_id: Option<String>,
    #[serde(default)]
    pub(crate) ready_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) generation: u64,
    /// Those charged since the last reset.
    #[serde(default)]
    pub(crate) restarts: u32,
    #[serde(default)]
    pub(crate) last_exit: Option<LastExit>,
    #[serde(default)]
    pub(crate) sessions: u64,
}

/// How the last run of a server ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct LastExit {
    pub(crate) cause: String,
}

impl Server {
    pub(crate) fn is_ready(&self) -> bool {
        self.status == "running" && self.ready_at.is_some()
    }
}

/// `mainstay daemon status --json`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Daemon {
    pub(crate) pid: u32,
    #[serde(default)]
    pub(crate) version: String,
}

/// One line of `mainstay events --json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Event {
    pub(crate) at: Timestamp,
    /// An event of the daemon itself belongs to no server.
    #[serde(default)]
    pub(crate) server: Option<String>,
    #[serde(default)]
    pub(crate) run: Option<u64>,
    #[serde(rename = "event")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) cause: Option<String>,
    #[serde(default)]
    pub(crate) detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_whatever_else_they_tell() {
        let text = r#"[
            {"name":"a","status":"running","reason":null,"pid":42,"url":"http://127.0.0.1:1/a/mcp",
             "ready_at":"2026-01-02T03:04:05.000006Z","last_exit":{"cause":"exited"}},
            {"name":"b","status":"starting","pid":null,"ready_at":null}
        ]"#;
        let servers: Vec<Server> = serde_json::from_str(text).unwrap();
        assert_eq!((servers[0].pid, servers[0].is_ready()), (Some(42), true));
        assert_eq!((servers[1].pid, servers[1].is_ready()), (None, false));
    }

    #[test]
    fn event_times_keep_their_microseconds() {
        let line = r#"{"at":"2026-01-02T03:04:05.123456Z","server":"a","run":3,"event":"ended",
                       "cause":"exited","detail":"killed by SIGKILL"}"#;
        let event: Event = serde_json::from_str(line).unwrap();
        assert_eq!(event.at.subsec_microsecond(), 123_456);
        assert_eq!((event.server.as_deref(), event.kind.as_str()), (Some("a"), "ended"));
    }
}

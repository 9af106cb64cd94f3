//! The part of the command line's JSON that the measures read. Unknown fields are no error.

use jiff::Timestamp;
use serde::Deserialize;

/// One element of `mainstay ls --json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) status: String,
    #[serde(default)]
    pub(super) pid: Option<u32>,
    #[serde(default)]
    pub(super) url: Option<String>,
    #[serde(default)]
    pub(super) ready_at: Option<Timestamp>,
}

impl Server {
    pub(super) fn is_ready(&self) -> bool {
        self.status == "running" && self.ready_at.is_some()
    }
}

/// `mainstay daemon status --json`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Daemon {
    pub(super) pid: u32,
}

/// One line of `mainstay events --json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Event {
    pub(super) at: Timestamp,
    /// An event of the daemon itself belongs to no server.
    #[serde(default)]
    pub(super) server: Option<String>,
    #[serde(rename = "event")]
    pub(super) kind: String,
}

/// What `mcpload --json` prints.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Load {
    pub(super) calls_per_s: f64,
    pub(super) latency: Latency,
    pub(super) errors: u64,
    pub(super) wrong: u64,
    pub(super) cpu: Vec<Cpu>,
}

#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Latency {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Cpu {
    pub(super) us_per_call: f64,
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

    #[test]
    fn the_report_of_the_load_generator_is_read() {
        let text = r#"{"calls":1,"seconds":1.0,"calls_per_s":1.0,"latency":{"p50_us":2.0,
            "p90_us":2.0,"p99_us":3.0,"max_us":3.0},"errors":0,"wrong":0,"failure":null,
            "cpu":[{"pid":7,"cpu_s":0.1,"us_per_call":9.5}]}"#;
        let load: Load = serde_json::from_str(text).unwrap();
        assert_eq!((load.latency.p99_us, load.cpu[0].us_per_call), (3.0, 9.5));
    }
}

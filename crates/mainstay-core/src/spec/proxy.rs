//! How Mainstay passes requests from clients to a server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Transport, Workload};
use crate::policy::LONGEST;
use crate::text::{duration, time_limit};

/// No request is held longer: no client waits that long.
const LONGEST_HOLD: Duration = Duration::from_secs(600);

/// The minimum, because a client may be between two requests.
const SHORTEST_ISOLATE_IDLE: Duration = Duration::from_secs(1);

/// The minimum, because a healthy server may be slow for a moment.
const SHORTEST_CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// A time, or `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TimeLimit(
    #[serde(with = "time_limit")]
    #[schemars(with = "String")]
    pub Option<Duration>,
);

/// Settings for requests to one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProxySettings {
    /// How long a request may wait for the next run; at most 10 minutes in a valid spec. With zero,
    /// none ever waits.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub hold: Duration,
    /// Whether each session gets a run of its own; only for servers that speak stdio.
    pub isolate: bool,
    /// How long such a run is kept after the last message of its client; at least 1 second in a valid spec.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub isolate_idle: Duration,
    /// How long a call of a tool may take before it is answered without the server and cancelled there; `never`, or at
    /// least 1 second in a valid spec.
    #[serde(with = "time_limit")]
    #[schemars(with = "String")]
    pub call_timeout: Option<Duration>,
    /// The same for single tools.
    pub tool_timeouts: BTreeMap<String, TimeLimit>,
    /// Tools that may be called a second time when the server stopped during the first call.
    pub replay: BTreeSet<String>,
    /// A port of 127.0.0.1 for this server alone, in addition to the common one.
    pub port: Option<u16>,
    /// Whether the first result after a restart omits the notice that the server lost its memory.
    pub quiet_restart: bool,
    /// Whether a call goes on that its client has given up by its own timeout, and its result is kept for the client.
    pub late_results: bool,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(45),
            isolate: false,
            isolate_idle: Duration::from_secs(30 * 60),
            call_timeout: None,
            tool_timeouts: BTreeMap::new(),
            replay: BTreeSet::new(),
            port: None,
            quiet_restart: false,
            late_results: true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyProblem {
    /// Clients would have given up long before.
    #[error("a request cannot be held longer than 10 minutes")]
    LongHold,
    /// Only runs of stdio servers can be multiplied.
    #[error("only a server that speaks stdio can be isolated")]
    IsolatedHttp,
    /// Clients would lose their runs between two requests.
    #[error("the idle time of an isolated run must be at least 1 second")]
    ShortIsolateIdle,
    #[error("a call timeout must be at least 1 second")]
    ShortCallTimeout,
    #[error("a call timeout cannot be longer than 10 years")]
    LongCallTimeout,
    #[error("{0:?} is not the name of a tool")]
    BadTool(String),
    /// Clients could not connect to it.
    #[error("a port of its own must not be 0")]
    PortZero,
    /// The server itself listens there.
    #[error("port {0} is the server's own, so Mainstay cannot listen on it")]
    PortOfServer(u16),
}

impl ProxySettings {
    /// Checks what types alone cannot, for such a server.
    pub(super) fn check(&self, workload: &Workload) -> Result<(), ProxyProblem> {
        if self.hold > LONGEST_HOLD {
            return Err(ProxyProblem::LongHold);
        }
        if self.isolate && workload.local_transport() != Some(&Transport::Stdio) {
            return Err(ProxyProblem::IsolatedHttp);
        }
        if self.isolate_idle < SHORTEST_ISOLATE_IDLE {
            return Err(ProxyProblem::ShortIsolateIdle);
        }
        let timeouts = self.tool_timeouts.values().filter_map(|TimeLimit(limit)| *limit);
        for timeout in timeouts.chain(self.call_timeout) {
            if timeout < SHORTEST_CALL_TIMEOUT {
                return Err(ProxyProblem::ShortCallTimeout);
            }
            if timeout > LONGEST {
                return Err(ProxyProblem::LongCallTimeout);
            }
        }
        let nameless = |tool: &&String| tool.is_empty() || tool.contains(char::is_control);
        if let Some(tool) = self.replay.iter().chain(self.tool_timeouts.keys()).find(nameless) {
            return Err(ProxyProblem::BadTool(tool.clone()));
        }
        match self.port {
            Some(0) => Err(ProxyProblem::PortZero),
            Some(port) if port_here(workload) == Some(port) => {
                Err(ProxyProblem::PortOfServer(port))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The port of the server on this machine. The port of a container is inside of it.
fn port_here(workload: &Workload) -> Option<u16> {
    match workload {
        Workload::Process(process) => match process.transport {
            Transport::Stdio => None,
            Transport::StreamableHttp { port, .. } => Some(port),
        },
        Workload::Container(_) | Workload::Remote(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContainerSpec, ProcessSpec, RemoteSpec};

    fn process(transport: Transport) -> Workload {
        Workload::Process(ProcessSpec {
            command: vec!["server".to_owned()],
            cwd: "/".into(),
            env: BTreeMap::new(),
            path: None,
            transport,
        })
    }

    fn container(transport: Transport) -> Workload {
        let image = "server".parse().unwrap();
        Workload::Container(ContainerSpec { transport, ..ContainerSpec::new(image) })
    }

    fn check(workload: &Workload, change: impl FnOnce(&mut ProxySettings)) -> String {
        let mut settings = ProxySettings::default();
        change(&mut settings);
        settings.check(workload).err().map_or("fine".to_owned(), |problem| problem.to_string())
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        let http_at = Transport::StreamableHttp { port: 8_080, path: "/mcp".to_owned() };
        let stdio = &process(Transport::Stdio);
        let http = &process(http_at.clone());
        let container = &container(http_at);
        let url = "http://127.0.0.1/mcp".parse().unwrap();
        let remote = &Workload::Remote(RemoteSpec {
            url,
            headers: BTreeMap::new(),
            variables: BTreeMap::new(),
        });
        for workload in [stdio, http, container, remote] {
            assert_eq!(check(workload, |_| ()), "fine");
        }
        assert_eq!(check(stdio, |s| s.hold = Duration::ZERO), "fine");
        assert_eq!(check(stdio, |s| s.hold = LONGEST_HOLD), "fine");
        assert_eq!(
            check(stdio, |s| s.hold = LONGEST_HOLD + Duration::from_nanos(1)),
            "a request cannot be held longer than 10 minutes"
        );
        assert_eq!(check(stdio, |s| s.isolate = true), "fine");
        for workload in [http, container, remote] {
            assert_eq!(
                check(workload, |s| s.isolate = true),
                "only a server that speaks stdio can be isolated"
            );
        }
        assert_eq!(
            check(stdio, |s| s.isolate_idle = Duration::from_millis(999)),
            "the idle time of an isolated run must be at least 1 second"
        );
        for (tool, expected) in [("", "\"\""), ("a\nb", "\"a\\nb\"")] {
            let refused = check(stdio, |s| s.replay = BTreeSet::from([tool.to_owned()]));
            assert_eq!(refused, format!("{expected} is not the name of a tool"));
        }
        let timeout = |tool: &str, millis| {
            let limit = TimeLimit(Some(Duration::from_millis(millis)));
            check(stdio, |s| s.tool_timeouts = BTreeMap::from([(tool.to_owned(), limit)]))
        };
        assert_eq!(timeout("a", 1000), "fine");
        assert_eq!(timeout("a", 999), "a call timeout must be at least 1 second");
        assert_eq!(timeout("", 1000), "\"\" is not the name of a tool");
        assert_eq!(check(remote, |s| s.call_timeout = Some(LONGEST)), "fine");
        assert_eq!(
            check(remote, |s| s.call_timeout = Some(LONGEST * 2)),
            "a call timeout cannot be longer than 10 years"
        );
        assert_eq!(check(remote, |s| s.port = Some(0)), "a port of its own must not be 0");
        assert_eq!(check(http, |s| s.port = Some(8_081)), "fine");
        assert_eq!(
            check(http, |s| s.port = Some(8_080)),
            "port 8080 is the server's own, so Mainstay cannot listen on it"
        );
        assert_eq!(check(container, |s| s.port = Some(8_080)), "fine");
    }

    #[test]
    fn what_is_left_out_is_the_default() {
        let settings: ProxySettings = serde_json::from_str(r#"{"hold":"5s"}"#).unwrap();
        let expected = ProxySettings { hold: Duration::from_secs(5), ..ProxySettings::default() };
        assert_eq!(settings, expected);
        let limits = r#"{"call_timeout":"5m","tool_timeouts":{"a":"never","b":"30s"}}"#;
        let limits: ProxySettings = serde_json::from_str(limits).unwrap();
        let json = serde_json::to_string(&limits).unwrap();
        assert!(
            json.contains(r#""call_timeout":"5m","tool_timeouts":{"a":"never","b":"30s"}"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<ProxySettings>(&json).unwrap(), limits);
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<ProxySettings>(&json).unwrap(), expected);
    }
}

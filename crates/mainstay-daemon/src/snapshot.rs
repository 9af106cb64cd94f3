//! The state of a server that a driver publishes.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use mainstay_api::{
    ContainerInfo, LastExit, McpInfo, ServerInfo, SilenceInfo, StartInfo, StatusReport, TargetOwner,
};
use mainstay_core::start_activity::{StartActivity, StartInput};
use mainstay_core::supervisor::{RemoteOutage, RunDetails};
use mainstay_core::watchdog::{Findings, Verdict};
use mainstay_core::{
    Cause, ContainerSpec, RefreshMode, ServerSpec, Status, Transport, Unit, Wanted, Workload,
};
use mainstay_engine::PortOwner;
use mainstay_proxy::AttachedRun;

use crate::clock;

/// A server at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// Grows with every event that the driver has handled.
    pub(crate) revision: u64,
    pub(crate) spec: Arc<ServerSpec>,
    pub(crate) created_at: Timestamp,
    pub(crate) wanted: Wanted,
    pub(crate) unit: Unit,
    pub(crate) times: Times,
    /// What the present run consists of.
    pub(crate) details: RunDetails,
    pub(crate) remote_outage: Option<RemoteOutage>,
    /// What is known about a run that does not answer.
    pub(crate) findings: Option<Findings>,
    pub(crate) session: Option<Session>,
    /// The end of what the last run that ended wrote to standard error.
    pub(crate) last_stderr: Option<Arc<[u8]>>,
}

/// A session with the present run.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) run: AttachedRun,
    /// The process that listens on the run's port, if that is not the run itself.
    pub(crate) owner: Option<PortOwner>,
}

/// When things happened: the wall time at that moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Times {
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ready_at: Option<Timestamp>,
    pub(crate) next_restart_at: Option<Timestamp>,
    pub(crate) last_restart_at: Option<Timestamp>,
    pub(crate) ended: Option<(Cause, String, Timestamp)>,
}

impl Snapshot {
    /// The server as `ls` shows it, except for what only the proxy knows. Remaining times are as of now.
    pub(crate) fn info(&self) -> ServerInfo {
        let now = clock::now();
        let view = self.unit.view(now);
        let outage = self.remote_outage.as_ref().filter(|_| view.status == Status::Waiting);
        let findings = self.findings.as_ref().filter(|_| view.status == Status::Running);
        let (status, reason) = match (outage, findings) {
            (Some(outage), _) => (view.status, outage.reason(now)),
            (None, Some(findings)) => {
                (findings.verdict.status(), findings.describe(now).to_string())
            }
            (None, None) => (view.status, view.reason),
        };
        let (spec, times) = (&self.spec, &self.times);
        ServerInfo {
            name: spec.name.clone(),
            status,
            reason,
            engine: spec.workload.engine().to_owned(),
            transport: spec.workload.transport().to_owned(),
            url: None,
            generation: self.unit.last_run().generation(),
            restarts: view.restarts,
            restart_max: view.restart_max,
            restarts_total: view.restarts_total,
            last_restart_at: times.last_restart_at,
            started_at: times.started_at,
            ready_at: times.ready_at,
            next_restart_at: view.next_restart.and(times.next_restart_at),
            last_exit: times.ended.as_ref().map(|(cause, text, at)| last_exit(cause, text, *at)),
            start: self.unit.start_activity().map(|activity| {
                let deadline = self.unit.start_deadline();
                start(activity, deadline, now)
            }),
            silence: findings.map(|findings| silence(findings, now)),
            sessions: 0,
            pid: self.details.pid,
            container_id: self.details.container.clone(),
        }
    }
}

fn start(activity: &StartActivity, deadline: Option<Instant>, now: Instant) -> StartInfo {
    let wall = |at: Instant| clock::wall_before(now.saturating_duration_since(at));
    let (has_read, unread_bytes) = match activity.input {
        StartInput::Unknown => (None, None),
        StartInput::Unread(bytes) => (Some(false), Some(bytes)),
        StartInput::Read => (Some(true), Some(0)),
    };
    StartInfo {
        activity: activity.kind.as_str().to_owned(),
        description: activity.describe(now).to_string(),
        child: activity.child.clone(),
        has_read,
        unread_bytes,
        connections: activity.connections.try_into().unwrap_or(u64::MAX),
        quiet_since: activity.quiet_since.map(wall),
        waits_for: activity.waits_for.map(|what| what.as_str().to_owned()),
        kill_at: deadline.map(|at| clock::wall_after(at.saturating_duration_since(now))),
    }
}

fn silence(findings: &Findings, now: Instant) -> SilenceInfo {
    let wall = |at: Instant| clock::wall_before(now.saturating_duration_since(at));
    let call = findings.verdict.request().or(findings.oldest.as_ref());
    SilenceInfo {
        verdict: findings.verdict.as_str().to_owned(),
        since: wall(findings.verdict.since().unwrap_or(now)),
        call: call.map(|call| call.what.clone()),
        call_sent_at: call.map(|call| wall(call.sent)),
        overdue_calls: findings.overdue.try_into().unwrap_or(u64::MAX),
        unread_bytes: findings.unread_bytes,
        quiet_since: findings.quiet_since.map(wall),
        waits_for: findings.waits_for.map(|what| what.as_str().to_owned()),
        unanswered_probes: findings.unanswered.iter().map(|it| it.as_str().to_owned()).collect(),
        holds_requests: findings.verdict.holds_requests(),
        stopped_pid: match findings.verdict {
            Verdict::Suspended { pid, .. } => Some(pid),
            _ => None,
        },
        kill_at: findings.kill_at.map(|at| clock::wall_after(at.saturating_duration_since(now))),
    }
}

/// The server as `status` shows it.
pub(crate) fn status(
    snapshot: &Snapshot,
    server: ServerInfo,
    refresh: RefreshMode,
    log: std::path::PathBuf,
) -> StatusReport {
    let spec = &snapshot.spec;
    let (process, container, remote) = match &spec.workload {
        Workload::Process(process) => (Some(process), None, None),
        Workload::Container(container) => (None, Some(container), None),
        Workload::Remote(remote) => (None, None, Some(remote)),
    };
    let env = process.map(|process| &process.env).or(container.map(|container| &container.env));
    StatusReport {
        server,
        wanted: snapshot.wanted,
        command: process.map(|process| process.command.clone()),
        cwd: process.map(|process| process.cwd.clone()),
        container: container.map(container_info),
        env: env.map(|env| env.keys().cloned().collect()),
        target: target(&spec.workload),
        target_owner: snapshot
            .session
            .as_ref()
            .and_then(|session| session.owner.as_ref())
            .map(owner),
        headers: remote.map(|remote| remote.headers.keys().map(ToString::to_string).collect()),
        restart: spec.restart.clone(),
        proxy: spec.proxy.clone(),
        refresh,
        named_clients: spec.clients.only.clone(),
        clients: Vec::new(),
        mcp: snapshot.session.as_ref().map(|session| McpInfo {
            name: session.run.hello.server_name.clone(),
            version: session.run.hello.server_version.clone(),
            protocol: session.run.hello.protocol_version.clone(),
        }),
        log,
        created_at: snapshot.created_at,
    }
}

fn container_info(container: &ContainerSpec) -> ContainerInfo {
    ContainerInfo {
        image: container.image.to_string(),
        args: container.args.clone(),
        host: container.host.clone(),
        volumes: container.volumes.iter().map(ToString::to_string).collect(),
        network: container.network.clone(),
        user: container.user.clone(),
        limits: container.limits.clone(),
        loosened: container.limits.loosened(container.network.as_deref()),
    }
}

/// Where the server itself is reached, if it speaks HTTP. The published port of a container changes with every start.
fn target(workload: &Workload) -> Option<String> {
    match workload {
        Workload::Process(process) => match &process.transport {
            Transport::Stdio => None,
            Transport::StreamableHttp { port, path } => {
                Some(format!("http://127.0.0.1:{port}{path}"))
            }
        },
        Workload::Container(container) => match &container.transport {
            Transport::Stdio => None,
            Transport::StreamableHttp { port, path } => {
                Some(format!("port {port} in the container, path {path}"))
            }
        },
        Workload::Remote(remote) => Some(remote.url.without_query().to_owned()),
    }
}

fn owner(owner: &PortOwner) -> TargetOwner {
    let (pid, program, uid) = match owner {
        PortOwner::Server { pid, .. } => (*pid, None, None),
        PortOwner::Process { pid, program } => (Some(*pid), program.clone(), None),
        PortOwner::Hidden { uid } => (None, None, *uid),
    };
    TargetOwner { pid, program, uid, description: owner.to_string() }
}

/// The last lines of a text, at most `count`.
pub(crate) fn tail_lines(text: &[u8], count: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].iter().map(|&line| line.to_owned()).collect()
}

fn last_exit(cause: &Cause, detail: &str, at: Timestamp) -> LastExit {
    let exit = cause.exit().unwrap_or(mainstay_core::Exit::UNKNOWN);
    LastExit {
        cause: cause.kind().to_owned(),
        detail: detail.to_owned(),
        code: exit.code,
        signal: exit.signal,
        oom: exit.oom,
        at,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::EventRecord;
    use mainstay_core::watchdog::{OpenRequest, Verdict};

    use super::*;

    #[test]
    fn a_container_is_shown_with_its_loosened_limits() {
        let container: ContainerSpec = serde_json::from_value(serde_json::json!({
            "image": "time",
            "args": ["--utc"],
            "host": "unix:///run/docker.sock",
            "volumes": ["/a:/b:ro"],
            "network": "host",
            "limits": { "memory": null },
            "transport": { "streamable-http": { "port": 8000, "path": "/mcp" } },
        }))
        .unwrap();
        let info = container_info(&container);
        assert_eq!(
            (info.image.as_str(), &info.volumes[..]),
            ("time:latest", &["/a:/b:ro".to_owned()][..])
        );
        assert_eq!(info.loosened, ["host network", "no memory limit"]);
        let target = target(&Workload::Container(container));
        assert_eq!(target.as_deref(), Some("port 8000 in the container, path /mcp"));
    }

    #[test]
    fn every_verdict_but_hung_is_an_event_of_its_own() {
        let since = tokio::time::Instant::now().into_std();
        let inside = OpenRequest { what: "add".to_owned(), sent: since };
        let verdicts = [
            Verdict::Overdue { requests: 0, oldest: None, unread_since: None },
            Verdict::Busy { since },
            Verdict::Blocked { inside, since },
            Verdict::Suspended { since, pid: 7 },
            Verdict::Unresponsive { since },
            Verdict::Responsive,
        ];
        assert_eq!(verdicts.map(|verdict| verdict.as_str()), EventRecord::VERDICTS);
    }

    #[test]
    fn only_the_last_lines_are_shown() {
        assert_eq!(tail_lines(b"a\nb\nc\n", 2), ["b", "c"]);
        assert_eq!(tail_lines(b"", 2), [""; 0]);
        assert_eq!(tail_lines(b"\xff", 2), ["\u{fffd}"]);
    }
}

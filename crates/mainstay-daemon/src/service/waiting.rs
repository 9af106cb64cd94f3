//! What a command waits for whose request to a server takes long.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use mainstay_api::{ApiError, ServerInfo, SilenceInfo, WaitReport};
use mainstay_core::{ServerName, Status};
use mainstay_engine::{Observation, RunKey};
use mainstay_proxy::{LocalWatch, RequestPlace};
use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout};

use super::Service;
use crate::control::Peer;

/// When a command first gets a report, and how often what it waits for is looked at after that.
const FIRST: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(2);

/// How long it may take to look at the server.
const OBSERVE: Duration = Duration::from_secs(1);

/// The session of a command, once it is there.
#[derive(Debug, Default)]
pub(crate) struct Watched(OnceLock<LocalWatch>);

impl Watched {
    /// The session is open, and the request of the command follows.
    pub(super) fn begin(&self, watch: LocalWatch) {
        self.0.get_or_init(|| watch);
    }

    fn place(&self) -> Option<RequestPlace> {
        self.0.get().and_then(LocalWatch::place)
    }

    /// Gives the request up. The report says whether the server may have received it.
    pub(crate) fn cancel(&self) -> WaitReport {
        WaitReport::cancelled(self.0.get().is_some_and(LocalWatch::cancel))
    }
}

impl Service {
    /// Answers a command when `work` is done, and reports what it waits for while that takes long.
    pub(super) async fn answer_with_reports<T: Serialize>(
        &self,
        name: &ServerName,
        watched: &Watched,
        work: impl Future<Output = Result<T, ApiError>>,
        peer: &mut Peer,
    ) -> io::Result<()> {
        let mut work = pin!(work);
        let mut next = Instant::now() + FIRST;
        let mut reported = None;
        loop {
            tokio::select! {
                answer = &mut work => return peer.answer(answer).await,
                () = sleep_until(next) => {}
            }
            let report = tokio::select! {
                answer = &mut work => return peer.answer(answer).await,
                report = self.wait_report(name, watched) => report,
            };
            if let Some(report) = report.filter(|report| reported.as_ref() != Some(report)) {
                peer.item(&report).await?;
                reported = Some(report);
            }
            next = Instant::now() + INTERVAL;
        }
    }

    async fn wait_report(&self, name: &ServerName, watched: &Watched) -> Option<WaitReport> {
        let shown = self.registry.get(name).ok()?.view.borrow().clone();
        let info = shown.info();
        let place = watched.place();
        let is_plain = info.status.is_up() && proven(&info).is_none();
        let run = shown.unit.run().filter(|_| is_plain && place.is_some());
        let seen = match run {
            Some(run) => {
                let engine = self.context.engines.of(&shown.spec.workload);
                let key = RunKey::new(name.clone(), run);
                timeout(OBSERVE, engine.observe(&key)).await.ok().and_then(Result::ok)
            }
            None => None,
        };
        Some(describe(&info, place, seen))
    }
}

/// What is proven about a server that does not answer. That another call is overdue does not explain this one.
fn proven(info: &ServerInfo) -> Option<&SilenceInfo> {
    info.silence.as_ref().filter(|silence| silence.is_proven())
}

/// What a request waits for, given where it is and what can be seen of the server.
fn describe(
    info: &ServerInfo,
    place: Option<RequestPlace>,
    seen: Option<Observation>,
) -> WaitReport {
    let is_sent = matches!(place, Some(RequestPlace::Sent(_)));
    let report =
        |state: &str, reason: String| WaitReport { state: state.to_owned(), reason, is_sent };
    let ServerInfo { name, status, reason, .. } = info;
    if !status.is_up() || proven(info).is_some() {
        let stopped = info.silence.as_ref().and_then(|silence| silence.stopped_pid).or(info.pid);
        let resume = match stopped.filter(|_| *status == Status::Suspended) {
            Some(pid) => format!(
                "; `kill -CONT {pid}` lets its process continue, unless a debugger or a frozen cgroup holds it"
            ),
            None => String::new(),
        };
        let said = match reason.strip_prefix(status.as_str()) {
            // "starting for 42 s: it is working", "blocked in `add` for 3 min"
            Some(rest) if rest.starts_with(' ') => reason.clone(),
            _ => format!("{status}: {reason}"),
        };
        return report(status.as_str(), format!("{name} is {said}{resume}"));
    }
    let position = seen.as_ref().and_then(|seen| seen.input);
    let is_active =
        seen.and_then(|seen| seen.processes).is_some_and(|processes| processes.is_active);
    match (place, position) {
        (Some(RequestPlace::Held), _) => {
            report("held", format!("it is sent when {name} has read what was sent before"))
        }
        (Some(RequestPlace::Sent(Some(line))), Some(read)) if line > read.line => {
            report("unread", format!("{name} has not read it yet ({} bytes unread)", read.unread))
        }
        (Some(RequestPlace::Sent(Some(_))), Some(_)) if is_active => {
            report("read", format!("{name} has read it and is working"))
        }
        (Some(RequestPlace::Sent(Some(_))), Some(_)) => {
            report("read", format!("{name} has read it and has not answered yet"))
        }
        (Some(RequestPlace::Sent(_)), _) => {
            report("sent", format!("it was sent to {name}, which has not answered yet"))
        }
        (None, _) => report("opening", format!("a session with {name} is being opened")),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_core::watchdog::{Processes, ReadPosition};

    use super::*;

    #[test]
    fn a_wait_is_described_by_where_the_request_is() {
        let info = |status, reason: &str| {
            let info = serde_json::json!({
                "name": "time", "status": status, "reason": reason, "engine": "process",
                "transport": "stdio", "url": null, "generation": 1, "restarts": 0,
                "restart_max": 10, "restarts_total": 0, "started_at": null, "ready_at": null,
                "next_restart_at": null, "last_exit": null, "sessions": 0, "pid": null,
                "container_id": null,
            });
            serde_json::from_value::<ServerInfo>(info).unwrap()
        };
        let up = || info(Status::Running, "ready");
        let seen = |line, unread, is_active| {
            let (switches, suspended, waits_for) = (0, None, None);
            let processes = Some(Processes { switches, is_active, suspended, waits_for });
            Some(Observation {
                input: Some(ReadPosition { line, unread }),
                connections: None,
                processes,
            })
        };
        let check = |info: &ServerInfo, place, seen, state: &str, reason: &str| {
            let report = describe(info, place, seen);
            assert_eq!((report.state.as_str(), report.reason.as_str()), (state, reason));
        };
        let sent = Some(RequestPlace::Sent(Some(3)));
        check(
            &info(Status::Restarting, "exited 1 after 3 s, restart 2 of 10 in 4 s"),
            None,
            None,
            "restarting",
            "time is restarting: exited 1 after 3 s, restart 2 of 10 in 4 s",
        );
        let silence = serde_json::json!({
            "verdict": "suspended", "since": "2026-05-01T14:03:59Z", "call": null,
            "call_sent_at": null, "overdue_calls": 1, "unread_bytes": 9, "quiet_since": null,
            "waits_for": null, "unanswered_probes": [], "holds_requests": true, "kill_at": null,
        });
        let stopped = ServerInfo {
            pid: Some(7),
            silence: serde_json::from_value(silence).unwrap(),
            ..info(Status::Suspended, "its process is stopped")
        };
        let resume = "time is suspended: its process is stopped; `kill -CONT 7` lets its process continue, unless a debugger or a frozen cgroup holds it";
        check(&stopped, None, None, "suspended", resume);
        let slow = info(Status::Starting, "starting for 8 s: it is working");
        check(&slow, None, None, "starting", "time is starting for 8 s: it is working");
        let held = Some(RequestPlace::Held);
        check(&up(), held, None, "held", "it is sent when time has read what was sent before");
        let unread = "time has not read it yet (90 bytes unread)";
        check(&up(), sent, seen(2, 90, false), "unread", unread);
        check(&up(), sent, seen(3, 0, true), "read", "time has read it and is working");
        let quiet = "time has read it and has not answered yet";
        check(&up(), sent, seen(3, 0, false), "read", quiet);
        let remote = "it was sent to time, which has not answered yet";
        check(&up(), Some(RequestPlace::Sent(None)), None, "sent", remote);
        check(&up(), None, None, "opening", "a session with time is being opened");
    }
}

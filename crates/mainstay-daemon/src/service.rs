//! Serves the requests of the control API.

mod absent;
mod describe;
mod pull;
mod streams;
mod tokens;
mod waiting;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use mainstay_api::{
    AddressInfo, ApiError, DaemonInfo, ErrorKind, EventRecord, Instance, Request, ServerInfo,
    StatusReport, WhyReport,
};
use mainstay_core::{Cause, ServerName, ServerSpec, SessionRunKey, Status};
use mainstay_engine::{DockerEngine, LogRange, Regex, RunKey};
use mainstay_proxy::{Local, Lookup, NO_MESSAGE, OpenError, UpstreamError};
use serde_json::value::RawValue;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use self::absent::just_removed;
pub(crate) use self::waiting::Watched;
use crate::control::{CommandLimits, Peer};
use crate::driver::Context;
use crate::gateway::{self, Gateway};
use crate::handover::{LifecycleRequest, ReplaceRequest};
use crate::holder_client::HolderClient;
use crate::listen::ListenerState;
use crate::registry::Registry;
use crate::snapshot::{self, Snapshot};
use crate::state::event_log::Part;

/// How many events `why` reads, and how many about runs, requests and clients' files it shows. The last limit is higher,
/// so that a change of all clients is shown as a whole.
const WHY_READ: usize = 500;
const WHY_EVENTS: usize = 20;
const WHY_REQUESTS: usize = 5;
const WHY_VERDICTS: usize = 5;
const WHY_CLIENTS: usize = 80;

/// How many lines of standard error `why` shows.
const WHY_LINES: usize = 20;

/// Lines on standard output that `why` shows.
const WHY_STDOUT: usize = 5;

/// Everything that requests need.
pub(crate) struct Service {
    pub(crate) instance: Instance,
    pub(crate) instance_id: String,
    pub(crate) started_at: Timestamp,
    pub(crate) context: Context,
    /// For pulls, which the other engines do not have.
    pub(crate) containers: Arc<DockerEngine>,
    pub(crate) registry: Registry,
    pub(crate) gateway: Gateway,
    pub(crate) listen: watch::Receiver<ListenerState>,
    /// The further addresses, and the state of each.
    pub(crate) more: Vec<(SocketAddr, watch::Receiver<ListenerState>)>,
    /// Limits of the control socket.
    pub(crate) limits: CommandLimits,
    /// Receives the connections of `mainstay connect`.
    pub(crate) http: mpsc::Sender<UnixStream>,
    pub(crate) holder: HolderClient,
    pub(crate) lifecycle_requests: mpsc::Sender<LifecycleRequest>,
}

impl Service {
    /// Serves one request. Fails only if the connection does. `watched` follows a request to a server.
    pub(crate) async fn serve(
        &self,
        request: Request,
        watched: &Watched,
        peer: &mut Peer,
    ) -> io::Result<()> {
        match request {
            Request::Run { spec, replace, around } => {
                peer.answer(self.run(*spec, replace, &around).await).await
            }
            Request::Import { specs, replace, around } => {
                peer.answer(self.import(specs, replace, &around).await).await
            }
            Request::Pull { spec } => self.pull(&spec, peer).await,
            Request::Export { name } => peer.answer(self.export(name.as_ref())).await,
            Request::List => peer.answer(Ok(self.infos())).await,
            Request::Status { name } => peer.answer(self.status(&name).await).await,
            Request::Why { name } => peer.answer(self.why(name).await).await,
            Request::Settle { name, any_end, since } => {
                self.settle(&name, any_end, since, peer).await
            }
            Request::Start { which } => peer.answer(self.registry.start(which).await).await,
            Request::Stop { which } => peer.answer(self.registry.stop(which).await).await,
            Request::Restart { which } => peer.answer(self.registry.restart(which).await).await,
            Request::Remove { which } => peer.answer(self.registry.remove(which).await).await,
            Request::Logs { name, tail, follow, since, grep } => {
                match grep.as_deref().map(Regex::new).transpose() {
                    Ok(grep) => {
                        let range = LogRange { tail, follow, since, grep };
                        self.logs(&name, range, peer).await
                    }
                    Err(error) => {
                        let message = format!("the pattern is invalid: {error}");
                        peer.fail(ApiError::new(ErrorKind::Invalid, message)).await
                    }
                }
            }
            Request::Events { name, tail, follow } => self.events(name, tail, follow, peer).await,
            Request::Tools { name } => {
                let work = self.tools(&name, watched);
                self.answer_with_reports(&name, watched, work, peer).await
            }
            Request::Call { name, tool, arguments } => {
                let work = self.call(&name, &tool, arguments, watched);
                self.answer_with_reports(&name, watched, work, peer).await
            }
            Request::Clients { around } => {
                peer.answer(Ok(self.registry.clients(around).await)).await
            }
            Request::ChooseClients { ids, around } => {
                peer.answer(self.registry.choose_clients(ids, around).await).await
            }
            Request::DropClients { ids } => {
                peer.answer(self.registry.drop_clients(ids).await).await
            }
            Request::CreateToken { name, server } => {
                peer.answer(self.create_token(name, server).await).await
            }
            Request::Tokens => peer.answer(self.tokens().await).await,
            Request::RemoveToken { name } => peer.answer(self.remove_token(name).await).await,
            Request::Reload { exe, fallback } => {
                let answer = async |outcome| peer.answer(outcome).await;
                ReplaceRequest::ask(&self.lifecycle_requests, exe, fallback, answer).await
            }
            Request::Http { .. } | Request::Connect { .. } | Request::Relay { .. } => {
                unreachable!("the control socket serves them itself")
            }
            Request::Daemon => peer.answer(Ok(self.about())).await,
            Request::Shutdown { keep_servers } => {
                // If the channel is closed, the daemon is ending already.
                self.lifecycle_requests.send(LifecycleRequest::End { keep_servers }).await.ok();
                // The client waits for the end of the connection, which closes when the daemon has ended.
                self.lifecycle_requests.closed().await;
                peer.answer(Ok(())).await
            }
        }
    }

    fn export(&self, name: Option<&ServerName>) -> Result<Vec<ServerSpec>, ApiError> {
        let servers = match name {
            Some(name) => vec![self.registry.get(name)?],
            None => self.registry.all(),
        };
        Ok(servers.iter().map(|handle| (*handle.view.borrow().spec).clone()).collect())
    }

    async fn status(&self, name: &ServerName) -> Result<StatusReport, ApiError> {
        let log = self.instance.server_log(name.as_str());
        let mut report = {
            let handle = self.find(name).await?;
            let shown = handle.view.borrow();
            let refresh = self.context.clients.mode(&shown.spec.clients);
            snapshot::status(&shown, self.with_proxy_info(shown.info()), refresh, log)
        };
        report.clients = self.context.clients.of(name).await;
        Ok(report)
    }

    fn info(&self, name: &ServerName) -> Result<ServerInfo, ApiError> {
        let handle = self.registry.get(name)?;
        let info = handle.view.borrow().info();
        Ok(self.with_proxy_info(info))
    }

    fn infos(&self) -> Vec<ServerInfo> {
        self.registry
            .all()
            .iter()
            .map(|handle| self.with_proxy_info(handle.view.borrow().info()))
            .collect()
    }

    /// Adds what only the proxy knows of a server.
    fn with_proxy_info(&self, mut info: ServerInfo) -> ServerInfo {
        let server = self.gateway.servers.get(info.name.as_str());
        info.sessions =
            server.map_or(0, |server| server.session_count()).try_into().unwrap_or(u32::MAX);
        let addr = self.listen.borrow().addr();
        info.url = addr.map(|addr| format!("http://{addr}/{}/mcp", info.name));
        info
    }

    async fn why(&self, name: ServerName) -> Result<WhyReport, ApiError> {
        let shown = self.find(&name).await?.view.borrow().clone();
        let events = self.context.event_log.read(Some(name.clone()), Part::Last(WHY_READ)).await;
        let begun = events.iter().rfind(|(_, event)| event.event == "starting");
        let stdout = match begun {
            Some((_, event)) => self.stray_lines(&name, &shown, event.at).await,
            None => Vec::new(),
        };
        Ok(WhyReport {
            server: self.with_proxy_info(shown.info()),
            wanted: shown.wanted,
            events: last_of_each_kind(events.into_iter().map(|(_, event)| event).collect()),
            stderr: self.last_stderr(&name, &shown).await,
            stdout,
            log: self.instance.server_log(name.as_str()),
            session_logs: shown.spec.proxy.isolate.then(|| self.session_logs(&name)),
            clients: Some(self.context.clients.wanted(&shown.spec.clients)),
        })
    }

    /// The files of the logs of sessions' own runs.
    fn session_logs(&self, server: &ServerName) -> PathBuf {
        let (server, session) = (server.clone(), Arc::from("*"));
        self.instance.server_log(&SessionRunKey { server, session }.log_name())
    }

    /// What the last run wrote that ended under this daemon, or else what the present run writes, or else the end of the
    /// log.
    async fn last_stderr(&self, name: &ServerName, shown: &Snapshot) -> Vec<String> {
        if let Some(stderr) = &shown.last_stderr {
            return snapshot::tail_lines(stderr, WHY_LINES);
        }
        if let Some(run) = shown.unit.run() {
            let engine = self.context.engines.of(&shown.spec.workload);
            let key = RunKey::new(name.clone(), run);
            let stderr = engine.stderr_tail(&key).await.unwrap_or_default();
            return snapshot::tail_lines(&stderr, WHY_LINES);
        }
        let range = LogRange { tail: Some(WHY_LINES), ..LogRange::default() };
        self.log_lines(name, shown, range).await
    }

    /// The last lines on standard output since then that are not MCP messages.
    async fn stray_lines(
        &self,
        name: &ServerName,
        shown: &Snapshot,
        since: Timestamp,
    ) -> Vec<String> {
        let grep = Regex::new(&format!("^{}", NO_MESSAGE.replace('[', "\\["))).ok();
        let (tail, since) = (Some(WHY_STDOUT), Some(since));
        let range = LogRange { tail, since, grep, follow: false };
        let mut lines = self.log_lines(name, shown, range).await;
        for line in &mut lines {
            *line = line.trim_start_matches(NO_MESSAGE).to_owned();
        }
        lines
    }

    async fn log_lines(&self, name: &ServerName, shown: &Snapshot, range: LogRange) -> Vec<String> {
        let mut found = Vec::new();
        if let Ok(mut lines) = self.context.engines.of(&shown.spec.workload).logs(name, range).await
        {
            while let Some(line) = lines.recv().await {
                found.push(line.text);
            }
        }
        found
    }

    /// Reports why a server is not ready, whenever that changes, until it is ready or has failed.
    async fn settle(
        &self,
        name: &ServerName,
        any_end: bool,
        since: Option<Timestamp>,
        peer: &mut Peer,
    ) -> io::Result<()> {
        let mut handle = match self.find(name).await {
            Ok(handle) => handle,
            Err(error) => return peer.fail(error).await,
        };
        let mut reported = None;
        loop {
            let (settled, info) = {
                let shown = handle.view.borrow_and_update();
                (has_settled(&shown, any_end, since), shown.info())
            };
            if settled {
                return peer.answer(Ok(self.with_proxy_info(info))).await;
            }
            if reported.as_ref() != Some(&info.reason) {
                reported = Some(info.reason.clone());
                peer.item(&self.with_proxy_info(info.clone())).await?;
            }
            if handle.view.changed().await.is_err() {
                let last = handle.view.borrow().info();
                if last.status == Status::Removing {
                    return peer.fail(just_removed(name)).await;
                }
                // The daemon stops.
                return peer.answer(Ok(self.with_proxy_info(last))).await;
            }
        }
    }

    async fn tools(
        &self,
        name: &ServerName,
        watched: &Watched,
    ) -> Result<Vec<Box<RawValue>>, ApiError> {
        let mut local = self.local(name).await?;
        watched.begin(local.watch());
        local.tools().await.map_err(|error| self.failed(name, &error))
    }

    async fn call(
        &self,
        name: &ServerName,
        tool: &str,
        arguments: Box<RawValue>,
        watched: &Watched,
    ) -> Result<Box<RawValue>, ApiError> {
        let mut local = self.local(name).await?;
        watched.begin(local.watch());
        local.call(tool, &arguments).await.map_err(|error| self.failed(name, &error))
    }

    /// The session that a client had, or else a new one.
    pub(crate) async fn session(
        &self,
        name: &ServerName,
        had: Option<&str>,
    ) -> Result<String, ApiError> {
        self.registry.get(name)?;
        let servers = &self.gateway.servers;
        if let Some(id) = had {
            match servers.find(name.as_str(), id, None).await {
                Ok(_) => return Ok(id.to_owned()),
                Err(Lookup::NoSuchServer | Lookup::NoSuchSession) => {}
                Err(error @ Lookup::Unreadable) => {
                    return Err(ApiError::new(ErrorKind::Unavailable, error.to_string()));
                }
            }
        }
        match servers.open(name.as_str()) {
            Ok(session) => Ok(session.id().to_owned()),
            Err(OpenError::NoSuchServer) => Err(just_removed(name)),
            Err(OpenError::TooManySessions) => Err(ApiError::new(
                ErrorKind::Unavailable,
                format!("`{name}` has too many sessions"),
            )),
        }
    }

    /// Opens a session for commands, like that of any client.
    async fn local(&self, name: &ServerName) -> Result<Local, ApiError> {
        let handle = self.find(name).await?;
        // A server that was given up may be started again.
        handle.send(mainstay_core::supervisor::Event::Demand).await;
        let server = self.gateway.servers.get(name.as_str());
        let server = server.ok_or_else(|| just_removed(name))?;
        server.local(&gateway::identity()).await.map_err(|error| self.failed(name, &error))
    }

    fn failed(&self, name: &ServerName, error: &UpstreamError) -> ApiError {
        let help = self.next_step(name);
        match error {
            UpstreamError::Closed { sent: true, .. } => ApiError::new(
                ErrorKind::Server,
                format!("`{name}` stopped during this call; its effect is unknown"),
            )
            .with_help(help),
            UpstreamError::Unavailable(text) => {
                ApiError::new(ErrorKind::Unavailable, text).with_help(help)
            }
            other => ApiError::new(ErrorKind::Server, format!("`{name}`: {other}")),
        }
    }

    fn about(&self) -> DaemonInfo {
        let servers = self.infos();
        DaemonInfo {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            servers: servers.len(),
            running: servers.iter().filter(|info| info.status.is_up()).count(),
            listen: self.listen.borrow().addr().map(|addr| addr.to_string()),
            listen_problem: self.listen.borrow().problem(),
            more_addresses: self.more.iter().map(address_info).collect(),
            sessions: self.gateway.sessions(),
            state_dir: self.instance.state_dir.clone(),
            socket: self.instance.socket(),
            log: self.instance.daemon_log(),
            instance: self.instance_id.clone(),
            number: self.context.daemon,
            holder: Some(self.holder.holder_pid()),
            replacement_failed: self.holder.start_info().replacement_failed.clone(),
        }
    }
}

fn address_info((addr, state): &(SocketAddr, watch::Receiver<ListenerState>)) -> AddressInfo {
    let state = *state.borrow();
    let address = state.addr().unwrap_or(*addr).to_string();
    AddressInfo { address, problem: state.problem() }
}

/// Whether a server is ready or has failed; with `any_end`, also whether any run of it has ended since then.
fn has_settled(shown: &Snapshot, any_end: bool, since: Option<Timestamp>) -> bool {
    match shown.info().status {
        Status::Running
        | Status::Busy
        | Status::Blocked
        | Status::Hung
        | Status::Suspended
        | Status::Unresponsive
        | Status::Unhealthy => shown.session.is_some(),
        Status::Stopped | Status::Error => true,
        Status::Starting
        | Status::Restarting
        | Status::Waiting
        | Status::Stopping
        | Status::Removing => {
            any_end
                && (shown.remote_outage.is_some()
                    || has_failed_since(shown, since.unwrap_or(shown.created_at)))
        }
    }
}

fn has_failed_since(shown: &Snapshot, since: Timestamp) -> bool {
    let ended = shown.times.ended.as_ref();
    let is_failure = |cause: &Cause| {
        !matches!(cause, Cause::Asked | Cause::EngineAway | Cause::MachineRestarted)
    };
    ended.is_some_and(|(cause, _, at)| *at >= since && is_failure(cause))
}

/// The last events about a server's runs, its requests and its entries in clients' files, in order. Each kind has its
/// own limit, so that none crowds out the others.
fn last_of_each_kind(mut events: Vec<EventRecord>) -> Vec<EventRecord> {
    let (mut runs, mut verdicts, mut requests, mut clients) = (0, 0, 0, 0);
    let mut keep: Vec<bool> = events
        .iter()
        .rev()
        .map(|event| {
            let (count, most) = match event.event.as_str() {
                EventRecord::REQUEST => (&mut requests, WHY_REQUESTS),
                EventRecord::CLIENT => (&mut clients, WHY_CLIENTS),
                kind if EventRecord::VERDICTS.contains(&kind) => (&mut verdicts, WHY_VERDICTS),
                _ => (&mut runs, WHY_EVENTS),
            };
            *count += 1;
            *count <= most
        })
        .collect();
    events.retain(|_| keep.pop().unwrap_or(false));
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_of_event_crowds_out_the_others() {
        let event = |event: &str, detail: String| EventRecord {
            at: Timestamp::UNIX_EPOCH,
            server: None,
            run: None,
            event: event.to_owned(),
            cause: None,
            detail,
        };
        let mut events = vec![event("ended", "first".to_owned())];
        events.extend((0..100).map(|n| event(EventRecord::REQUEST, n.to_string())));
        events.extend((0..100).map(|n| event(EventRecord::CLIENT, format!("file {n}"))));
        events.push(event("ready", "last".to_owned()));
        let shown: Vec<String> =
            last_of_each_kind(events).into_iter().map(|event| event.detail).collect();
        assert_eq!(shown[..7], ["first", "95", "96", "97", "98", "99", "file 20"]);
        assert_eq!(shown[6 + WHY_CLIENTS..], ["last"]);
    }
}

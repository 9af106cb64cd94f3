//! Daemons: they execute the actions of a server, are killed and replaced.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use mainstay_core::session_runs::{Event as SessionRunEvent, Requests};
use mainstay_core::{SessionRuns, supervisor};
use mainstay_mcp::upstream::Identity;
use mainstay_session::{
    Action, CallTimeouts, Config, LinkKey, OperationKey, RelayNews, Report, Server, SessionClock,
    SessionIds, Settings, StreamRef,
};

use crate::driver::{Driver, Scope};
use crate::event::Event;
use crate::model::ClientState;
use crate::script::Kind;
use crate::session_drivers::key_of;
use crate::world::{Reader, World};

pub(crate) struct Daemon {
    /// None once it was killed.
    pub(crate) server: Option<Server>,
    pub(crate) links: BTreeMap<LinkKey, usize>,
    pub(crate) readers: HashMap<StreamRef, Reader>,
    pub(crate) aborted: HashSet<OperationKey>,
    pub(crate) drivers: BTreeMap<Scope, Driver>,
    pub(crate) session_runs: SessionRuns,
    pub(crate) requests: Requests,
}

static IDS: LazyLock<SessionIds> = LazyLock::new(|| SessionIds::new(&[7; 32], 1));

impl World {
    /// Executes an action of a daemon.
    pub(crate) fn perform(&mut self, daemon: usize, action: Action) {
        match action {
            Action::SendLine(link, text) => {
                if let Some(run) = self.daemons[daemon].links.get(&link).copied() {
                    self.after(1, Event::Line { daemon, run, line: text });
                }
            }
            Action::ConfirmLines(link, count) => {
                self.after(self.script.confirmation, Event::Confirm { daemon, link, count });
            }
            Action::Attached(link, result) => self.attached(daemon, link, result),
            Action::Http(operation, link, what) => {
                let run = self.daemons[daemon].links.get(&link).copied();
                self.after(1, Event::Http { daemon, operation, run, what });
            }
            Action::AbortHttp(operation) => {
                self.daemons[daemon].aborted.insert(operation);
            }
            Action::Wake(stream) => self.wake(daemon, stream),
            Action::AwaitWritten(call) => {
                self.after(self.script.disk, Event::Written { daemon, call });
            }
            Action::ReadLastLine(call, _) => {
                if let Some(server) = self.daemons[daemon].server.as_mut() {
                    server.last_line(call, Some("installing"));
                }
            }
            Action::Report(report) => self.execute_report(daemon, report),
            Action::Closed(link) => self.session_closed(daemon, link),
            Action::DropLink(link) => drop(self.daemons[daemon].links.remove(&link)),
            Action::LogLine(..)
            | Action::ResumeHttp(_)
            | Action::RenewConnections(_)
            | Action::CloseIdleConnections(_) => {}
        }
    }

    fn execute_report(&mut self, daemon: usize, report: Report) {
        let (scope, event) = match report {
            Report::StartSessionRun(id) => return self.request_session_run(daemon, &id, None),
            Report::StopSessionRun(id, why) => {
                return self.request_session_run(daemon, &id, Some(why));
            }
            Report::Demand(owner) => (owner, supervisor::Event::Demand),
            Report::Unreachable(owner, generation) => {
                (owner, supervisor::Event::Unreachable { generation })
            }
            Report::Observe(owner, generation) => {
                (owner, supervisor::Event::Observe { generation })
            }
            Report::Decision(_) => return,
        };
        self.after(0, Event::Driver { daemon, scope, event });
    }

    fn config(&self) -> Config {
        let settings = Settings {
            hold: Duration::from_millis(self.script.hold),
            replay: ["replayed".to_owned()].into(),
            quiet_restart: false,
            late_results: true,
            block_limit: Some(Duration::from_secs(60)),
            isolate: self.script.kind == Kind::Isolated,
            isolate_idle: Duration::from_secs(60),
            call_timeouts: CallTimeouts {
                all: Some(self.script.call_timeout)
                    .filter(|limit| *limit > 0)
                    .map(Duration::from_millis),
                tools: BTreeMap::new(),
            },
        };
        Config {
            name: "sim".into(),
            settings,
            store: Arc::clone(&self.store) as _,
            identity: Identity { name: "mainstay".to_owned(), version: "1".to_owned() },
            clock: SessionClock::resumed(self.store.state().clock, self.instant()),
            ids: IDS.clone(),
        }
    }

    pub(crate) fn start_daemon(&mut self, is_lazy: bool, is_reload: bool) {
        let now = self.instant();
        let copy = self.store.state().copy.clone();
        let mut server = Server::new(self.config(), copy.as_deref());
        let inherited = self.present_run(&None).map(|run| self.runs[run].id.generation());
        if !is_reload && !self.daemons.is_empty() {
            self.unrecorded_at = inherited;
        }
        if let Some(generation) = self.unrecorded_at {
            server.expect_unrecorded_requests(generation);
        }
        let (sessions, records) = {
            let state = self.store.state();
            (state.sessions.values().cloned().collect::<Vec<_>>(), state.records())
        };
        for record in sessions {
            let has_own_run = self.present_run(&Some(record.id.as_str().into())).is_some();
            let has_streams = records.iter().any(|it| *it.key.session == *record.id);
            if !is_lazy || has_own_run || has_streams {
                let id = record.id.clone();
                if server.restore(now, record) && !has_own_run {
                    server.clear_own_run(&id);
                }
            }
        }
        for record in records {
            let session = record.key.session.to_string();
            let is_request = record.request.is_some();
            if !server.recover(now, record, is_reload) {
                // Its session was not on disk yet.
                assert!(!is_request && !is_reload, "a request without a session");
                self.store.state().streams.retain(|(it, _), _| *it != session);
            }
        }
        self.daemons.push(Daemon {
            server: Some(server),
            links: BTreeMap::new(),
            readers: HashMap::new(),
            aborted: HashSet::new(),
            drivers: BTreeMap::new(),
            session_runs: SessionRuns::new(self.last_session_runs()),
            requests: Requests::default(),
        });
        self.current = Some(self.daemons.len() - 1);
        self.add_driver(&None, self.history.clone());
        for run in 0..self.runs.len() {
            let scope = self.runs[run].scope.clone();
            let Some(session) = scope.as_ref().filter(|_| !self.runs[run].is_gone) else {
                continue;
            };
            if self.server().is_some_and(|server| server.session(session).is_some()) {
                self.handle_session_run(SessionRunEvent::Start(key_of(session)));
            } else {
                self.forget_runs(&scope);
            }
        }
        self.settle();
        for client in 0..self.clients.len() {
            self.listen(client);
        }
    }

    /// What a daemon has sent arrives, because it was in the hands of the kernel.
    fn flush_lines(&mut self) {
        let saved = self.script.confirmation;
        self.script.confirmation = 0;
        self.advance(1);
        self.script.confirmation = saved;
    }

    /// The connections of all clients of the present daemon are lost.
    fn cut_clients(&mut self) {
        for client in 0..self.clients.len() {
            let is_opening = self.clients[client].state == ClientState::Opening;
            if is_opening || self.is_local(client) {
                self.end_client(client);
            }
        }
        for response in 0..self.responses.len() {
            if self.responses[response].reader.take().is_some() {
                self.lose_connection(response, true);
            }
        }
    }

    pub(crate) fn kill_daemon(&mut self, down: u64, is_lazy: bool) {
        if self.store.state().is_stalled {
            return;
        }
        if down > 0 {
            self.flush_lines();
        }
        let Some(current) = self.current.take() else { return };
        self.note_durable();
        self.daemons[current].drivers.clear();
        self.daemons[current].server = None;
        self.daemons[current].readers.clear();
        self.store.state().lose_unwritten();
        for run in &mut self.runs {
            run.link = None;
        }
        self.cut_clients();
        self.after(down, Event::StartDaemon { is_lazy });
    }

    /// Notes which responses the next daemon need not know.
    fn note_durable(&mut self) {
        // It does not know that a connection was interrupted, and waits for answers that were lost with it.
        for execution in self.executions.iter().filter(|execution| execution.is_muted) {
            self.calls[execution.call].is_given_up = true;
        }
        for response in 0..self.responses.len() {
            let is_journaled = self.is_journaled(&self.responses[response]);
            self.responses[response].may_be_gone |= !is_journaled;
        }
    }

    pub(crate) fn try_reload(&mut self, until: u64) {
        let Some(current) = self.current.filter(|_| !self.is_removed) else { return };
        let Some(server) = self.daemons[current].server.as_ref() else { return };
        let is_ready = server.is_settled() && !server.is_bound() && !self.store.state().is_stalled;
        if !is_ready && self.now < until {
            return self.after(10, Event::Reload { until });
        }
        if self.store.state().is_stalled {
            return;
        }
        self.flush_lines();
        self.reload(current);
    }

    fn reload(&mut self, current: usize) {
        if self.current != Some(current) {
            return;
        }
        self.note_durable();
        self.daemons[current].drivers.clear();
        self.store.state().write();
        self.daemons[current].readers.clear();
        let Some(server) = self.daemons[current].server.as_mut() else { return };
        let relayed = server.relayed_calls();
        server.freeze();
        let unclaimed = self.store.state().records().into_iter().filter(Server::can_be_relayed);
        let mut unclaimed: Vec<_> = unclaimed.map(|record| record.key).collect();
        for (session, call) in relayed {
            unclaimed.retain(|key| (&key.session, key.number) != (&session, call.number));
            let key = mainstay_session::StreamKey { session, number: call.number };
            self.daemons[current]
                .readers
                .insert(call.stream, Reader::Relay { key, turn: call.turn });
            self.wake(current, call.stream);
        }
        self.after(40_000, Event::EndOld { daemon: current });
        for run in &mut self.runs {
            if self.script.kind != Kind::Http {
                run.link = None;
            }
            run.listeners.clear();
        }
        // Connections are passed on if their streams are in the journal.
        let (mut passed_on, mut repeated) = (Vec::new(), Vec::new());
        for response in 0..self.responses.len() {
            if self.responses[response].reader.take().is_none() {
                continue;
            }
            let it = &self.responses[response];
            if self.calls[it.calls[0]].is_initialize && it.is_committed && !self.is_local(it.client)
            {
                repeated.push(response);
            } else if self.is_journaled(it) {
                passed_on.push(response);
            } else {
                self.lose_connection(response, true);
            }
        }
        for client in 0..self.clients.len() {
            let is_repeated = repeated.iter().any(|it| self.responses[*it].client == client);
            let is_opening = self.clients[client].state == ClientState::Opening;
            if self.is_local(client) || (is_opening && !is_repeated) {
                self.end_client(client);
            }
        }
        self.start_daemon(false, true);
        for key in unclaimed {
            self.relay(&key, RelayNews::Lost);
            self.settle();
        }
        for response in repeated {
            self.repeat_initialize(response);
            self.settle();
        }
        for response in passed_on {
            self.pass_on(response);
            self.settle();
        }
    }

    /// A daemon that was replaced exits.
    pub(crate) fn end_old(&mut self, daemon: usize) {
        self.daemons[daemon].server = None;
        let readers: Vec<_> = self.daemons[daemon].readers.drain().collect();
        for (_, reader) in readers {
            if let Reader::Relay { key, .. } = reader {
                self.relay(&key, RelayNews::Lost);
            }
        }
    }

    pub(crate) fn relay(&mut self, key: &mainstay_session::StreamKey, news: RelayNews) {
        let now = self.instant();
        if let Some(server) = self.server() {
            server.relay(now, key, news);
        }
    }
}

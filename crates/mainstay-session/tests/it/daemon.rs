//! Daemons and their supervisor: what executes the actions of a server, and starts and attaches runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use mainstay_core::Interruption;
use mainstay_mcp::upstream::Identity;
use mainstay_session::{
    Action, Availability, Config, LinkKey, LinkTarget, OperationKey, Reason, RelayNews, RunInfo,
    Server, SessionClock, SessionIds, Settings, StreamRef,
};

use crate::event::Event;
use crate::model::{ClientState, Run, Slot};
use crate::script::Kind;
use crate::world::{Reader, World};

pub(crate) struct Daemon {
    /// None once it was killed.
    pub(crate) server: Option<Server>,
    pub(crate) links: BTreeMap<LinkKey, usize>,
    pub(crate) readers: HashMap<StreamRef, Reader>,
    pub(crate) aborted: HashSet<OperationKey>,
    attachments: u32,
}

static IDS: LazyLock<SessionIds> = LazyLock::new(|| SessionIds::new(&[7; 32], 1));

fn coming(due: Option<std::time::Instant>) -> Availability {
    let why = Arc::new(Reason { text: "exited 1".to_owned(), stderr: Vec::new() });
    Availability::Coming { due, why }
}

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
                self.after(1, Event::Http { daemon, operation, link, what });
            }
            Action::AbortHttp(operation) => {
                self.daemons[daemon].aborted.insert(operation);
            }
            Action::Wake(stream) => self.wake(daemon, stream),
            Action::AwaitWritten(call) => {
                self.after(self.script.disk, Event::Written { daemon, call });
            }
            Action::ReadLastLine(call) => {
                if let Some(server) = self.daemons[daemon].server.as_mut() {
                    server.last_line(call, Some("installing"));
                }
            }
            Action::StartSessionRun(id) => {
                self.slots.entry(Some(id.to_string())).or_default();
                self.after(2, Event::Start { session: Some(id.to_string()) });
            }
            Action::StopSessionRun(id) | Action::ReleaseSessionRun(id) => {
                let key = Some(id.to_string());
                self.kill_run(key.clone(), true, 0, 0);
                self.slots.remove(&key);
            }
            Action::LogLine(..)
            | Action::Closed(_)
            | Action::DropLink(_)
            | Action::ResumeHttp(_)
            | Action::ReportUnreachable(_)
            | Action::Record(_) => {}
        }
    }

    fn config(&self) -> Config {
        let settings = Settings {
            hold: Duration::from_millis(self.script.hold),
            replay: ["replayed".to_owned()].into(),
            quiet_restart: false,
            isolate: self.script.kind == Kind::Isolated,
            isolate_idle: Duration::from_secs(60),
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
        let inherited = self.live_run(None).map(|run| self.runs[run].generation);
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
            let own = self.slots.get(&Some(record.id.clone()));
            let has_own_run =
                own.and_then(|slot| slot.run).is_some_and(|run| self.runs[run].is_alive);
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
            attachments: 0,
        });
        self.current = Some(self.daemons.len() - 1);
        let slots: Vec<_> = self.slots.keys().cloned().collect();
        for session in slots {
            if !self.slots.contains_key(&session) {
                continue;
            }
            let run = self.live_run(session.as_ref());
            match run {
                Some(run) if self.runs[run].hello.is_some() => self.attach(run),
                Some(run) => {
                    self.runs[run].is_alive = false;
                    self.after(1, Event::Start { session });
                }
                None => self.after(1, Event::Start { session }),
            }
        }
        self.settle();
        for client in 0..self.clients.len() {
            self.listen(client);
        }
    }

    pub(crate) fn live_run(&self, session: Option<&String>) -> Option<usize> {
        self.slots.get(&session.cloned())?.run.filter(|run| self.runs[*run].is_alive)
    }

    /// The supervisor starts a run.
    pub(crate) fn start_run(&mut self, session: Option<String>) {
        let Some(slot) = self.slots.get(&session) else { return };
        if self.current.is_none() || self.is_removed || self.live_run(session.as_ref()).is_some() {
            return;
        }
        if slot.down_until > self.now {
            return self.after(slot.down_until - self.now, Event::Start { session });
        }
        let generation = self.runs.len() as u64 + 1;
        let run = Run { generation, session: session.clone(), is_alive: true, ..Run::default() };
        self.runs.push(run);
        let index = self.runs.len() - 1;
        self.slots.insert(session.clone(), Slot { run: Some(index), ..Slot::default() });
        self.report(session.as_ref(), coming(None));
        self.attach(index);
    }

    fn attach(&mut self, index: usize) {
        let Some(current) = self.current else { return };
        let now = self.instant();
        let reads_earlier_output = self.script.reads_earlier_output;
        let run = &mut self.runs[index];
        let first = if reads_earlier_output { run.out.len() } else { run.confirmed };
        let daemon = &mut self.daemons[current];
        daemon.attachments += 1;
        let epoch = u32::try_from(current).expect("there are few") * 16 + (daemon.attachments & 15);
        let target = if self.script.kind == Kind::Http {
            // Nothing is known of what a server that runs elsewhere did before.
            if reads_earlier_output { LinkTarget::Remote } else { LinkTarget::Http }
        } else {
            let written = run.written + run.kept.len() as u64;
            let earlier_output =
                (reads_earlier_output && run.hello.is_some()).then(|| run.out.clone());
            LinkTarget::Stdio { written, earlier_output }
        };
        let info = RunInfo {
            generation: run.generation,
            after: None,
            known: run.hello.clone(),
            epoch,
            session: run.session.clone(),
        };
        let Some(server) = daemon.server.as_mut() else { return };
        let link = server.attach(now, target, info);
        daemon.links.insert(link, index);
        run.link = Some((current, link, first));
        for line in first..run.out.len() {
            self.after(1, Event::Deliver { daemon: current, link, run: index, index: line });
        }
        self.settle();
    }

    fn attached<E>(
        &mut self,
        daemon: usize,
        link: LinkKey,
        result: Result<Arc<mainstay_session::Run>, E>,
    ) {
        if self.current != Some(daemon) {
            return;
        }
        let Some(index) = self.daemons[daemon].links.get(&link).copied() else { return };
        let session = self.runs[index].session.clone();
        let Ok(run) = result else {
            self.runs[index].is_alive = false;
            self.after(10, Event::Detach { daemon, link });
            return self.after(20, Event::Start { session });
        };
        let is_wanted = self.live_run(session.as_ref()) == Some(index);
        if is_wanted {
            self.runs[index].hello = Some((*run.hello).clone());
            self.report(session.as_ref(), Availability::Up(run));
        }
    }

    /// The supervisor reports the availability of a run.
    pub(crate) fn report(&mut self, session: Option<&String>, availability: Availability) {
        let (now, is_removed) = (self.instant(), self.is_removed);
        let Some(server) = self.server().filter(|_| !is_removed) else { return };
        match session {
            Some(id) => server.set_session_availability(now, id, availability),
            None => server.set_availability(now, availability),
        }
    }

    /// A run exits. The daemon notices after `delay`, and starts the next one after `backoff`.
    pub(crate) fn kill_run(
        &mut self,
        session: Option<String>,
        exact: bool,
        delay: u64,
        backoff: u64,
    ) {
        let Some(run) = self.live_run(session.as_ref()) else { return };
        self.runs[run].is_alive = false;
        self.fail_http_of(run);
        let written = if exact { self.runs[run].written } else { u64::MAX };
        // What it wrote before arrives first.
        let delay = delay + 2;
        if let Some((daemon, link, _)) = self.runs[run].link {
            self.after(delay, Event::Ended { daemon, link, written });
            self.after(delay + 100, Event::Detach { daemon, link });
        }
        if let Some(slot) = self.slots.get_mut(&session) {
            slot.down_until = self.now + delay + backoff;
        }
        self.after(delay + backoff, Event::Start { session });
    }

    pub(crate) fn notice_end(&mut self, daemon: usize, link: LinkKey, written: u64) {
        let now = self.instant();
        let Some(run) = self.daemons[daemon].links.get(&link).copied() else { return };
        let is_stdio = self.script.kind != Kind::Http;
        let session = self.runs[run].session.clone();
        let down_until = self.slots.get(&session).map_or(0, |slot| slot.down_until);
        let due = Some(self.at(down_until)).filter(|_| down_until > self.now);
        // The lines may end before the exit is known, or after it.
        let is_early = written.is_multiple_of(2);
        if is_stdio
            && is_early
            && let Some(server) = self.daemons[daemon].server.as_mut()
        {
            server.close_stdio(now, link, written);
            self.settle();
        }
        if self.current == Some(daemon)
            && self.slots.get(&session).is_some_and(|slot| slot.run == Some(run))
        {
            self.report(session.as_ref(), coming(due));
            self.settle();
        }
        if is_stdio && let Some(server) = self.daemons[daemon].server.as_mut() {
            server.close_stdio(now, link, written);
        }
    }

    pub(crate) fn go_down(&mut self, ms: u64) {
        self.kill_run(None, true, 0, ms);
        if ms > 1000 {
            let why = Arc::new(Reason::default());
            self.report(None, Availability::Down { why });
        }
    }

    pub(crate) fn interrupt(&mut self, loses_lines: bool) {
        let Some(run) = self.live_run(None).filter(|_| self.script.kind != Kind::Http) else {
            return;
        };
        let Some((daemon, link, _)) = self.runs[run].link else { return };
        let now = self.instant();
        self.was_interrupted = true;
        for execution in &mut self.executions {
            if execution.run == run && !execution.is_over {
                execution.is_muted |= loses_lines;
                let call = &mut self.calls[execution.call];
                call.interruptions += 3;
                self.responses[call.response].is_lossy = true;
            }
        }
        let written = self.runs[run].written;
        if let Some(server) = self.daemons[daemon].server.as_mut() {
            server.link_interrupted(now, link, Interruption { written, at: now });
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

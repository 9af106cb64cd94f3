//! The world of one script: virtual time, and everything in it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_core::{RunId, UnitHistory, Wanted};
use mainstay_mcp::frame::Parsed;
use mainstay_session::{Server, StreamKey, StreamRef};

use crate::daemon::Daemon;
use crate::driver::Scope;
use crate::engine::Outage;
use crate::event::{Event, Queued};
use crate::model::{Call, Client, Execution, Response, Run};
use crate::script::{Behaviour, FailedStart, Form, Script, What};
use crate::store::Store;

/// What reads a stream of a daemon.
#[derive(Debug, Clone)]
pub(crate) enum Reader {
    Response(usize),
    General {
        client: usize,
        turn: u64,
    },
    /// The next daemon gets it.
    Relay {
        key: StreamKey,
        turn: u64,
    },
}

pub(crate) struct World {
    /// The shared run that may execute requests that a killed daemon did not record.
    pub(crate) unrecorded_at: Option<u64>,
    pub(crate) script: Script,
    base: Instant,
    pub(crate) now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    pub(crate) store: Arc<Store>,
    pub(crate) daemons: Vec<Daemon>,
    /// The daemon that clients reach.
    pub(crate) current: Option<usize>,
    pub(crate) clients: Vec<Client>,
    pub(crate) calls: Vec<Call>,
    pub(crate) responses: Vec<Response>,
    pub(crate) executions: Vec<Execution>,
    pub(crate) runs: Vec<Run>,
    /// What the user wants of the server.
    pub(crate) wanted: Wanted,
    /// What earlier daemons knew of the shared run, and all last runs.
    pub(crate) history: UnitHistory,
    pub(crate) last_runs: BTreeMap<Scope, RunId>,
    /// How the next runs behave, and how many of the next starts fail.
    pub(crate) behaviour: Behaviour,
    pub(crate) failing_starts: u8,
    pub(crate) failure: FailedStart,
    pub(crate) outage: Option<Outage>,
    pub(crate) is_ending: bool,
    /// How many runs were killed because they hung.
    pub(crate) hangs: u32,
    pub(crate) was_interrupted: bool,
    pub(crate) is_removed: bool,
    /// How many numbered messages servers have sent.
    pub(crate) messages: u64,
    /// Streams whose readers are to be woken.
    woken: Vec<(usize, StreamRef)>,
}

impl World {
    pub(crate) fn new(script: Script) -> Self {
        let mut world = Self {
            base: tokio::time::Instant::now().into_std(),
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            store: Arc::new(Store::default()),
            daemons: Vec::new(),
            current: None,
            clients: Vec::new(),
            calls: Vec::new(),
            responses: Vec::new(),
            executions: Vec::new(),
            runs: Vec::new(),
            wanted: Wanted::On,
            history: UnitHistory::default(),
            last_runs: BTreeMap::new(),
            behaviour: script.behaviour,
            failing_starts: 0,
            failure: FailedStart::Temporary,
            outage: None,
            is_ending: false,
            hangs: 0,
            unrecorded_at: None,
            was_interrupted: false,
            is_removed: false,
            messages: 0,
            woken: Vec::new(),
            script,
        };
        world.start_daemon(false, false);
        world
    }

    pub(crate) fn instant(&self) -> Instant {
        self.base + Duration::from_millis(self.now)
    }

    pub(crate) fn at(&self, ms: u64) -> Instant {
        self.base + Duration::from_millis(ms)
    }

    pub(crate) fn after(&mut self, ms: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Queued { at: self.now + ms, order: self.order, event }));
    }

    pub(crate) fn wake(&mut self, daemon: usize, stream: StreamRef) {
        self.woken.push((daemon, stream));
    }

    pub(crate) fn run(mut self) -> Self {
        let steps = std::mem::take(&mut self.script.steps);
        for step in &steps {
            self.advance(step.after);
            self.take(step.what);
            self.settle();
        }
        self.end();
        self
    }

    /// Lets so many ms pass.
    pub(crate) fn advance(&mut self, ms: u64) {
        let until = self.now + ms;
        let mut at_once = 0;
        loop {
            let event = self.queue.peek().map(|Reverse(queued)| queued.at);
            let drivers = self.daemons.iter().flat_map(|daemon| daemon.drivers.values());
            let drivers = drivers.filter_map(|driver| driver.supervisor.deadline());
            let servers =
                self.daemons.iter().filter_map(|daemon| daemon.server.as_ref()?.deadline());
            let deadline = servers.chain(drivers).min().map(|at| {
                let wait = at.saturating_duration_since(self.base);
                u64::try_from(wait.as_nanos().div_ceil(1_000_000)).expect("scripts are short")
            });
            let next = event.into_iter().chain(deadline).min().filter(|at| *at <= until);
            let Some(next) = next else { break };
            at_once = if next > self.now { 0 } else { at_once + 1 };
            assert!(at_once < 20_000, "it never comes to rest");
            self.now = self.now.max(next);
            if deadline.is_some_and(|at| at <= self.now) {
                let now = self.instant();
                for server in self.daemons.iter_mut().filter_map(|daemon| daemon.server.as_mut()) {
                    server.handle_timers(now);
                }
                self.settle();
                self.tick(now);
            } else if let Some(Reverse(queued)) = self.queue.pop() {
                self.handle(queued.event);
            }
            self.settle();
        }
        self.now = self.now.max(until);
    }

    /// Supervisors learn that their deadlines have passed.
    fn tick(&mut self, now: Instant) {
        for scope in self.scopes() {
            let driver = self.driver(&scope);
            let deadline = driver.and_then(|driver| driver.supervisor.deadline());
            if deadline.is_some_and(|at| at <= now) {
                self.tell(&scope, mainstay_core::supervisor::Event::Tick);
            }
        }
    }

    /// Executes actions until there are none.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut is_done = true;
            for daemon in 0..self.daemons.len() {
                while let Some(action) =
                    self.daemons[daemon].server.as_mut().and_then(Server::next_action)
                {
                    is_done = false;
                    self.perform(daemon, action);
                }
            }
            for (daemon, stream) in std::mem::take(&mut self.woken) {
                is_done = false;
                self.pump(daemon, stream);
            }
            if is_done {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.instant();
        match event {
            Event::Line { daemon, run, line } => {
                // The lines of a daemon end when another one is connected.
                if self.runs[run].link.is_some_and(|(at, ..)| at == daemon) {
                    self.line_arrives(run, line);
                }
            }
            Event::Deliver { daemon, link, run, index } => {
                let line = self.runs[run].out[index].clone();
                if let Some(server) = self.daemons[daemon].server.as_mut()
                    && self.runs[run].link.is_some_and(|(at, to, _)| (at, to) == (daemon, link))
                {
                    server.receive(now, link, [line]);
                }
            }
            Event::Confirm { daemon, link, count } => self.confirm(daemon, link, count),
            Event::Execute { execution, step } => self.execute(execution, step),
            Event::ReadAgain { run } => self.read_again(run),
            Event::Observe { daemon, scope, connection } => {
                self.observe_run(daemon, &scope, connection);
            }
            Event::Write { run, line } => {
                if self.runs[run].is_alive {
                    self.write(run, line);
                }
            }
            Event::Create { daemon, scope, id } => self.create_run(daemon, scope, id),
            Event::Exit { run } => self.kill_run(run, true, 0),
            Event::Exited { run, written } => self.run_exited(run, written),
            Event::Gone { run } => self.run_gone(run),
            Event::EngineBack { loses_lines } => self.engine_back(loses_lines),
            Event::Driver { daemon, scope, event } => {
                if self.current == Some(daemon) {
                    self.tell(&scope, event);
                }
            }
            Event::OpenSession { daemon, scope, connection, resume } => {
                self.open_session(daemon, scope, connection, resume);
            }
            Event::SessionResult { daemon, scope, connection, result } => {
                if self.current == Some(daemon) {
                    self.session_result(&scope, connection, result);
                }
            }
            Event::SessionRunRequests { daemon } => {
                if self.current == Some(daemon) {
                    self.handle_requests();
                }
            }
            Event::WantOn => self.want(Wanted::On),
            Event::Written { daemon, call } => {
                self.store.state().write();
                if let Some(server) = self.daemons[daemon].server.as_mut() {
                    server.record_written(now, call);
                }
            }
            Event::Commit { response } => self.commit_due(response),
            Event::ClientReply { client, text } => self.post(client, text),
            Event::Http { daemon, operation, run, what } => {
                self.http_arrives(daemon, operation, run, what);
            }
            Event::HttpMessage { daemon, operation, text } => {
                let message = Parsed::read(text).expect("the server writes JSON");
                if let Some(server) = self.daemons[daemon].server.as_mut() {
                    server.http_streaming(now, operation);
                    server.http_message(now, operation, &message);
                }
            }
            Event::HttpDone { daemon, operation, outcome } => {
                if let Some(server) = self.daemons[daemon].server.as_mut() {
                    server.http_done(now, operation, outcome);
                }
            }
            Event::StartDaemon { is_lazy } => {
                if self.current.is_none() {
                    self.start_daemon(is_lazy, false);
                }
            }
            Event::Reload { until } => self.try_reload(until),
            Event::Unstall => self.store.state().is_stalled = false,
            Event::EndOld { daemon } => self.end_old(daemon),
        }
    }

    fn take(&mut self, what: What) {
        let now = self.instant();
        match what {
            What::Open { version, form, listens } => self.open(version, form, listens),
            What::Call { client, call } => {
                if let Some(client) = self.client(client) {
                    self.call(client, &[call], false);
                }
            }
            What::Batch { client, calls } => {
                if let Some(client) = self.client(client) {
                    self.call(client, &calls, true);
                }
            }
            What::Leave { client, lost } => {
                if let Some(client) = self.client(client) {
                    self.leave(client, lost);
                }
            }
            What::Resume { client } => {
                if let Some(client) = self.client(client) {
                    self.resume(client, false);
                }
            }
            What::Unlisten { client, lost } => {
                if let Some(client) = self.client(client) {
                    self.unlisten(client, lost);
                }
            }
            What::Listen { client } => {
                if let Some(client) = self.client(client) {
                    self.clients[client].wants_to_listen = true;
                    self.listen(client);
                }
            }
            What::Cancel { client, which, is_timeout } => {
                if let Some(client) = self.client(client) {
                    self.cancel(client, which, is_timeout);
                }
            }
            What::Close { client } => {
                if let Some(client) = self.client(client) {
                    self.close(client);
                }
            }
            What::RootsChanged { client } => {
                if let Some(client) = self.client(client) {
                    let text = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
                    self.post(client, text.to_owned());
                }
            }
            What::Die { exact, delay } => {
                if let Some(run) = self.live_run(&None) {
                    self.kill_run(run, exact, delay.into());
                }
            }
            What::DieOwn { client, is_removed } => {
                if let Some(run) = self.own_run(client) {
                    self.runs[run].is_removed = is_removed;
                    self.kill_run(run, true, 3);
                }
            }
            What::Stop { ms } => {
                self.want(Wanted::Off);
                self.after(ms.into(), Event::WantOn);
            }
            What::Restart => self.restart(),
            What::Behave(behaviour) => self.behaviour = behaviour,
            What::FailStarts { count, failure } => {
                (self.failing_starts, self.failure) = (count, failure);
            }
            What::EngineAway { ms, loses_lines } => self.engine_away(ms.into(), loses_lines),
            What::StopReading { manner, ms } => self.begin_silence(&None, manner, ms.into()),
            What::Interrupt { loses_lines } => self.interrupt(loses_lines),
            What::Say { client, said } => self.say(client, said),
            What::Forget => {
                if let Some(run) = self.live_run(&None) {
                    self.runs[run].http_sessions.clear();
                }
            }
            What::Stall { ms } => {
                self.store.state().is_stalled = true;
                self.after(ms.into(), Event::Unstall);
            }
            What::Kill { down, is_lazy } => self.kill_daemon(down.into(), is_lazy),
            What::Reload => self.after(0, Event::Reload { until: self.now + 3000 }),
            What::Sweep => {
                if let Some(server) = self.server() {
                    server.sweep(now);
                    server.save_last_used(now);
                }
            }
        }
    }

    fn client(&self, index: u8) -> Option<usize> {
        let count = self.clients.len();
        (count > 0).then(|| usize::from(index) % count)
    }

    fn own_run(&self, client: u8) -> Option<usize> {
        let session = self.clients[self.client(client)?].session.as_str();
        self.live_run(&Some(session.into()))
    }

    pub(crate) fn server(&mut self) -> Option<&mut Server> {
        self.daemons[self.current?].server.as_mut()
    }

    pub(crate) fn is_local(&self, client: usize) -> bool {
        self.clients[client].form == Form::Local
    }
}

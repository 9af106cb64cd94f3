//! Decides about the runs of one server, and about the MCP session that Mainstay has with each.
//!
//! A [`Supervisor`] adds to the restart policy of its [`Unit`] what surrounds a run: the engine that it belongs to, the
//! session with it, the order of engine reports, and servers that run elsewhere and cannot be reached.
//! [`Supervisor::handle`] takes one event and the time, and returns the actions to execute, in order. If time alone will
//! change something, [`Supervisor::deadline`] returns when.
//!
//! Guarantees, besides those of the unit:
//! - a session is opened only with the present run, and at most one at a time;
//! - no run is started while another engine still has something of the server;
//! - what an engine reports about a run is handled after the result of its start;
//! - a stop that was requested before the run existed is executed when it does, and a start that has to wait is dropped.

mod describe;
mod event;
mod remote;
mod reports;
mod session;
mod silence_end;
mod start_watch;
mod stored;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use event::{
    Action, Connection, Event, InheritedRun, RunDetails, SessionFailure, SessionRunEnd,
    StartFailure,
};
use remote::Reachability;
pub use remote::RemoteOutage;
use session::Session;
use start_watch::WatchedStart;
pub use watch::OBSERVATION;
use watch::Watch;

use crate::unit::{self, Unit};
use crate::{
    Cause, Exit, Found, Jitter, LoggedEvent, News, RunId, RunKey, ServerSpec, Started, Status,
    UnitHistory, Wanted, WorkloadKind,
};

/// See the [module](self).
#[derive(Debug)]
pub struct Supervisor {
    spec: Arc<ServerSpec>,
    /// The stored intent. It stays when the daemon stops the server.
    wanted: Wanted,
    /// The intent that the supervisor itself has stored, until the user changes it.
    saved: Option<Wanted>,
    /// The history that the next daemon finds; none if it is that of another server.
    saved_history: Option<UnitHistory>,
    /// Whether the run belongs to a single session, and nothing is stored about it.
    is_session_run: bool,
    unit: Unit,
    /// The engine of the present run; without one, of the next run.
    engine: WorkloadKind,
    /// How many engines are removing what they have of the server.
    releasing: u32,
    starting: Option<Starting>,
    /// Reports that are handled when the start has been reported, a few at most.
    early: VecDeque<News>,
    /// The run that the fields below are about.
    run: Option<RunId>,
    details: RunDetails,
    /// Whether it is only assumed to be alive, until a list has it.
    is_assumed: bool,
    /// How its process has exited, until all of it is gone.
    exited: Option<Exit>,
    /// Whether it is being ended, and with which grace period.
    ending: Option<(RunId, Option<Duration>)>,
    session: Session,
    /// How many sessions with it were opened or tried.
    connections: u64,
    /// Observes it while it takes long to become ready.
    start_watch: Option<WatchedStart>,
    /// Observes it while it is ready.
    watch: Option<Watch>,
    /// Whether runs of this spec were seen to ignore pings.
    ignores_ping: bool,
    reachability: Reachability,
    /// A run that someone else started, until the unit has accepted it.
    adopted: Option<(RunId, Started)>,
    life: Life,
    session_run_end: Option<SessionRunEnd>,
    actions: Vec<Action>,
}

/// The run whose start has not been reported yet. It may have ended all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Starting {
    run: RunId,
    /// Whether it is started as soon as no engine releases the server any more.
    is_held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Active,
    /// The daemon is stopping the server.
    Retiring,
    Finished,
}

/// Whether requests can be served, or when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// The present run has a session.
    Up,
    /// A run is being started, or will be.
    Coming {
        /// When the next attempt is due; none if it is in progress.
        due: Option<Instant>,
        /// Why the server is not up.
        why: String,
    },
    /// There is no run, and none will be started soon.
    Down { why: String },
}

impl Supervisor {
    /// Supervises a server, from its stored intent, the run that was found and its history. The first deadline is now.
    ///
    /// Runs of single sessions pass `is_session_run`. The seed is for the jitter of delays.
    pub fn resume(
        now: Instant,
        spec: ServerSpec,
        wanted: Wanted,
        is_session_run: bool,
        seed: u64,
        inherited: Option<InheritedRun>,
        history: UnitHistory,
    ) -> Self {
        let found = inherited.as_ref().map(|inherited| Found {
            run: inherited.run,
            age: inherited.age,
            ready_for: inherited.ready_for,
        });
        let ignores_ping = history.ignores_ping;
        let unit = Unit::resume(now, spec.restart.clone(), seed, wanted, found, history);
        let mut supervisor = Self {
            wanted,
            saved: None,
            saved_history: Some(UnitHistory { ignores_ping, ..unit.history() }),
            is_session_run,
            engine: spec.workload.kind(),
            spec: Arc::new(spec),
            unit,
            releasing: 0,
            starting: None,
            early: VecDeque::new(),
            run: found.map(|found| found.run),
            details: RunDetails::default(),
            is_assumed: false,
            exited: None,
            ending: None,
            session: Session::None,
            connections: 0,
            start_watch: None,
            watch: None,
            ignores_ping,
            reachability: Reachability::new(Jitter::new(seed.rotate_left(32))),
            adopted: None,
            life: Life::Active,
            session_run_end: None,
            actions: Vec::new(),
        };
        if let Some(inherited) = inherited {
            supervisor.details = inherited.details;
            supervisor.is_assumed = inherited.is_assumed;
            if inherited.is_assumed {
                let why = "its engine does not answer".to_owned();
                supervisor.feed(now, unit::Event::EngineAway { why });
            } else {
                supervisor.open_session(inherited.run, true);
            }
        }
        supervisor
    }

    pub fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        if self.life != Life::Finished {
            self.learn(now, event);
            while self.starting.is_none()
                && self.life != Life::Finished
                && let Some(news) = self.early.pop_front()
            {
                self.learn_news(now, news);
            }
        }
        self.update_start_watch(now);
        self.keep_history();
        // What cannot be reached is left for the next daemon.
        let is_down = self.unit.run().is_none() || self.unit.is_engine_away();
        if self.life == Life::Retiring && is_down {
            self.finish(Action::Retired);
        }
        std::mem::take(&mut self.actions)
    }

    /// When [`Event::Tick`] is due next, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        let start = self.start_watch.as_ref().and_then(WatchedStart::deadline);
        let watch = self.watch_deadline();
        [self.unit.deadline(), self.session.deadline(), watch, start].into_iter().flatten().min()
    }

    pub fn spec(&self) -> &Arc<ServerSpec> {
        &self.spec
    }

    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// The restart policy and its state.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// The engine of the present run; without one, of the next run.
    pub fn engine(&self) -> WorkloadKind {
        self.engine
    }

    /// What the present run consists of.
    pub fn details(&self) -> &RunDetails {
        &self.details
    }

    /// Why the remote server cannot be used, if that is so.
    pub fn remote_outage(&self) -> Option<&RemoteOutage> {
        self.reachability.outage.as_ref()
    }

    /// Why the run of a single session is ended, if it is.
    pub fn session_run_end(&self) -> Option<SessionRunEnd> {
        self.session_run_end
    }

    /// Whether the daemon is stopping the server.
    pub fn is_retiring(&self) -> bool {
        self.life == Life::Retiring
    }

    /// The port that is only this server's, while it should be listened to.
    pub fn port(&self) -> Option<u16> {
        let is_on = self.unit.wanted() == Wanted::On && !self.is_retiring();
        self.spec.proxy.port.filter(|_| is_on && !self.is_session_run)
    }

    /// Whether requests can be served, or when.
    pub fn availability(&self, now: Instant) -> Availability {
        let view = self.unit.view(now);
        if view.status.is_up() && self.session.is_open() && self.exited.is_none() {
            return Availability::Up;
        }
        let outage = self.reachability.outage.as_ref();
        // A run that has just exited is reported before anything is decided.
        let why = match (self.exited, outage) {
            (Some(exit), _) => Cause::Exited(exit).to_string(),
            (None, Some(outage)) => outage.why.clone(),
            (None, None) => view.reason,
        };
        let comes_back = self.unit.wanted() == Wanted::On && !self.is_retiring();
        match view.status {
            Status::Starting
            | Status::Restarting
            | Status::Running
            | Status::Busy
            | Status::Blocked
            | Status::Hung
            | Status::Suspended
            | Status::Unresponsive
            | Status::Unhealthy
            | Status::Waiting => {
                let due = outage.map(|outage| outage.next).or(view.next_restart);
                Availability::Coming { due, why }
            }
            Status::Stopping if comes_back => Availability::Coming { due: None, why },
            Status::Stopping | Status::Stopped | Status::Removing | Status::Error => {
                Availability::Down { why }
            }
        }
    }

    fn learn(&mut self, now: Instant, event: Event) {
        let event = match event {
            Event::Want(_) | Event::Restart | Event::Replace(_) | Event::EndSessionRun(_)
                if self.is_retiring() =>
            {
                return;
            }
            // It was sent before this run was told to end, and must not bring it back.
            Event::Want(_) | Event::Restart | Event::Replace(_)
                if self.session_run_end.is_some() =>
            {
                return;
            }
            Event::Want(wanted) => {
                self.set_wanted(wanted);
                unit::Event::Want(wanted)
            }
            Event::Restart => {
                self.set_wanted(Wanted::On);
                unit::Event::Restart
            }
            Event::Replace(spec) => return self.replace(now, *spec),
            Event::SetClients(clients) => {
                Arc::make_mut(&mut self.spec).clients = clients;
                return self.actions.push(Action::Publish);
            }
            Event::News(news) if self.is_early(&news) => return self.keep_for_later(news),
            Event::News(news) => return self.learn_news(now, news),
            Event::Listed { begun, found } => return self.compare(now, begun, found),
            Event::HostResumed => unit::Event::HostResumed,
            Event::Demand => unit::Event::Demand,
            Event::Unreachable { generation } => return self.not_accepted(now, generation),
            Event::Observe { generation } => return self.is_slow(now, generation),
            Event::Observed(connection, evidence) => {
                return self.observed(now, connection, evidence);
            }
            Event::StartObserved(run, evidence) => {
                return self.start_observed(now, run, evidence);
            }
            Event::EndSessionRun(why) => {
                self.session_run_end = Some(why);
                self.wanted = Wanted::Gone;
                unit::Event::Want(Wanted::Gone)
            }
            Event::Retire => {
                self.life = Life::Retiring;
                unit::Event::Want(Wanted::Off)
            }
            Event::Started(run, result) => return self.started(now, run, result),
            Event::Released => {
                self.releasing = self.releasing.saturating_sub(1);
                return self.start_if_released();
            }
            Event::SessionOpened(connection) => return self.session_opened(now, connection),
            Event::SessionFailed(connection, failure) => {
                return self.session_failed(now, connection, failure);
            }
            Event::SessionClosed(connection) => return self.session_closed(now, connection),
            Event::PortChecked { run, has_moved } => return self.port_checked(now, run, has_moved),
            Event::Tick => return self.tick(now),
        };
        self.feed(now, event);
    }

    fn tick(&mut self, now: Instant) {
        self.session_tick(now);
        self.watch_tick(now);
        self.start_watch_tick(now);
        if self.unit.deadline().is_some_and(|deadline| deadline <= now) {
            self.feed(now, unit::Event::Tick);
        }
    }

    fn replace(&mut self, now: Instant, spec: ServerSpec) {
        let clients = self.spec.clients.clone();
        let is_same =
            self.session.is_open() && *self.spec == ServerSpec { clients, ..spec.clone() };
        // Whether another program answers pings is not known.
        self.ignores_ping &= self.spec.workload == spec.workload;
        self.spec = Arc::new(spec);
        self.saved_history = None;
        self.actions.push(Action::Publish);
        if !is_same {
            self.feed(now, unit::Event::Replaced(self.spec.restart.clone()));
        }
    }

    /// Passes an event to the unit and does what it decides.
    fn feed(&mut self, now: Instant, event: unit::Event) {
        if self.ends_outage(&event) {
            self.advance(now, unit::Event::EngineBack);
        }
        if self.life != Life::Finished {
            self.advance(now, event);
        }
    }

    fn advance(&mut self, now: Instant, event: unit::Event) {
        let action = self.unit.handle(now, event);
        let adopted = self.adopted.take();
        if self.unit.run() != self.run {
            self.run = self.unit.run();
            self.clear_run();
            if let Some((_, started)) = adopted.filter(|(run, _)| self.run == Some(*run)) {
                self.details = started.into();
            }
        }
        if self.run.is_none() && self.starting.is_none() {
            self.change_engine();
        }
        let logged = self.unit.take_logged_events();
        let becomes_reachable = logged.iter().any(becomes_reachable);
        for event in logged {
            if let LoggedEvent::Ended { .. } | LoggedEvent::Adopted { .. } = event {
                self.exited = None;
            }
            let detail = self.describe(&event);
            self.actions.push(Action::Record { event, detail });
        }
        if action.is_none() && becomes_reachable {
            self.reconnect();
        }
        self.keep_intent();
        self.actions.push(Action::Publish);
        match action {
            Some(unit::Action::Start(run)) => self.start(run),
            Some(unit::Action::Stop(run)) => self.end(run, Some(self.spec.restart.stop_timeout)),
            Some(unit::Action::Kill(run)) => self.end(run, None),
            Some(unit::Action::Forget) => self.finish(Action::Forget),
            None => {}
        }
    }

    fn finish(&mut self, action: Action) {
        self.life = Life::Finished;
        self.actions.push(action);
    }

    /// Nothing that is known of the last run applies to the present one.
    fn clear_run(&mut self) {
        self.close_session();
        self.details = RunDetails::default();
        self.is_assumed = false;
        self.connections = 0;
        self.actions.push(Action::ClearRun);
    }

    /// From now on the engine of the spec runs the server. The engine before it removes what it has.
    fn change_engine(&mut self) {
        let engine = self.spec.workload.kind();
        if engine != self.engine {
            self.releasing += 1;
            self.actions.push(Action::Release(std::mem::replace(&mut self.engine, engine)));
        }
    }

    fn start(&mut self, run: RunId) {
        self.change_engine();
        self.reachability.begin_run();
        self.exited = None;
        self.starting = Some(Starting { run, is_held: true });
        self.start_if_released();
    }

    fn start_if_released(&mut self) {
        if let Some(Starting { run, is_held: is_held @ true }) = &mut self.starting
            && self.releasing == 0
        {
            *is_held = false;
            self.actions.push(Action::Start(*run));
        }
    }

    fn end(&mut self, run: RunId, grace: Option<Duration>) {
        self.end_at(self.engine, run, grace);
    }

    fn end_at(&mut self, engine: WorkloadKind, run: RunId, grace: Option<Duration>) {
        if self.starting.take_if(|starting| starting.run == run && starting.is_held).is_some() {
            let cause = Cause::NotStarted("ended before it was started".to_owned());
            let key = RunKey::new(self.spec.name.clone(), run);
            return self.early.push_front(News::Gone { key, cause });
        }
        let mut logs_stacks = false;
        if self.unit.run() == Some(run) {
            self.ending = Some((run, grace));
            logs_stacks = self.watch.take().is_some_and(|watch| watch.is_killed());
        }
        self.actions.push(Action::End { engine, run, grace, logs_stacks });
    }

    fn is_ending(&self, run: RunId) -> bool {
        self.ending.is_some_and(|(ending, _)| ending == run)
    }
}

/// Whether a run can be used that could not be used before.
fn becomes_reachable(event: &LoggedEvent) -> bool {
    matches!(
        event,
        LoggedEvent::Adopted { .. } | LoggedEvent::EngineBack | LoggedEvent::Unpaused { .. }
    )
}

//! The event loop: waits for what happens first, passes it to the plan, and executes the plan's actions.
//!
//! What a daemon sent before it died is handled before its death: the plan must know an end on purpose
//! from a crash. Without a time limit, the loop sleeps until something happens.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::event::PollFlags;
use rustix::process::Signal;

use super::connection_copies::ConnectionCopies;
use super::connection_store::{FORMAT, IDLE, RESPONSE};
use super::daemon::{Daemon, Received, not_started};
use super::listeners::Listeners;
use super::message::{self, ListenAddr, ToDaemon, ToHolder, Unfinished, VERSION};
use super::notify::Notify;
use super::packet::Buffer;
use super::plan::{Action, Event, Id, Message, Outcome, Plan, Start};
use super::process;
use super::reexec::{self, HandoverState};
use super::signals::Signals;
use super::{Config, failure_report};
use crate::clock;
use crate::codec::length;
use crate::poll::Sources;

/// How many messages of one daemon are handled before those of the others.
const MESSAGES_AT_ONCE: usize = 64;

/// The longest text about a daemon's end that is passed on. The rest of its packet is shorter.
const MAX_TEXT: usize = 12 * 1024;

#[expect(clippy::struct_field_names, reason = "there are two locks")]
pub(super) struct Holder<'a> {
    config: Config,
    plan: Plan,
    instance_lock: Rc<OwnedFd>,
    holder_lock: OwnedFd,
    pub(super) listeners: Listeners,
    /// The connections of the daemon that serves, or of one that was killed while it served.
    stored: Option<ConnectionCopies>,
    /// The connections that a daemon is to take over from another one, until it is ready. Those that it has stored
    /// itself are also in `stored`.
    passed_on: Vec<(Unfinished, Rc<OwnedFd>)>,
    pub(super) daemons: Vec<Daemon>,
    signals: Signals,
    notify: Notify,
    buffer: Buffer,
    /// Called when the first daemon is ready.
    pub(super) ready: Option<Box<dyn FnOnce() + 'a>>,
    outcome: Option<Outcome>,
}

/// What can become ready.
#[derive(Debug, Clone, Copy)]
enum Source {
    Signals,
    Listener,
    /// A connection of a daemon that was killed.
    Stored,
    Socket(Id),
    Stderr(Id),
    Process(Id),
}

impl Holder<'_> {
    pub(super) fn new(
        config: Config,
        plan: Plan,
        [instance_lock, holder_lock]: [File; 2],
        signals: Signals,
        notify: Notify,
    ) -> Self {
        Self {
            config,
            plan,
            instance_lock: Rc::new(instance_lock.into()),
            holder_lock: holder_lock.into(),
            listeners: Listeners::default(),
            stored: None,
            passed_on: Vec::new(),
            daemons: Vec::new(),
            signals,
            notify,
            buffer: Buffer::new(),
            ready: None,
            outcome: None,
        }
    }

    /// Returns when the plan is done. Then no listener and no daemon is left, and the lock is released.
    pub(super) fn run(mut self) -> io::Result<Outcome> {
        self.handle(Event::Tick);
        loop {
            if let Some(outcome) = self.outcome.take() {
                return Ok(outcome);
            }
            for source in self.wait()? {
                self.serve(source);
            }
            self.handle(Event::Tick);
            if self.plan.watches_listeners()
                && self.stored.as_ref().is_some_and(ConnectionCopies::client_waits)
            {
                self.handle(Event::ClientWaits);
            }
            if self.plan.is_resting() {
                self.notify.pulse();
            }
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let left = self.plan.deadline().map(|at| at.saturating_duration_since(clock::now()));
        // No daemon pulses meanwhile, but the service manager must not consider the holder dead.
        let watchdog = self.notify.watchdog().filter(|_| self.plan.is_resting());
        let timeout = left.into_iter().chain(watchdog.map(|interval| interval / 3)).min();
        let mut all = Sources::new();
        all.add(Source::Signals, self.signals.as_fd(), PollFlags::IN);
        if self.plan.watches_listeners() {
            for (_, listener) in self.listeners.held() {
                all.add(Source::Listener, listener.as_fd(), PollFlags::IN);
            }
            for socket in self.stored.iter().flat_map(ConnectionCopies::sockets) {
                all.add(Source::Stored, socket.as_fd(), PollFlags::IN);
            }
        }
        for daemon in &self.daemons {
            if let Some(socket) = daemon.socket() {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, daemon.has_unsent());
                all.add(Source::Socket(daemon.id), socket, flags);
            }
            if let Some(stderr) = daemon.stderr() {
                all.add(Source::Stderr(daemon.id), stderr, PollFlags::IN);
            }
            all.add(Source::Process(daemon.id), daemon.process.as_fd(), PollFlags::IN);
        }
        Ok(all.wait(timeout)?.into_iter().map(|(source, _)| source).collect())
    }

    fn serve(&mut self, source: Source) {
        match source {
            Source::Signals => {
                for _ in 0..self.signals.count() {
                    self.handle(Event::Signal);
                }
            }
            Source::Listener => self.handle(Event::ClientWaits),
            Source::Stored => {
                if self.stored.as_mut().is_some_and(ConnectionCopies::has_request) {
                    self.handle(Event::ClientWaits);
                }
            }
            Source::Socket(id) => {
                if let Some(daemon) = self.daemon(id) {
                    daemon.flush();
                }
                let _more_later = self.receive(id);
            }
            Source::Stderr(id) => {
                if let Some(daemon) = self.daemon(id) {
                    daemon.read_stderr();
                }
            }
            Source::Process(id) => {
                // A dead daemon sends nothing more, so this ends.
                while self.receive(id) == MESSAGES_AT_ONCE {}
                let found = self.daemons.iter().position(|daemon| daemon.id == id);
                if let Some(index) = found {
                    let (id, end) = self.daemons.swap_remove(index).ended();
                    if let Some(stored) = self.stored_of(id) {
                        stored.close_others();
                    }
                    self.handle(Event::Gone(id, end));
                    if self.plan.suspects_requests()
                        && let Some(stored) = self.stored_of(id)
                    {
                        stored.close_busy();
                    }
                }
            }
        }
    }

    /// Handles some messages of a daemon. Returns how many.
    fn receive(&mut self, id: Id) -> usize {
        for count in 0..MESSAGES_AT_ONCE {
            let found = self.daemons.iter_mut().find(|daemon| daemon.id == id);
            match found.map(|daemon| daemon.receive(&mut self.buffer)) {
                Some(Received::Message(message, descriptors)) => {
                    self.obey(id, message, descriptors);
                }
                Some(Received::Skipped) => {}
                Some(Received::Closed) => self.handle(Event::Closed(id)),
                Some(Received::Nothing) | None => return count,
            }
        }
        MESSAGES_AT_ONCE
    }

    fn obey(&mut self, id: Id, message: ToHolder, descriptors: Vec<OwnedFd>) {
        match message {
            ToHolder::Bind { request, listen_addr } => {
                let bound = self.listeners.bind(listen_addr);
                self.answer(id, request, bound.map(|listener| vec![listener]));
            }
            ToHolder::Release { request, listen_addr } => {
                // A daemon that was replaced releases what belongs to its successor now.
                let serves = self.plan.serves(id);
                let released = if serves { self.listeners.release(&listen_addr) } else { Ok(()) };
                self.answer(id, request, released.map(|()| Vec::new()));
            }
            ToHolder::Ready { request, holder } => {
                // Connections of the daemon before it that it has not taken over are closed.
                self.stored.take_if(|stored| stored.daemon != id);
                self.passed_on.clear();
                // Answer first: the event may re-execute the holder.
                self.answer(id, request, Ok(Vec::new()));
                self.handle(Event::Message(id, Message::Ready { can_hold: holder >= VERSION }));
            }
            ToHolder::Ending { request } => {
                self.close_stored(id);
                self.handle(Event::Message(id, Message::Ending));
                self.answer(id, request, Ok(Vec::new()));
            }
            ToHolder::Prepared => self.handle(Event::Message(id, Message::Prepared)),
            ToHolder::Failed { error } => self.handle(Event::Message(id, Message::Failed(error))),
            ToHolder::Replace { exe, fallback } => {
                self.handle(Event::Message(id, Message::Replace { exe, fallback }));
            }
            ToHolder::Connections { listen_addrs } => {
                let state = |listen_addr: &ListenAddr| Unfinished {
                    listen_addr: listen_addr.clone(),
                    state: vec![IDLE],
                };
                let states = listen_addrs.iter().map(state).collect();
                self.pass_on(id, &ToDaemon::Connections { listen_addrs }, states, descriptors);
            }
            ToHolder::Responses { responses } => {
                let state = |Unfinished { listen_addr, state }: &Unfinished| {
                    let state = [&[RESPONSE], &state[..]].concat();
                    Unfinished { listen_addr: listen_addr.clone(), state }
                };
                let states = responses.iter().map(state).collect();
                self.pass_on(id, &ToDaemon::Responses { responses }, states, descriptors);
            }
            ToHolder::HandedOver { request } => {
                // It has passed on those that are still open.
                self.close_stored(id);
                self.handle(Event::Message(id, Message::HandedOver));
                self.answer(id, request, Ok(Vec::new()));
            }
            ToHolder::Pulse => {
                if self.plan.serves(id) {
                    self.notify.pulse();
                }
                self.handle(Event::Message(id, Message::Pulse));
            }
            ToHolder::ShareMemory { format } => {
                let memory = descriptors.into_iter().next().filter(|_| format == FORMAT);
                self.passed_on = self.to_take_over();
                self.stored = memory.map(|memory| ConnectionCopies::new(id, memory));
            }
            ToHolder::Store { slot, listen_addr } => {
                if let Some(stored) = self.stored_of(id)
                    && let Some(socket) = descriptors.into_iter().next()
                {
                    stored.add(slot, listen_addr, socket);
                }
            }
            ToHolder::Forget { slot } => {
                if let Some(stored) = self.stored_of(id) {
                    stored.forget(slot);
                }
            }
            // Only a new holder is sent these.
            ToHolder::Handover { .. } | ToHolder::Resume { .. } | ToHolder::Listeners { .. } => {}
        }
    }

    fn stored_of(&mut self, id: Id) -> Option<&mut ConnectionCopies> {
        self.stored.as_mut().filter(|stored| stored.daemon == id)
    }

    fn close_stored(&mut self, id: Id) {
        self.stored.take_if(|stored| stored.daemon == id);
    }

    /// The connections of a daemon that was killed, which the next one continues.
    fn interrupted(&self) -> Vec<(Unfinished, Rc<OwnedFd>)> {
        let is_alive = |id| self.daemons.iter().any(|daemon| daemon.id == id);
        let killed = self.stored.as_ref().filter(|stored| !is_alive(stored.daemon));
        killed.map(ConnectionCopies::all).unwrap_or_default()
    }

    /// All connections that the next daemon takes over.
    fn to_take_over(&self) -> Vec<(Unfinished, Rc<OwnedFd>)> {
        let mut all = self.interrupted();
        let newer: HashSet<_> = all.iter().map(|(_, socket)| inode(socket)).collect();
        let others = self.passed_on.iter().filter(|(_, socket)| !newer.contains(&inode(socket)));
        all.extend(others.cloned());
        all
    }

    /// Passes connections of a daemon on to its successor. If that dies before it takes them over, or is dead already,
    /// the next daemon gets them with these states.
    fn pass_on(
        &mut self,
        id: Id,
        message: &ToDaemon,
        states: Vec<Unfinished>,
        connections: Vec<OwnedFd>,
    ) {
        if !self.plan.serves(id) {
            return;
        }
        let connections: Vec<_> = connections.into_iter().map(Rc::new).collect();
        let next = self.plan.successor_of(id).and_then(|next| self.daemon(next));
        if let Some(next) = next {
            next.send(message, connections.clone());
        }
        self.passed_on.extend(states.into_iter().zip(connections));
    }

    fn answer(&mut self, id: Id, request: u64, result: io::Result<Vec<Rc<OwnedFd>>>) {
        let (result, descriptors) = match result {
            Ok(descriptors) => (Ok(()), descriptors),
            Err(error) => (Err(error.into()), Vec::new()),
        };
        self.send(id, &ToDaemon::Done { request, result }, descriptors);
    }

    /// Passes an event to the plan and executes its actions, until nothing follows from them.
    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.plan.handle(clock::now(), event) {
                events.extend(self.act(action));
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Start(start) => return self.start(start),
            Action::Serve(id) => {
                let interrupted = self.interrupted();
                if let Some(daemon) = self.daemon(id) {
                    send_interrupted(daemon, &interrupted);
                    daemon.send(&ToDaemon::Serve, Vec::new());
                }
            }
            Action::HandOver(id) => {
                let successor = self.successor_of(id);
                self.send(id, &ToDaemon::HandOver, successor);
            }
            Action::NotReplaced(id, why) => {
                self.send(id, &ToDaemon::NotReplaced { why: clip(why) }, Vec::new());
            }
            Action::Term(id) => {
                self.notify.stopping();
                self.signal(id, Signal::TERM);
            }
            Action::Kill(id) => self.signal(id, Signal::KILL),
            Action::Restore { from, to } => {
                let restored = fs::rename(&from, &to).is_ok() || !from.exists();
                return Some(Event::Restored(restored));
            }
            Action::First => {
                failure_report::remove(&self.config.run_dir);
                self.notify.ready();
                if let Some(ready) = self.ready.take() {
                    ready();
                }
            }
            // A full disk must not end the holder.
            Action::Report(why) => drop(failure_report::write(&self.config.run_dir, &why)),
            Action::ClearReport => failure_report::remove(&self.config.run_dir),
            Action::Reexec(exe) => self.reexec(&exe),
            Action::Release => {
                self.notify.stopping();
                self.listeners.release_all();
            }
            Action::End(outcome) => {
                self.notify.stopping();
                self.listeners.release_all();
                self.stored = None;
                self.passed_on.clear();
                self.outcome = Some(outcome);
            }
        }
        None
    }

    fn start(&mut self, start: Start) -> Option<Event> {
        let Config { args, foreground, .. } = &self.config;
        let spawned = match process::spawn(&start.exe, args, *foreground) {
            Ok(spawned) => spawned,
            Err(error) => return Some(Event::Gone(start.id, not_started(&error, &start.exe))),
        };
        let mut daemon = Daemon::new(start.id, spawned);
        // A standby gets them when it is to serve.
        let interrupted = if start.standby { Vec::new() } else { self.to_take_over() };
        let watchdog = self.notify.watchdog().unwrap_or_default();
        let welcome = ToDaemon::Welcome {
            version: VERSION,
            holder_pid: std::process::id(),
            standby: start.standby,
            replacement_failed: start.replacement_failed.map(clip),
            last_output: start.last_output.map(clip),
            watchdog_micros: u64::try_from(watchdog.as_micros()).unwrap_or(u64::MAX),
            listeners: length(self.listeners.held().len()),
            interrupted: length(interrupted.len()),
        };
        daemon.send(&welcome, vec![Rc::clone(&self.instance_lock)]);
        for list in message::lists(self.listeners.held()) {
            let (listen_addrs, listeners) = list.iter().cloned().unzip();
            daemon.send(&ToDaemon::Listeners { listen_addrs }, listeners);
        }
        send_interrupted(&mut daemon, &interrupted);
        self.daemons.push(daemon);
        None
    }

    fn send(&mut self, id: Id, message: &ToDaemon, descriptors: Vec<Rc<OwnedFd>>) {
        if let Some(daemon) = self.daemon(id) {
            daemon.send(message, descriptors);
        }
    }

    /// Executes the program that the daemon runs, unless it is the holder's already. If that fails, the daemon
    /// is notified and the holder continues. A pending signal makes it fail and is handled next.
    fn reexec(&mut self, exe: &Path) {
        let [daemon] = self.daemons.as_slice() else { return };
        if let Err(error) = self.try_reexec(daemon, exe) {
            let why = clip(error.to_string());
            self.daemons[0].send(&ToDaemon::ReexecFailed { why }, Vec::new());
        }
    }

    fn try_reexec(&self, daemon: &Daemon, exe: &Path) -> io::Result<()> {
        let pid = daemon.process.pid().ok_or(io::ErrorKind::NotFound)?;
        let command = (self.config.reexec)(&self.config, exe, pid)?;
        if reexec::runs("self", Path::new(command.get_program()))? {
            return Ok(());
        }
        if daemon.has_unsent() {
            return Err(io::Error::other("the daemon does not read its messages"));
        }
        let state = HandoverState {
            lock: self.instance_lock.as_fd(),
            holder_lock: self.holder_lock.as_fd(),
            listeners: &self.listeners,
            daemon,
        };
        match reexec::reexec(command, &state, &self.signals)? {}
    }

    /// The process of the daemon's successor; none if we are out of descriptors.
    fn successor_of(&mut self, id: Id) -> Vec<Rc<OwnedFd>> {
        let next = self.plan.successor_of(id).and_then(|next| self.daemon(next));
        let process = next.and_then(|next| next.process.as_fd().try_clone_to_owned().ok());
        process.map(Rc::new).into_iter().collect()
    }

    fn signal(&mut self, id: Id, signal: Signal) {
        if let Some(daemon) = self.daemon(id) {
            daemon.process.signal(signal);
        }
    }

    fn daemon(&mut self, id: Id) -> Option<&mut Daemon> {
        self.daemons.iter_mut().find(|daemon| daemon.id == id)
    }
}

/// Identifies a socket.
fn inode(socket: &OwnedFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|stat| stat.st_ino)
}

fn send_interrupted(daemon: &mut Daemon, interrupted: &[(Unfinished, Rc<OwnedFd>)]) {
    for list in message::lists(interrupted) {
        let (states, sockets) = list.iter().cloned().unzip();
        daemon.send(&ToDaemon::Interrupted { connections: states }, sockets);
    }
}

fn clip(mut text: String) -> String {
    let whole = (0..=MAX_TEXT.min(text.len())).rfind(|at| text.is_char_boundary(*at));
    text.truncate(whole.expect("the start is a boundary"));
    text
}

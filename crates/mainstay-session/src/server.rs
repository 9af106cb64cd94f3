//! The state of one server, and what its settings and its availability decide.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_mcp::frame::{self, Kind, Method, Parsed};
use mainstay_mcp::upstream::Identity;

use crate::action::{Action, Decision, Report, RunOwner};
use crate::availability::{Availability, Run};
use crate::call_timeout::CallTimeouts;
use crate::calls::Call;
use crate::http::Operation;
use crate::late_results::{AbandonedCall, Fingerprints};
use crate::level::Level;
use crate::links::{Link, LinkKey};
use crate::list_copies::Copies;
use crate::record::StateStore;
use crate::recover::RecoveredRequest;
use crate::residency;
use crate::session::{Life, Session, SessionKey};
use crate::session_clock::SessionClock;
use crate::session_id::SessionIds;
use crate::stdio::Stdio;
use crate::stream::Stream;
use crate::table::Table;
use crate::timers::{Timer, Timers};

/// The decisions of the user about the sessions of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a request may wait for the next run.
    pub hold: Duration,
    /// Tools that may be executed twice.
    pub replay: BTreeSet<String>,
    /// Whether results carry no note about restarts.
    pub quiet_restart: bool,
    /// Whether every session has a run of its own.
    pub isolate: bool,
    /// How long such a run is kept after the last message of its client.
    pub isolate_idle: Duration,
    pub call_timeouts: CallTimeouts,
    /// Whether calls go on that a client has given up by its own timeout, and their results are kept.
    pub late_results: bool,
    /// For how long a repeated call waits for the one that goes on, from the arrival of that.
    pub block_limit: Option<Duration>,
}

/// What a server is made with.
#[derive(Clone)]
pub struct Config {
    pub name: Arc<str>,
    pub settings: Settings,
    pub store: Arc<dyn StateStore>,
    /// The identity toward servers.
    pub identity: Identity,
    pub clock: SessionClock,
    pub ids: SessionIds,
}

/// The state machine of one server, which the documentation of the crate describes.
pub struct Server {
    pub(crate) name: Arc<str>,
    pub(crate) settings: Settings,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) identity: Identity,
    pub(crate) clock: SessionClock,
    pub(crate) ids: SessionIds,
    pub(crate) availability: Availability,
    pub(crate) sessions: Table<Session>,
    /// The sessions that clients can use.
    pub(crate) by_id: HashMap<Arc<str>, SessionKey>,
    pub(crate) calls: Table<Box<Call>>,
    pub(crate) streams: Table<Stream>,
    pub(crate) links: Table<Link>,
    pub(crate) operations: Table<Operation>,
    pub(crate) copies: Copies,
    /// Active sessions, and some that have become inactive.
    pub(crate) active: Vec<SessionKey>,
    /// Ended sessions whose own runs are kept for a while: when they ended, and the generation of the run.
    pub(crate) retained_runs: HashMap<Arc<str>, (Duration, u64)>,
    /// Sessions that are being loaded from disk, and whether they have ended meanwhile.
    pub(crate) loading: HashMap<String, residency::Loading>,
    pub(crate) move_to_disk_at: usize,
    /// Calls whose clients have stopped waiting, oldest first.
    pub(crate) abandoned: Vec<AbandonedCall>,
    pub(crate) fingerprints: Fingerprints,
    /// The number of requests that are held.
    pub(crate) held: usize,
    /// The number of unanswered requests, and the bytes of the large ones.
    pub(crate) open: usize,
    pub(crate) open_bytes: usize,
    /// The bytes of large finished streams.
    pub(crate) kept_bytes: usize,
    /// The newest run that was reported as up.
    pub(crate) last_run: Option<(u64, LinkKey)>,
    /// The oldest run that can be as the user wants the server now.
    pub(crate) first_run_as_set: u64,
    /// Whether the last run was a stdio server.
    pub(crate) is_stdio: bool,
    /// The requests that an earlier daemon sent to stdio runs, until these are attached.
    pub(crate) recovered: Vec<RecoveredRequest>,
    /// The run that may execute requests that an earlier daemon did not record.
    unrecorded_at: Option<u64>,
    /// The sessions that an earlier daemon had: how many, and the last one.
    pub(crate) restored: (usize, Option<SessionKey>),
    /// Whether another daemon has taken over.
    pub(crate) is_frozen: bool,
    pub(crate) timers: Timers,
    actions: VecDeque<Action>,
}

impl Server {
    /// A server without sessions. `copy` is what an earlier daemon stored of its lists.
    pub fn new(config: Config, copy: Option<&[u8]>) -> Self {
        let Config { name, settings, store, identity, clock, ids } = config;
        Self {
            name,
            settings,
            store,
            identity,
            clock,
            ids,
            availability: Availability::unknown(),
            sessions: Table::default(),
            by_id: HashMap::new(),
            calls: Table::default(),
            streams: Table::default(),
            links: Table::default(),
            operations: Table::default(),
            copies: Copies::restored(copy),
            active: Vec::new(),
            retained_runs: HashMap::new(),
            loading: HashMap::new(),
            move_to_disk_at: residency::MOVE_TO_DISK_AT,
            abandoned: Vec::new(),
            fingerprints: Fingerprints::default(),
            held: 0,
            open: 0,
            open_bytes: 0,
            kept_bytes: 0,
            last_run: None,
            first_run_as_set: 0,
            is_stdio: false,
            recovered: Vec::new(),
            unrecorded_at: None,
            restored: (0, None),
            is_frozen: false,
            timers: Timers::default(),
            actions: VecDeque::new(),
        }
    }

    /// The daemon before this one was killed: it may have sent requests to this run without recording them, so messages of
    /// the run cannot be attributed to the requests that are known.
    pub fn expect_unrecorded_requests(&mut self, generation: u64) {
        self.unrecorded_at = Some(generation);
    }

    pub(crate) fn may_have_unrecorded_requests(&self, generation: u64) -> bool {
        self.unrecorded_at == Some(generation)
    }

    /// The only session whose requests an earlier daemon may have sent without recording them.
    pub(crate) fn only_restored_session(&self) -> Option<SessionKey> {
        let (count, last) = self.restored;
        last.filter(|_| count == 1)
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The next thing to do, if any.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Server::handle_timers`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub fn handle_timers(&mut self, now: Instant) {
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Call(call) => self.call_due(now, call),
                Timer::ListPatience(call) => self.list_overdue(now, call),
                Timer::CallTimeout(call) => self.call_timed_out(now, call),
                Timer::Progress(call) => self.progress_due(now, call),
                Timer::Stream(stream) => self.stream_due(now, stream),
                Timer::Session(session) => self.session_due(now, session),
                Timer::Listener(session) => self.update_listener(now, session),
                Timer::Doubt(link) => self.doubt_requests(now, link),
                Timer::Confirm(link) => self.confirm_lines(now, link),
                Timer::Lists => self.lists_due(now),
                Timer::RetainedRuns => self.end_unneeded_runs(now),
            }
        }
    }

    /// The number of sessions in memory. Those of clients that have been absent for long may be on disk.
    pub fn session_count(&self) -> usize {
        self.by_id.len()
    }

    /// Finds a session in memory.
    pub fn session(&self, id: &str) -> Option<SessionKey> {
        self.by_id.get(id).copied()
    }

    /// The supervisor reports whether the server can be used.
    pub fn set_availability(&mut self, now: Instant, availability: Availability) {
        if self.is_frozen {
            return;
        }
        let run = availability.run().cloned();
        let is_removed = matches!(availability, Availability::Removed);
        let before = std::mem::replace(&mut self.availability, availability);
        if let Some(run) = run {
            let before = self.last_run.replace((run.generation, run.link));
            if before.is_none_or(|(_, link)| link != run.link) {
                self.begin_run(now, &run, before.map_or(0, |(generation, _)| generation));
            }
        }
        self.availability_changed(now, None);
        if let Some(run) = before.run() {
            self.drop_unneeded_link(run.link);
        }
        if is_removed {
            self.remove_server(now);
        }
    }

    /// There is a new run, or one that could not be reached for a while.
    fn begin_run(&mut self, now: Instant, run: &Arc<Run>, before: u64) {
        self.copies.set_hello(&run.hello);
        // Before the first run there are only sessions that an earlier daemon had.
        if before != run.generation {
            for session in self.sessions.keys() {
                self.announce_missed_changes(now, session, run);
            }
        }
        self.read_lists_of_new_run(now, run.link);
    }

    /// There is a new run, or a new daemon. What changed of the resources in between is not known, unless the run is
    /// known and no message of it was missed.
    fn announce_missed_changes(&mut self, now: Instant, key: SessionKey, run: &Run) {
        let Some(session) = self.sessions.get(key).filter(|session| !session.is_over()) else {
            return;
        };
        if session.client.subscriptions.is_empty() {
            return;
        }
        let Some(link) = self.links.get(run.link) else { return };
        match link.as_stdio() {
            Some(stdio) if stdio.misses_nothing && session.known_run == run.generation => return,
            // Its session with the server is opened by the next request; clients that are present need it now.
            None if !self.is_active(now, session) => return,
            None if !session.upstream.is_open_with(run.generation) => {
                return self.open_upstream_in_background(now, key, run.link);
            }
            Some(_) | None => {}
        }
        self.announce_resources(key);
    }

    /// Announces to a client that its resources may have changed.
    pub(crate) fn announce_resources(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let (general, uris) = (session.general, session.client.subscriptions.clone());
        for uri in &uris {
            self.push(general, frame::resource_updated(uri));
        }
    }

    fn remove_server(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.by_id).into_values() {
            self.retire(now, key);
        }
        self.store.remove_server(&self.name);
    }

    /// The server was removed. What is open is still answered; nothing else is sent.
    pub(crate) fn retire(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.life = Life::Over;
        let general = session.general;
        self.forget_results(key);
        self.forget_journal(key);
        self.close_stream(now, general);
        self.close_upstream(now, key);
        self.drop_ended_session(key);
    }

    /// Removes a session that has ended once none of its requests is open.
    pub(crate) fn drop_ended_session(&mut self, key: SessionKey) {
        let is_done = |session: &Session| session.life == Life::Over && session.open.is_empty();
        if self.sessions.get(key).is_some_and(is_done)
            && let Some(session) = self.sessions.remove(key)
        {
            self.drop_own_run(session.own_run.as_deref());
            self.remove_stream(session.general);
        }
    }

    /// The availability of the run that serves a session.
    pub(crate) fn availability_for<'a>(&'a self, session: &'a Session) -> &'a Availability {
        static UNKNOWN: std::sync::LazyLock<Availability> =
            std::sync::LazyLock::new(Availability::unknown);
        match &session.own_run {
            _ if self.is_removed() => &self.availability,
            Some(own) => own,
            // It must not use the shared run.
            None if self.lacks_own_run(session) => &UNKNOWN,
            None => &self.availability,
        }
    }

    /// Whether the server was removed, and with it the runs of its sessions.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self.availability, Availability::Removed)
    }

    pub(crate) fn run_for(&self, key: SessionKey) -> Option<Arc<Run>> {
        self.availability_for(self.sessions.get(key)?).run().cloned()
    }

    /// Whether the session needs a run of its own and has none.
    pub(crate) fn lacks_own_run(&self, session: &Session) -> bool {
        self.settings.isolate && !session.has_own_run() && !session.is_local
    }

    /// Whether all sessions share one run, also while there is none.
    pub(crate) fn is_shared(&self) -> bool {
        !self.settings.isolate && self.is_stdio
    }

    /// Whether a session has its run for itself.
    pub(crate) fn is_alone(&mut self, now: Instant, key: SessionKey) -> bool {
        !self.is_shared() || self.only_session(now) == Some(key)
    }

    /// The lowest level that any other session of a shared server wants.
    pub(crate) fn lowest_level_of_others(&self, than: SessionKey) -> Option<Level> {
        let others = self.sessions.iter().filter(|(key, _)| *key != than);
        let levels = others.filter_map(|(_, session)| session.client.level);
        self.is_shared().then(|| levels.min())?
    }

    pub(crate) fn do_others_subscribe(&self, than: SessionKey, uri: &str) -> bool {
        let mut others = self.sessions.iter().filter(|(key, _)| *key != than);
        self.is_shared() && others.any(|(_, session)| session.client.subscriptions.contains(uri))
    }

    /// Takes a notification or an answer of the client.
    pub fn post(&mut self, now: Instant, key: SessionKey, message: &Parsed) {
        self.touch(now, key);
        let Some(session) = self.sessions.get(key) else { return };
        match message.kind() {
            Kind::Result | Kind::Error => self.server_request_answered(now, key, message),
            Kind::Request => {}
            Kind::Notification => match message.method() {
                Some(Method::Cancelled) => self.cancel(now, key, message),
                _ if session.version.is_none() => {}
                Some(Method::Initialized) => self.mark_used(now, key),
                // Roots are never merged: a server that others use too would take them for theirs.
                Some(Method::RootsChanged) if !self.is_alone(now, key) => {}
                _ => {
                    if let Some(run) = self.run_for(key) {
                        self.send_to_run(key, run.link, message.text().clone());
                    }
                }
            },
        }
    }

    /// Ends a session for its client. Its own run is kept for a minute. False if there is none of that id.
    pub fn close(&mut self, now: Instant, id: &str) -> bool {
        let Some(key) = self.session(id) else { return false };
        // It continues in another daemon.
        if !self.is_frozen {
            self.end_session(now, key);
            self.retain_run(now, id, key);
            self.drop_ended_session(key);
        }
        true
    }

    /// Ends a session. The caller decides about its own run, then calls [`Server::drop_ended_session`].
    pub(crate) fn end_session(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.life = Life::Ending;
        let (id, general, is_local) = (Arc::clone(&session.id), session.general, session.is_local);
        let open = session.open.clone();
        self.by_id.remove(&id);
        if let Some(loading) = self.loading.get_mut(&*id) {
            loading.has_ended = true;
        }
        for call in open {
            if let Some(stream) = self.calls.get(call).map(|call| call.stream) {
                self.close_stream(now, stream);
            }
        }
        self.close_resumable_streams(now, key);
        self.close_stream(now, general);
        self.close_upstream(now, key);
        if !self.is_frozen && !is_local {
            self.store.remove(&id);
            self.remember_end(now, &id);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.life = Life::Over;
        }
    }

    /// Counts of what is held, for tests that look for leaks. Zeros are left out.
    #[doc(hidden)]
    pub fn usage(&self) -> Vec<(&'static str, usize)> {
        let at_stdio = self.links.values().filter_map(Link::as_stdio).map(Stdio::load).sum();
        let all = [
            ("sessions", self.sessions.len()),
            ("calls", self.calls.len()),
            ("streams", self.streams.len()),
            ("links", self.links.len()),
            ("operations", self.operations.len()),
            ("at stdio", at_stdio),
            ("held", self.held),
            ("open", self.open),
            ("open bytes", self.open_bytes),
            ("kept bytes", self.kept_bytes),
            ("retained runs", self.retained_runs.len()),
            ("loading", self.loading.len()),
            ("recovered", self.recovered.len()),
            ("abandoned", self.abandoned.len()),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn record_decision(
        &mut self,
        call: &Call,
        cause: &'static str,
        what: &str,
        run: Option<u64>,
    ) {
        let method = call.message.method().map_or("", Method::as_str);
        let name = call.message.name().map(|name| format!(" {name}")).unwrap_or_default();
        let whose = match self.sessions.get(call.session).filter(|session| !session.is_local) {
            Some(session) => format!("session {}", crate::session::short_id(&session.id)),
            None => "a command".to_owned(),
        };
        let detail = format!("{method}{name} of {whose}: {what}");
        self.report(Report::Decision(Decision {
            server: self.name.to_string(),
            run,
            cause,
            detail,
        }));
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.act(Action::Report(report));
    }

    pub(crate) fn report_demand(&mut self, session: SessionKey) {
        let owner = self.run_owner(session);
        self.report(Report::Demand(owner));
    }

    /// The owner of the run that serves a session.
    pub(crate) fn run_owner(&self, session: SessionKey) -> RunOwner {
        let session = self.sessions.get(session).filter(|session| session.has_own_run())?;
        Some(Arc::clone(&session.id))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).finish_non_exhaustive()
    }
}

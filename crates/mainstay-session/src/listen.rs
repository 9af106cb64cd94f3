//! Listening to HTTP servers for messages outside of requests, while the client listens, and a grace period longer in
//! case it reconnects.

use std::time::{Duration, Instant};

use crate::action::HttpOutcome;
use crate::http::OperationKey;
use crate::links::LinkKey;
use crate::presence::GRACE;
use crate::server::Server;
use crate::session::SessionKey;
use crate::timers::Timer;

/// How long to wait before a stream is requested again, unless the server sets another time.
const PAUSE: Duration = Duration::from_millis(500);

/// The longest time that a server may set.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How often in a row a stream is requested while another daemon, which is being replaced, still reads it.
const MAX_CONFLICTS: u32 = 20;

#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// Whether the client has asked to listen.
    is_requested: bool,
    state: State,
    conflicts: u32,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Off,
    /// There is no run, or its session is not open yet.
    Waiting,
    Listening(LinkKey, OperationKey),
    Pausing(LinkKey, Instant),
    /// The server of this link offers no stream.
    Refused(LinkKey),
}

impl Listener {
    pub(crate) fn is_on(&self) -> bool {
        !matches!(self.state, State::Off)
    }

    pub(crate) fn request(&mut self) {
        self.is_requested = true;
    }

    /// Stops listening. Returns the operation that has to be cancelled.
    pub(crate) fn stop(&mut self) -> Option<OperationKey> {
        match std::mem::take(&mut self.state) {
            State::Listening(_, operation) => Some(operation),
            State::Off | State::Waiting | State::Pausing(..) | State::Refused(_) => None,
        }
    }
}

impl Server {
    /// Starts or stops listening, by what is true now.
    pub(crate) fn update_listener(&mut self, now: Instant, key: SessionKey) {
        if self.is_frozen {
            return;
        }
        let Some(session) = self.sessions.get(key) else { return };
        let general = self.streams.get(session.general);
        let is_wanted = general.is_some_and(|general| {
            let is_recent = general.left.is_some_and(|left| now < left + GRACE);
            let is_on = session.upstream.listener.is_on();
            !general.is_closed && (general.has_reader || (is_on && is_recent))
        });
        let is_wanted = is_wanted && session.upstream.listener.is_requested;
        let run = self.run_for(key);
        let link = run.as_ref().map(|run| run.link);
        let is_stdio = |link| self.links.get(link).is_some_and(|link| link.as_stdio().is_some());
        if !is_wanted || session.is_over() || link.is_some_and(is_stdio) {
            return self.stop_listening(key);
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let listener = &mut session.upstream.listener;
        let Some(run) = run else {
            let stopped = listener.stop();
            listener.state = State::Waiting;
            if let Some(operation) = stopped {
                self.cancel_operation(operation);
            }
            return;
        };
        match listener.state {
            State::Listening(link, _) | State::Refused(link) if link == run.link => return,
            State::Pausing(link, until) if link == run.link && now < until => return,
            State::Listening(_, operation) => {
                listener.state = State::Waiting;
                self.cancel_operation(operation);
            }
            State::Off | State::Waiting | State::Pausing(..) | State::Refused(_) => {
                listener.state = State::Waiting;
            }
        }
        let Some(session) = self.sessions.get(key) else { return };
        if session.version.is_none() || session.upstream.is_opening() {
            return;
        }
        if !session.upstream.is_open_with(run.generation) {
            return self.open_upstream_in_background(now, key, run.link);
        }
        if let Some(operation) = self.begin_listening(key, run.link)
            && let Some(session) = self.sessions.get_mut(key)
        {
            session.upstream.listener.state = State::Listening(run.link, operation);
        }
    }

    /// Listens over a new connection from now on, if this session listens to that link.
    pub(crate) fn renew_listener(&mut self, now: Instant, key: SessionKey, link: LinkKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let listener = &mut session.upstream.listener;
        if let State::Listening(at, operation) = listener.state
            && at == link
        {
            listener.state = State::Waiting;
            self.cancel_operation(operation);
            self.update_listener(now, key);
        }
    }

    fn stop_listening(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let stopped = session.upstream.listener.stop();
        if let Some(operation) = stopped {
            self.cancel_operation(operation);
        }
    }

    /// The session with the server could not be opened.
    pub(crate) fn listener_failed(&mut self, now: Instant, key: SessionKey) {
        let run = self.run_for(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        if let (State::Waiting, Some(run)) = (&session.upstream.listener.state, run) {
            self.pause_listener(now, key, run.link, PAUSE);
        }
    }

    fn pause_listener(&mut self, now: Instant, key: SessionKey, link: LinkKey, pause: Duration) {
        let until = now + pause.min(LONGEST_PAUSE);
        if let Some(session) = self.sessions.get_mut(key) {
            session.upstream.listener.state = State::Pausing(link, until);
            self.timers.set(until, Timer::Listener(key));
        }
    }

    /// A listener's stream has ended, or was refused.
    pub(crate) fn listen_done(
        &mut self,
        now: Instant,
        key: SessionKey,
        generation: u64,
        outcome: &HttpOutcome,
    ) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let State::Listening(link, _) = session.upstream.listener.state else { return };
        let upstream = &mut session.upstream;
        let had_event = upstream.last_event.as_ref().is_some_and(|(run, _)| *run == generation);
        let (status, is_lost) = match *outcome {
            HttpOutcome::ListenEnded { retry } => {
                upstream.listener.conflicts = 0;
                return self.pause_listener(now, key, link, retry.unwrap_or(PAUSE));
            }
            HttpOutcome::ListenRefused { status, is_session_lost } => (status, is_session_lost),
            _ => return self.pause_listener(now, key, link, PAUSE),
        };
        if is_lost {
            self.forget_upstream(Some(key), generation);
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let listener = &mut session.upstream.listener;
        if status == 409 && listener.conflicts < MAX_CONFLICTS {
            listener.conflicts += 1;
            return self.pause_listener(now, key, link, PAUSE);
        }
        if status >= 500 && had_event {
            // The event may be known: a gateway may not reach the server for a while.
            return self.pause_listener(now, key, link, PAUSE);
        }
        // What cannot be resumed can still be started.
        session.upstream.last_event = None;
        if is_lost || had_event {
            self.pause_listener(now, key, link, PAUSE);
        } else {
            session.upstream.listener.state = State::Refused(link);
        }
    }
}

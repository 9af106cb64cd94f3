//! The connections to runs.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mainstay_mcp::frame;
use mainstay_mcp::upstream::{self, Hello, UpstreamError};
use serde_json::value::RawValue;

use crate::action::Action;
use crate::availability::{Availability, Reason, Run};
use crate::http::{Http, UpstreamSession};
use crate::server::Server;
use crate::session::{ClientState, SessionKey};
use crate::silence::WatchState;
use crate::stdio::Stdio;
use crate::table::Key;

/// A connection to a run of a server.
pub type LinkKey = Key<Link>;

/// What is known of a run before it is ready.
#[derive(Debug)]
pub struct RunInfo {
    pub generation: u64,
    /// How the run before it ended.
    pub after: Option<Arc<Reason>>,
    /// What it answered to `initialize`, if an earlier daemon has asked it already.
    pub known: Option<Hello>,
    /// A number that no other connection to the run had, so that late answers to requests over another one, of this
    /// daemon or an earlier one, are recognised.
    pub epoch: u32,
    /// The session that the run belongs to, if it is one's own.
    pub session: Option<String>,
}

/// The numbers of so many connections to one run, one after the other, differ.
const CONNECTIONS: u64 = 16;

/// A number for a connection to a run that no other one had, of this daemon or an earlier one: for [`RunInfo::epoch`].
pub fn epoch(daemon: u64, attempt: u64) -> u32 {
    let number = daemon.wrapping_mul(CONNECTIONS) | (attempt % CONNECTIONS);
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// What a connection leads to.
#[derive(Debug)]
pub enum LinkTarget {
    Stdio {
        /// How many lines have been written to the server since its start.
        written: u64,
        /// What the server may have written while no daemon was connected; an earlier daemon may have received some of
        /// it. None if all that was not received follows.
        earlier_output: Option<Vec<Bytes>>,
    },
    /// A streamable HTTP server that is starting: `initialize` is retried until it answers.
    Http,
    /// A streamable HTTP server that runs elsewhere: `initialize` is sent once.
    Remote,
}

#[derive(Debug)]
pub struct Link {
    pub(crate) generation: u64,
    pub(crate) after: Option<Arc<Reason>>,
    pub(crate) scope: RunScope,
    pub(crate) kind: LinkKind,
    /// Whether the supervisor has released it.
    pub(crate) is_released: bool,
}

/// Whose messages a run gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunScope {
    /// All sessions share the run.
    Shared,
    Session(SessionKey),
    /// The session has ended meanwhile, and its run is about to.
    EndedSession,
}

#[derive(Debug)]
pub(crate) enum LinkKind {
    Stdio(Box<Stdio>),
    Http(Box<Http>),
}

impl Link {
    pub(crate) fn as_stdio(&self) -> Option<&Stdio> {
        match &self.kind {
            LinkKind::Stdio(stdio) => Some(stdio),
            LinkKind::Http(_) => None,
        }
    }

    pub(crate) fn as_stdio_mut(&mut self) -> Option<&mut Stdio> {
        match &mut self.kind {
            LinkKind::Stdio(stdio) => Some(stdio),
            LinkKind::Http(_) => None,
        }
    }

    pub(crate) fn as_http(&self) -> Option<&Http> {
        match &self.kind {
            LinkKind::Http(http) => Some(http),
            LinkKind::Stdio(_) => None,
        }
    }

    pub(crate) fn watch(&self) -> &WatchState {
        match &self.kind {
            LinkKind::Stdio(stdio) => &stdio.watch,
            LinkKind::Http(http) => &http.watch,
        }
    }

    /// What is known about whether the run answers.
    pub(crate) fn watch_mut(&mut self) -> &mut WatchState {
        match &mut self.kind {
            LinkKind::Stdio(stdio) => &mut stdio.watch,
            LinkKind::Http(http) => &mut http.watch,
        }
    }

    pub(crate) fn as_http_mut(&mut self) -> Option<&mut Http> {
        match &mut self.kind {
            LinkKind::Http(http) => Some(http),
            LinkKind::Stdio(_) => None,
        }
    }
}

/// A request of Mainstay itself.
#[derive(Debug)]
pub(crate) struct OwnRequest {
    pub(crate) purpose: OwnPurpose,
    pub(crate) method: &'static str,
    pub(crate) params: Option<Box<RawValue>>,
    /// How often it was sent again because the connection was interrupted or the session was lost.
    pub(crate) repetitions: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnPurpose {
    /// `initialize`, with which the link is attached.
    Attach,
    /// Whether a remote server still knows the session.
    FindSession,
    /// A page of a list for the copies.
    ListPage,
    /// A ping, with which a silent server is probed.
    Ping,
    /// Any other probe. That there is an answer is all that matters.
    Probe,
    /// A client's list, which was answered from the copy. That it has no answer is evidence of a silent server.
    AnsweredList,
    /// The answer does not matter.
    Ignored,
}

impl OwnRequest {
    pub(crate) fn new(
        purpose: OwnPurpose,
        method: &'static str,
        params: Option<Box<RawValue>>,
    ) -> Self {
        Self { purpose, method, params, repetitions: 0 }
    }

    pub(crate) fn is_probe(&self) -> bool {
        matches!(self.purpose, OwnPurpose::Ping | OwnPurpose::Probe)
    }
}

impl Server {
    /// Connects to a run: opens its MCP session, unless that was done before, and restores what the clients agreed
    /// with the runs before it. [`Action::Attached`] reports the result. There is no time limit: the caller sets one,
    /// and calls [`Server::release_link`].
    pub fn attach(&mut self, now: Instant, target: LinkTarget, info: RunInfo) -> LinkKey {
        let RunInfo { generation, after, known, epoch, session } = info;
        let scope = match session.map(|id| self.session(&id)) {
            None => RunScope::Shared,
            Some(Some(session)) => RunScope::Session(session),
            Some(None) => RunScope::EndedSession,
        };
        self.is_stdio = matches!(target, LinkTarget::Stdio { .. });
        let first_id = upstream::first_id(epoch);
        let kind =
            match &target {
                LinkTarget::Stdio { written, earlier_output } => LinkKind::Stdio(Box::new(
                    Stdio::new(now, first_id, *written, earlier_output.is_none()),
                )),
                LinkTarget::Http | LinkTarget::Remote => {
                    // The first few ids are those of the handshake.
                    LinkKind::Http(Box::new(Http::new(now, first_id + 10)))
                }
            };
        let link = self.links.insert(Link { generation, after, scope, kind, is_released: false });
        match target {
            LinkTarget::Stdio { written, earlier_output } => {
                self.await_recovered(link, written);
                for line in earlier_output.into_iter().flatten() {
                    self.receive_earlier(now, link, &line);
                }
                if let Some(hello) = known {
                    self.attached(link, hello);
                } else {
                    let params = self.state_for(scope).params.map(|params| (*params).to_owned());
                    let initialize = OwnRequest::new(OwnPurpose::Attach, "initialize", params);
                    self.ask(now, link, initialize);
                }
            }
            LinkTarget::Http => match known {
                Some(hello) => self.resume_own_session(now, link, hello, false),
                None => {
                    self.open_own_session(link, true);
                }
            },
            LinkTarget::Remote => match known {
                Some(hello) => self.resume_own_session(now, link, hello, true),
                None => {
                    self.open_own_session(link, false);
                }
            },
        }
        link
    }

    /// The supervisor has closed the connection to a run. It is dropped when no availability has the run and, to a
    /// stdio server, after its last line.
    pub fn release_link(&mut self, key: LinkKey) {
        if let Some(link) = self.links.get_mut(key) {
            link.is_released = true;
            self.drop_unneeded_link(key);
        }
    }

    /// The generation of the run behind a link; 0 if the link was dropped.
    pub(crate) fn generation(&self, key: LinkKey) -> u64 {
        self.links.get(key).map_or(0, |link| link.generation)
    }

    pub(crate) fn drop_unneeded_link(&mut self, key: LinkKey) {
        let Some(link) = self.links.get(key).filter(|link| link.is_released) else { return };
        let is_open = link.as_stdio().is_some_and(|stdio| !stdio.is_closed());
        let has_link = |it: &Availability| it.run().is_some_and(|run| run.link == key);
        let is_used = has_link(&self.availability)
            || self.sessions.values().filter_map(|it| it.own_run.as_deref()).any(has_link);
        if !is_open && !is_used {
            self.links.remove(key);
            self.act(Action::DropLink(key));
        }
    }

    /// What a run has to learn, on behalf of its session or of all sessions together.
    pub(crate) fn state_for(&self, scope: RunScope) -> ClientState {
        let own = || ClientState { params: Some(self.own_params()), ..ClientState::default() };
        match scope {
            RunScope::Session(session) => {
                self.sessions.get(session).map_or_else(own, |session| session.client.clone())
            }
            RunScope::EndedSession => own(),
            RunScope::Shared => {
                let mut common = own();
                for session in self.sessions.values().filter(|session| !session.is_over()) {
                    let theirs = &session.client;
                    common.level = common.level.into_iter().chain(theirs.level).min();
                    common.subscriptions.extend(theirs.subscriptions.iter().cloned());
                }
                common
            }
        }
    }

    pub(crate) fn own_params(&self) -> Arc<RawValue> {
        Arc::from(upstream::params(&self.identity))
    }

    /// The MCP session with a run is open.
    pub(crate) fn attached(&mut self, key: LinkKey, hello: Hello) {
        let Some(link) = self.links.get(key) else { return };
        let (generation, after, scope) = (link.generation, link.after.clone(), link.scope);
        if let RunScope::Session(session) = scope {
            // What changed between two runs of its own is not known.
            self.announce_resources(session);
        }
        let run = Run { generation, hello: Arc::new(hello), after, link: key };
        self.act(Action::Attached(key, Ok(Arc::new(run))));
    }

    pub(crate) fn not_attached(&mut self, key: LinkKey, error: UpstreamError) {
        self.act(Action::Attached(key, Err(error)));
    }

    /// Sends a request of Mainstay itself.
    pub(crate) fn ask(&mut self, now: Instant, key: LinkKey, request: OwnRequest) {
        match self.links.get(key).map(|link| link.as_stdio().is_some()) {
            Some(true) => self.ask_stdio(now, key, request),
            Some(false) => self.ask_http(now, key, request),
            None => self.own_lost(now, key, &request, false),
        }
    }

    /// Stops waiting for a page of a list.
    pub(crate) fn cancel_list_request(&mut self, key: LinkKey) {
        let pending = self.links.get(key).and_then(Link::as_stdio).and_then(Stdio::list_request);
        if let Some(id) = pending {
            self.cancel_at_stdio(key, id);
        }
        self.cancel_list_operation(key);
    }

    /// A request of Mainstay itself is answered, or will not be.
    pub(crate) fn own_answered(
        &mut self,
        now: Instant,
        link: LinkKey,
        request: &OwnRequest,
        result: Result<Box<RawValue>, UpstreamError>,
    ) {
        match request.purpose {
            OwnPurpose::Attach => match result.and_then(|result| Hello::read(result, None)) {
                Ok(hello) => self.stdio_initialized(now, link, hello),
                Err(error) => self.not_attached(link, error),
            },
            OwnPurpose::FindSession => self.own_session_found(link, result),
            OwnPurpose::ListPage => self.list_page_read(now, link, result),
            OwnPurpose::Ping => {
                if let Some(link) = self.links.get_mut(link) {
                    link.watch_mut().answered_ping |= is_answer(&result);
                }
            }
            OwnPurpose::Probe | OwnPurpose::AnsweredList | OwnPurpose::Ignored => {}
        }
    }

    /// A request of Mainstay itself was lost with its server.
    pub(crate) fn own_lost(
        &mut self,
        now: Instant,
        link: LinkKey,
        request: &OwnRequest,
        sent: bool,
    ) {
        self.own_answered(now, link, request, Err(closed(request, sent)));
    }

    /// Sends a message without an answer to a run.
    pub(crate) fn send_to_run(&mut self, session: SessionKey, key: LinkKey, message: Bytes) {
        match self.links.get(key).map(|link| link.as_stdio().is_some()) {
            Some(true) => self.notify_stdio(key, frame::in_one_line(message)),
            Some(false) => self.notify_http(session, key, message),
            None => {}
        }
    }

    /// The sessions that may get messages of a run.
    pub(crate) fn sessions_of(&self, key: LinkKey) -> Vec<SessionKey> {
        match self.links.get(key).map(|link| link.scope) {
            Some(RunScope::Shared) => self.sessions.keys(),
            Some(RunScope::Session(session)) => vec![session],
            Some(RunScope::EndedSession) | None => Vec::new(),
        }
    }
}

/// Whether the server has answered, if only with an error.
fn is_answer(result: &Result<Box<RawValue>, UpstreamError>) -> bool {
    !matches!(result, Err(UpstreamError::Closed { .. } | UpstreamError::Connect { .. }))
}

pub(crate) fn closed(request: &OwnRequest, sent: bool) -> UpstreamError {
    UpstreamError::Closed { method: request.method.to_owned(), sent }
}

impl UpstreamSession {
    /// The session that was opened with this answer to `initialize`, maybe by an earlier daemon.
    pub fn known(generation: u64, hello: &Hello) -> Result<Self, UpstreamError> {
        Self::resume(crate::record::UpstreamRecord {
            run: generation,
            id: hello.http_session.clone(),
            version: hello.protocol_version.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_all_daemons_differ() {
        assert_eq!([epoch(1, 0), epoch(1, 15), epoch(1, 16), epoch(2, 0)], [16, 31, 16, 32]);
        assert_eq!(epoch(u64::MAX, 3), u32::MAX - 12);
    }
}

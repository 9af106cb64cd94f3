//! A run that does not answer: evidence, probes, and requests that wait until it reads again.
//!
//! Nothing is decided here: the [`watchdog`](mainstay_core::watchdog) of the run's supervisor does that. While requests
//! are held they are not sent to the run, so none of them is lost with it.

mod given_up;
mod http;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use mainstay_core::watchdog::{
    Evidence, Input, OpenRequest, Probe, Processes, ReadPosition, UnawaitedRequest,
};
use mainstay_mcp::frame::Method;

use crate::action::{Action, Report};
use crate::calls::{Call, CallKey, CallKind, Stage};
use crate::http::{Operation, Purpose};
use crate::links::{Link, LinkKey, OwnPurpose, OwnRequest, RunScope};
use crate::server::Server;
use crate::stdio::{Pending, Stdio, Target};

pub(crate) use self::given_up::GivenUp;
pub use self::http::{SentRequest, UnreadRequests};

/// What can be seen of a run from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkObservation {
    /// Of a stdio run: how far it has read its input.
    pub input: Option<ReadPosition>,
    /// Of a run that speaks HTTP: the requests that it has not read.
    pub requests: Option<UnreadRequests>,
    pub processes: Option<Processes>,
}

/// The state of a run that may not answer.
#[derive(Debug)]
pub(crate) struct WatchState {
    /// Requests of an earlier daemon count from then on.
    attached: Instant,
    /// Whether requests wait because the run does not read.
    pub(crate) is_held: bool,
    /// Whether a slow request was reported.
    is_watched: bool,
    /// When the run last sent anything.
    last_message: Option<Instant>,
    /// When it last answered a request.
    last_answer: Option<Instant>,
    /// Whether it has answered the last ping.
    pub(crate) answered_ping: bool,
    /// Requests without an answer that their clients have given up, and that it has not read, as far as is known.
    given_up: Vec<GivenUp>,
    /// The request that it had read and that a client has last given up.
    unawaited: Option<UnawaitedRequest>,
    unread: UnreadInput,
    /// When its input was last observed.
    observed: Option<Instant>,
    /// Since when clients have given up requests over HTTP, while the run has sent nothing.
    unanswered_since: Option<Instant>,
}

/// Input of a stdio run that it has not read. Besides requests these may be notifications, and what an earlier daemon has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnreadInput {
    None,
    /// An earlier daemon may have sent something. The run was not observed since.
    Unknown,
    /// Something behind the last line that it has read was seen to be unread since then.
    Since(Instant, u64),
}

impl UnreadInput {
    fn since(self) -> Option<Instant> {
        match self {
            Self::Since(since, _) => Some(since),
            Self::None | Self::Unknown => None,
        }
    }
}

impl WatchState {
    pub(crate) fn new(now: Instant, is_inherited: bool) -> Self {
        Self {
            attached: now,
            is_held: false,
            is_watched: false,
            last_message: None,
            last_answer: None,
            answered_ping: false,
            given_up: Vec::new(),
            unawaited: None,
            unread: if is_inherited { UnreadInput::Unknown } else { UnreadInput::None },
            observed: None,
            unanswered_since: None,
        }
    }

    fn note_unread(&mut self, now: Instant, observed: &LinkObservation) {
        self.unread = match (observed.input, self.unread) {
            (None, before) => before,
            (Some(ReadPosition { unread: 0, .. }), _) => UnreadInput::None,
            (Some(ReadPosition { line, .. }), UnreadInput::Since(since, before))
                if before == line =>
            {
                UnreadInput::Since(since, line)
            }
            (Some(ReadPosition { line, .. }), _) => UnreadInput::Since(now, line),
        };
    }

    /// The last line of its input that it has read, while more is unread.
    pub(crate) fn read_through(&self) -> Option<u64> {
        match self.unread {
            UnreadInput::Since(_, line) => Some(line),
            UnreadInput::None | UnreadInput::Unknown => None,
        }
    }

    pub(crate) fn is_silent_since(&self, since: Instant) -> bool {
        self.last_message < Some(since)
    }
}

impl Server {
    /// Whether an answer of a run is awaited, or it may not have read a request. Otherwise nothing about it is of interest.
    pub fn is_waiting_for(&self, key: LinkKey) -> bool {
        let Some(link) = self.links.get(key) else { return false };
        let is_request = |operation: &Operation| {
            operation.link == key && !matches!(operation.purpose, Purpose::Listen(_))
        };
        let has_requests = match link.as_stdio() {
            Some(stdio) => !stdio.pending.is_empty(),
            None => {
                self.operations.values().any(is_request) || self.relayed_to(key).next().is_some()
            }
        };
        let watch = link.watch();
        let may_be_silent = watch.unanswered_since.is_some() || !watch.given_up.is_empty();
        has_requests || may_be_silent || watch.unread != UnreadInput::None
    }

    /// What is known about a run, to which requests without an answer for `overdue` are overdue. While no request is open,
    /// the next slow one is reported by [`Report::Observe`].
    pub fn take_evidence(
        &mut self,
        now: Instant,
        key: LinkKey,
        observed: &LinkObservation,
        overdue: Duration,
    ) -> Option<Evidence> {
        if let Some(watch) = self.links.get_mut(key).map(Link::watch_mut) {
            let is_observed = observed.input.is_some() || observed.requests.is_some();
            // An observation that has failed says nothing about what was read.
            if is_observed || watch.observed.is_none() {
                watch.forget_read(observed);
            }
            watch.observed = if is_observed { Some(now) } else { watch.observed };
            watch.note_unread(now, observed);
        }
        let evidence = match self.links.get(key)?.as_stdio() {
            Some(stdio) => self.stdio_evidence(now, stdio, observed, overdue),
            None => self.http_evidence(now, key, observed, overdue)?,
        };
        if observed.requests.as_ref().is_some_and(|requests| !requests.is_empty()) {
            self.act(Action::CloseIdleConnections(key));
        }
        if let Some(link) = self.links.get_mut(key) {
            link.watch_mut().is_watched = evidence.oldest.is_some();
        }
        Some(evidence)
    }

    fn stdio_evidence(
        &self,
        now: Instant,
        stdio: &Stdio,
        observed: &LinkObservation,
        overdue: Duration,
    ) -> Evidence {
        let read_through = observed.input.map_or(0, |position| position.line);
        let sent =
            || stdio.pending.values().map(|it| (it, it.sent.unwrap_or(stdio.watch.attached)));
        let is_unread = |pending: &Pending| observed.input.is_some() && pending.line > read_through;
        let calls = || {
            sent().filter_map(|(pending, sent)| match pending.target {
                // Of a call that its client has given up, no answer is expected.
                Target::Call(call) => {
                    self.awaiting_call(call).is_some().then_some((call, pending.line, sent))
                }
                Target::Own(_) => None,
            })
        };
        let oldest = |calls: &mut dyn Iterator<Item = (CallKey, u64, Instant)>| {
            let (call, _, sent) = calls.min_by_key(|(.., sent)| *sent)?;
            Some(OpenRequest { what: self.calls.get(call).map(|call| name_of(call))?, sent })
        };
        // Its client has the copy, so nobody waits for it; but it shows that the run does not answer.
        let answered_list = sent().find_map(|(pending, sent)| match &pending.target {
            Target::Own(request) if request.purpose == OwnPurpose::AnsweredList => {
                Some(OpenRequest { what: request.method.to_owned(), sent })
            }
            Target::Own(_) | Target::Call(_) => None,
        });
        let given_up = || stdio.watch.given_up().map(|it| &it.request);
        let unread = sent().filter(|(pending, _)| is_unread(pending)).map(|(_, sent)| sent);
        let unread = unread.chain(given_up().map(|request| request.sent));
        let unread = unread.chain(stdio.watch.unread.since());
        let input = match (observed.input, unread.min()) {
            (None, _) => Input::Unknown,
            (Some(_), None) => Input::Read,
            (Some(position), Some(since)) => Input::Unread { since, bytes: position.unread },
        };
        let is_read = |(_, line, _): &(CallKey, u64, Instant)| *line <= read_through;
        let others = || answered_list.iter().chain(given_up());
        let times = calls().map(|(.., sent)| sent).chain(others().map(|request| request.sent));
        let all = oldest(&mut calls()).into_iter().chain(others().cloned());
        Evidence {
            oldest: all.min_by_key(|request| request.sent),
            overdue: times.filter(|sent| now >= *sent + overdue).count(),
            being_handled: oldest(&mut calls().filter(is_read))
                .or_else(|| self.handled_for_nobody(stdio, read_through)),
            unawaited: stdio.watch.unawaited.clone(),
            unanswered_since: None,
            last_message: stdio.watch.last_message,
            last_answer: stdio.watch.last_answer,
            answered_ping: stdio.watch.answered_ping,
            input,
            processes: observed.processes,
        }
    }

    /// A request that the run has read and that no client waits for: a list that Mainstay has requested, which the next run would
    /// get as well; or, while no client needs the run for anything else, a call that was given up. The run is left to finish it.
    fn handled_for_nobody(&self, stdio: &Stdio, read_through: u64) -> Option<OpenRequest> {
        let is_needed =
            stdio.queued_calls().chain(stdio.pending_calls()).any(|call| self.needs_run(call));
        let read = stdio.pending.values().filter(|pending| pending.line <= read_through);
        let named = read.filter_map(|pending| {
            let what = match &pending.target {
                Target::Call(_) if is_needed => return None,
                Target::Call(call) => self.calls.get(*call).map(|call| name_of(call))?,
                Target::Own(request) if request.purpose == OwnPurpose::Ping => return None,
                Target::Own(request) => request.method.to_owned(),
            };
            Some(OpenRequest { what, sent: pending.sent.unwrap_or(stdio.watch.attached) })
        });
        named.min_by_key(|request| request.sent)
    }

    /// Whether a client waits for an answer that only the run can give, and that is not of the kind that every new client
    /// requests: lists, and the log level.
    fn needs_run(&self, key: CallKey) -> bool {
        let call = self.calls.get(key).filter(|_| self.awaiting_call(key).is_some());
        call.is_some_and(|call| {
            !matches!(call.kind, CallKind::List(_))
                && call.message.method() != Some(&Method::SetLevel)
        })
    }

    /// Sends a probe to a run, even if requests are held.
    pub fn probe(&mut self, now: Instant, key: LinkKey, probe: Probe) {
        let (purpose, method) = match probe {
            Probe::Ping => (OwnPurpose::Ping, "ping"),
            Probe::List => (OwnPurpose::Probe, "tools/list"),
        };
        let stdio = self.links.get(key).and_then(Link::as_stdio);
        if self.is_frozen || stdio.is_some_and(|stdio| stdio.has_unread_probe(purpose)) {
            return;
        }
        if let Some(link) = self.links.get_mut(key) {
            link.watch_mut().answered_ping &= probe != Probe::Ping;
            let request = OwnRequest::new(purpose, method, None);
            self.cancel_probe(key, &request);
            self.ask(now, key, request);
        }
    }

    /// From now on, requests to a run wait, because it does not answer.
    pub fn hold_requests(&mut self, key: LinkKey) {
        if let Some(link) = self.links.get_mut(key) {
            link.watch_mut().is_held = true;
        }
    }

    /// Whether requests to a run wait because it does not answer.
    pub(crate) fn holds_requests(&self, key: LinkKey) -> bool {
        self.links.get(key).is_some_and(|link| link.watch().is_held)
    }

    /// Sends the requests that wait for a run. Returns whether some of them wait until it reads.
    pub fn send_held_requests(&mut self, now: Instant, key: LinkKey) -> bool {
        self.send_to_http_again(now, key);
        let Some(stdio) = self.stdio(key) else { return false };
        stdio.watch.is_held = false;
        !stdio.is_full && self.link_writable(now, key)
    }

    /// Whether a request is slow when it is sent, because it has waited. Requests of commands are never reported as slow
    /// later.
    pub(crate) fn is_slow(&self, call: &Call) -> bool {
        let has_waited =
            || self.streams.get(call.stream).is_some_and(|it| it.resumable().is_some());
        has_waited() || self.sessions.get(call.session).is_some_and(|session| session.is_local)
    }

    /// A request has no answer after a moment.
    pub(crate) fn watch_slow(&mut self, call: CallKey) {
        let Some(call) = self.calls.get(call) else { return };
        match call.stage {
            Stage::AtStdio { link, .. } | Stage::AtHttp { link, .. } => self.watch(link),
            Stage::OpeningUpstream => {
                if let Some(run) = self.run_for(call.session) {
                    self.watch(run.link);
                }
            }
            Stage::Waiting
            | Stage::Queued(_)
            | Stage::Relayed
            | Stage::Joined(_)
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => {}
        }
    }

    /// Requests an observation of a run, unless it is being observed.
    pub(crate) fn watch(&mut self, link: LinkKey) {
        let Some(watch) = self.links.get_mut(link).map(Link::watch_mut) else { return };
        if !std::mem::replace(&mut watch.is_watched, true) {
            self.report_observe(link);
        }
    }

    /// A run has answered a request.
    pub(crate) fn answer_received(&mut self, now: Instant, link: LinkKey) {
        if let Some(link) = self.links.get_mut(link) {
            link.watch_mut().last_answer = Some(now);
        }
    }

    /// A run has sent something. If requests are held, they may not have to be.
    pub(crate) fn message_received(&mut self, now: Instant, link: LinkKey) {
        let Some(watch) = self.links.get_mut(link).map(Link::watch_mut) else { return };
        (watch.last_message, watch.unanswered_since) = (Some(now), None);
        if watch.is_held {
            self.report_observe(link);
        }
    }

    fn report_observe(&mut self, link: LinkKey) {
        let Some(Link { generation, scope, .. }) = self.links.get(link) else { return };
        let owner = match *scope {
            RunScope::Shared => None,
            RunScope::Session(session) => self.run_owner(session),
            RunScope::EndedSession => return,
        };
        self.report(Report::Observe(owner, *generation));
    }
}

/// The tool that a request calls, or its method.
fn name_of(call: &Call) -> String {
    let name = call.message.name().filter(|_| call.message.method() == Some(&Method::ToolsCall));
    let method = || call.message.method().map_or("", Method::as_str).to_owned();
    name.map_or_else(method, Cow::into_owned)
}

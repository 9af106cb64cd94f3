//! A run that does not answer: evidence, probes, and requests that wait until it reads again.
//!
//! Nothing is decided here: the [`watchdog`](mainstay_core::watchdog) of the run's supervisor does that. While requests
//! are held they are not sent to the run, so none of them is lost with it.

mod given_up;
mod http;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use mainstay_core::watchdog::{Evidence, Input, OpenRequest, Probe, Processes};
use mainstay_mcp::frame::Method;

use crate::action::Report;
use crate::calls::{Call, CallKey, Stage};
use crate::http::{Operation, Purpose};
use crate::links::{Link, LinkKey, OwnPurpose, OwnRequest, RunScope};
use crate::server::Server;
use crate::stdio::{Pending, Stdio, Target};

pub(crate) use self::given_up::GivenUp;
pub use self::http::{SentRequest, UnreadRequests};

/// What can be seen of a run from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkObservation {
    /// Of a stdio run: the last line of its input of which it has read anything, and the number of bytes that it has not read.
    pub input: Option<(u64, u64)>,
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
    /// When a client has last given up a request that it had read.
    unawaited_since: Option<Instant>,
    unread: UnreadInput,
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
            unawaited_since: None,
            unread: if is_inherited { UnreadInput::Unknown } else { UnreadInput::None },
            unanswered_since: None,
        }
    }

    fn note_unread(&mut self, now: Instant, observed: &LinkObservation) {
        self.unread = match (observed.input, self.unread) {
            (None, before) => before,
            (Some((_, 0)), _) => UnreadInput::None,
            (Some((line, _)), UnreadInput::Since(since, before)) if before == line => {
                UnreadInput::Since(since, line)
            }
            (Some((line, _)), _) => UnreadInput::Since(now, line),
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
            watch.forget_read(observed);
            watch.note_unread(now, observed);
        }
        let evidence = match self.links.get(key)?.as_stdio() {
            Some(stdio) => self.stdio_evidence(now, stdio, observed, overdue),
            None => self.http_evidence(now, key, observed, overdue)?,
        };
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
        let read_through = observed.input.map_or(0, |(line, _)| line);
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
            (Some((_, bytes)), Some(since)) => Input::Unread { since, bytes },
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
            unawaited_since: stdio.watch.unawaited_since,
            unanswered_since: None,
            last_message: stdio.watch.last_message,
            last_answer: stdio.watch.last_answer,
            answered_ping: stdio.watch.answered_ping,
            input,
            processes: observed.processes,
        }
    }

    /// A request that the run has read and that no client waits for: a list that Mainstay has requested, which the next run would
    /// get as well; or, while no client waits for anything else, a call that was given up. The run is left to finish it.
    fn handled_for_nobody(&self, stdio: &Stdio, read_through: u64) -> Option<OpenRequest> {
        let is_awaited = |call: &CallKey| self.awaiting_call(*call).is_some();
        let is_needed =
            stdio.queued_calls().chain(stdio.pending_calls()).any(|call| is_awaited(&call));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::tests::TestServer;

    const OVERDUE: Duration = Duration::from_secs(30);

    fn evidence(test: &mut TestServer, read_through: u64) -> Evidence {
        let observed =
            LinkObservation { input: Some((read_through, 0)), ..LinkObservation::default() };
        let link = test.link();
        test.server.take_evidence(test.now, link, &observed, OVERDUE).unwrap()
    }

    fn watched(test: &mut TestServer) -> usize {
        let actions = std::mem::take(&mut test.actions);
        actions
            .iter()
            .filter(|action| matches!(action, Action::Report(Report::Observe(..))))
            .count()
    }

    #[test]
    fn open_requests_are_told_apart_by_what_was_read() {
        let mut test = TestServer::new();
        let session = test.session(1);
        let begun = test.now;
        test.request(session);
        test.now += Duration::from_secs(20);
        test.request(session);
        test.now += Duration::from_secs(20);
        let found = evidence(&mut test, 1);
        let request = |sent| Some(OpenRequest { what: "slow".to_owned(), sent });
        assert_eq!(found.oldest, request(begun));
        assert_eq!((found.overdue, found.being_handled), (1, request(begun)));
        let since = begun + Duration::from_secs(20);
        assert_eq!(found.input, Input::Unread { since, bytes: 0 });
        assert_eq!(evidence(&mut test, 0).being_handled, None);
        assert_eq!(evidence(&mut test, 2).input, Input::Read);
    }

    #[test]
    fn a_slow_request_is_reported_once() {
        let mut test = TestServer::new();
        let session = test.session(1);
        let call = test.request(session);
        assert_eq!(watched(&mut test), 0);
        test.commit(&call);
        let second = test.request(session);
        test.commit(&second);
        assert_eq!(watched(&mut test), 1);
        test.answers(&call);
        test.answers(&second);
        assert_eq!(evidence(&mut test, 2).oldest, None);
        let third = test.request(session);
        test.commit(&third);
        assert_eq!(watched(&mut test), 1);
    }

    #[test]
    fn a_request_that_was_held_is_reported_when_it_is_sent() {
        let mut test = TestServer::new();
        let (session, link) = (test.session(1), test.link());
        test.server.hold_requests(link);
        let call = test.request(session);
        test.commit(&call);
        assert_eq!(watched(&mut test), 0);
        test.server.send_held_requests(test.now, link);
        test.lines();
        assert_eq!(watched(&mut test), 1);
    }

    #[test]
    fn a_cancelled_request_counts_until_it_is_read() {
        let mut test = TestServer::new();
        let session = test.session(1);
        let begun = test.now;
        test.request(session);
        test.now += Duration::from_secs(40);
        test.cancels(session);
        let cancelled = test.now;
        test.now += Duration::from_secs(1);
        let found = evidence(&mut test, 0);
        assert_eq!((found.oldest.unwrap().sent, found.overdue), (begun, 1));
        assert_eq!(found.input, Input::Unread { since: begun, bytes: 0 });
        assert_eq!((found.being_handled, found.unawaited_since), (None, None));
        let found = evidence(&mut test, 1);
        assert_eq!((found.oldest, found.input), (None, Input::Read));
        assert_eq!(found.unawaited_since, Some(cancelled), "it was inside that call");
        assert_eq!(evidence(&mut test, 0).oldest, None, "it was read");
    }

    #[test]
    fn what_is_unread_counts_although_nothing_is_known_about_it() {
        let mut test = TestServer::without_run();
        test.attach_again();
        let link = test.link();
        assert!(test.server.is_waiting_for(link), "an earlier daemon may have sent something");
        let begun = test.now;
        let mut found = |line, bytes| {
            let input = Some((line, bytes));
            let observed = LinkObservation { input, ..LinkObservation::default() };
            test.now += Duration::from_secs(1);
            let input =
                test.server.take_evidence(test.now, link, &observed, OVERDUE).unwrap().input;
            (input, test.server.is_waiting_for(link))
        };
        let unread = |seconds, bytes| {
            let since = begun + Duration::from_secs(seconds);
            (Input::Unread { since, bytes }, true)
        };
        assert_eq!([found(8, 50), found(8, 90)], [unread(1, 50), unread(1, 90)]);
        assert_eq!(found(9, 40), unread(3, 40), "it has read since");
        assert_eq!(found(9, 0), (Input::Read, false));
    }

    #[test]
    fn few_cancelled_requests_are_remembered_and_the_first_and_last_ones_count() {
        let mut test = TestServer::new();
        let (session, begun) = (test.session(1), test.now);
        for _ in 0..1000 {
            test.request(session);
            test.now += Duration::from_secs(1);
            test.cancels(session);
        }
        let found = evidence(&mut test, 0);
        assert_eq!(found.oldest.unwrap().sent, begun);
        assert!(found.overdue <= 64, "{}", found.overdue);
        let last = test.now;
        assert_eq!(evidence(&mut test, 2000).unawaited_since, Some(last));
    }

    #[test]
    fn lists_that_mainstay_has_requested_are_left_to_finish() {
        let mut test = TestServer::new();
        let (session, link) = (test.session(1), test.link());
        test.server.probe(test.now, link, Probe::List);
        test.request(session);
        let found = evidence(&mut test, 1);
        assert_eq!(found.being_handled.unwrap().what, "tools/list");
        assert_eq!(evidence(&mut test, 0).being_handled, None);
    }

    #[test]
    fn held_requests_are_not_written_and_are_sent_in_order() {
        let mut test = TestServer::new();
        let (session, link) = (test.session(1), test.link());
        let first = test.request(session);
        test.server.hold_requests(link);
        assert!(test.request(session).run_id.is_null() && test.request(session).run_id.is_null());
        // A probe overtakes them.
        test.server.probe(test.now, link, Probe::Ping);
        assert_eq!(test.lines(), ["ping"]);
        test.answers(&first);
        assert_eq!(watched(&mut test), 1, "it has sent something");
        assert!(!test.server.send_held_requests(test.now, link));
        assert_eq!(test.lines(), ["slow", "slow"]);
    }

    #[test]
    fn requests_that_were_held_when_the_run_died_go_to_the_next_one() {
        let mut test = TestServer::new();
        let (session, link) = (test.session(1), test.link());
        test.server.hold_requests(link);
        let call = test.request(session);
        test.server.close_stdio(test.now, link, 0);
        assert_eq!(test.read_all(&call), (Vec::new(), false), "it waits for the next run");
    }
}

//! Requests that their clients have given up before the run answered, cancelled or not. One that the run has not read is
//! evidence that it does not read, although nobody waits for an answer. For one that it has read, only the time at which it was
//! given up counts.

use std::time::Instant;

use mainstay_core::watchdog::{OpenRequest, UnawaitedRequest};

use super::{LinkObservation, WatchState, name_of};
use crate::calls::{Call, CallKey, Stage};
use crate::http::OperationKey;
use crate::links::{Link, LinkKey};
use crate::server::Server;

/// How many of them are remembered for a run until it is observed.
const MAX_GIVEN_UP: usize = 64;

/// A request that was given up before it was answered.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(super) request: OpenRequest,
    sent_as: SentAs,
    at: Instant,
    /// Whether its line still waits for the answer of the run, and so is evidence itself.
    is_pending: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SentAs {
    Line(u64),
    Operation(OperationKey),
}

impl GivenUp {
    pub(super) fn operation(&self) -> Option<OperationKey> {
        match self.sent_as {
            SentAs::Line(_) => None,
            SentAs::Operation(operation) => Some(operation),
        }
    }

    fn is_unread(&self, observation: &LinkObservation) -> bool {
        match self.sent_as {
            SentAs::Line(line) => observation.input.is_some_and(|position| line > position.line),
            SentAs::Operation(key) => observation.requests.as_ref().is_some_and(|found| {
                found.unread_bytes(key).is_some() || found.is_before(self.request.sent)
            }),
        }
    }
}

impl WatchState {
    fn remember(&mut self, given_up: GivenUp) {
        self.forget(given_up.sent_as);
        if self.given_up.len() >= MAX_GIVEN_UP {
            // The first ones show since when nothing is read, the last ones when a client last waited.
            self.given_up.remove(MAX_GIVEN_UP / 2);
        }
        self.given_up.push(given_up);
    }

    fn forget(&mut self, sent_as: SentAs) {
        self.given_up.retain(|it| it.sent_as != sent_as);
    }

    /// Those that count as open requests.
    pub(super) fn given_up(&self) -> impl Iterator<Item = &GivenUp> {
        self.given_up.iter().filter(|it| !it.is_pending)
    }

    pub(super) fn has_given_up(&self, operation: OperationKey) -> bool {
        self.given_up().any(|it| it.operation() == Some(operation))
    }

    /// Forgets those that the run has read, and all if that cannot be observed.
    pub(super) fn forget_read(&mut self, observation: &LinkObservation) {
        // A server that has sent anything since reads; it may have lost a connection that was closed.
        let last_message = self.last_message;
        let is_lost = |it: &GivenUp| {
            it.operation().is_some() && last_message.is_some_and(|at| at > it.request.sent)
        };
        let (unread, read): (Vec<_>, Vec<_>) =
            self.given_up.drain(..).partition(|it| it.is_unread(observation));
        self.given_up = unread.into_iter().filter(|it| !is_lost(it)).collect();
        if let Some(last) = read.into_iter().max_by_key(|it| it.at) {
            self.note_unawaited(last.request.what, last.at);
        }
    }

    fn note_unawaited(&mut self, what: String, since: Instant) {
        if self.unawaited.as_ref().is_none_or(|before| before.since <= since) {
            self.unawaited = Some(UnawaitedRequest { what, since });
        }
    }
}

impl Server {
    /// The client of a request has given it up.
    pub(crate) fn remember_given_up(&mut self, now: Instant, call: &Call) {
        self.remember(now, call, false);
    }

    /// The client of a request has got another answer.
    pub(crate) fn remember_answered(&mut self, now: Instant, call: &Call) {
        self.remember(now, call, true);
    }

    fn remember(&mut self, now: Instant, call: &Call, is_answered: bool) {
        let Some((link, sent_as, sent)) = self.sent_as(call) else { return };
        let Some(watch) = self.links.get_mut(link).map(Link::watch_mut) else { return };
        let Some(sent_as) = sent_as else {
            // The run may be inside it.
            watch.note_unawaited(name_of(call), now);
            return;
        };
        if let SentAs::Operation(_) = sent_as {
            watch.unanswered_since = watch.unanswered_since.or(Some(now));
        }
        let request = OpenRequest { what: name_of(call), sent: sent.unwrap_or(watch.attached) };
        let is_pending = is_answered && matches!(sent_as, SentAs::Line(_));
        watch.remember(GivenUp { request, sent_as, at: now, is_pending });
    }

    /// A client waits for a call again that was given up.
    pub(crate) fn forget_given_up(&mut self, key: CallKey) {
        let sent = self.calls.get(key).and_then(|call| self.sent_as(call));
        if let Some((link, Some(sent_as), _)) = sent
            && let Some(watch) = self.links.get_mut(link).map(Link::watch_mut)
        {
            watch.forget(sent_as);
        }
    }

    /// To which run a call was sent, how, and when. Of a call that an earlier daemon has sent over HTTP only the run is known.
    fn sent_as(&self, call: &Call) -> Option<(LinkKey, Option<SentAs>, Option<Instant>)> {
        match call.stage {
            Stage::AtStdio { link, id } => {
                let pending = self.links.get(link)?.as_stdio()?.pending.get(&id)?;
                Some((link, Some(SentAs::Line(pending.line)), pending.sent))
            }
            Stage::AtHttp { link, operation } => {
                let sent = self.operations.get(operation).and_then(|operation| operation.sent);
                Some((link, Some(SentAs::Operation(operation)), sent))
            }
            Stage::Relayed => Some((self.run_for(call.session)?.link, None, None)),
            Stage::Waiting
            | Stage::Queued(_)
            | Stage::OpeningUpstream
            | Stage::Joined(_)
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => None,
        }
    }

    /// The same, for a call that goes on.
    pub(crate) fn remember_abandoned(&mut self, now: Instant, key: CallKey) {
        if let Some(call) = self.calls.take(key) {
            self.remember_given_up(now, &call);
            self.calls.put_back(key, call);
        }
    }

    /// Whether an operation waits for this run, or its request was given up and counts until the run has read it.
    pub fn is_operation_of(&self, key: LinkKey, operation: OperationKey) -> bool {
        self.operations.get(operation).is_some_and(|it| it.link == key)
            || self.links.get(key).is_some_and(|link| link.watch().has_given_up(operation))
    }

    /// Whether the request of an operation was given up, and counts until its run has read it.
    pub fn is_given_up(&self, operation: OperationKey) -> bool {
        self.links.values().any(|link| link.watch().has_given_up(operation))
    }
}

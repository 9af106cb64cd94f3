//! Requests that their clients have given up before the run answered, cancelled or not. One that the run has not read is
//! evidence that it does not read, although nobody waits for an answer. Of one that it has read counts when that was given up.

use std::time::Instant;

use mainstay_core::watchdog::OpenRequest;

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
    /// Whether its client was answered otherwise. The request itself then stays as evidence.
    is_answered: bool,
}

#[derive(Debug, Clone, Copy)]
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
            SentAs::Line(line) => {
                observation.input.is_some_and(|(read_through, _)| line > read_through)
            }
            SentAs::Operation(key) => observation.requests.as_ref().is_some_and(|found| {
                found.unread_bytes(key).is_some() || found.is_before(self.request.sent)
            }),
        }
    }
}

impl WatchState {
    fn remember(&mut self, given_up: GivenUp) {
        if self.given_up.len() >= MAX_GIVEN_UP {
            // The first ones show since when nothing is read, the last ones when a client last waited.
            self.given_up.remove(MAX_GIVEN_UP / 2);
        }
        self.given_up.push(given_up);
    }

    /// Those that count as open requests.
    pub(super) fn given_up(&self) -> impl Iterator<Item = &GivenUp> {
        self.given_up.iter().filter(|it| !it.is_answered)
    }

    fn forget_read(&mut self, observation: &LinkObservation) {
        // A server that has answered since reads; it may have lost a connection that was closed.
        let has_spoken_since = self.last_message;
        let is_lost = |it: &GivenUp| {
            it.operation().is_some() && has_spoken_since.is_some_and(|at| at > it.request.sent)
        };
        let (unread, read): (Vec<_>, Vec<_>) =
            self.given_up.drain(..).partition(|it| it.is_unread(observation));
        self.given_up = unread.into_iter().filter(|it| !is_lost(it)).collect();
        let last = read.iter().map(|it| it.at).max();
        self.unawaited_since = self.unawaited_since.max(last);
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
        let (link, sent_as, sent) = match call.stage {
            Stage::AtStdio { link, id } => {
                let stdio = self.links.get(link).and_then(Link::as_stdio);
                let Some(pending) = stdio.and_then(|stdio| stdio.pending.get(&id)) else { return };
                (link, SentAs::Line(pending.line), pending.sent)
            }
            Stage::AtHttp { link, operation } => {
                let sent = self.operations.get(operation).and_then(|operation| operation.sent);
                (link, SentAs::Operation(operation), sent)
            }
            Stage::Waiting
            | Stage::Queued(_)
            | Stage::OpeningUpstream
            | Stage::Relayed
            | Stage::Joined(_)
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => return,
        };
        let Some(watch) = self.links.get_mut(link).map(Link::watch_mut) else { return };
        let sent = sent.unwrap_or(watch.attached);
        let request = OpenRequest { what: name_of(call), sent };
        watch.remember(GivenUp { request, sent_as, at: now, is_answered });
    }

    /// The same, for a call that goes on.
    pub(crate) fn remember_abandoned(&mut self, now: Instant, key: CallKey) {
        if let Some(call) = self.calls.take(key) {
            self.remember_given_up(now, &call);
            self.calls.put_back(key, call);
        }
    }

    /// Forgets the requests that a run has read, and all if that cannot be observed.
    pub(super) fn forget_read(&mut self, key: LinkKey, observation: &LinkObservation) {
        if let Some(link) = self.links.get_mut(key) {
            link.watch_mut().forget_read(observation);
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

impl WatchState {
    pub(super) fn has_given_up(&self, operation: OperationKey) -> bool {
        self.given_up().any(|it| it.operation() == Some(operation))
    }
}

//! Evidence about a run that speaks HTTP, and requests that wait until it answers again.
//!
//! Each request has a connection of its own while it waits for its answer. So a request is unread if all of its bytes are
//! unread on the server's end of that connection, accepted or not; and if the server has accepted no connection for it. A request
//! of which anything was read, and one that cannot be found on its connection, counts as read: it may be what the server is doing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mainstay_core::watchdog::{Evidence, Input, OpenRequest, UnreadConnection};

use super::{LinkObservation, WatchState, name_of};
use crate::calls::{Call, CallKey, Stage};
use crate::exchange::Failure;
use crate::http::{OperationKey, Purpose};
use crate::links::{LinkKey, OwnPurpose};
use crate::server::Server;

/// The request that an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentRequest {
    pub operation: OperationKey,
    /// The local port of its connection; none while the server has not accepted one.
    pub port: Option<u16>,
    /// Its length, with its head.
    pub bytes: u64,
    /// Whether the connection was closed because nobody waits for the answer any more.
    pub is_closed: bool,
}

impl SentRequest {
    /// Whether a connection of which this is unread may be its own. The end of a connection counts as one byte.
    fn may_be_on(&self, seen: UnreadConnection) -> bool {
        let longest = self.bytes + u64::from(self.is_closed);
        self.port.is_some_and(|port| {
            (self.bytes..=longest).contains(&seen.bytes)
                && seen.peer.is_none_or(|peer| peer == port)
        })
    }
}

/// The requests that a run has not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadRequests {
    /// When its connections were looked at.
    at: Instant,
    /// With their lengths.
    unread: HashMap<OperationKey, u64>,
}

impl UnreadRequests {
    /// Finds requests on the connections that were seen at that time. Each connection has one request at most. Where
    /// addresses are translated, requests are found by their length, if none of that length can have been read.
    pub fn find(at: Instant, sent: &[SentRequest], connections: &[UnreadConnection]) -> Self {
        let are_all_unread = |seen: UnreadConnection| {
            let requests = sent.iter().filter(|it| it.may_be_on(seen)).count();
            let connections = connections.iter().filter(|it| **it == seen).count();
            connections > 0 && connections >= requests
        };
        let is_unread = |request: &&SentRequest| {
            request.port.is_none()
                || connections.iter().any(|seen| request.may_be_on(*seen) && are_all_unread(*seen))
        };
        let unread = sent.iter().filter(is_unread).map(|it| (it.operation, it.bytes)).collect();
        Self { at, unread }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }

    /// How many bytes of a request are unread, if it is.
    pub(super) fn unread_bytes(&self, operation: OperationKey) -> Option<u64> {
        self.unread.get(&operation).copied()
    }

    /// Whether a request was sent after the connections were looked at.
    pub(super) fn is_before(&self, sent: Instant) -> bool {
        sent >= self.at
    }
}

/// A request that is with a run.
struct RunRequest {
    request: OpenRequest,
    awaited_by: AwaitedBy,
    unread: Option<u64>,
    /// Whether it was sent after the connections were looked at.
    is_new: bool,
    /// Whether a client needs the run for it.
    needs_run: bool,
}

/// Who waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitedBy {
    Client,
    /// The client has given it up, and it may be what the run is doing.
    Nobody,
    /// The client has given it up, and the run has not read it.
    GivenUp,
    Mainstay,
    /// Mainstay, to see whether the run answers at all.
    Probe,
}

impl RunRequest {
    /// Of a call that its client has given up, no answer is expected; but the run should read it.
    fn is_expected(&self) -> bool {
        matches!(self.awaited_by, AwaitedBy::Client | AwaitedBy::GivenUp)
    }

    fn is_read(&self) -> bool {
        self.unread.is_none() && !self.is_new
    }
}

fn oldest<'a>(requests: impl Iterator<Item = &'a RunRequest>) -> Option<OpenRequest> {
    requests.map(|at_run| &at_run.request).min_by_key(|request| request.sent).cloned()
}

impl Server {
    pub(super) fn http_evidence(
        &self,
        now: Instant,
        key: LinkKey,
        observed: &LinkObservation,
        overdue: Duration,
    ) -> Option<Evidence> {
        let http = self.links.get(key)?.as_http()?;
        let watch = &http.watch;
        let all = self.requests_at(key, watch, observed.requests.as_ref());
        let with = |who: AwaitedBy| all.iter().filter(move |it| it.awaited_by == who);
        let expected = || all.iter().filter(|it| it.is_expected());
        let unread = || all.iter().filter(|it| it.unread.is_some());
        let input = match (&observed.requests, unread().map(|it| it.request.sent).min()) {
            (None, _) => Input::Unknown,
            (Some(_), None) => Input::Read,
            (Some(_), Some(since)) => {
                Input::Unread { since, bytes: unread().filter_map(|it| it.unread).sum() }
            }
        };
        // As with stdio, the run is left to finish lists, and calls that were given up while no client waits for anything.
        let handled_for_nobody = || {
            let is_needed = all.iter().any(|it| it.needs_run)
                || http.queue.iter().any(|it| self.needs_run(*it));
            let given_up = with(AwaitedBy::Nobody).filter(|_| !is_needed);
            oldest(given_up.chain(with(AwaitedBy::Mainstay)).filter(|it| it.is_read()))
        };
        let handled = oldest(with(AwaitedBy::Client).filter(|it| it.is_read()));
        Some(Evidence {
            oldest: oldest(expected()),
            overdue: expected().filter(|it| now >= it.request.sent + overdue).count(),
            being_handled: handled.or_else(handled_for_nobody),
            unawaited: watch.unawaited.clone(),
            unanswered_since: watch.unanswered_since,
            last_message: watch.last_message,
            last_answer: watch.last_answer,
            answered_ping: watch.answered_ping,
            input,
            processes: observed.processes,
        })
    }

    fn requests_at(
        &self,
        key: LinkKey,
        watch: &WatchState,
        found: Option<&UnreadRequests>,
    ) -> Vec<RunRequest> {
        let unread = |operation| found.and_then(|found| found.unread_bytes(operation));
        let operations = self.operations.iter().filter(|(_, operation)| operation.link == key);
        let of_this_daemon = operations.filter_map(|(operation, it)| {
            let sent = it.sent?;
            let (awaited_by, what) = match &it.purpose {
                Purpose::Call(call) => {
                    (self.awaited_by(*call), self.calls.get(*call).map(|call| name_of(call))?)
                }
                Purpose::Open(Some(_)) => (AwaitedBy::Client, "initialize".to_owned()),
                Purpose::Open(None) => (AwaitedBy::Probe, "initialize".to_owned()),
                Purpose::Own(request) if request.purpose == OwnPurpose::Ping => {
                    (AwaitedBy::Probe, request.method.to_owned())
                }
                Purpose::Own(request) => (AwaitedBy::Mainstay, request.method.to_owned()),
                // One that the server has passed over may never be answered.
                Purpose::Delete if watch.last_answer.is_none_or(|at| at <= sent) => {
                    (AwaitedBy::Mainstay, "DELETE".to_owned())
                }
                Purpose::Notify(_) | Purpose::Listen(_) | Purpose::Delete => return None,
            };
            let is_new = found.is_some_and(|found| found.is_before(sent));
            // Of a server that answers by events, a request to resume them may be unread, but not the request itself.
            let unread = unread(operation).filter(|_| !is_new && !it.is_streaming);
            if unread.is_some() && watch.has_given_up(operation) {
                return None;
            }
            let needs_run = matches!(it.purpose, Purpose::Call(call) if self.needs_run(call));
            let request = OpenRequest { what, sent };
            Some(RunRequest { request, awaited_by, unread, is_new, needs_run })
        });
        let given_up = watch.given_up().filter_map(|it| {
            let (unread, is_new) = (unread(it.operation()?), false);
            Some(RunRequest {
                request: it.request.clone(),
                awaited_by: AwaitedBy::GivenUp,
                unread,
                is_new,
                needs_run: false,
            })
        });
        // What an earlier daemon sent may be what the run is doing.
        let relayed = self.relayed_to(key).filter_map(|call| {
            let what = self.calls.get(call).map(|call| name_of(call))?;
            let awaited_by = self.awaited_by(call);
            let request = OpenRequest { what, sent: watch.attached };
            let needs_run = self.needs_run(call);
            Some(RunRequest { request, awaited_by, unread: None, is_new: false, needs_run })
        });
        of_this_daemon.chain(given_up).chain(relayed).collect()
    }

    fn awaited_by(&self, call: CallKey) -> AwaitedBy {
        if self.awaiting_call(call).is_some() { AwaitedBy::Client } else { AwaitedBy::Nobody }
    }

    pub(super) fn relayed_to(&self, key: LinkKey) -> impl Iterator<Item = CallKey> {
        let is_relayed = |call: &Call| matches!(call.stage, Stage::Relayed);
        let relayed = self.calls.iter().filter(move |(_, call)| is_relayed(call));
        let is_here = move |session| self.run_for(session).is_some_and(|run| run.link == key);
        relayed.filter(move |(_, call)| is_here(call.session)).map(|(call, _)| call)
    }

    /// Sends the calls that wait for a run that speaks HTTP, in their order.
    pub(super) fn send_to_http_again(&mut self, now: Instant, key: LinkKey) {
        let Some(http) = self.http(key) else { return };
        http.watch.is_held = false;
        let queue = std::mem::take(&mut http.queue);
        self.end_renewals(now, key);
        for call in queue {
            self.advance(now, call);
        }
    }

    /// A call that waits for a run that speaks HTTP is given up.
    pub(crate) fn unqueue_http(&mut self, link: LinkKey, call: CallKey) {
        if let Some(http) = self.http(link) {
            http.queue.retain(|queued| *queued != call);
        }
    }

    /// The availability has changed. A call that waits for a run that speaks HTTP and has ended goes to the next one. Calls for
    /// a stdio run wait until its lines end.
    pub(crate) fn leave_ended_run(&mut self, now: Instant, key: CallKey, link: LinkKey) {
        let is_stdio = self.links.get(link).is_some_and(|link| link.as_stdio().is_some());
        let session = self.calls.get(key).map(|call| call.session);
        let present = session.and_then(|session| self.run_for(session)).map(|run| run.link);
        if !is_stdio && present != Some(link) {
            self.unqueue_http(link, key);
            let generation = self.generation(link);
            self.lost(now, key, generation, Failure::Unsent);
        }
    }
}

#[cfg(test)]
mod tests;

//! Evidence about a run that speaks HTTP, and requests that wait until it answers again.
//!
//! Each request has a connection of its own while it waits for its answer. So a request is unread if all of its bytes are
//! unread on the server's end of that connection, accepted or not. A request of which anything was read, and one that cannot be
//! found there, counts as read: it may be what the server is doing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mainstay_core::watchdog::{Evidence, Input, OpenRequest, UnreadConnection};

use super::{Observed, name_of};
use crate::calls::{Call, CallKey, Stage};
use crate::exchange::Failure;
use crate::http::{OperationKey, Purpose};
use crate::links::LinkKey;
use crate::server::Server;

/// The request that an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentRequest {
    pub operation: OperationKey,
    /// The local port of its connection.
    pub port: u16,
    /// Its length, with its head.
    pub bytes: u64,
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
    /// addresses are translated, requests are found by their length.
    pub fn find(at: Instant, sent: &[SentRequest], connections: &[UnreadConnection]) -> Self {
        let mut connections = connections.to_vec();
        let mut unread = HashMap::new();
        for request in sent {
            let has = |connection: &UnreadConnection| {
                connection.bytes == request.bytes
                    && connection.peer.is_none_or(|peer| peer == request.port)
            };
            if let Some(found) = connections.iter().position(has) {
                connections.swap_remove(found);
                unread.insert(request.operation, request.bytes);
            }
        }
        Self { at, unread }
    }
}

/// A request that is with a run.
struct AtRun {
    /// None for a request of Mainstay itself, and for one that no client waits for.
    client: Option<Client>,
    /// What it is otherwise; none for a probe.
    unawaited: Option<String>,
    sent: Instant,
    unread: Option<u64>,
    /// Whether it was sent after the connections were looked at.
    is_new: bool,
}

#[derive(Clone, Copy)]
enum Client {
    Call(CallKey),
    Initialize,
}

impl Server {
    pub(super) fn http_evidence(
        &self,
        now: Instant,
        key: LinkKey,
        observed: &Observed,
        overdue: Duration,
    ) -> Option<Evidence> {
        let http = self.links.get(key)?.as_http()?;
        let watch = &http.watch;
        let mut all = self.requests_at(key, observed.requests.as_ref());
        // What an earlier daemon sent may be what the run is doing.
        all.extend(self.relayed_to(key).map(|call| {
            let client = Some(Client::Call(call));
            AtRun { client, unawaited: None, sent: watch.attached, unread: None, is_new: false }
        }));
        let clients = || all.iter().filter(|request| request.client.is_some());
        let oldest = |requests: &mut dyn Iterator<Item = &AtRun>| {
            let request = requests.min_by_key(|request| request.sent)?;
            let what = match request.client? {
                Client::Call(call) => self.calls.get(call).map(|call| name_of(call))?,
                Client::Initialize => "initialize".to_owned(),
            };
            Some(OpenRequest { what, sent: request.sent })
        };
        let unread = || all.iter().filter(|request| request.unread.is_some());
        let input = match (&observed.requests, unread().map(|request| request.sent).min()) {
            (None, _) => Input::Unknown,
            (Some(_), None) => Input::Read,
            (Some(_), Some(since)) => {
                Input::Unread { since, bytes: unread().filter_map(|request| request.unread).sum() }
            }
        };
        let is_read = |request: &&AtRun| request.unread.is_none() && !request.is_new;
        // While no client waits for anything, the run is left to finish what it has read.
        let handled_for_nobody = || {
            let is_needed = clients().next().is_some() || !http.queue.is_empty();
            let read = all.iter().filter(is_read).filter(|_| !is_needed);
            let named = read.filter_map(|request| {
                Some(OpenRequest { what: request.unawaited.clone()?, sent: request.sent })
            });
            named.min_by_key(|request| request.sent)
        };
        Some(Evidence {
            oldest: oldest(&mut clients()),
            overdue: clients().filter(|request| now >= request.sent + overdue).count(),
            being_handled: oldest(&mut clients().filter(is_read)).or_else(handled_for_nobody),
            last_message: watch.last_message,
            answered_ping: watch.answered_ping,
            input,
            processes: observed.processes,
        })
    }

    /// The requests that this daemon has sent.
    fn requests_at(&self, key: LinkKey, found: Option<&UnreadRequests>) -> Vec<AtRun> {
        let operations = self.operations.iter().filter(|(_, operation)| operation.link == key);
        let requests = operations.filter_map(|(operation, it)| {
            let sent = it.sent?;
            let client = match it.purpose {
                // Of a call that its client has given up, no answer is expected.
                Purpose::Call(call) => self.awaiting_call(call).map(|_| Client::Call(call)),
                Purpose::Open(Some(_)) => Some(Client::Initialize),
                Purpose::Open(None) | Purpose::Own(_) => None,
                Purpose::Notify(_) | Purpose::Listen(_) | Purpose::Delete => return None,
            };
            let unawaited = match &it.purpose {
                Purpose::Call(call) => self.calls.get(*call).map(|call| name_of(call)),
                Purpose::Own(request) if !request.is_probe() => Some(request.method.to_owned()),
                _ => None,
            };
            let is_new = found.is_some_and(|found| sent >= found.at);
            let unread =
                found.filter(|_| !is_new).and_then(|it| it.unread.get(&operation).copied());
            Some(AtRun { client, unawaited, sent, unread, is_new })
        });
        requests.collect()
    }

    fn relayed_to(&self, key: LinkKey) -> impl Iterator<Item = CallKey> {
        let is_relayed = |call: &Call| matches!(call.stage, Stage::Relayed);
        let relayed = self
            .calls
            .iter()
            .filter(move |(key, call)| is_relayed(call) && self.awaiting_call(*key).is_some());
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

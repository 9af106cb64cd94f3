//! The lines to and from a stdio server, shared by many sessions or owned by one.
//!
//! Every request gets an id of its own, by which its answer is routed. When the lines end, the number of lines that
//! were written whole shows which of the open requests can have reached the server.
//!
//! An id contains its daemon and connection (`first_id`), and the line of the run that carries the request. So
//! it is known of a request that an earlier daemon sent whether it can have reached the server, and its answer is
//! recognised.
//!
//! Lines are confirmed when they need not be delivered to another daemon: as soon as they are processed, but for an
//! answer that is not in its stream yet, and the lines after it.

mod interruption;
mod receive;

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use mainstay_mcp::frame::{self, Id, Method};
use mainstay_mcp::upstream::{self, Hello, MAX_LINE, UpstreamError};
use tracing::debug;

use self::interruption::Doubt;
use crate::action::Action;
use crate::calls::{Call, CallKey, CallKind, Stage};
use crate::exchange::{AttemptError, CANCELLED, Failure};
use crate::links::{Link, LinkKey, OwnPurpose, OwnRequest};
use crate::record::Sent;
use crate::server::Server;
use crate::silence::WatchState;
use crate::streams::StreamRef;

/// How many messages without an answer may wait for a server that does not read.
const MAX_QUEUED_NOTIFICATIONS: usize = 256;

/// How many queued lines are sent when a server reads again, before it is asked whether it reads on.
const LINES_AT_ONCE: usize = 32;

/// The part of an id with the line of the run that carries the request.
const LINE: u64 = 0xffff_ffff;

#[derive(Debug)]
pub(crate) struct Stdio {
    /// The beginning of all ids.
    first_id: u64,
    /// How many lines were sent since the start of the run.
    lines: u64,
    is_closed: bool,
    /// Whether all that the run has written since an earlier daemon is received.
    pub(crate) misses_nothing: bool,
    pub(crate) is_full: bool,
    pub(crate) watch: WatchState,
    /// What waits until the server reads its input.
    queue: VecDeque<Queued>,
    queued_notifications: usize,
    pub(crate) pending: HashMap<u64, Pending>,
    /// Requests of an earlier daemon that did not reach the server.
    unsent: Vec<u64>,
    /// How many lines were received, and confirmed.
    received: u64,
    confirmed: u64,
    undelivered: VecDeque<Undelivered>,
    interruptions: Vec<Doubt>,
}

#[derive(Debug)]
enum Queued {
    Notification(Bytes),
    Call(CallKey),
    Own(OwnRequest),
}

/// A request that is with the server.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The number of its line.
    pub(crate) line: u64,
    /// When it was sent; none if an earlier daemon did.
    pub(crate) sent: Option<Instant>,
    pub(crate) target: Target,
    /// When it counts as lost with an interruption.
    lost_at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) enum Target {
    Call(CallKey),
    Own(OwnRequest),
}

/// An answer that was received, and is not in its stream yet.
#[derive(Debug)]
struct Undelivered {
    line: u64,
    stream: StreamRef,
    until: Instant,
}

impl Stdio {
    pub(crate) fn new(now: Instant, first_id: u64, written: u64, misses_nothing: bool) -> Self {
        Self {
            first_id,
            lines: written,
            is_closed: false,
            misses_nothing,
            is_full: false,
            watch: WatchState::new(now, written > 0),
            queue: VecDeque::new(),
            queued_notifications: 0,
            pending: HashMap::new(),
            unsent: Vec::new(),
            received: 0,
            confirmed: 0,
            undelivered: VecDeque::new(),
            interruptions: Vec::new(),
        }
    }

    /// Whether the run has not read a probe of this kind. It gets no other one, so that they do not pile up.
    pub(crate) fn has_unread_probe(&self, purpose: OwnPurpose) -> bool {
        let is_same = |request: &OwnRequest| request.purpose == purpose;
        let is_queued =
            |queued: &Queued| matches!(queued, Queued::Own(request) if is_same(request));
        let read_through = self.watch.read_through();
        let is_unread = |pending: &Pending| {
            matches!(&pending.target, Target::Own(request) if is_same(request))
                && read_through.is_some_and(|line| pending.line > line)
        };
        self.queue.iter().any(is_queued) || self.pending.values().any(is_unread)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The number of requests and messages that are with the server, or wait until it reads.
    pub(crate) fn load(&self) -> usize {
        self.pending.len() + self.queue.len()
    }

    pub(crate) fn queued_calls(&self) -> impl Iterator<Item = CallKey> {
        self.queue.iter().filter_map(|queued| match queued {
            Queued::Call(call) => Some(*call),
            Queued::Notification(_) | Queued::Own(_) => None,
        })
    }

    pub(crate) fn pending_calls(&self) -> impl Iterator<Item = CallKey> {
        self.pending.values().filter_map(|pending| match pending.target {
            Target::Call(call) => Some(call),
            Target::Own(_) => None,
        })
    }

    /// Whether another daemon would receive no line that was received here.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.undelivered.is_empty()
    }

    /// The id of the request for a page of a list.
    pub(crate) fn list_request(&self) -> Option<u64> {
        let is_list = |pending: &Pending| matches!(&pending.target, Target::Own(it) if it.purpose == OwnPurpose::ListPage);
        self.pending.iter().find(|(_, pending)| is_list(pending)).map(|(id, _)| *id)
    }

    /// The answer to a request does not matter any more. One list stays as evidence while the server does not answer.
    pub(crate) fn stop_waiting_for(&mut self, id: u64, kind: &CallKind) {
        let is_evidence = |pending: &Pending| matches!(&pending.target, Target::Own(it) if it.purpose == OwnPurpose::AnsweredList);
        let has_evidence = self.pending.values().any(is_evidence);
        match (kind, self.pending.get_mut(&id)) {
            (CallKind::List(kind), Some(pending)) if !has_evidence => {
                let request = OwnRequest::new(OwnPurpose::AnsweredList, kind.method(), None);
                pending.target = Target::Own(request);
            }
            _ => {
                self.pending.remove(&id);
            }
        }
    }

    /// Whether the answer to a request that an earlier daemon sent is awaited.
    pub(crate) fn rejoin(&mut self, id: u64, call: CallKey) -> Result<(), Failure> {
        if self.unsent.contains(&id) {
            return Err(Failure::Unsent);
        }
        let is_awaited =
            |pending: &Pending| matches!(pending.target, Target::Call(key) if key == call);
        // One that is not awaited has missed the run.
        if self.pending.get(&id).is_some_and(is_awaited) { Ok(()) } else { Err(Failure::Sent) }
    }

    /// The id of the request in this line of the run.
    fn id_of(&self, line: u64) -> u64 {
        self.first_id | (line & LINE)
    }

    fn must_queue(&self) -> bool {
        self.is_full || self.watch.is_held || !self.queue.is_empty()
    }
}

impl Server {
    pub(crate) fn stdio(&mut self, key: LinkKey) -> Option<&mut Stdio> {
        self.links.get_mut(key).and_then(Link::as_stdio_mut)
    }

    fn send_line(&mut self, key: LinkKey, line: Bytes) {
        if let Some(stdio) = self.stdio(key) {
            stdio.lines += 1;
            self.act(Action::SendLine(key, line));
        }
    }

    /// Sends a message without an answer. To a server that does not read, only so much is sent.
    pub(crate) fn notify_stdio(&mut self, key: LinkKey, line: Bytes) {
        if self.is_frozen {
            return;
        }
        let Some(stdio) = self.stdio(key).filter(|stdio| !stdio.is_closed) else { return };
        if !stdio.must_queue() {
            return self.send_line(key, line);
        }
        if stdio.queued_notifications >= MAX_QUEUED_NOTIFICATIONS {
            return debug!("a message to a server that does not read was dropped");
        }
        stdio.queued_notifications += 1;
        stdio.queue.push_back(Queued::Notification(line));
    }

    /// Sends a request of a client.
    pub(crate) fn send_to_stdio(
        &mut self,
        now: Instant,
        call: &mut Call,
        key: CallKey,
        link: LinkKey,
    ) -> Result<(), AttemptError> {
        let generation = self.generation(link);
        let Some(stdio) = self.stdio(link).filter(|stdio| !stdio.is_closed) else {
            return Err(Failure::Unsent.into());
        };
        if stdio.must_queue() {
            stdio.queue.push_back(Queued::Call(key));
            call.stage = Stage::Queued(link);
            return Ok(());
        }
        let number = stdio.lines + 1;
        let id = stdio.id_of(number);
        let own = id.to_string();
        let text = frame::in_one_line(match &call.progress {
            Some(progress) => call.message.with_id_and_token(&own, progress.place, &own),
            None => call.message.with_id(&own),
        });
        if text.len() > MAX_LINE {
            let method = call.message.method().map_or("", Method::as_str).to_owned();
            return Err(AttemptError::Unusable(UpstreamError::TooLarge {
                method,
                bytes: text.len(),
            }));
        }
        if !self.record_sent(call, Sent { generation, line: Some(id) })? {
            return Ok(());
        }
        call.stage = Stage::AtStdio { link, id };
        if let Some(stdio) = self.stdio(link) {
            let (sent, target, lost_at) = (Some(now), Target::Call(key), None);
            stdio.pending.insert(id, Pending { line: number, sent, target, lost_at });
        }
        self.send_line(link, text);
        if self.is_slow(call) {
            self.watch(link);
        }
        Ok(())
    }

    /// Sends a request of Mainstay itself.
    pub(crate) fn ask_stdio(&mut self, now: Instant, key: LinkKey, request: OwnRequest) {
        let is_frozen = self.is_frozen;
        let stdio = self.stdio(key).filter(|stdio| !stdio.is_closed && !is_frozen);
        let Some(stdio) = stdio else {
            return self.own_lost(now, key, &request, false);
        };
        // A probe shows whether the server reads while other requests are held.
        let must_queue = if request.is_probe() { stdio.is_full } else { stdio.must_queue() };
        if must_queue {
            return stdio.queue.push_back(Queued::Own(request));
        }
        let line = stdio.lines + 1;
        let id = stdio.id_of(line);
        let text =
            frame::in_one_line(frame::request(id, request.method, request.params.as_deref()));
        if request.purpose != OwnPurpose::Ignored {
            let target = Target::Own(request);
            stdio.pending.insert(id, Pending { line, sent: Some(now), target, lost_at: None });
        }
        self.send_line(key, text);
    }

    /// The server has answered `initialize`.
    pub(crate) fn stdio_initialized(&mut self, now: Instant, key: LinkKey, hello: Hello) {
        let Some(scope) = self.links.get(key).map(|link| link.scope) else { return };
        self.notify_stdio(key, frame::notification("notifications/initialized", None));
        let state = self.state_for(scope);
        self.restore_client_state(now, key, state.level.as_ref(), state.subscriptions.iter());
        self.attached(key, hello);
    }

    /// Sets a level and subscribes to resources. A server that refuses this goes without.
    pub(crate) fn restore_client_state<'a>(
        &mut self,
        now: Instant,
        key: LinkKey,
        level: Option<&crate::level::Level>,
        subscriptions: impl Iterator<Item = &'a String>,
    ) {
        let ignored = |method, params| OwnRequest::new(OwnPurpose::Ignored, method, Some(params));
        if let Some(level) = level {
            let params = upstream::string_param("level", level.as_str());
            self.ask(now, key, ignored("logging/setLevel", params));
        }
        for uri in subscriptions {
            let params = upstream::string_param("uri", uri);
            self.ask(now, key, ignored("resources/subscribe", params));
        }
    }

    /// The server does not read its input.
    pub fn link_full(&mut self, key: LinkKey) {
        if let Some(stdio) = self.stdio(key) {
            stdio.is_full = true;
        }
    }

    /// The server reads its input again. Returns whether something still waits.
    pub fn link_writable(&mut self, now: Instant, key: LinkKey) -> bool {
        if self.is_frozen {
            return false;
        }
        let Some(stdio) = self.stdio(key) else { return false };
        stdio.is_full = false;
        if stdio.watch.is_held {
            return false;
        }
        let count = stdio.queue.len().min(LINES_AT_ONCE);
        let first: Vec<_> = stdio.queue.drain(..count).collect();
        let rest = std::mem::take(&mut stdio.queue);
        for queued in first {
            match queued {
                Queued::Notification(line) => {
                    if let Some(stdio) = self.stdio(key) {
                        stdio.queued_notifications -= 1;
                    }
                    self.send_line(key, line);
                }
                Queued::Call(call) => self.advance(now, call),
                Queued::Own(request) => self.ask_stdio(now, key, request),
            }
        }
        let Some(stdio) = self.stdio(key) else { return false };
        // What was queued meanwhile comes after the rest.
        let later = std::mem::replace(&mut stdio.queue, rest);
        stdio.queue.extend(later);
        !stdio.queue.is_empty()
    }

    /// A queued call is given up.
    pub(crate) fn unqueue(&mut self, link: LinkKey, call: CallKey) {
        self.unqueue_http(link, call);
        if let Some(stdio) = self.stdio(link) {
            stdio.queue.retain(|queued| !matches!(queued, Queued::Call(key) if *key == call));
        }
    }

    /// Cancels a request at the server, if it is still open.
    pub(crate) fn cancel_at_stdio(&mut self, key: LinkKey, id: u64) {
        let Some(stdio) = self.stdio(key) else { return };
        if stdio.pending.remove(&id).is_some() {
            let id = id.to_string();
            let id = Id::new(&id).expect("a number is an id");
            self.notify_stdio(key, frame::cancelled(id, CANCELLED));
        }
    }

    /// Awaits the answers to requests that an earlier daemon sent to this run.
    pub(crate) fn await_recovered(&mut self, key: LinkKey, written: u64) {
        let Some((generation, scope)) =
            self.links.get(key).map(|link| (link.generation, link.scope))
        else {
            return;
        };
        let recovered = self.take_recovered(generation, scope);
        for (id, call) in recovered {
            // A server that was used before has had lines; where none are counted, the number is not known, and the line
            // counts as read.
            let line = if written > 0 { id & LINE } else { 0 };
            let is_unsent = line > written;
            if is_unsent {
                // Another request gets its line.
                self.record_unanswerable(call);
            }
            let Some(stdio) = self.stdio(key) else { return };
            if is_unsent {
                stdio.unsent.push(id);
            } else {
                let (target, lost_at) = (Target::Call(call), None);
                stdio.pending.insert(id, Pending { line, sent: None, target, lost_at });
            }
        }
    }

    /// The calls that are with this server.
    pub(crate) fn calls_at(&self, key: LinkKey) -> Vec<CallKey> {
        let Some(stdio) = self.links.get(key).and_then(Link::as_stdio) else { return Vec::new() };
        stdio.pending_calls().collect()
    }

    /// The lines have ended, and so many were written whole to the server.
    pub fn close_stdio(&mut self, now: Instant, key: LinkKey, written: u64) {
        let generation = self.generation(key);
        let Some(stdio) = self.stdio(key).filter(|stdio| !stdio.is_closed) else { return };
        stdio.is_closed = true;
        // In the order in which they were sent, so that they are sent again in that order.
        let mut pending: Vec<_> = std::mem::take(&mut stdio.pending).into_iter().collect();
        pending.sort_unstable_by_key(|(id, _)| *id);
        let queue = std::mem::take(&mut stdio.queue);
        for (id, Pending { line, target, .. }) in pending {
            let is_sent = line <= written;
            match target {
                Target::Own(request) => self.own_lost(now, key, &request, is_sent),
                Target::Call(call) => {
                    let is_here = |call: &Call| matches!(call.stage, Stage::AtStdio { link, id: at } if link == key && at == id);
                    if self.calls.get(call).is_some_and(|call| is_here(call)) {
                        let failure = if is_sent { Failure::Sent } else { Failure::Unsent };
                        self.lost(now, call, generation, failure);
                    }
                }
            }
        }
        for queued in queue {
            match queued {
                Queued::Call(call) => self.lost(now, call, generation, Failure::Unsent),
                Queued::Own(request) => self.own_lost(now, key, &request, false),
                Queued::Notification(_) => {}
            }
        }
        for session in self.sessions_of(key) {
            self.withdraw_server_requests(session, |request| request.generation == generation);
        }
        self.act(Action::Closed(key));
        self.drop_unneeded_link(key);
    }
}

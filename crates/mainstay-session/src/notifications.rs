//! Routes what a server sends without being asked: notifications, and requests to its clients.
//!
//! A server with a single session sends everything to that one. A message of a shared server goes to the session that
//! it can only be about. If that is not known, it is dropped: sessions never see messages of each other.

use std::time::Instant;

use mainstay_mcp::frame::{self, Method, Parsed};

use crate::level::Level;
use crate::links::{LinkKey, RunScope};
use crate::server::Server;
use crate::session::SessionKey;
use crate::streams::StreamRef;

const AMBIGUOUS: &str = "several clients share this server, so it is not known which one is meant; \
                         `mainstay run --isolate` gives each client a server of its own";

/// Whom a message of a server is for.
struct Recipient {
    session: SessionKey,
    stream: Option<StreamRef>,
    /// Whether the message is about the request of that stream.
    is_certain: bool,
}

impl Server {
    /// The server asks something of a client.
    pub(crate) fn route_server_request(&mut self, now: Instant, key: LinkKey, request: &Parsed) {
        let Some(id) = request.id() else { return };
        if request.method() == Some(&Method::Ping) {
            return self.notify_stdio(key, frame::empty_result(id));
        }
        let Some(generation) = self.links.get(key).map(|link| link.generation) else { return };
        let refusal = match self.recipient(now, key) {
            Some(Recipient { session, stream, is_certain }) => {
                self.ask_client(session, generation, request, stream, is_certain)
            }
            None => Some(AMBIGUOUS),
        };
        if let Some(why) = refusal {
            self.notify_stdio(key, frame::error(id, frame::METHOD_NOT_FOUND, why));
        }
    }

    /// The server sends a notification. Returns whether a session was found for it.
    pub(crate) fn route_notification(
        &mut self,
        now: Instant,
        key: LinkKey,
        notification: &Parsed,
    ) -> bool {
        let Some(method) = notification.method() else { return true };
        let Some((scope, generation)) = self.links.get(key).map(|it| (it.scope, it.generation))
        else {
            return true;
        };
        if scope != RunScope::Shared {
            if let Some(Recipient { session, stream, .. }) = self.recipient(now, key) {
                self.deliver_own(now, session, generation, notification, stream);
            }
            return true;
        }
        match method {
            Method::ToolsChanged | Method::PromptsChanged | Method::ResourcesChanged => {
                self.copies.lists.announced(method);
                self.list_changed_received(now);
            }
            Method::ResourceUpdated => self.resource_updated(notification),
            Method::Cancelled => {
                for session in self.sessions.keys() {
                    self.server_request_cancelled(session, generation, notification);
                }
            }
            method => {
                let is_log = *method == Method::LogMessage;
                let Some(Recipient { session, stream, .. }) = self.recipient(now, key) else {
                    return false;
                };
                if !is_log || self.wants_log(session, notification) {
                    self.deliver(session, notification.text().clone(), stream);
                }
            }
        }
        true
    }

    fn resource_updated(&mut self, notification: &Parsed) {
        let Some(uri) = notification.uri() else { return };
        let is_subscribed = |key: &SessionKey| {
            let session = self.sessions.get(*key);
            session.is_some_and(|session| session.client.subscriptions.contains(&*uri))
        };
        let subscribed: Vec<_> = self.sessions.keys().into_iter().filter(is_subscribed).collect();
        for session in subscribed {
            self.deliver(session, notification.text().clone(), None);
        }
    }

    /// Whether the client wants log messages of this level.
    fn wants_log(&self, key: SessionKey, message: &Parsed) -> bool {
        let level = message.level().and_then(|level| Level::of(&level));
        let wanted = self.sessions.get(key).and_then(|session| session.client.level);
        wanted.zip(level).is_none_or(|(wanted, level)| level >= wanted)
    }

    /// Sends a message to a client, on the stream of a request or on the general one. Returns false if it was not
    /// taken.
    pub(crate) fn deliver(
        &mut self,
        key: SessionKey,
        message: bytes::Bytes,
        stream: Option<StreamRef>,
    ) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        self.push(stream.unwrap_or(session.general), message)
    }

    /// Sends a client a notification of a run or a stream that only this session has.
    pub(crate) fn deliver_own(
        &mut self,
        now: Instant,
        key: SessionKey,
        generation: u64,
        message: &Parsed,
        stream: Option<StreamRef>,
    ) {
        match message.method() {
            Some(Method::Cancelled) => self.server_request_cancelled(key, generation, message),
            Some(Method::ToolsChanged | Method::PromptsChanged | Method::ResourcesChanged) => {
                self.list_changed_received(now);
                self.deliver(key, message.text().clone(), None);
            }
            _ => {
                self.deliver(key, message.text().clone(), stream);
            }
        }
    }

    /// The one session that the server can mean: the only one with requests at the server, or the only one there is.
    /// Also the stream of its request, if it has but one.
    fn recipient(&mut self, now: Instant, key: LinkKey) -> Option<Recipient> {
        let (scope, generation) = self.links.get(key).map(|link| (link.scope, link.generation))?;
        let calls = self.calls_at(key);
        // A call that has joined another one is asked in its place.
        let calls = calls.into_iter().map(|call| self.awaiting_call(call).unwrap_or(call));
        let calls = calls.filter_map(|call| self.calls.get(call));
        let callers: Vec<_> = calls.map(|call| (call.session, call.stream)).collect();
        let session = match (scope, &callers[..]) {
            (RunScope::Session(session), _) => session,
            (RunScope::EndedSession, _) => return None,
            // Only commands of the user have used it.
            (RunScope::Shared, []) if self.settings.isolate => return None,
            (RunScope::Shared, []) => self.only_session(now)?,
            (RunScope::Shared, [(first, _), rest @ ..]) => {
                rest.iter().all(|(session, _)| session == first).then_some(*first)?
            }
        };
        if scope == RunScope::Shared && self.may_have_unrecorded_requests(generation) {
            // The message may be about a request that is not known.
            self.only_restored_session().filter(|only| *only == session)?;
            self.only_session(now).filter(|only| *only == session)?;
        }
        let stream = match &callers[..] {
            [] => None,
            [(_, only)] => Some(*only),
            // On the general stream, unless that has no reader.
            [.., (_, last)] => {
                let session = self.sessions.get(session)?;
                (!self.is_listening(session)).then_some(*last)
            }
        };
        Some(Recipient { session, stream, is_certain: callers.len() == 1 })
    }
}

//! Routes what a server sends without being asked: notifications, and requests to its clients.
//!
//! A server with a single session sends everything to that one. A message of a shared server goes to the session that it
//! can only be about. If that cannot be determined it is dropped: sessions never see messages of each other.

use std::sync::{Arc, Weak};

use super::Hub;
use super::lines::StdioConn;
use super::session::{Session, WeakSession};
use crate::frame::{self, Method, Parsed};
use crate::stream::Stream;

/// The sessions that get the messages of one run.
#[derive(Debug)]
pub(super) enum NotificationRouter {
    /// All sessions of a server share the run.
    Shared(Weak<Hub>),
    /// The run is one session's own.
    Own(WeakSession),
}

/// A client's request that is with the server.
#[derive(Debug)]
pub(super) struct Caller {
    session: Session,
    out: Arc<Stream>,
}

impl Caller {
    pub(super) fn new(session: &Session, out: &Arc<Stream>) -> Self {
        Self { session: session.clone(), out: Arc::clone(out) }
    }
}

/// One session, and the stream of its only open request if it has but one.
struct Listener {
    session: Session,
    out: Option<Arc<Stream>>,
}

impl NotificationRouter {
    /// The server asks something of a client.
    pub(super) fn asked(&self, conn: &Arc<StdioConn>, callers: &[Caller], request: &Parsed) {
        let Some(id) = request.id() else { return };
        if request.method() == Some(&Method::Ping) {
            return conn.tell_later(frame::empty_result(id));
        }
        let refusal = match self.listener(callers) {
            Some(Listener { session, out }) => {
                session.ask_client(conn.generation(), request, out.as_ref())
            }
            None => Some(AMBIGUOUS),
        };
        if let Some(why) = refusal {
            conn.tell_later(frame::error(id, frame::METHOD_NOT_FOUND, why));
        }
    }

    /// The server tells something. Says whether anybody could be found to hear it.
    pub(super) fn told(
        &self,
        conn: &Arc<StdioConn>,
        callers: &[Caller],
        notification: &Parsed,
    ) -> bool {
        let Some(method) = notification.method() else { return true };
        match self {
            Self::Own(_) => {
                let listener = self.listener(callers);
                listener.is_none_or(|listener| {
                    listener.session.hear_own(
                        conn.generation(),
                        notification,
                        listener.out.as_ref(),
                    );
                    true
                })
            }
            Self::Shared(hub) => {
                let Some(hub) = hub.upgrade() else { return true };
                match method {
                    Method::ToolsChanged | Method::PromptsChanged | Method::ResourcesChanged => {
                        hub.lists_changed(notification);
                        true
                    }
                    Method::ResourceUpdated => {
                        hub.resource_updated(notification);
                        true
                    }
                    Method::Cancelled => {
                        hub.ask_cancelled(conn.generation(), notification);
                        true
                    }
                    _ => self.listener(callers).is_some_and(|listener| {
                        match method {
                            Method::LogMessage => {
                                listener.session.hear_log(notification, listener.out.as_ref());
                            }
                            _ => listener
                                .session
                                .hear(notification.text().clone(), listener.out.as_ref()),
                        }
                        true
                    }),
                }
            }
        }
    }

    /// The run is over.
    pub(super) fn lost(&self, generation: u64) {
        match self {
            Self::Own(session) => {
                if let Some(session) = session.upgrade() {
                    session.forget_asks(generation);
                }
            }
            Self::Shared(hub) => {
                if let Some(hub) = hub.upgrade() {
                    hub.everybody(|session| session.forget_asks(generation));
                }
            }
        }
    }

    /// The one session that the server can mean: the only one with requests open, or the only one
    /// there is.
    fn listener(&self, callers: &[Caller]) -> Option<Listener> {
        let session = match self {
            Self::Own(session) => session.upgrade()?,
            Self::Shared(hub) => match callers {
                [] => hub.upgrade()?.only_session()?,
                [first, rest @ ..] => {
                    let same = rest.iter().all(|caller| caller.session == first.session);
                    same.then(|| first.session.clone())?
                }
            },
        };
        let out = match callers {
            [] => None,
            [only] => Some(Arc::clone(&only.out)),
            // On the general stream, unless nobody hears that.
            [.., last] => (!session.general().has_reader()).then(|| Arc::clone(&last.out)),
        };
        Some(Listener { session, out })
    }
}

const AMBIGUOUS: &str = "several clients share this server, so it cannot be told which one is meant; \
                         `mainstay run --isolate` gives each client a server of its own";

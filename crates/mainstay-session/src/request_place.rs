//! Where the request of a command is, for its user.

use std::time::Instant;

use crate::calls::Stage;
use crate::links::Link;
use crate::server::Server;
use crate::session::SessionKey;

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPlace {
    /// In Mainstay. It waits for a run, or until the run reads.
    Held,
    /// At the server; of a stdio server, with the number of its line.
    Sent(Option<u64>),
}

impl Server {
    /// Where the request of a command's session is, until it is answered.
    pub fn place_of_request(&self, session: SessionKey) -> Option<RequestPlace> {
        let call = self.calls.values().find(|call| call.session == session)?;
        Some(match &call.stage {
            Stage::Waiting | Stage::Queued(_) | Stage::OpeningUpstream => RequestPlace::Held,
            Stage::AtStdio { link, id } => {
                let stdio = self.links.get(*link).and_then(Link::as_stdio);
                RequestPlace::Sent(stdio.and_then(|it| Some(it.pending.get(id)?.line)))
            }
            Stage::AtHttp { .. }
            | Stage::Relayed
            | Stage::Joined(_)
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => RequestPlace::Sent(None),
        })
    }

    /// Ends a command's session. Returns whether the server may have received its last request: one that is still in
    /// Mainstay is not sent any more.
    pub fn cancel_local(&mut self, now: Instant, session: SessionKey) -> bool {
        // A request that is not here was answered.
        let call = self.calls.values().find(|call| call.session == session);
        let is_sent = call.is_none_or(|call| call.may_have_run());
        self.close_local(now, session);
        is_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::TestServer;

    #[test]
    fn a_request_is_held_then_sent_then_answered() {
        let mut test = TestServer::new();
        let (session, link) = (test.session(1), test.link());
        assert_eq!(test.server.place_of_request(session), None);
        test.server.hold_requests(link);
        let call = test.request(session);
        assert_eq!(test.server.place_of_request(session), Some(RequestPlace::Held));
        test.server.send_held_requests(test.now, link);
        test.lines();
        assert_eq!(test.server.place_of_request(session), Some(RequestPlace::Sent(Some(1))));
        drop(call);
    }

    #[test]
    fn a_request_that_is_cancelled_in_mainstay_was_not_sent() {
        let mut test = TestServer::new();
        let link = test.link();
        let mut cancelled = |held: bool, answered: bool| {
            let session = test.server.open_local(test.now);
            test.server.sessions.get_mut(session).unwrap().version = "2025-11-25".parse().ok();
            if held {
                test.server.hold_requests(link);
            } else {
                test.server.send_held_requests(test.now, link);
            }
            let call = test.request(session);
            if answered {
                test.answers(&call);
            }
            test.server.cancel_local(test.now, session)
        };
        assert!(!cancelled(true, false), "it is held");
        assert!(cancelled(false, false), "it was sent");
        assert!(cancelled(false, true), "it was answered");
        assert!(test.server.calls.values().next().is_none());
    }
}

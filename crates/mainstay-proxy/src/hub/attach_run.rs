//! Opening the way to a run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::value::RawValue;

use super::availability::{Run, RunLink};
use super::http::HttpRun;
use super::http_session::UpSession;
use super::lines::{StdioConn, StdioConnConfig};
use super::notifications::NotificationRouter;
use super::session::{ClientState, Session};
use super::{Hub, RunInfo};
use crate::client::Client;
use crate::frame;
use crate::upstream::{self, Hello, Link, UpstreamError};

impl Hub {
    /// Opens the way to a run: its session is opened, unless it was before, and told what the clients
    /// agreed with the runs before it. It has no time limit: the caller sets one.
    pub async fn attach_run(&self, link: Link, run: RunInfo) -> Result<Arc<Run>, UpstreamError> {
        let RunInfo { generation, after, known, epoch, session } = run;
        let owner = session.map(|id| self.all_sessions().get(&id).cloned());
        let terms = match &owner {
            Some(Some(session)) => session.terms(),
            // The session has ended meanwhile, and its run is about to.
            Some(None) => self.own_terms(),
            None => self.common_terms(),
        };
        let first_id = upstream::first_id(epoch);
        self.speaks_lines.store(matches!(link, Link::Lines(_)), Ordering::Relaxed);
        let (link, hello) = match link {
            Link::Lines(link) => {
                let notifications = match &owner {
                    Some(session) => NotificationRouter::Own(
                        session.as_ref().map(Session::downgrade).unwrap_or_default(),
                    ),
                    None => NotificationRouter::Shared(self.me.clone()),
                };
                let owner = owner.as_ref().and_then(Option::as_ref);
                let beginning = StdioConnConfig {
                    generation,
                    first_id,
                    write_fence: self.write_fence.clone(),
                    awaited: self.awaited_of(generation, owner),
                };
                let conn = StdioConn::spawn(link, beginning, notifications);
                let hello = match known {
                    Some(hello) => hello,
                    None => conn.open(&terms).await?,
                };
                (RunLink::Lines(conn), hello)
            }
            Link::Http(target) => {
                let client = Client::new(target);
                let opened = match known {
                    Some(hello) => (UpSession::known(generation, &hello)?, hello),
                    None => {
                        UpSession::open_patiently(generation, &client, &self.own_terms()).await?
                    }
                };
                self.http_link(generation, client, opened, first_id)
            }
            Link::Remote(target) => {
                let client = Client::new(target);
                let opened = match known {
                    Some(hello) => self.find(generation, &client, hello, first_id).await?,
                    None => UpSession::open(generation, &client, &self.own_terms()).await?,
                };
                self.http_link(generation, client, opened, first_id)
            }
        };
        if let Some(Some(owner)) = &owner {
            // What changed between two runs of its own cannot be known.
            for uri in &terms.subscriptions {
                owner.hear(frame::resource_updated(uri), None);
            }
        }
        Ok(Arc::new(Run { generation, hello: Arc::new(hello), after, link }))
    }

    /// Goes on in our session with a server that runs elsewhere. Nobody can tell whether it is still there
    /// but the server itself; if it does not know the session, it is opened again.
    async fn find(
        &self,
        generation: u64,
        client: &Client,
        hello: Hello,
        first_id: u64,
    ) -> Result<(UpSession, Hello), UpstreamError> {
        let own = UpSession::known(generation, &hello)?;
        match own.ask(client, first_id, "ping", None).await {
            // One that cannot be pinged has read the question all the same.
            Ok(_) | Err(UpstreamError::Rpc { .. }) => Ok((own, hello)),
            Err(error @ (UpstreamError::Connect { .. } | UpstreamError::Closed { .. })) => {
                Err(error)
            }
            Err(_) => UpSession::open(generation, client, &self.own_terms()).await,
        }
    }

    fn http_link(
        &self,
        generation: u64,
        client: Client,
        (own, hello): (UpSession, Hello),
        first_id: u64,
    ) -> (RunLink, Hello) {
        // The first few ids are those of the handshake.
        let first_id = first_id + 10;
        let run = HttpRun::new(generation, client, own, self.own_params(), first_id);
        (RunLink::Http(run), hello)
    }

    /// What we ourselves agree with a server.
    fn own_terms(&self) -> ClientState {
        ClientState { params: Some(self.own_params()), ..ClientState::default() }
    }

    fn own_params(&self) -> Arc<RawValue> {
        Arc::from(upstream::params(&self.ports.identity))
    }

    /// What a shared run must be told on behalf of all sessions together.
    fn common_terms(&self) -> ClientState {
        let mut terms = self.own_terms();
        for session in self.everyone() {
            let theirs = session.terms();
            terms.level = terms.level.into_iter().chain(theirs.level).min();
            terms.subscriptions.extend(theirs.subscriptions);
        }
        terms
    }
}

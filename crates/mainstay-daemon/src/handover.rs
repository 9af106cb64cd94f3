//! How a daemon ends, and how another one replaces it.
//!
//! [`lifecycle`] decides when and in which steps, [`drain`] executes the steps, [`relay`] finishes calls afterwards.

mod drain;
mod lifecycle;
pub(crate) mod relay;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use mainstay_api::{ApiError, ErrorKind, Listen};
use mainstay_core::LONGEST_STOP_TIMEOUT;
use mainstay_hold::holder::HolderEvent;
use mainstay_hold::limits::{ANSWER, MAX_STOP_TIMEOUT, SUPERSEDED_CHECK};
use mainstay_proxy::Servers;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(crate) use self::lifecycle::Ending;
use self::lifecycle::{Action, Event, Lifecycle, Step};
use crate::holder_client::{HolderClient, HolderEvents};
use crate::service::Service;
use crate::startup::dirs;
use crate::state::schemas::INTENT;
use crate::state::store::Store;
use crate::{Config, RunError, inspect, listen};

// The end of a daemon waits for the slowest server.
const _: () = assert!(LONGEST_STOP_TIMEOUT.as_millis() == MAX_STOP_TIMEOUT.as_millis());

/// The first step of the new daemon: checks that it can serve, and waits until the old one has handed over. Returns
/// false if the old one continues instead.
pub(crate) async fn prepare(
    config: &Config,
    holder: &HolderClient,
    events: &mut HolderEvents,
) -> Result<bool, RunError> {
    inspect(&config.instance)?;
    dirs::check_free_space(&config.instance)?;
    let state = INTENT.path_in(&config.instance.state_dir);
    let addr = match config.listen.first {
        Some(addr) => addr,
        None => Store::port_in(&state)?.map_or(Listen::DEFAULT, listen::own_addr),
    };
    holder.check(addr).map_err(|source| RunError::Listen { addr, source })?;
    holder.channel().prepared().map_err(RunError::Holder)?;
    loop {
        match events.next().await {
            HolderEvent::Serve => return Ok(true),
            // The old daemon starts another holder, and there is no hand-over any more.
            HolderEvent::HolderGone | HolderEvent::Disconnected => return Ok(false),
            HolderEvent::HandOver
            | HolderEvent::NotReplaced(_)
            | HolderEvent::HolderReexecuted(_) => {}
        }
    }
}

/// A request to end or replace the daemon.
#[derive(Debug)]
pub(crate) enum LifecycleRequest {
    End { keep_servers: bool },
    Replace(ReplaceRequest),
}

/// A request for a new daemon.
#[derive(Debug)]
pub(crate) struct ReplaceRequest {
    /// The program of the new daemon; `None` means the program of this one.
    pub(crate) exe: Option<PathBuf>,
    /// What is renamed over the program if the new daemon fails.
    pub(crate) fallback: Option<PathBuf>,
    outcome: oneshot::Sender<Result<(), String>>,
    /// Closed when the command has been answered.
    answered: oneshot::Receiver<()>,
}

/// The requests of clients, and the one that is in progress.
#[derive(Debug)]
pub(crate) struct LifecycleRequests {
    inbox: mpsc::Receiver<LifecycleRequest>,
    current: Option<ReplaceRequest>,
}

impl LifecycleRequests {
    pub(crate) fn new(inbox: mpsc::Receiver<LifecycleRequest>) -> Self {
        Self { inbox, current: None }
    }

    /// Returns when a signal, a client or the holder ends this daemon: how, and since when. A signal keeps the servers
    /// running: its sender (a service manager, a shutdown) starts the daemon again or stops them too.
    pub(crate) async fn until_ending(
        &mut self,
        events: &mut HolderEvents,
        service: &Service,
        exe: &Path,
    ) -> (Ending, Instant) {
        let holder = &service.holder;
        let listen = |kind| signal(kind).expect("the runtime handles signals");
        let mut term = listen(SignalKind::terminate());
        let mut int = listen(SignalKind::interrupt());
        let mut superseded = pin!(until_superseded(&service.context.store));
        let mut holders = JoinSet::new();
        let mut lifecycle = Lifecycle::new();
        loop {
            let mut new_request = None;
            let event = tokio::select! {
                request = self.inbox.recv() => match request {
                    None => Event::Stop { keep_servers: true },
                    Some(LifecycleRequest::End { keep_servers }) => Event::Stop { keep_servers },
                    Some(LifecycleRequest::Replace(request)) => {
                        new_request = Some(request);
                        Event::Requested
                    }
                },
                () = quiet(&service.gateway.servers, lifecycle.waits_until()) => Event::Quiet,
                event = events.next() => match from_holder(event, holder) {
                    Some(event) => event,
                    None => continue,
                },
                Some(started) = holders.join_next() => {
                    if let Err(error) = started {
                        tracing::error!(%error, "the holder was not replaced");
                    }
                    continue;
                }
                () = &mut superseded => {
                    tracing::error!("a later daemon has opened the state directory");
                    Event::Superseded
                }
                _ = term.recv() => Event::Stop { keep_servers: true },
                _ = int.recv() => Event::Stop { keep_servers: true },
            };
            let mut unhandled = VecDeque::from([event]);
            while let Some(event) = unhandled.pop_front() {
                for action in lifecycle.handle(Instant::now(), event) {
                    match action {
                        Action::RefuseNew => {
                            refuse(new_request.take(), "another reload or update is in progress");
                        }
                        Action::Refuse(why) => refuse(self.current.take(), &why),
                        Action::Grant => {
                            if let Some(request) = self.current.take() {
                                request.grant().await;
                            }
                        }
                        Action::AskHolder => {
                            let asked = self.current.as_ref().map(|request| {
                                let exe = request.exe.as_deref().unwrap_or(exe);
                                holder.channel().replace(exe, request.fallback.as_deref())
                            });
                            if let Some(Err(error)) = asked {
                                unhandled.push_back(Event::NotReplaced(error.to_string()));
                            }
                        }
                        Action::StartHolder => {
                            let (holder, exe) = (holder.clone(), exe.to_owned());
                            holders.spawn(async move { holder.replace_holder(&exe).await });
                        }
                        Action::Drain(ending, since) => return (ending, since),
                    }
                }
            }
            self.current = new_request.or_else(|| self.current.take());
        }
    }
}

/// Resolves when no call is left that the next daemon could not continue, or at `until`. Never without `until`.
async fn quiet(servers: &Servers, until: Option<Instant>) {
    let Some(until) = until else { return std::future::pending().await };
    if timeout_at(until, servers.unbound()).await.is_err() {
        tracing::warn!("calls of commands or in batches will not be answered");
    }
}

fn from_holder(event: HolderEvent, holder: &HolderClient) -> Option<Event> {
    match event {
        HolderEvent::HandOver => {
            tracing::info!("another daemon is prepared to take over");
            return Some(Event::Prepared);
        }
        HolderEvent::NotReplaced(why) => {
            tracing::error!(why, "the new daemon has failed; this one continues");
            return Some(Event::NotReplaced(why));
        }
        HolderEvent::HolderGone => return Some(Event::HolderGone),
        HolderEvent::Disconnected => {
            tracing::error!("the holder closed the connection; it is starting another daemon");
            return Some(Event::Superseded);
        }
        HolderEvent::HolderReexecuted(Ok(())) => {
            holder.renew_store();
            holder.pulse_now();
            tracing::info!("the holder runs the new program");
        }
        HolderEvent::HolderReexecuted(Err(why)) => {
            tracing::warn!(why, "the holder still runs the old program");
        }
        HolderEvent::Serve => {}
    }
    None
}

/// Resolves when a later daemon has registered in the store. This daemon must then exit: shims and store
/// reject its commands.
async fn until_superseded(store: &Store) {
    let mut readable = true;
    loop {
        sleep(SUPERSEDED_CHECK).await;
        match store.is_current().await {
            Ok(false) => return,
            Ok(true) => readable = true,
            Err(error) => {
                if std::mem::replace(&mut readable, false) {
                    tracing::warn!(%error, "cannot read the newest daemon's number");
                }
            }
        }
    }
}

impl ReplaceRequest {
    /// Asks for a new daemon. `answer` gets the outcome.
    pub(crate) async fn ask(
        requests: &mpsc::Sender<LifecycleRequest>,
        exe: Option<PathBuf>,
        fallback: Option<PathBuf>,
        answer: impl AsyncFnOnce(Result<(), ApiError>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (outcome, decided) = oneshot::channel();
        let (answering, answered) = oneshot::channel();
        let request = LifecycleRequest::Replace(Self { exe, fallback, outcome, answered });
        let ending = || Err("the daemon is ending".to_owned());
        let outcome = match requests.send(request).await {
            Ok(()) => decided.await.unwrap_or_else(|_| ending()),
            Err(_) => ending(),
        };
        let done = answer(outcome.map_err(|why| {
            let message = format!("the old daemon keeps running: {why}");
            ApiError::new(ErrorKind::Unavailable, message)
        }));
        let done = done.await;
        drop(answering);
        done
    }

    /// The new daemon takes over. Returns when the command has been answered.
    async fn grant(self) {
        if self.outcome.send(Ok(())).is_ok() {
            // The channel closes when the answer is written; a command that does not read it is not waited for.
            drop(timeout(ANSWER, self.answered).await);
        }
    }
}

fn refuse(request: Option<ReplaceRequest>, why: &str) {
    if let Some(request) = request {
        // The command may have disconnected.
        drop(request.outcome.send(Err(why.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_daemon_notices_that_a_later_one_has_registered() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(&dir.path().join("state.db")).unwrap();
        let (old, new) = (open(), open());
        old.next_daemon(0).unwrap();
        assert!(timeout(SUPERSEDED_CHECK * 10, until_superseded(&old)).await.is_err());
        new.next_daemon(0).unwrap();
        timeout(SUPERSEDED_CHECK * 10, until_superseded(&old)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_answered_before_the_daemon_ends() {
        let (requests, mut inbox) = mpsc::channel(1);
        let (sender, mut answers) = mpsc::unbounded_channel();
        let ask = |seconds: u64| {
            let (requests, sender) = (requests.clone(), sender.clone());
            tokio::spawn(async move {
                let answer = async |answer: Result<(), ApiError>| {
                    sleep(std::time::Duration::from_millis(seconds)).await;
                    sender.send(answer.map_err(|error| error.message)).ok();
                    Ok(())
                };
                ReplaceRequest::ask(&requests, None, None, answer).await
            })
        };
        let mut next = async || match inbox.recv().await {
            Some(LifecycleRequest::Replace(request)) => request,
            other => panic!("{other:?}"),
        };
        ask(50);
        next().await.grant().await;
        assert_eq!(answers.try_recv(), Ok(Ok(())), "it was answered when grant returned");
        ask(0);
        refuse(Some(next().await), "no");
        let refused = Err("the old daemon keeps running: no".to_owned());
        assert_eq!(answers.recv().await, Some(refused));
        ask(0);
        drop(next().await);
        let ending = Err("the old daemon keeps running: the daemon is ending".to_owned());
        assert_eq!(answers.recv().await, Some(ending));
        let begun = Instant::now();
        ask(60_000);
        next().await.grant().await;
        assert_eq!(begun.elapsed(), ANSWER, "a command that does not read is not waited for");
    }
}

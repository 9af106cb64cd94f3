//! How a daemon ends, and how another one takes its place.

pub(crate) mod relay;

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use mainstay_api::{ApiError, ErrorKind};
use mainstay_hold::holder::HolderEvent;
use mainstay_hold::limits::{ANSWER, LAST_HOLDER, QUIET, SETTLE, STILL_QUIET, SUPERSEDED_CHECK};
use mainstay_proxy::Hubs;
use mainstay_proxy::front::DURABLE;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::RunError;
use crate::holder_client::{HolderClient, HolderEvents};
use crate::state::store::Store;

// A request is in the journal before the old daemon stops to wait for it.
const _: () = assert!(DURABLE.as_millis() < SETTLE.as_millis());

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Servers stay up, for whichever daemon is next.
    KeepServers,
    /// Servers end too.
    EndServers,
    /// Another daemon goes on at once, with the same listeners.
    GiveWay,
    /// Another daemon has taken over, or is about to: there is nothing to hand over.
    Replaced,
}

/// Ends when a signal, a client or the holder says so. A signal leaves the servers up: whoever sends it
/// (a service manager, a shutdown) starts us again or ends them too.
pub(crate) async fn until_told(
    lifecycle_requests: &mut mpsc::Receiver<LifecycleRequest>,
    holder_events: &mut HolderEvents,
    holder: &HolderClient,
    hubs: &Hubs,
    store: &Store,
    exe: &Path,
) -> Ending {
    let listen = |kind| signal(kind).expect("the runtime handles signals");
    let (mut term, mut int) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()));
    let mut asked = Asked::default();
    let mut holders = JoinSet::new();
    let mut replaced = pin!(until_replaced(store));
    loop {
        tokio::select! {
            request = lifecycle_requests.recv() => match request {
                None | Some(LifecycleRequest::End { keep_servers: true }) => return Ending::KeepServers,
                Some(LifecycleRequest::End { keep_servers: false }) => return Ending::EndServers,
                Some(LifecycleRequest::Replace(succession)) => asked.take_on(succession),
            },
            () = asked.quiet(hubs) => asked.begin(|succession| {
                let exe = succession.exe.as_deref().unwrap_or(exe);
                holder.replace(exe, succession.fallback.as_deref())
            }),
            order = holder_events.next() => match order {
                HolderEvent::Serve => {}
                HolderEvent::HandOver => {
                    // An error is none: it has been waited for long enough.
                    drop(timeout(STILL_QUIET, hubs.unbound()).await);
                    asked.grant().await;
                    tracing::info!("giving way to another daemon");
                    return Ending::GiveWay;
                }
                HolderEvent::NotReplaced(why) => {
                    tracing::error!(why, "another daemon was to take over, and could not");
                    asked.refuse(&why);
                }
                HolderEvent::Disconnected => {
                    tracing::error!("the holder closed the connection; it is starting another daemon");
                    return Ending::Replaced;
                }
                HolderEvent::HolderReexecuted(Ok(())) => {
                    holder.renew_store();
                    holder.pulse_now();
                    tracing::info!("the holder runs the new program");
                }
                HolderEvent::HolderReexecuted(Err(why)) => {
                    tracing::warn!(why, "the holder still runs the old program");
                }
                HolderEvent::HolderGone => {
                    asked.holder_died();
                    let (holder, exe) = (holder.clone(), exe.to_owned());
                    holders.spawn(async move { holder.replace_holder(&exe).await });
                }
            },
            Some(started) = holders.join_next() => {
                if let Err(error) = started {
                    tracing::error!(%error, "the holder was not replaced");
                }
            }
            () = &mut replaced => {
                tracing::error!("a later daemon has opened the state directory");
                return Ending::Replaced;
            }
            _ = term.recv() => return Ending::KeepServers,
            _ = int.recv() => return Ending::KeepServers,
        }
    }
}

/// Has the next daemon begin, now that this one has let go of everything. If the holder has died meanwhile,
/// nobody can tell whether it had told the next one to go. So that one is ended, long before it could serve
/// and start a holder of its own, and a new holder, which has all listeners from us, starts another when
/// we are gone: never nobody, and never two. One that cannot be ended may serve; then there is no other.
pub(crate) async fn make_room(holder: &HolderClient, exe: &Path) -> Result<(), RunError> {
    let Err(error) = holder.handed_over().await else { return Ok(()) };
    tracing::warn!(%error, "the holder has died in the middle of a hand-over");
    holder.kill_successor().await.map_err(RunError::Holder)?;
    let replaced = timeout(LAST_HOLDER, holder.replace_holder(exe)).await;
    replaced.map_err(|elapsed| RunError::Holder(elapsed.into()))
}

/// Resolves when a later daemon has registered in the store. This daemon must then exit: shims and store
/// reject its commands.
async fn until_replaced(store: &Store) {
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

/// What clients want of the daemon itself.
#[derive(Debug)]
pub(crate) enum LifecycleRequest {
    /// That it ends.
    End {
        /// Whether the servers stay up.
        keep_servers: bool,
    },
    /// That another one takes its place.
    Replace(ReplaceRequest),
}

/// A request for another daemon.
#[derive(Debug)]
pub(crate) struct ReplaceRequest {
    /// Its program; none means the same as this one's.
    pub(crate) exe: Option<PathBuf>,
    /// What takes the place of the program if it does not come up.
    pub(crate) fallback: Option<PathBuf>,
    outcome: oneshot::Sender<Result<(), String>>,
    /// Gone when the one who asked was told.
    told: oneshot::Receiver<()>,
}

/// The replacement that was requested, if any.
#[derive(Debug, Default)]
struct Asked {
    succession: Option<ReplaceRequest>,
    /// Until then it waits for a good moment; gone when the holder was asked.
    waits: Option<Instant>,
}

impl Asked {
    /// Takes on a succession if it is the only one.
    fn take_on(&mut self, succession: ReplaceRequest) {
        if self.succession.is_some() {
            return succession.refuse("another reload or update is under way");
        }
        *self = Self { succession: Some(succession), waits: Some(Instant::now() + QUIET) };
    }

    /// Resolves when a succession that waits can begin.
    async fn quiet(&self, hubs: &Hubs) {
        let Some(until) = self.waits else { return std::future::pending().await };
        if timeout_at(until, hubs.unbound()).await.is_err() {
            tracing::warn!("calls of commands or in batches will miss their answers");
        }
    }

    /// Begins with it, if it can be asked for.
    fn begin(&mut self, ask: impl FnOnce(&ReplaceRequest) -> io::Result<()>) {
        self.waits = None;
        if let Some(Err(error)) = self.succession.as_ref().map(ask) {
            self.refuse(&error.to_string());
        }
    }

    async fn grant(self) {
        if let Some(succession) = self.succession {
            succession.grant().await;
        }
    }

    /// One that waits has asked nothing of that holder.
    fn holder_died(&mut self) {
        if self.waits.is_none() {
            self.refuse("the holder of the listeners died meanwhile");
        }
    }

    fn refuse(&mut self, why: &str) {
        self.waits = None;
        if let Some(succession) = self.succession.take() {
            succession.refuse(why);
        }
    }
}

impl ReplaceRequest {
    /// Asks for another daemon; `tell` is given the answer as long as this daemon lives.
    pub(crate) async fn ask(
        lifecycle_requests: &mpsc::Sender<LifecycleRequest>,
        exe: Option<PathBuf>,
        fallback: Option<PathBuf>,
        tell: impl AsyncFnOnce(Result<(), ApiError>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (outcome, record_decision) = oneshot::channel();
        let (telling, told) = oneshot::channel();
        let request = LifecycleRequest::Replace(Self { exe, fallback, outcome, told });
        let answer = match lifecycle_requests.send(request).await {
            Ok(()) => {
                record_decision.await.unwrap_or_else(|_| Err("the daemon is ending".to_owned()))
            }
            Err(_) => Err("the daemon is ending".to_owned()),
        };
        let answer = answer.map_err(|why| {
            let message = format!("the daemon goes on as it is: {why}");
            ApiError::new(ErrorKind::Unavailable, message)
        });
        let done = tell(answer).await;
        drop(telling);
        done
    }

    /// The other daemon is about to go on. Comes back when that was told.
    async fn grant(self) {
        if self.outcome.send(Ok(())).is_ok() {
            // An error is what is waited for; one who does not read is not.
            drop(timeout(ANSWER, self.told).await);
        }
    }

    /// There is no other daemon.
    fn refuse(self, why: &str) {
        // Whoever asked may have gone.
        drop(self.outcome.send(Err(why.to_owned())));
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
        assert!(timeout(SUPERSEDED_CHECK * 10, until_replaced(&old)).await.is_err());
        new.next_daemon(0).unwrap();
        timeout(SUPERSEDED_CHECK * 10, until_replaced(&old)).await.unwrap();
    }

    type Answer = oneshot::Receiver<Result<(), String>>;

    /// A request, the answer to it, and what is dropped when that was told.
    fn a_request() -> (ReplaceRequest, Answer, oneshot::Sender<()>) {
        let (outcome, answer) = oneshot::channel();
        let (telling, told) = oneshot::channel();
        (ReplaceRequest { exe: None, fallback: None, outcome, told }, answer, telling)
    }

    fn refused(answer: &mut Answer) -> String {
        answer.try_recv().unwrap().unwrap_err()
    }

    #[tokio::test]
    async fn a_second_request_is_refused_and_the_first_goes_on() {
        let mut asked = Asked::default();
        let (first, first_answer, telling) = a_request();
        asked.take_on(first);
        asked.begin(|_| Ok(()));
        let (second, mut answer, _) = a_request();
        asked.take_on(second);
        assert_eq!(refused(&mut answer), "another reload or update is under way");

        drop(telling);
        asked.grant().await;
        assert_eq!(first_answer.await, Ok(Ok(())));
    }

    #[test]
    fn one_that_came_to_nothing_makes_room_for_another() {
        let mut asked = Asked::default();
        let (deaf, mut answer, _) = a_request();
        asked.take_on(deaf);
        asked.begin(|_| Err(io::Error::other("nobody listens")));
        assert_eq!(refused(&mut answer), "nobody listens");

        let (bad, mut answer, _) = a_request();
        asked.take_on(bad);
        asked.begin(|_| Ok(()));
        asked.refuse("it fell");
        assert_eq!(refused(&mut answer), "it fell");

        let (good, mut answer, _) = a_request();
        asked.take_on(good);
        asked.begin(|_| Ok(()));
        assert!(answer.try_recv().is_err(), "it is under way");
    }
}

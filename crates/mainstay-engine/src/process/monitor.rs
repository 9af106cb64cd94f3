//! Following a run to its end.

use mainstay_core::{Cause, Exit};
use mainstay_hold::wire::{FromShim, ToShim};
use tokio::process::Child;

use crate::process::link::ShimLink;
use crate::process::orphans::{self, OrphanedRun};
use crate::process::{Shared, command};
use crate::{News, RunKey};

/// How a connection that heard of a run's end came to its own.
#[derive(Debug)]
enum Ending {
    /// Nothing of the run is left.
    Gone,
    /// The shim has ended before its run, or cannot be talked to.
    Lost,
    /// The shim obeys another daemon now.
    NotOurs(String),
}

impl Shared {
    /// Follows a run and then collects its shim: whoever started a process must, or it stays a zombie.
    pub(crate) async fn follow_and_reap(&self, key: RunKey, link: ShimLink, mut shim: Child) {
        self.follow(&key, link).await;
        if let Err(error) = shim.wait().await {
            tracing::warn!(server = %key.server, run = %key.run, %error, "cannot collect a shim");
        }
    }

    /// Reports a run's end as the shim tells it, or works it out when the shim itself is gone. None
    /// if the run goes on under another daemon.
    pub(crate) async fn follow(&self, key: &RunKey, mut link: ShimLink) -> Option<Exit> {
        let mut told = None;
        match self.watch_until_end(key, &mut link, &mut told).await {
            // A shim that does not hear this goes by itself after a while.
            Ending::Gone => drop(link.send(&ToShim::Dismiss).await),
            Ending::Lost => self.kill_by_force(key).await,
            Ending::NotOurs(why) => {
                tracing::warn!(server = %key.server, run = %key.run, why, "a run is not ours any more");
                self.active().remove(key);
                return None;
            }
        }
        let known = self.dirs.clear_away(key);
        self.active().remove(key);
        let exit = told.unwrap_or_else(|| {
            self.report_exit(key, known, Vec::new());
            known
        });
        self.publish(News::Gone { key: key.clone(), cause: Cause::Exited(exit) });
        Some(exit)
    }

    /// Passes on the news of the exit, and leaves it in `told`.
    async fn watch_until_end(
        &self,
        key: &RunKey,
        link: &mut ShimLink,
        told: &mut Option<Exit>,
    ) -> Ending {
        let restore = self.active().get(key).map(|active| active.restore.clone());
        let restore = restore.unwrap_or_default();
        loop {
            let next = tokio::select! {
                next = link.next() => next,
                () = restore.notified() => match link.send(&ToShim::Restore).await {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
            };
            match next {
                Ok(Some(FromShim::Exited { code, signal, oom, stderr_tail, .. })) => {
                    let exit = Exit { code, signal, oom };
                    *told = Some(exit);
                    self.report_exit(key, exit, stderr_tail);
                }
                Ok(Some(FromShim::Gone { survivors })) => {
                    if survivors > 0 {
                        tracing::error!(server = %key.server, run = %key.run, survivors,
                            "processes of this run could not be killed");
                    }
                    return Ending::Gone;
                }
                Ok(Some(FromShim::Refused { why })) => return Ending::NotOurs(why),
                Ok(Some(
                    FromShim::Hello { .. }
                    | FromShim::Output { .. }
                    | FromShim::Closed
                    | FromShim::Written { .. }
                    | FromShim::Tail { .. },
                )) => {}
                Ok(None) => return Ending::Lost,
                Err(error) => {
                    tracing::warn!(server = %key.server, run = %key.run, %error, "lost the shim");
                    return Ending::Lost;
                }
            }
        }
    }

    /// Ends a run whose shim does not respond: the server dies with its shim, and all descendants that are
    /// recorded or seen are killed.
    pub(crate) async fn kill_by_force(&self, key: &RunKey) {
        let seen = self.dirs.kill_shim(key).unwrap_or_else(|error| {
            tracing::error!(server = %key.server, run = %key.run, %error, "cannot kill a shim");
            Vec::new()
        });
        orphans::end(vec![self.orphaned(key)], seen).await;
    }

    /// A run without a shim.
    pub(crate) fn orphaned(&self, key: &RunKey) -> OrphanedRun {
        OrphanedRun { dir: self.dirs.path(key), mark: command::mark(&self.config.instance, key) }
    }

    fn report_exit(&self, key: &RunKey, exit: Exit, stderr: Vec<u8>) {
        self.publish(News::Exited { key: key.clone(), exit, stderr });
    }

    /// Tells everybody who watches. Nobody may, which is no concern of the engine's.
    fn publish(&self, news: News) {
        self.news.send(news).ok();
    }
}

//! Follows a run to its end.

use mainstay_core::{Cause, Exit};
use mainstay_hold::wire::{FromShim, ToShim};
use tokio::process::Child;

use crate::process::link::ShimLink;
use crate::process::orphans::{self, OrphanedRun};
use crate::process::{Shared, command};
use crate::{News, RunKey};

/// Why the connection to a shim ended.
#[derive(Debug)]
enum Ending {
    /// Nothing of the run is left.
    Gone,
    /// The shim has ended before its run, or broke the protocol.
    Lost,
    /// The shim obeys another daemon.
    NotOurs(String),
}

impl Shared {
    /// Follows a run and then reaps its shim, which would stay a zombie otherwise.
    pub(crate) async fn follow_and_reap(&self, key: RunKey, link: ShimLink, mut shim: Child) {
        self.follow(&key, link).await;
        if let Err(error) = shim.wait().await {
            tracing::warn!(server = %key.server, run = %key.run, %error, "cannot reap a shim");
        }
    }

    /// Reports a run's end, as the shim or, if the shim is gone, its exit record states it. None
    /// if the run continues under another daemon.
    pub(crate) async fn follow(&self, key: &RunKey, mut link: ShimLink) -> Option<Exit> {
        let mut reported = None;
        match self.watch_until_end(key, &mut link, &mut reported).await {
            // A shim that does not receive this exits by itself after a while.
            Ending::Gone => drop(link.send(&ToShim::Dismiss).await),
            Ending::Lost => self.kill_by_force(key).await,
            Ending::NotOurs(why) => {
                tracing::warn!(server = %key.server, run = %key.run, why, "a run belongs to another daemon now");
                self.active().remove(key);
                return None;
            }
        }
        let known = self.dirs.clear_away(key);
        self.active().remove(key);
        let exit = reported.unwrap_or_else(|| {
            self.report_exit(key, known, Vec::new());
            known
        });
        self.publish(News::Gone { key: key.clone(), cause: Cause::Exited(exit) });
        Some(exit)
    }

    /// Reports the exit, and stores it in `reported`.
    async fn watch_until_end(
        &self,
        key: &RunKey,
        link: &mut ShimLink,
        reported: &mut Option<Exit>,
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
                    *reported = Some(exit);
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
                    | FromShim::Unread { .. }
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

    fn publish(&self, news: News) {
        // Without a receiver, the next list shows it.
        self.news.send(news).ok();
    }
}

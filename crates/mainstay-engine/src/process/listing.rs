//! Finds the runs of this instance, and watches them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use mainstay_core::Exit;
use mainstay_hold::limits::SHIM_NUMBERS;
use mainstay_hold::shim_search;
use mainstay_hold::wire::ToShim;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::process::link::ShimLink;
use crate::process::{Active, ProcessEngine, orphans};
use crate::{EngineError, Found, FoundState, RunKey};

/// How many shims are connected to at the same time: one that does not answer delays few others, and the number of
/// descriptors is bounded.
const AT_ONCE: usize = 16;

/// The highest number of a daemon that a living shim below `runs_dir` has seen; 0 if there is none. Nothing is sent to
/// the shims.
pub async fn newest_daemon_of_shims(runs_dir: &Path) -> u64 {
    let dirs = shim_search::run_dirs_of_shims(runs_dir).unwrap_or_default();
    let mut greetings = stream::iter(dirs)
        .map(|dir| async move { ShimLink::connect(&dir, 0).await })
        .buffer_unordered(AT_ONCE);
    let mut newest = 0;
    let ask = async {
        while let Some(greeting) = greetings.next().await {
            newest = newest.max(greeting.map_or(0, |(_, greeting)| greeting.newest_daemon));
        }
    };
    if timeout(SHIM_NUMBERS, ask).await.is_err() {
        tracing::warn!("some shims do not report which daemons they have seen");
    }
    newest
}

/// A run on disk that was not watched.
#[derive(Debug)]
enum Adopted {
    /// It is watched now, or its shim does not respond.
    Alive { pid: Option<u32>, age: Duration },
    /// Nothing of it is left.
    Ended(Exit),
    /// Its shim does not exist any more.
    Lost,
}

impl ProcessEngine {
    /// The runs on disk, which are watched from now on, and those that are watched already. Processes that lost their
    /// shim are killed before this returns.
    pub(crate) async fn list_all(&self) -> Result<Vec<Found>, EngineError> {
        self.shared.await_shims().await;
        self.shared.restore_directories();
        let on_disk = self.shared.dirs.list()?;
        let watched: Vec<RunKey> = self.shared.active().keys().cloned().collect();
        let keys: BTreeSet<RunKey> = on_disk.into_iter().chain(watched).collect();
        let mut adopting = stream::iter(keys)
            .map(|key| async move { (self.adopt(&key).await, key) })
            .buffer_unordered(AT_ONCE);
        let (mut all, mut lost) = (Vec::new(), Vec::new());
        while let Some((adopted, key)) = adopting.next().await {
            match adopted {
                Adopted::Alive { pid, age } => {
                    all.push(Found { key, state: FoundState::Alive { pid, container: None, age } });
                }
                Adopted::Ended(exit) => all.push(Found { key, state: FoundState::Ended(exit) }),
                Adopted::Lost => lost.push(key),
            }
        }
        all.extend(self.clear_lost(lost).await);
        all.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    /// A run that is being started or watched is alive. One whose shim is alive but does not respond counts as alive
    /// too: its driver will kill it. So does one that cannot be reached because this process is out of a resource, so
    /// that a shortage does not end a healthy server.
    async fn adopt(&self, key: &RunKey) -> Adopted {
        if let Some(Active { pid, since, .. }) = self.shared.active().get(key).cloned() {
            return Adopted::Alive { pid, age: since.elapsed() };
        }
        match self.begin_watch(key).await {
            Ok(taken) => taken,
            Err(error) if error.is_temporary() || self.shared.dirs.shim_alive(key) => {
                tracing::error!(server = %key.server, run = %key.run, %error, "a shim does not answer");
                Adopted::Alive { pid: None, age: Duration::ZERO }
            }
            Err(_) => Adopted::Lost,
        }
    }

    async fn begin_watch(&self, key: &RunKey) -> Result<Adopted, EngineError> {
        let (mut link, greeting) = self.shared.connect(key).await?;
        let age = greeting.age();
        let alive = Adopted::Alive { pid: Some(greeting.server_pid), age };
        let over = if greeting.exited {
            link.send(&ToShim::Watch).await?;
            link.is_over().await?
        } else {
            link.confirm(Some(&ToShim::Watch)).await?;
            false
        };
        let since = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        if !self.shared.claim(key, Active::new(Some(greeting.server_pid), since, None)) {
            // A concurrent list was faster.
            return Ok(alive);
        }
        let (ended, exit) = oneshot::channel();
        let (shared, key) = (self.shared.clone(), key.clone());
        self.tasks.spawn(async move {
            // The receiver is dropped if the run is alive.
            ended.send(shared.follow(&key, link).await).ok();
        });
        if over {
            // It ended before this daemon watched it, and its shim has stayed to report how.
            return Ok(exit.await.ok().flatten().map_or(alive, Adopted::Ended));
        }
        Ok(alive)
    }

    /// Kills what is left of runs without a shim. A run whose directory is gone as well
    /// has been reported by the task that followed it.
    async fn clear_lost(&self, lost: Vec<RunKey>) -> Vec<Found> {
        let lost: Vec<RunKey> =
            lost.into_iter().filter(|key| self.shared.dirs.exists(key)).collect();
        if lost.is_empty() {
            return Vec::new();
        }
        orphans::end(lost.iter().map(|key| self.shared.orphaned(key)).collect(), Vec::new()).await;
        lost.into_iter()
            .map(|key| Found { state: FoundState::Ended(self.shared.dirs.clear_away(&key)), key })
            .collect()
    }
}

//! Finding the runs of this instance again, and taking them under watch.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::Path;
use std::time::Duration;

use mainstay_core::Exit;
use mainstay_hold::shim_search;
use mainstay_hold::wire::ToShim;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::process::link::ShimLink;
use crate::process::{Active, ProcessEngine, orphans};
use crate::{EngineError, Found, FoundState, RunKey};

/// How many shims are asked at a time: one that does not answer delays few others, and a machine full
/// of servers is not short of descriptors for that.
const AT_ONCE: usize = 16;

/// How long shims are asked which daemons they have seen.
const NUMBERS_WITHIN: Duration = Duration::from_secs(2);

/// The highest number of a daemon that a living shim below `runs_dir` has seen; 0 if none says it. Shims are only
/// listened to.
pub async fn newest_daemon_of_shims(runs_dir: &Path) -> u64 {
    let mut dirs = shim_search::run_dirs_of_shims(runs_dir).unwrap_or_default().into_iter();
    let mut asked = JoinSet::new();
    let mut newest = 0;
    let ask = async {
        loop {
            while asked.len() < AT_ONCE
                && let Some(dir) = dirs.next()
            {
                asked.spawn(async move { ShimLink::connect(&dir, 0).await });
            }
            match asked.join_next().await {
                Some(Ok(Ok((_, greeting)))) => newest = newest.max(greeting.newest_daemon),
                Some(_) => {}
                None => break,
            }
        }
    };
    if timeout(NUMBERS_WITHIN, ask).await.is_err() {
        tracing::warn!("some shims do not say which daemons they have seen");
    }
    newest
}

/// A run on disk that nobody watched.
#[derive(Debug)]
enum Adopted {
    /// It is under watch now, or its shim cannot be talked to.
    Alive { pid: Option<u32>, age: Duration },
    /// Nothing of it is left.
    Ended(Exit),
    /// Its shim is no more.
    Lost,
}

impl ProcessEngine {
    /// The runs on disk, each watched from now on, and those that are watched. What lost its shim is ended before this
    /// returns.
    pub(crate) async fn list_all(&self) -> Result<Vec<Found>, EngineError> {
        self.shared.await_shims().await;
        self.shared.restore_directories();
        let on_disk = self.shared.dirs.list()?;
        let watched: Vec<RunKey> = self.shared.active().keys().cloned().collect();
        let keys: BTreeSet<RunKey> = on_disk.into_iter().chain(watched).collect();
        let mut keys = keys.into_iter();
        let mut taking = JoinSet::new();
        let (mut all, mut lost) = (Vec::new(), Vec::new());
        loop {
            while taking.len() < AT_ONCE
                && let Some(key) = keys.next()
            {
                let engine = self.clone();
                taking.spawn(async move { (engine.adopt(&key).await, key) });
            }
            let Some(taken) = taking.join_next().await else { break };
            let (taken, key) = taken.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            match taken {
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

    /// A run that is being started or watched is alive. Of the others, one whose shim lives but cannot
    /// be talked to counts as alive too: its driver will find out and have it killed. So does one that
    /// cannot be asked for lack of something here, lest a shortage of ours cost a healthy server.
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
            // Another list was quicker.
            return Ok(alive);
        }
        let (told, exit) = oneshot::channel();
        let (shared, key) = (self.shared.clone(), key.clone());
        self.tasks.spawn(async move {
            // Nobody waits for a run that lives.
            told.send(shared.follow(&key, link).await).ok();
        });
        if over {
            // It ended while nobody watched, and its shim has stayed to tell how.
            return Ok(exit.await.ok().flatten().map_or(alive, Adopted::Ended));
        }
        Ok(alive)
    }

    /// Ends what is left of runs without a shim, all in one go. A run whose directory is gone as well
    /// has been reported by whoever followed it.
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

//! Processes of runs that have lost their shim.
//!
//! The guard of the shim kills them. If it was killed as well, they are killed by the shim's records: of their
//! pids and start times, and of the run's cgroup, if it has one. The mark in their environment proves nothing: anyone can set it, and a server's
//! child can clear it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use mainstay_core::backoff;
use mainstay_hold::limits::KILL_SERVER;
use mainstay_hold::tree::{self, Process};
use mainstay_hold::{cgroup, process_record, record};
use tokio::time::{Instant, sleep};

use crate::process::command::MARK;
use crate::tasks::blocking;

/// The delay between the first two scans. It doubles each time.
const FIRST: Duration = Duration::from_millis(10);

/// The longest delay between two scans.
const LONGEST: Duration = Duration::from_millis(500);

/// A run that has lost its shim.
#[derive(Debug)]
pub(crate) struct OrphanedRun {
    /// The run directory, which has the record of its processes.
    pub(crate) dir: PathBuf,
    /// The mark in the environment of its processes, unless they changed it.
    pub(crate) mark: String,
}

/// Waits until the guards of these runs have ended, and then kills the processes on record, those in `seen`,
/// everything below, and everything in the cgroups of the runs, until none is left. The cgroups are removed. The record of a cgroup that
/// cannot be ended stays.
pub(crate) async fn end(runs: Vec<OrphanedRun>, seen: Vec<Process>) {
    wait_for_guards(&runs, Instant::now() + KILL_SERVER).await;
    kill_recorded(&runs, seen).await;
    // Last, because a shim among `seen` could create a cgroup while it is alive.
    end_cgroups(&runs).await;
    report_unrecorded(runs).await;
}

/// A scan reads the list of all processes, so it runs on a blocking thread.
async fn kill_recorded(runs: &[OrphanedRun], seen: Vec<Process>) {
    let give_up = Instant::now() + KILL_SERVER;
    let mut known: BTreeSet<Process> = seen.into_iter().collect();
    for OrphanedRun { dir, .. } in runs {
        match process_record::read(dir) {
            Ok(recorded) => known.extend(recorded),
            Err(error) => {
                tracing::error!(%error, dir = %dir.display(), "cannot read the record of a run's processes");
            }
        }
    }
    let mut logged = BTreeSet::new();
    let mut scans = 0;
    loop {
        let (known_now, killed) = blocking(move || {
            let killed = process_record::kill(&mut known);
            (known, killed)
        })
        .await;
        known = known_now;
        match killed {
            Ok(killed) if killed.is_empty() => return,
            Ok(killed) => {
                for process in killed {
                    if logged.insert(process) {
                        tracing::warn!(pid = process.pid, "killed a process whose shim is gone");
                    }
                }
            }
            // Most likely out of descriptors. There may be processes that the scan did not see.
            Err(error) => tracing::warn!(%error, "cannot scan for processes without a shim"),
        }
        if Instant::now() >= give_up {
            tracing::error!(?runs, "processes could not be killed");
            return;
        }
        sleep(backoff(FIRST, scans, LONGEST)).await;
        scans += 1;
    }
}

async fn end_cgroups(runs: &[OrphanedRun]) {
    for run in runs {
        let dir = run.dir.clone();
        // One that is stuck must not use up the time of the others.
        match blocking(move || cgroup::end_recorded(&dir, KILL_SERVER)).await {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(run = %run.mark, "killed the cgroup of a run whose shim is gone");
            }
            Err(error) => {
                tracing::error!(%error, run = %run.mark, "cannot end the cgroup of a run");
            }
        }
    }
}

/// A guard that takes too long, or was stopped, is no longer waited for.
async fn wait_for_guards(runs: &[OrphanedRun], give_up: Instant) {
    let is_guarded =
        |run: &OrphanedRun| record::guard_alive(&run.dir).is_ok_and(|guard| guard.is_some());
    while runs.iter().any(is_guarded) && Instant::now() < give_up {
        sleep(FIRST).await;
    }
}

/// Logs the processes that carry the mark of one of these runs but are not in its record. They may belong to
/// anyone, so they are left alone.
async fn report_unrecorded(runs: Vec<OrphanedRun>) {
    let found = blocking(move || -> io::Result<Vec<(Process, Vec<u8>)>> {
        let is_known = |mark: &[u8]| runs.iter().any(|run| run.mark.as_bytes() == mark);
        let mut found = tree::find_marked(MARK)?;
        found.retain(|(_, mark)| is_known(mark));
        Ok(found)
    });
    for (process, mark) in found.await.unwrap_or_default() {
        let run = String::from_utf8_lossy(&mark);
        tracing::warn!(pid = process.pid, %run, "left a process alone: its environment names a run that has no record of it");
    }
}

//! Processes that carry the mark of a run but have lost their shim.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mainstay_hold::tree;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::process::command::MARK;

/// Between the first two looks; then twice as long each time.
const FIRST: Duration = Duration::from_millis(10);

/// The longest time between two looks.
const LONGEST: Duration = Duration::from_millis(500);

/// A process that a KILL does not end by then hangs in the kernel.
const LIMIT: Duration = Duration::from_secs(10);

/// Kills the processes whose mark begins with `prefix` and passes `doomed`, until none is left.
///
/// A look reads the environment of every process of our user, so it is done on a thread of its own.
pub(crate) async fn end_marked<F>(prefix: String, doomed: F)
where
    F: Fn(&str) -> bool + Send + Sync + 'static,
{
    let give_up = Instant::now() + LIMIT;
    let (prefix, doomed) = (Arc::<str>::from(prefix), Arc::new(doomed));
    let mut told = HashSet::new();
    let mut pause = FIRST;
    loop {
        let (of, which) = (Arc::clone(&prefix), Arc::clone(&doomed));
        let look = spawn_blocking(move || kill_marked(&of, &*which)).await;
        let look = look.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        match look {
            Ok(killed) if killed.is_empty() => return,
            Ok(killed) => {
                for (pid, mark) in killed {
                    if told.insert(pid) {
                        tracing::warn!(pid, run = %mark, "killed a process whose shim is gone");
                    }
                }
            }
            // Out of descriptors, most likely. Not seeing any process does not mean that there is none.
            Err(error) => tracing::warn!(%error, "cannot look for stray processes"),
        }
        if Instant::now() >= give_up {
            tracing::error!(marks = %prefix, "processes could not be killed");
            return;
        }
        sleep(pause).await;
        pause = LONGEST.min(pause * 2);
    }
}

fn kill_marked(prefix: &str, doomed: &dyn Fn(&str) -> bool) -> io::Result<Vec<(u32, String)>> {
    let mut killed = Vec::new();
    for (process, mark) in tree::find_marked(MARK, prefix.as_bytes())? {
        let mark = String::from_utf8_lossy(&mark).into_owned();
        if doomed(&mark) {
            // It may have ended in between, which is what is wanted.
            process.kill().ok();
            killed.push((process.pid, mark));
        }
    }
    Ok(killed)
}

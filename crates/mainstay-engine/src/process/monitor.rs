//! Following a run to its end.

use std::collections::HashSet;
use std::time::Duration;

use mainstay_core::Exit;
use mainstay_hold::tree;
use mainstay_hold::wire::{FromShim, ToShim};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::process::ProcessEngine;
use crate::process::command::{MARK, mark};
use crate::process::link::ShimLink;
use crate::{News, RunKey};

/// Between two looks at what a killed shim left behind.
const SWEEP_EVERY: Duration = Duration::from_millis(10);

/// Looks at most; a process that a KILL does not end by then hangs in the kernel.
const SWEEPS: u32 = 500;

impl ProcessEngine {
    /// Reports a run's end as the shim tells it, or works it out when the shim itself is gone.
    pub(crate) async fn follow(self, key: RunKey, mut link: ShimLink) -> Exit {
        let mut exit = None;
        let gone = loop {
            match link.next().await {
                Ok(Some(FromShim::Exited { code, signal, oom, stderr_tail, .. })) => {
                    let how = Exit { code, signal, oom };
                    exit = Some(how);
                    self.tell_exit(&key, how, stderr_tail);
                }
                Ok(Some(FromShim::Gone { survivors })) => {
                    if survivors > 0 {
                        tracing::error!(server = %key.server, run = %key.run, survivors,
                            "processes of this run could not be killed");
                    }
                    break true;
                }
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(error) => {
                    tracing::warn!(server = %key.server, run = %key.run, %error, "lost the shim");
                    break false;
                }
            }
        };
        if gone {
            // A shim that does not hear this goes by itself after a while.
            link.send(&ToShim::Dismiss).await.ok();
        } else {
            let whole = mark(&self.shared.config.instance, &key);
            end_marked(&whole, |found| found == whole).await;
        }
        let known = self.shared.dirs.clear_away(&key);
        self.active().remove(&key);
        let exit = exit.unwrap_or_else(|| {
            self.tell_exit(&key, known, Vec::new());
            known
        });
        self.tell_all(News::Gone { key, exit });
        exit
    }

    fn tell_exit(&self, key: &RunKey, exit: Exit, stderr: Vec<u8>) {
        self.tell_all(News::Exited { key: key.clone(), exit, stderr });
    }
}

/// Kills a process. It may have ended in between, which is what is wanted.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        kill_process(pid, Signal::KILL).ok();
    }
}

/// Kills the processes whose mark begins with `prefix` and passes `doomed`, until none is left.
pub(crate) async fn end_marked(prefix: &str, doomed: impl Fn(&str) -> bool) {
    let mut told = HashSet::new();
    for _ in 0..SWEEPS {
        let mut found = false;
        for (pid, mark) in tree::find_marked(MARK, prefix.as_bytes()) {
            let mark = String::from_utf8_lossy(&mark);
            if !doomed(&mark) {
                continue;
            }
            found = true;
            if told.insert(pid) {
                tracing::warn!(pid, run = %mark, "killing a process whose shim is gone");
            }
            kill(pid);
        }
        if !found {
            return;
        }
        sleep(SWEEP_EVERY).await;
    }
}

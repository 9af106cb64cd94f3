//! The guard: the parent process of the shim, a fork that only waits.
//!
//! A killed shim cannot end processes that escaped from its server, and no other process knows which run
//! these orphans belong to. The guard does: as the next subreaper it inherits exactly these orphans when the
//! shim dies. It kills them and exits. If the run has a cgroup, the guard also kills what is in that, and
//! removes it. Until then, the run is not over ([`record::guard_alive`]).
//!
//! It is a fork without exec, so it shares its memory with the shim. If the guard is killed, the shim
//! continues without it; if both are killed, [`process_record`](crate::process_record) has what to kill.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, wait, waitpid,
};

use crate::cgroup::{self, RunCgroup};
use crate::limits::KILL_SERVER;
use crate::{record, tree};

/// How often KILL is repeated, for descendants that were forked in the meantime.
const KILL_EVERY: Duration = Duration::from_millis(20);

/// How often at most. Only processes stuck in the kernel need that long.
const MAX_ROUNDS: usize = 500;

/// Which of the two processes this is.
pub(super) enum Role {
    Shim { guard: u32 },
    Guard { shim: Pid },
}

/// Forks the guard from the shim. Must be called before there are threads.
#[expect(unsafe_code, reason = "neither std nor rustix can fork without executing another program")]
pub(super) fn fork() -> io::Result<Role> {
    // Set before the shim can exit. The child does not inherit this, and sets it for itself.
    set_child_subreaper(Some(getpid()))?;
    let guard = std::process::id();
    // SAFETY: there is one thread, so the copy's memory is in a consistent state.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid).map_or(Role::Shim { guard }, |shim| Role::Guard { shim })),
    }
}

/// Waits for the shim to exit, kills its orphans and what is in the cgroup of its run, and exits with the same code.
pub(super) fn watch(shim: Pid, run_dir: &Path) -> ExitCode {
    // Its pid is not used again before it is waited for.
    let identity = record::identity_of(shim.as_raw_nonzero().get().unsigned_abs());
    let run_dir = std::path::absolute(run_dir);
    // Fails for a session leader, which is fine.
    let _leads = setsid();
    let _stays = std::env::set_current_dir("/");
    let status = loop {
        match waitpid(Some(shim), WaitOptions::empty()) {
            Ok(Some((_, status))) => break Some(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => break None,
        }
    };
    let cgroup = match (identity, run_dir) {
        (Ok(shim), Ok(run_dir)) => cgroup::recorded_by(&shim, &run_dir),
        (Err(_), _) | (_, Err(_)) => None,
    };
    let _again = cgroup.as_ref().map(RunCgroup::kill);
    end_orphans();
    // The next daemon tries again.
    let _stays = cgroup.map(|cgroup| cgroup.end(KILL_SERVER));
    let code = status.and_then(WaitStatus::exit_status);
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Kills every descendant until there is none.
fn end_orphans() {
    for _ in 0..MAX_ROUNDS {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        // A tree that cannot be listed now is listed again in the next round.
        let _again = tree::kill_all(std::process::id(), Signal::KILL);
        thread::sleep(KILL_EVERY);
    }
}

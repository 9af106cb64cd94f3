//! Replaces the daemon of the old program by one of the new program, or rolls back.
//!
//! The new program is installed when this begins. In the end, the installed program and the running daemon are both new,
//! or both old.

use mainstay_api::{DaemonInfo, Request};
use mainstay_core::with_causes;

use super::installed::Installed;
use crate::commands::succession::{NotSucceeded, succeed};
use crate::remote::Remote;

/// Why the update was rolled back.
#[derive(Debug)]
pub(super) struct NotUpdated {
    /// Why the new daemon failed, with its last lines.
    pub(super) why: NotSucceeded,
    /// The daemon that serves now, or why the roll-back failed.
    pub(super) back: Result<DaemonInfo, String>,
}

/// Replaces `old` by a daemon of the installed program.
pub(super) async fn hand_over(
    remote: &Remote,
    installed: &Installed,
    old: &DaemonInfo,
) -> Result<DaemonInfo, NotUpdated> {
    let why = match succeed(remote, old, Some(installed.path()), Some(&installed.previous())).await
    {
        Ok(new) => return Ok(new),
        Err(why) => why,
    };
    Err(NotUpdated { why, back: roll_back(remote, installed).await })
}

/// Makes sure that the old program is installed and that a daemon of it serves.
async fn roll_back(remote: &Remote, installed: &Installed) -> Result<DaemonInfo, String> {
    installed.restore().map_err(|error| {
        format!("`{}` could not be restored: {error}", installed.path().display())
    })?;
    let daemon: DaemonInfo =
        remote.call(&Request::Daemon).await.map_err(|error| with_causes(&error))?;
    if !installed.was_run_by(daemon.pid) {
        return Err(format!("the daemon (pid {}) runs another program", daemon.pid));
    }
    Ok(daemon)
}

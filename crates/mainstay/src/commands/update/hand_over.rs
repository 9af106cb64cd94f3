//! From the daemon of the old program to that of the new one, or back.
//!
//! The new program is in its place when this begins. Whatever happens then, in the end the program in
//! its place and the daemon that serves belong together: both new, or both old.

use mainstay_api::{DaemonInfo, Request};
use mainstay_core::with_causes;

use super::installed::Installed;
use crate::commands::succession::{NotSucceeded, succeed};
use crate::remote::Remote;

/// Why the old program is, or should be, where it was.
#[derive(Debug)]
pub(super) struct NotUpdated {
    /// What became of the new daemon, with its last lines.
    pub(super) why: NotSucceeded,
    /// The daemon that serves now, or what is wrong with the way back.
    pub(super) back: Result<DaemonInfo, String>,
}

/// Has a daemon of the program that is installed now take the place of `old`.
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
    Err(NotUpdated { why, back: go_back(remote, installed).await })
}

/// Makes sure that the old program is in its place and that a daemon of it serves.
async fn go_back(remote: &Remote, installed: &Installed) -> Result<DaemonInfo, String> {
    installed
        .restore()
        .map_err(|error| format!("`{}` is not what it was: {error}", installed.path().display()))?;
    let daemon: DaemonInfo =
        remote.call(&Request::Daemon).await.map_err(|error| with_causes(&error))?;
    if !installed.was_run_by(daemon.pid) {
        return Err(format!("the daemon (pid {}) runs another program", daemon.pid));
    }
    Ok(daemon)
}

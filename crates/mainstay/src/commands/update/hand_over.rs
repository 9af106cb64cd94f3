//! From the daemon of the old program to that of the new one, or back.
//!
//! The new program is in its place when this begins. Whatever happens then, in the end the program in
//! its place and the daemon that serves belong together: both new, or both old.

use std::time::Duration;

use mainstay_api::{ApiError, DaemonInfo, Request};
use mainstay_core::with_causes;
use tokio::time::{Instant, sleep};

use super::installed::Installed;
use crate::commands::daemon::succeed;
use crate::error::CliError;
use crate::remote::Remote;

/// How long a hand-over may be under way that we have lost sight of.
const LOST_SIGHT: Duration = Duration::from_secs(30);

/// How often a daemon is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// Why the old program is, or should be, where it was.
#[derive(Debug)]
pub(super) struct NotUpdated {
    /// What became of the new daemon, with its last words.
    pub(super) why: String,
    /// The daemon that serves now, or what is wrong with the way back.
    pub(super) back: Result<DaemonInfo, String>,
}

/// Has a daemon of the program that is installed now take the place of `old`.
pub(super) async fn hand_over(
    remote: &Remote,
    installed: &Installed,
    old: &DaemonInfo,
) -> Result<DaemonInfo, NotUpdated> {
    let request = Request::Reload {
        exe: Some(installed.path().to_owned()),
        fallback: Some(installed.previous()),
    };
    let why = match succeed(remote, old, &request).await {
        Ok(new) => return Ok(new),
        Err(refused @ CliError::Api(_)) => with_causes(&refused),
        Err(error) => {
            let serves = |new: &DaemonInfo| new.number > old.number && installed.is_run_by(new.pid);
            match settled(remote, old).await {
                Some(new) if new.replacement_failed.is_none() && serves(&new) => return Ok(new),
                Some(DaemonInfo { replacement_failed: Some(why), .. }) => why,
                Some(_) | None => with_causes(&error),
            }
        }
    };
    Err(NotUpdated { why: in_words(&why), back: go_back(remote, installed).await })
}

/// The daemon that serves when a hand-over is over that we have lost sight of.
async fn settled(remote: &Remote, old: &DaemonInfo) -> Option<DaemonInfo> {
    let deadline = Instant::now() + LOST_SIGHT;
    loop {
        let found = remote.inspect().await.ok().flatten();
        match found {
            Some(daemon) if daemon.number > old.number => return Some(daemon),
            found if Instant::now() >= deadline => return found,
            Some(_) | None => sleep(LOOK).await,
        }
    }
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

/// What became of a daemon, for people: its last word may be an error as it travels between programs.
fn in_words(why: &str) -> String {
    let Some(start) = why.find(r#"{"kind""#) else { return why.to_owned() };
    let mut errors = serde_json::Deserializer::from_str(&why[start..]).into_iter::<ApiError>();
    let Some(Ok(error)) = errors.next() else { return why.to_owned() };
    let rest = why[start + errors.byte_offset()..].trim_start_matches(':');
    format!("{}{}{rest}", &why[..start], error.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_word_is_told_as_its_message() {
        let check = |why: &str, told: &str| assert_eq!(in_words(why), told);
        let error = r#"{"kind":"internal","message":"no {room}"}"#;
        check("it exited with 1", "it exited with 1");
        check(error, "no {room}");
        check(&format!("as it is: {error}:\nlast words"), "as it is: no {room}\nlast words");
        check(r#"{"kind": half"#, r#"{"kind": half"#);
    }
}

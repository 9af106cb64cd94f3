//! One daemon after another: what `daemon reload` and `update` ask for.

use std::path::Path;
use std::time::Duration;

use mainstay_api::{ApiError, DaemonInfo, Request};
use mainstay_core::with_causes;
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep};

use crate::error::CliError;
use crate::remote::Remote;

/// How long a succession may take, the way back included: the holder has shorter limits.
const LIMIT: Duration = Duration::from_secs(30);

/// How often the next daemon is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Has another daemon take the place of `old`, and waits until it serves. The error tells what became of
/// it, with its last words; whichever daemon serves then is not the one that was asked for.
pub(super) async fn succeed(
    remote: &Remote,
    old: &DaemonInfo,
    exe: Option<&Path>,
    fallback: Option<&Path>,
) -> Result<DaemonInfo, String> {
    let request =
        Request::Reload { exe: exe.map(Path::to_owned), fallback: fallback.map(Path::to_owned) };
    let why = match ask(remote, &request).await {
        // The new one was not even prepared.
        Err(refused @ CliError::Api(_)) => with_causes(&refused),
        // An answer that was lost does not tell what is under way, so that is waited for too.
        asked => match successor(old.number, next(remote, old).await) {
            Ok(new) => return Ok(new),
            Err(Some(why)) => why,
            Err(None) => {
                asked.err().map_or_else(|| "it never served".to_owned(), |e| with_causes(&e))
            }
        },
    };
    Err(in_words(&why))
}

/// Asks for it. Answered when the new daemon is prepared and the old one gives way.
async fn ask(remote: &Remote, request: &Request) -> Result<(), CliError> {
    let Some(connection) = remote.probe().await? else {
        return Err(CliError::failed("the daemon has ended meanwhile", "start it again"));
    };
    let _null: IgnoredAny = remote.finish(connection.call(request).await)?;
    Ok(())
}

/// The daemon after `old`, or whichever is there when the time is over. None is started for this, and a
/// handshake that fails is tried again: there may be no daemon for a moment.
async fn next(remote: &Remote, old: &DaemonInfo) -> Option<DaemonInfo> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match remote.inspect().await.ok().flatten() {
            Some(daemon) if daemon.number > old.number => return Some(daemon),
            found if Instant::now() >= deadline => return found,
            Some(_) | None => sleep(LOOK).await,
        }
    }
}

/// The daemon that was found if it is the new one; else what became of that, if it is known.
fn successor(old: u64, found: Option<DaemonInfo>) -> Result<DaemonInfo, Option<String>> {
    match found {
        // It may still tell of an earlier update.
        Some(found) if found.number <= old => Err(None),
        Some(DaemonInfo { replacement_failed: Some(why), .. }) => Err(Some(why)),
        Some(new) => Ok(new),
        None => Err(None),
    }
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

    fn daemon(number: u64, replacement_failed: Option<&str>) -> DaemonInfo {
        DaemonInfo {
            pid: 1,
            version: "0.1.0".to_owned(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
            servers: 0,
            running: 0,
            listen: None,
            sessions: 0,
            state_dir: "/s".into(),
            socket: "/r/daemon.sock".into(),
            log: "/s/daemon.log".into(),
            instance: "i".to_owned(),
            number,
            holder: Some(2),
            replacement_failed: replacement_failed.map(str::to_owned),
        }
    }

    #[test]
    fn a_later_daemon_is_the_new_one_unless_it_says_otherwise() {
        let check = |found: Option<DaemonInfo>, expected: Result<u64, Option<&str>>| {
            let told = successor(7, found).map(|new| new.number);
            assert_eq!(told, expected.map_err(|why| why.map(str::to_owned)));
        };
        check(Some(daemon(8, None)), Ok(8));
        check(Some(daemon(9, Some("it fell"))), Err(Some("it fell")));
        check(Some(daemon(7, None)), Err(None));
        check(Some(daemon(7, Some("another one fell, long ago"))), Err(None));
        check(None, Err(None));
    }

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

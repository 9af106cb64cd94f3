//! What a run has said before this daemon listened to it.
//!
//! A daemon that dies leaves its stdio containers running. The engine does not repeat to a new stream
//! what was written before, but its log has it. So the stream is opened first and the log read second:
//! every line is in one of the two, and those written in between are in both. Whoever takes the lines is
//! told which is which ([`Stdio::past`](crate::Stdio::past)), and knows by the ids of its requests what
//! it has heard before.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::time::sleep;

use super::api::Failure;
use super::host::Up;

/// Nobody waits longer for an answer than this, so what was said before is of no use.
const REACH: Duration = Duration::from_secs(600);

/// No more than this is taken of a log.
const BYTES: usize = 4 * 1024 * 1024;

/// How often, and after which time, a log is read again that ends in the middle of a line: its beginning
/// is in no other place.
const TRIES: u32 = 4;
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The last lines of a container's standard output, as far as they are of this run and not too old. A
/// log that the engine cannot read has none.
pub(super) async fn said_before(
    up: &Up,
    container: &str,
    started_at: &str,
) -> Result<Vec<Bytes>, Failure> {
    let since = since(started_at, Timestamp::now());
    let mut tries = 0;
    loop {
        tries += 1;
        match up.api.last_said(container, since, BYTES).await {
            Ok(spoken) if spoken.unfinished && tries < TRIES => sleep(TRY_AGAIN).await,
            Ok(spoken) => return Ok(spoken.lines),
            Err(silent @ Failure::Silent(_)) => return Err(silent),
            Err(error) => {
                tracing::warn!(container, %error, "what it said meanwhile cannot be read");
                return Ok(Vec::new());
            }
        }
    }
}

/// From which second of Unix time on a log is of use.
fn since(started_at: &str, now: Timestamp) -> i32 {
    let recent = now.checked_sub(REACH).unwrap_or(Timestamp::MIN);
    i32::try_from(recent.as_second()).unwrap_or(0).max(seconds(started_at))
}

/// A moment in an engine's words, as whole seconds of Unix time, or all time if it cannot be read.
pub(super) fn seconds(started_at: &str) -> i32 {
    let read: Option<Timestamp> = started_at.parse().ok();
    read.and_then(|at| i32::try_from(at.as_second()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_the_start_of_the_run_but_not_for_ever() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let check = |started_at: &str, expected: &str| {
            let expected: Timestamp = expected.parse().unwrap();
            assert_eq!(i64::from(since(started_at, now)), expected.as_second(), "{started_at}");
        };
        check("2026-01-01T00:55:00.7Z", "2026-01-01T00:55:00Z");
        check("2025-01-01T00:00:00Z", "2026-01-01T00:50:00Z");
        check("nonsense", "2026-01-01T00:50:00Z");
    }
}

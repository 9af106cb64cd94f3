//! What becomes of requests when the connection to a run is lost, and the run goes on.
//!
//! A container may outlive its engine. What it writes meanwhile is read from the engine's log, so answers arrive after
//! all; but a request that was sent moments before the engine died may have died with it, and so may an answer. A
//! request that nobody answers is therefore in doubt after a while: it is sent again if that is safe, and otherwise
//! answered with "effect unknown".

use std::sync::Weak;
use std::time::{Duration, Instant};

use mainstay_core::Interruption;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use super::{Reply, StdioConn};
use crate::catch_panic;

/// Requests that were sent less than this before the connection was lost may have been under way, or their answers. An
/// engine that takes longer to pass a line on counts as away.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// How long the answers to those may take once the connection is back, and how much longer if they may not be sent
/// again.
const AT_FIRST: Duration = Duration::from_secs(1);
const LONGER: Duration = Duration::from_secs(9);

/// How long the answers to all others may take. The server has these requests, so an answer is lost only if the engine
/// died in the very moment in which it passed it on.
const OTHERS: Duration = Duration::from_secs(600);

/// Puts requests in doubt after each interruption, until the run is over.
pub(super) async fn watch(conn: Weak<StdioConn>, mut interruptions: watch::Receiver<Interruption>) {
    while interruptions.changed().await.is_ok() {
        let lost = *interruptions.borrow_and_update();
        let conn = Weak::clone(&conn);
        catch_panic::spawn(async move {
            sleep(AT_FIRST).await;
            doubt(&conn, lost.written, LONGER, |sent| is_recent(lost.at, sent));
            sleep(OTHERS).await;
            doubt(&conn, lost.written, Duration::ZERO, |_| true);
        });
    }
}

/// Whether a request that was sent then may have been under way, or its answer, when the connection was lost.
fn is_recent(lost: Instant, sent: Option<Instant>) -> bool {
    sent.is_some_and(|sent| sent + UNDER_WAY > lost)
}

/// Tells those who wait for the answer to one of the first `written` lines that it may not come.
fn doubt(
    conn: &Weak<StdioConn>,
    written: u64,
    wait: Duration,
    which: impl Fn(Option<Instant>) -> bool,
) {
    let Some(conn) = conn.upgrade() else { return };
    for pending in conn.router().pending.values_mut() {
        if pending.line <= written && which(pending.sent) {
            let (sender, reply) = oneshot::channel();
            let waiting = std::mem::replace(&mut pending.reply, sender);
            // Whoever waited may have gone meanwhile.
            waiting.send(Reply::InDoubt { reply, wait }).ok();
        }
    }
}

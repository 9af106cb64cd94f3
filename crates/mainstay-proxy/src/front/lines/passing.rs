//! Passing on to the client what streams have to say.

use std::future::poll_fn;
use std::pin::pin;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::sleep;

use super::output::Outgoing;
use crate::frame::Parsed;
use crate::front::Session;
use crate::front::kept::{DURABLE, Kept};
use crate::front::run::{Run, id_of};
use crate::stream::{Item, Reader};

/// Runs a request and writes what it says. It is written down if it takes long, until its answer is
/// written to the client.
pub(super) async fn request<S: Session>(
    session: S,
    mut run: Run,
    lines: mpsc::Sender<Outgoing>,
    _in_flight: OwnedSemaphorePermit,
) {
    let mut takes_long = pin!(sleep(DURABLE));
    let mut kept: Option<Kept<S>> = None;
    loop {
        let item = tokio::select! {
            biased;
            item = poll_fn(|cx| run.poll_next(cx)) => item,
            () = &mut takes_long, if kept.is_none() => {
                kept = Some(keep(session.clone(), &run));
                continue;
            }
        };
        let Some(Item { message, is_answer, .. }) = item else { return };
        let passed = match &kept {
            Some(_) if is_answer => tell(&lines, message).await,
            Some(_) | None => lines.send(message.into()).await.is_ok(),
        };
        if !passed {
            return;
        }
    }
}

/// Runs a request that is never written down, and writes what it says; gives its answer.
pub(super) async fn all(
    mut run: Run,
    lines: &mpsc::Sender<Outgoing>,
    _in_flight: OwnedSemaphorePermit,
) -> Option<Bytes> {
    let mut answer = None;
    while let Some(item) = poll_fn(|cx| run.poll_next(cx)).await {
        answer = item.is_answer.then(|| item.message.clone());
        lines.send(item.message.into()).await.ok()?;
    }
    answer
}

/// Writes the rest of a stream that was taken up. When the client has the answer, nobody needs it any more.
pub(super) async fn rest(mut reader: Reader, lines: mpsc::Sender<Outgoing>) {
    while let Some(Item { message, is_answer, .. }) = reader.next().await {
        if is_answer {
            if tell(&lines, message).await {
                reader.stream().cancel();
            }
            return;
        }
        if lines.send(message.into()).await.is_err() {
            return;
        }
    }
}

fn keep<S: Session>(session: S, run: &Run) -> Kept<S> {
    let request = run.request().and_then(|text| Parsed::read(text.clone()).ok());
    let id = request.as_ref().and_then(id_of);
    run.reads_for_good();
    let kept = Kept::new(session, run.stream(), id.as_deref());
    if let Some(request) = request {
        kept.write_down(request.into_text());
    }
    kept
}

/// Writes a message and waits until it is with the client. False if there is none any more.
async fn tell(lines: &mpsc::Sender<Outgoing>, message: Bytes) -> bool {
    let (written, is_written) = oneshot::channel();
    let outgoing = Outgoing { message, written: Some(written) };
    lines.send(outgoing).await.is_ok() && is_written.await.is_ok()
}

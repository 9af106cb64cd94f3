//! Lists, as clients ask for them.
//!
//! A list that fits on one page is passed through. If the server cuts it into pages, clients get the
//! pages of our copy, with cursors of our own: those of the server die with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::exchange::{Answered, pass_within, refusal};
use super::session::Session;
use crate::frame::{self, Parsed};
use crate::lists::ListKind;
use crate::stream::Stream;

/// With a copy, the server's own list is waited for this long at most. Without one, it is held like any request.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

/// Answers with the server's list or, while it is down, with the last good copy.
pub(super) async fn answer(
    session: &Session,
    message: &Parsed,
    out: &Arc<Stream>,
    kind: ListKind,
) -> Option<Bytes> {
    let hub = session.hub();
    let id = message.id()?;
    let copy = |cursor: Option<&str>| {
        let page = hub.lists().get(kind)?.page(cursor).ok()?;
        Some(frame::result_text(id, &page))
    };
    if let Some(cursor) = message.cursor() {
        let unknown = || frame::error(id, frame::INVALID_PARAMS, "there is no such cursor");
        return Some(copy(Some(&cursor)).unwrap_or_else(unknown));
    }
    let down = session.availability().borrow().run().is_none();
    if down && let Some(copy) = copy(None) {
        return Some(copy);
    }
    let hold = hub.settings().hold;
    let patience = if copy(None).is_some() { PATIENCE.min(hold) } else { hold };
    let Answered { text, run } = pass_within(session, message, out, patience).await?;
    let Some(run) = run else {
        // It was lost on the way.
        return Some(copy(None).unwrap_or(text));
    };
    hub.list_passed(run.generation, kind);
    if !is_cut(&text) {
        return Some(text);
    }
    if !session.is_isolated() {
        hub.lists_of(run.generation, PATIENCE).await;
    }
    let why = "the pages of the list could not be read from the server";
    Some(copy(None).unwrap_or_else(|| refusal(id, "bad-answer", why)))
}

/// Whether an answer is only the first page of a list.
fn is_cut(answer: &Bytes) -> bool {
    let cursor = Parsed::read(answer.clone()).ok().and_then(|answer| {
        let [cursor] = frame::members(answer.result()?, ["nextCursor"]).ok()?;
        Some(!matches!(cursor?.get(), "null" | "\"\""))
    });
    cursor.unwrap_or(false)
}

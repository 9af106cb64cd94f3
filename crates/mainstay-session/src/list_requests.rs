//! Lists, as clients ask for them.
//!
//! A list that fits on one page is passed through. If the server cuts it into pages, clients get the pages of the copy,
//! with its cursors: those of the server end with it.
//!
//! A server that does not answer a list in time is not waited for: the copy is the answer, and nothing more is sent to it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::{self, Id, Parsed};
use mainstay_mcp::lists::ListKind;

use crate::calls::{Call, CallKey, CallKind, Stage, refusal};
use crate::replay::Replay;
use crate::server::Server;
use crate::session::Session;
use crate::stream::Stream;
use crate::timers::Timer;

/// With a copy, the server's own list is awaited this long at most. Without one, it is held like any request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);

impl Server {
    /// Answers with the server's list or, while it is down or requests to it are held, with the last good copy.
    pub(crate) fn begin_list(&mut self, now: Instant, key: CallKey, kind: ListKind) {
        let Some(call) = self.calls.get(key) else { return };
        let Some(id) = call.message.id() else { return };
        if let Some(cursor) = call.message.cursor() {
            let unknown = || frame::error(id, frame::INVALID_PARAMS, "the cursor is unknown");
            let page = self.list_copy(kind, id, Some(&cursor)).unwrap_or_else(unknown);
            return self.answer(now, key, Some(page));
        }
        let copy = self.list_copy(kind, id, None);
        let run = self.run_for(call.session);
        let is_down = run.is_none_or(|run| self.holds_requests(run.link));
        let is_inherited = self.streams.get(call.stream).and_then(Stream::inherited).is_some();
        let has_copy = copy.is_some();
        if let Some(copy) = copy.filter(|_| is_down) {
            return self.answer(now, key, Some(copy));
        }
        if let Some(call) = self.calls.get_mut(key) {
            call.kind = CallKind::List(kind);
            if has_copy {
                call.hold = PATIENCE.min(call.hold);
                if !is_inherited {
                    call.replay = Replay::new(call.hold);
                }
            }
        }
        self.pass(now, key);
    }

    /// A page of the copy of a list, as an answer.
    pub(crate) fn list_copy(
        &self,
        kind: ListKind,
        id: Id<'_>,
        cursor: Option<&str>,
    ) -> Option<Bytes> {
        let page = self.copies.lists.get(kind)?.page(cursor)?;
        Some(frame::result_text(id, &page))
    }

    /// The server has answered with a list.
    pub(crate) fn list_answered(
        &mut self,
        now: Instant,
        key: CallKey,
        mut call: Box<Call>,
        kind: ListKind,
        generation: u64,
        text: Bytes,
    ) {
        if !self.copies.are_of(generation) {
            self.copies.lists.passed_unsettled(kind);
        }
        if !is_first_of_several(&text) {
            return self.answer_taken(now, key, call, Some(text));
        }
        let has_own_run = self.sessions.get(call.session).is_some_and(Session::has_own_run);
        if has_own_run || self.copies.is_read_up_to(generation) {
            return self.answer_with_copy(now, key, call, kind);
        }
        let until = now + PATIENCE;
        call.stage = Stage::AwaitingLists { generation, until };
        self.timers.set(until, Timer::Call(key));
        self.calls.put_back(key, call);
    }

    fn answer_with_copy(&mut self, now: Instant, key: CallKey, call: Box<Call>, kind: ListKind) {
        let answer = call.message.id().map(|id| {
            let why = "the pages of the list could not be read from the server";
            self.list_copy(kind, id, None).unwrap_or_else(|| refusal(id, "bad-answer", why))
        });
        self.answer_taken(now, key, call, answer);
    }

    /// A call need not wait for the copies any longer.
    pub(crate) fn lists_awaited(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.take(key) else { return };
        match call.kind {
            CallKind::List(kind) => self.answer_with_copy(now, key, call, kind),
            _ => self.calls.put_back(key, call),
        }
    }

    /// The server has not answered in time, whether it has the request or not.
    pub(crate) fn list_overdue(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(key).filter(|_| !self.is_frozen) else { return };
        let CallKind::List(kind) = call.kind else { return };
        let copy = call.message.id().and_then(|id| self.list_copy(kind, id, None));
        let Some(copy) = copy else { return };
        let Some(call) = self.calls.take(key) else { return };
        self.remember_answered(now, &call);
        self.stop_waiting_for(key, &call);
        self.answer_taken(now, key, call, Some(copy));
    }

    /// The copies of a run have been read.
    pub(crate) fn answer_awaited_lists(&mut self, now: Instant) {
        for key in self.calls.keys() {
            if let Some(Stage::AwaitingLists { generation, .. }) =
                self.calls.get(key).map(|call| &call.stage)
                && self.copies.is_read_up_to(*generation)
            {
                self.lists_awaited(now, key);
            }
        }
    }
}

/// Whether an answer is only the first page of a list.
fn is_first_of_several(answer: &Bytes) -> bool {
    let cursor = Parsed::read(answer.clone()).ok().and_then(|answer| {
        let [cursor] = frame::members(answer.result()?, ["nextCursor"]).ok()?;
        Some(!matches!(cursor?.get(), "null" | "\"\""))
    });
    cursor.unwrap_or(false)
}

#[cfg(test)]
mod tests;

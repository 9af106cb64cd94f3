//! What a daemon takes up of the one before it, and hands over to the one after it.
//!
//! A stream that was written down is kept again under its number, with its messages. If it has its answer
//! it waits for its client; else the work on its request goes on, on the same way as a new one's, but for
//! its beginning: a request that was sent is with its run, and its answer is awaited from the first line on
//! that is heard of that run (see `call` for what follows if there is none).

use std::sync::Arc;

use super::lines::RecoveredRequest;
use super::progress::Progress;
use super::relay::{News, RelayedCall};
use super::session::Session;
use super::{Hub, lock};
use crate::catch_panic;
use crate::frame::{Kind, Parsed};
use crate::front::Session as _;
use crate::front::resumable::ResumableStream;
use crate::front::run::Work;
use crate::record::{Sent, StreamKey, StreamNews, StreamRecord};
use crate::stream::Stream;

impl Hub {
    /// See [`Hubs::recover`](super::Hubs::recover).
    pub(super) fn recover(&self, record: StreamRecord, news: Option<News>) -> bool {
        let Some(session) = self.session(&record.key.session) else { return false };
        session.recover(record, news);
        true
    }

    /// The calls that only this daemon can finish. From now on these receive their messages.
    pub(super) fn relayed_calls(&self) -> Vec<RelayedCall> {
        let of_session = |session: &Session| {
            let key = |number| StreamKey { session: session.id().into(), number };
            let streams = session.streams().relayed().into_iter();
            streams.map(|(number, reader)| RelayedCall::new(key(number), reader)).collect()
        };
        self.everyone().iter().flat_map::<Vec<_>, _>(of_session).collect()
    }

    /// The requests whose answers may come from a run, of all sessions or of the one whose own it is.
    pub(super) fn awaited_of(
        &self,
        generation: u64,
        owner: Option<&Session>,
    ) -> Vec<RecoveredRequest> {
        let is_theirs = |awaited: &mut RecoveredRequest| match owner {
            Some(owner) => awaited.session() == owner,
            None => !awaited.session().is_isolated() && !awaited.session().lacks_own_run(),
        };
        let mut awaited: Vec<_> = lock(&self.awaited).extract_if(.., is_theirs).collect();
        // Those of earlier runs wait in vain, which they learn from the availability.
        awaited.retain(|awaited| awaited.generation == generation);
        awaited
    }

    /// Whether every request is answered or written down, and every line of a server counts as heard.
    pub(super) fn is_settled(&self) -> bool {
        let everyone = self.everyone();
        self.intake_gate.is_clear()
            && everyone.iter().all(Session::is_settled)
            && self.present().all_heard()
            && everyone.iter().filter(|it| it.is_isolated()).all(|it| it.present().all_heard())
    }

    /// Whether a request would miss its answer if another daemon took over.
    pub(super) fn is_bound(&self) -> bool {
        !self.own_gate.is_clear() || self.everyone().iter().any(Session::is_bound)
    }

    /// Whether no request waits for its answer.
    pub(super) fn is_idle(&self) -> bool {
        self.own_gate.is_clear() && self.everyone().iter().all(Session::is_idle)
    }

    /// See [`Hubs::freeze`](super::Hubs::freeze).
    pub(super) fn freeze(&self) {
        self.write_fence.shut();
        self.everybody(|session| session.streams().hand_over());
    }
}

impl Session {
    /// See [`Hubs::pending`](super::Hubs::pending).
    pub(super) fn pending(&self) -> Vec<(String, String)> {
        self.streams().pending()
    }

    fn recover(&self, record: StreamRecord, news: Option<News>) {
        let Some(request) = record.request.clone() else {
            // The general stream has no work to go on with.
            self.streams().recover(record, None, None);
            return;
        };
        let Some(message) = Parsed::read(request).ok().filter(|it| it.kind() == Kind::Request)
        else {
            self.hub()
                .write_fence()
                .pass(|state_store| state_store.note(&record.key, StreamNews::Over));
            return;
        };
        let sent = record.sent;
        let id = message.id().map(|id| id.get().to_owned());
        let recovered = self.streams().recover(record, id.as_deref(), news);
        let Some((event, stream)) = recovered else { return };
        if let Some(Sent { generation, line: Some(line) }) = sent
            && !stream.is_finished()
        {
            // Parameters that cannot be read are refused by whoever goes on with the request.
            let progress = Progress::of(&message, &stream).ok().flatten().map(Arc::new);
            let awaited = RecoveredRequest::new((generation, line), self, &stream, progress);
            lock(&self.hub().awaited).push(awaited);
        }
        let resumable = ResumableStream::recovered(self.clone(), event, &stream);
        // It ends when its client has its answer, or does not come for it.
        catch_panic::spawn(go_on(self.clone(), message, stream, resumable));
    }
}

async fn go_on(
    session: Session,
    message: Parsed,
    stream: Arc<Stream>,
    resumable: ResumableStream<Session>,
) {
    if !stream.is_finished() {
        let request = message.text().clone();
        let work = Work::new(session.request(message, Arc::clone(&stream)), stream);
        resumable.see_through(work, &request).await;
    }
    resumable.linger().await;
}

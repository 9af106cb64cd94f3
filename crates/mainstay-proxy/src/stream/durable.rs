//! What of a stream is written down for a later daemon, and what a later daemon makes of it.
//!
//! Nothing is, until [`Stream::write_down`]: most requests are answered before that is worth a write. From
//! then on every change is noted under the stream's lock, before the change can be seen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::log::{self, Log};
use super::{Reader, Shared, Start, Stream};
use crate::frame::{self, Frame};
use crate::hub::relay::News;
use crate::record::{Sent, StreamNews, StreamRecord};
use crate::write_fence::{Noted, StreamJournal};

/// How far a stream is written down.
#[derive(Debug)]
pub(super) enum Durable {
    No,
    /// It takes long, and cannot be.
    Never,
    /// It takes long, and the next daemon repeats its request.
    Repeated,
    /// It was. Now another daemon has the stream, and this one relays to it what the server says.
    Relayed,
    /// The stream of a request is.
    Request(Box<StreamJournal>),
    /// A general stream is.
    General(Box<StreamJournal>),
}

/// What an earlier daemon did about a request.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Where it was sent last.
    pub(crate) sent: Option<Sent>,
    /// How often it was sent.
    pub(crate) attempts: u32,
    /// Whether the server asked the client something on its account.
    was_asked: AtomicBool,
    /// Whether the earlier daemon still waits for the answer, and relays it.
    pub(crate) is_relayed: bool,
    news: Mutex<Option<News>>,
    /// Whether the client has sent it again, and nothing is known of the first attempt.
    pub(crate) is_repeated: bool,
}

impl Inherited {
    pub(crate) fn was_asked(&self) -> bool {
        self.was_asked.load(Ordering::Relaxed)
    }

    /// The server asks the client something on its account.
    pub(crate) fn set_asked(&self) {
        self.was_asked.store(true, Ordering::Relaxed);
    }

    /// What the earlier daemon relays. The first call takes it.
    pub(crate) fn news(&self) -> Option<News> {
        mainstay_core::lock(&self.news).take()
    }

    /// Whether the run that it was sent to can still answer, here or to the earlier daemon.
    pub(crate) fn can_be_answered(&self) -> bool {
        self.is_relayed || matches!(self.sent, Some(Sent { line: Some(_), .. }))
    }
}

impl Stream {
    /// The stream of a request that its client sends again, because it lost the response. It may have been executed.
    /// `was_asked` says whether the server asked the client something on its account.
    pub(crate) fn of_repeated(was_asked: bool) -> Arc<Self> {
        let mut stream = Self::with(Log::new(&log::REQUEST), false);
        stream.inherited = Some(Box::new(Inherited {
            // Which run had it is not known.
            sent: Some(Sent { generation: 0, line: None }),
            attempts: 1,
            was_asked: AtomicBool::new(was_asked),
            is_relayed: false,
            news: Mutex::default(),
            is_repeated: true,
        }));
        Arc::new(stream)
    }

    /// The stream of a request as an earlier daemon had it, to be resumed.
    pub(super) fn recovered(
        record: StreamRecord,
        journal: StreamJournal,
        news: Option<News>,
    ) -> Arc<Self> {
        let StreamRecord { key: _, request: _, sent, attempts, said, answer } = record;
        let is_question =
            |(_, text): &(u64, Bytes)| matches!(frame::scan(text), Ok(Frame::Request { .. }));
        let was_asked = AtomicBool::new(said.iter().any(is_question));
        let mut stream = Self::with(Log::restored(&log::REQUEST, said, answer), true);
        let (is_relayed, news) = (news.is_some(), Mutex::new(news));
        let is_repeated = false;
        let inherited = Inherited { sent, attempts, was_asked, is_relayed, news, is_repeated };
        stream.inherited = Some(Box::new(inherited));
        stream.lock().durable = Durable::Request(Box::new(journal));
        Arc::new(stream)
    }

    /// A general stream gets back what an earlier daemon had in it.
    pub(super) fn restore(&self, said: Vec<(u64, Bytes)>) {
        self.lock().log = Log::restored(&log::GENERAL, said, None);
    }

    /// From now on the stream of this request is written down, unless it is answered already.
    pub(super) fn write_down(&self, journal: StreamJournal, request: Bytes) {
        let mut shared = self.lock();
        if shared.is_closed || shared.log.has_ended() {
            return;
        }
        if !shared.begin(journal, request) {
            drop(shared);
            self.cancel();
        }
    }

    /// From now on this general stream is written down.
    pub(super) fn write_down_general(&self, journal: StreamJournal) {
        self.lock().durable = Durable::General(Box::new(journal));
    }

    /// Nobody needs what was written down of it.
    pub(super) fn discard(&self) {
        let mut shared = self.lock();
        // If another daemon has taken over, it decides that.
        if let Durable::Request(journal) = &shared.durable
            && journal.note(StreamNews::Over).may_act()
        {
            shared.durable = Durable::No;
        }
    }

    /// Its request is about to be sent there. It may be if that is [`Noted::Yes`].
    pub(crate) fn sent(&self, sent: Sent) -> Noted {
        let mut shared = self.lock();
        match &shared.durable {
            Durable::Request(journal) => {
                // First without its line: if that is not written in time, another request may get the line.
                let noted = journal.note(StreamNews::Sent(Sent { line: None, ..sent }));
                if noted != Noted::Yes {
                    return noted;
                }
                if sent.line.is_some() && !journal.note(StreamNews::Sent(sent)).may_act() {
                    return Noted::Never;
                }
            }
            Durable::Relayed => return Noted::Never,
            Durable::No | Durable::Never | Durable::Repeated | Durable::General(_) => {}
        }
        shared.sent = Some(sent);
        Noted::Yes
    }

    /// Whether a later daemon would go on with it.
    pub(crate) fn is_written_down(&self) -> bool {
        match self.lock().durable {
            Durable::Request(_) | Durable::Repeated | Durable::Relayed | Durable::General(_) => {
                true
            }
            Durable::No | Durable::Never => false,
        }
    }

    /// Begins to relay its request to another daemon, if this one has sent it to a run that answers only to who sent it.
    /// The reader gets what is said from now on.
    pub(super) fn relay(self: &Arc<Self>) -> Option<Reader> {
        let mut shared = self.lock();
        let is_bound = matches!(shared.durable, Durable::Request(_))
            && matches!(shared.sent, Some(Sent { line: None, .. }));
        if !is_bound || shared.log.has_ended() || shared.is_closed {
            return None;
        }
        shared.durable = Durable::Relayed;
        let last = shared.log.last();
        drop(shared);
        Some(self.reader(Start::After(last)))
    }

    /// Whether its request is [relayed](Self::relay).
    pub(crate) fn is_relayed(&self) -> bool {
        matches!(self.lock().durable, Durable::Relayed)
    }

    /// Resolves when its request is [relayed](Self::relay).
    pub(crate) async fn relayed(&self) {
        self.until(|shared| matches!(shared.durable, Durable::Relayed)).await;
    }

    /// Whether another daemon that takes over does not go on with it, or goes on with it without this one's help.
    pub(super) fn is_done_here(&self) -> bool {
        self.is_finished() || self.is_relayed()
    }

    /// The number of the newest message.
    pub(crate) fn last(&self) -> u64 {
        self.lock().log.last()
    }

    /// Its request takes long, and the next daemon repeats it.
    pub(crate) fn is_repeated(&self) {
        self.lock().durable = Durable::Repeated;
    }

    /// Its request takes long, and cannot be written down.
    pub(crate) fn is_for_this_daemon(&self) {
        self.lock().durable = Durable::Never;
    }

    /// Whether its request takes long and no later daemon could answer it.
    pub(crate) fn is_bound(&self) -> bool {
        let shared = self.lock();
        !shared.log.has_ended() && matches!(shared.durable, Durable::Never)
    }

    /// What an earlier daemon did about its request, if it is not of this one.
    pub(crate) fn inherited(&self) -> Option<&Inherited> {
        self.inherited.as_deref()
    }

    /// The messages that are in its log.
    pub(crate) fn messages(&self) -> Vec<Bytes> {
        self.lock().log.messages().map(|(_, message)| message.clone()).collect()
    }
}

impl Shared {
    /// Notes a message that is in the log by now. False if that is forbidden.
    pub(super) fn note_message(&mut self, message: Bytes) -> bool {
        match &self.durable {
            Durable::No | Durable::Never | Durable::Repeated | Durable::Relayed => true,
            Durable::Request(journal) | Durable::General(journal) => {
                journal.note(StreamNews::Said(self.log.last(), message)).may_act()
            }
        }
    }

    /// Notes the answer, which is in the log by now. False if that is forbidden.
    pub(super) fn note_answer(&mut self, answer: Bytes) -> bool {
        match &self.durable {
            Durable::No
            | Durable::Never
            | Durable::Repeated
            | Durable::Relayed
            | Durable::General(_) => true,
            Durable::Request(journal) => {
                journal.note(StreamNews::Answered(self.log.last(), answer)).may_act()
            }
        }
    }

    /// Writes down all there is. False if that is forbidden.
    fn begin(&mut self, journal: StreamJournal, request: Bytes) -> bool {
        let begun = journal.note(match self.sent {
            Some(sent) => StreamNews::BegunSent(request, sent),
            None => StreamNews::Begun(request),
        });
        let said = self
            .log
            .messages()
            .map(|(number, message)| StreamNews::Said(number, message.clone()))
            .all(|said| journal.note(said).may_act());
        self.durable = Durable::Request(Box::new(journal));
        begun.may_act() && said
    }
}

#[cfg(test)]
mod tests;

//! What of a stream is written to the journal for a later daemon, and what a later daemon makes of it.
//!
//! Nothing is written until [`Stream::begin_journal`]: most requests are answered before that is worth a write. From
//! then on every change is written before it can be seen.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use mainstay_mcp::frame::{self, Frame};

use super::log::{self, Log};
use super::{Purpose, RequestStream, Stream};
use crate::record::{Sent, StateStore, StreamChange, StreamKey, StreamRecord};
use crate::recover::RelayNews;
use crate::session::SessionKey;

/// The journal, until another daemon takes over.
#[derive(Clone, Copy)]
pub(crate) struct Journal<'a> {
    pub(crate) store: &'a dyn StateStore,
    pub(crate) is_closed: bool,
}

/// Whether something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    Yes,
    /// The disk does not respond. It matters for requests that are about to be sent.
    NotYet,
    /// Another daemon takes over, and this one must not act.
    Never,
}

impl Recorded {
    pub(crate) fn may_act(self) -> bool {
        self != Self::Never
    }
}

impl Journal<'_> {
    pub(crate) fn append(self, key: &StreamKey, change: StreamChange) -> Recorded {
        match self.is_closed {
            true => Recorded::Never,
            false if self.store.append_to_journal(key, change) => Recorded::Yes,
            false => Recorded::NotYet,
        }
    }
}

/// Whether a stream outlives its daemon.
#[derive(Debug)]
pub(crate) enum Durable {
    /// It is new.
    No,
    /// It takes long, and no other daemon can continue it.
    Never,
    /// It takes long, and the next daemon repeats its request.
    Repeated,
    /// Another daemon has the stream, and this one relays what the server sends.
    Relayed,
    /// It is in the journal.
    Journaled(StreamKey),
}

impl Durable {
    pub(crate) fn outlives_daemon(&self) -> bool {
        match self {
            Self::Repeated | Self::Relayed | Self::Journaled(_) => true,
            Self::No | Self::Never => false,
        }
    }

    /// Returns false if another daemon has taken over.
    pub(super) fn record_message(&self, journal: Journal<'_>, number: u64, message: Bytes) -> bool {
        self.append(journal, || StreamChange::Message(number, message)).may_act()
    }

    pub(super) fn record_answer(&self, journal: Journal<'_>, number: u64, answer: Bytes) -> bool {
        self.append(journal, || StreamChange::Answered(number, answer)).may_act()
    }

    fn append(&self, journal: Journal<'_>, change: impl FnOnce() -> StreamChange) -> Recorded {
        match self {
            Self::Journaled(key) => journal.append(key, change()),
            Self::No | Self::Never | Self::Repeated | Self::Relayed => Recorded::Yes,
        }
    }
}

/// What an earlier daemon did about a request.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Where it was sent last.
    pub(crate) sent: Option<Sent>,
    pub(crate) attempts: u32,
    /// Whether the server asked the client something on its account.
    pub(crate) was_asked: bool,
    /// What the earlier daemon relays, if it still waits for the answer.
    pub(crate) relayed: Option<VecDeque<RelayNews>>,
    /// Whether the client has sent it again, and nothing is known of the first attempt.
    pub(crate) is_repeated: bool,
}

impl Inherited {
    /// Of a request that its client sends again, because it lost the response.
    pub(crate) fn repeated(was_asked: bool) -> Self {
        Self {
            // Which run had it is not known.
            sent: Some(Sent { generation: 0, line: None }),
            attempts: 1,
            was_asked,
            relayed: None,
            is_repeated: true,
        }
    }

    /// Whether the run that it was sent to can still answer, here or to the earlier daemon.
    pub(crate) fn can_be_answered(&self) -> bool {
        self.relayed.is_some() || matches!(self.sent, Some(Sent { line: Some(_), .. }))
    }
}

impl Stream {
    /// The stream of a request as an earlier daemon had it.
    pub(crate) fn recovered(session: SessionKey, record: StreamRecord, is_relayed: bool) -> Self {
        let StreamRecord { key, request: _, sent, attempts, messages, answer, abandoned: _ } =
            record;
        let is_request =
            |(_, text): &(u64, Bytes)| matches!(frame::scan(text), Ok(Frame::Request { .. }));
        let inherited = Inherited {
            sent,
            attempts,
            was_asked: messages.iter().any(is_request),
            relayed: is_relayed.then(VecDeque::new),
            is_repeated: false,
        };
        let request = RequestStream { inherited: Some(inherited), ..RequestStream::default() };
        let mut stream = Self::new(
            session,
            Log::restored(&log::REQUEST, messages, answer),
            Purpose::Request(Box::new(request)),
        );
        stream.durable = Durable::Journaled(key);
        stream
    }

    /// Gives a general stream what an earlier daemon had in it.
    pub(crate) fn restore(&mut self, messages: Vec<(u64, Bytes)>) {
        self.log = Log::restored(&log::GENERAL, messages, None);
    }

    /// From now on the stream of this request is journaled, unless it is answered already. Closes it if another daemon
    /// has taken over.
    pub(crate) fn begin_journal(&mut self, journal: Journal<'_>, key: StreamKey, request: Bytes) {
        if self.is_closed || self.is_finished() {
            return;
        }
        let begun = match self.sent {
            Some(sent) => StreamChange::BegunSent(request, sent, self.attempts.max(1)),
            None => StreamChange::Begun(request),
        };
        let mut may_act = journal.append(&key, begun).may_act();
        for (number, message) in self.log.messages() {
            may_act &=
                journal.append(&key, StreamChange::Message(number, message.clone())).may_act();
        }
        self.durable = Durable::Journaled(key);
        self.is_closed = !may_act;
    }

    /// From now on a general stream is journaled.
    pub(crate) fn journal_general(&mut self, session: &Arc<str>, number: u64) {
        let session = Arc::clone(session);
        self.durable = Durable::Journaled(StreamKey { session, number });
    }

    /// Removes the stream of a request from the journal.
    pub(crate) fn discard(&mut self, journal: Journal<'_>) {
        if let Durable::Journaled(key) = &self.durable
            && !self.is_general()
            // If another daemon has taken over, it decides that.
            && journal.append(key, StreamChange::Over).may_act()
        {
            self.durable = Durable::No;
        }
    }

    /// Its request is about to be sent there. It may be if the result is [`Recorded::Yes`].
    pub(crate) fn record_sent(&mut self, journal: Journal<'_>, sent: Sent) -> Recorded {
        if journal.is_closed {
            return Recorded::Never;
        }
        match &self.durable {
            Durable::Journaled(key) => {
                // First without its line: if that is not written in time, another request may get the line.
                let recorded = journal.append(key, StreamChange::Sent(Sent { line: None, ..sent }));
                if recorded != Recorded::Yes {
                    return recorded;
                }
                if sent.line.is_some() && !journal.append(key, StreamChange::Sent(sent)).may_act() {
                    return Recorded::Never;
                }
            }
            Durable::Relayed => return Recorded::Never,
            Durable::No | Durable::Never | Durable::Repeated => {}
        }
        self.sent = Some(sent);
        self.attempts += 1;
        Recorded::Yes
    }

    /// The run will not answer the request.
    pub(crate) fn record_unanswerable(&mut self, journal: Journal<'_>) {
        let sent = self.sent.or_else(|| self.inherited()?.sent);
        if let (Some(sent), Durable::Journaled(key)) = (sent, &self.durable) {
            let sent = Sent { line: None, ..sent };
            journal.append(key, StreamChange::Sent(sent));
            self.sent = Some(sent);
        }
    }

    /// Whether only this daemon can finish its request: it was sent to a run that answers only on the same connection.
    pub(crate) fn can_be_relayed(&self) -> bool {
        matches!(self.durable, Durable::Journaled(_))
            && matches!(self.sent, Some(Sent { line: None, generation: 1.. }))
            && !self.is_general()
            && !self.is_finished()
            && !self.is_closed
    }
}

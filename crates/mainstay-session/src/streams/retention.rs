//! How long finished streams are kept, and what ends the others.

use std::time::{Duration, Instant};

use super::{FINISHED, StreamRef};
use crate::action::Action;
use crate::server::Server;
use crate::session::SessionKey;
use crate::stream::{BatchMember, Durable, Journal};
use crate::timers::Timer;

/// How long the end of a stream is kept for a client that may have lost it.
pub(super) const KEPT: Duration = Duration::from_secs(60);

/// The memory that large finished streams may take for that time. Further ones are kept only shortly, long enough for
/// a client that reconnects at once.
pub(super) const LARGE_KEPT: usize = 64 << 20;
const LARGE: usize = 64 << 10;
pub(super) const KEPT_SHORTLY: Duration = Duration::from_secs(3);

/// How many bytes the finished streams of a session may have, beside the newest.
const FINISHED_BYTES: usize = 4 << 20;

impl Server {
    /// Keeps the end of a resumable stream for a while.
    pub(crate) fn keep_finished(&mut self, now: Instant, key: StreamRef) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let (session, bytes, has_reader) = (stream.session, stream.log.bytes(), stream.has_reader);
        let is_large = bytes > LARGE;
        let fits = self.kept_bytes + bytes <= LARGE_KEPT;
        let Some(resumable) = stream.resumable_mut() else { return };
        if !resumable.is_kept {
            // A client without an id cannot resume.
            if !has_reader {
                self.forget_stream(key);
            }
            return;
        }
        let kept = if is_large && !fits { KEPT_SHORTLY } else { KEPT };
        resumable.expires = Some(now + kept);
        if is_large && fits {
            resumable.reserved = bytes;
            self.kept_bytes += bytes;
        }
        self.timers.set(now + kept, Timer::Stream(key));
        self.prune(session);
    }

    /// If too many finished streams of a session are kept, removes those that were read, then the oldest without a
    /// reader.
    fn prune(&mut self, session: SessionKey) {
        loop {
            let Some(session) = self.sessions.get(session) else { return };
            let streams = session.streams.all.iter();
            let streams = streams.filter_map(|(_, key)| Some((*key, self.streams.get(*key)?)));
            let finished: Vec<_> = streams
                .filter(|(key, stream)| stream.is_finished() && !self.is_abandoned(*key))
                .collect();
            let bytes: usize = finished.iter().map(|(_, stream)| stream.log.bytes()).sum();
            if finished.len() <= FINISHED && (bytes <= FINISHED_BYTES || finished.len() <= 1) {
                return;
            }
            let read = finished.iter().find(|(_, stream)| stream.log.is_read());
            let unread = || finished.iter().find(|(_, stream)| !stream.has_reader);
            let Some((victim, _)) = read.or_else(unread) else { return };
            let victim = *victim;
            self.forget_stream(victim);
        }
    }

    /// Removes a stream, also from the journal.
    pub(crate) fn forget_stream(&mut self, key: StreamRef) {
        let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
        if let Some(stream) = self.streams.get_mut(key) {
            stream.discard(journal);
            self.remove_stream(key);
        }
    }

    pub(crate) fn remove_stream(&mut self, key: StreamRef) {
        let Some(stream) = self.streams.remove(key) else { return };
        if !self.abandoned.is_empty() {
            self.abandoned.retain(|it| !it.is_of(key));
        }
        if let Some(resumable) = stream.resumable() {
            self.kept_bytes -= resumable.reserved;
            if let Some(session) = self.sessions.get_mut(stream.session) {
                session.streams.remove(key);
            }
        }
        if stream.has_reader {
            self.act(Action::Wake(key));
        }
    }

    /// Closes a stream at once: its reader gets no more, and its request is given up.
    pub(crate) fn close_stream(&mut self, now: Instant, key: StreamRef) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.is_closed = true;
        let mut calls = Vec::new();
        if let Some(request) = stream.as_request_mut() {
            calls.extend(request.call.take());
            for member in request.batch.take().into_iter().flatten() {
                if let BatchMember::Open(call) = member {
                    calls.push(call);
                }
            }
        }
        let is_general = stream.is_general();
        self.act(Action::Wake(key));
        for call in calls {
            self.give_up(now, call);
        }
        // A general stream is removed with its session.
        if !is_general && !self.is_frozen {
            self.forget_stream(key);
        }
    }

    /// The session has ended: its streams cannot be resumed. An answer that is there may still be read by the
    /// present reader.
    pub(crate) fn close_resumable_streams(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        for (_, key) in std::mem::take(&mut session.streams.all) {
            let journal = Journal { store: &*self.store, is_closed: self.is_frozen };
            let Some(stream) = self.streams.get_mut(key) else { continue };
            stream.discard(journal);
            if stream.has_reader && stream.is_finished() {
                if let Some(resumable) = stream.resumable_mut() {
                    resumable.is_kept = false;
                }
            } else {
                self.close_stream(now, key);
            }
        }
    }

    /// The journal has forgotten a session, and gets nothing more of it.
    pub(crate) fn forget_journal(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        for (_, stream) in &session.streams.all {
            if let Some(stream) = self.streams.get_mut(*stream)
                && matches!(stream.durable, Durable::Journaled(_))
            {
                stream.durable = Durable::No;
            }
        }
    }

    /// The client cancels a request, or gives it up by its own timeout.
    pub(crate) fn cancel_stream(
        &mut self,
        now: Instant,
        session: SessionKey,
        key: StreamRef,
        is_timeout: bool,
    ) {
        if let Some(session) = self.sessions.get_mut(session) {
            // Some clients resume it nevertheless.
            session.streams.record_cancelled(key);
        }
        if !is_timeout || !self.abandon(now, key, "the client timed out") {
            self.close_stream(now, key);
        }
    }
}

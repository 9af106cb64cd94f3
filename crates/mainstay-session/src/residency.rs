//! Which sessions of a server are in memory, and which are on disk only.
//!
//! Every session has a record on disk from its initialization on. When too many sessions are in memory, those of absent
//! clients are dropped from it, and loaded again when their clients return. The decisions are in `presence`.
//!
//! A session whose record was lost, with the file that had it, is recognised by its id ([`SessionIds`]) and created
//! again, without subscriptions and log level, because to some clients "no such session" is the end. What ended is
//! remembered, so that it is not created again.
//!
//! [`SessionIds`]: crate::SessionIds

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use mainstay_core::supervisor::SessionRunEnd;
use mainstay_mcp::frame;
use mainstay_mcp::version::ProtocolVersion;
use serde_json::json;

use crate::action::{Decision, Report};
use crate::availability::Availability;
use crate::presence::to_move_to_disk;
use crate::record::SessionRecord;
use crate::server::Server;
use crate::session::{Session, SessionKey, short_id};
use crate::stream::Stream;

/// From this number of sessions on, those of absent clients are moved to disk.
pub(crate) const MOVE_TO_DISK_AT: usize = 4096;

/// How many sessions are moved at a time, because the selection scans all sessions.
const MOVE_BATCH: usize = MOVE_TO_DISK_AT / 8;

/// The limit of sessions in memory. It is reached only if none can be moved to disk, because their clients are present
/// or they are being opened.
const MAX_SESSIONS: usize = 20_000;

/// The log message for a client whose record was lost.
const LOSS: &str = "Mainstay has lost the record of this session and continues without it: subscriptions and the log \
                    level have to be set again";

/// A session that is being loaded from disk.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// How many requests wait for it.
    count: usize,
    pub(crate) has_ended: bool,
}

impl Server {
    /// Takes a session that an earlier daemon had. Returns whether it may have a run of its own; if that is not alive,
    /// [`Server::clear_own_run`] follows.
    pub fn restore(&mut self, now: Instant, record: SessionRecord) -> bool {
        let key = self.insert_restored(now, record);
        self.restored = (self.restored.0 + 1, Some(key));
        let is_isolated = self.settings.isolate;
        if let Some(session) = self.sessions.get_mut(key).filter(|_| is_isolated) {
            session.own_run = Some(Box::new(Availability::unknown()));
        }
        self.track(key);
        is_isolated
    }

    fn insert_restored(&mut self, now: Instant, record: SessionRecord) -> SessionKey {
        let key = self.insert_session(now, record.id.as_str().into(), false);
        let now = self.clock.at(now);
        if let Some(session) = self.sessions.get_mut(key) {
            session.restore(record, now);
        }
        self.journal_general(key);
        key
    }

    fn insert_session(&mut self, now: Instant, id: Arc<str>, is_local: bool) -> SessionKey {
        // The stream has to know its session, and the session its stream.
        let general = self.streams.insert(Stream::general(SessionKey::dangling()));
        let session = Session::new(Arc::clone(&id), is_local, general, self.clock.at(now));
        let key = self.sessions.insert(session);
        if let Some(general) = self.streams.get_mut(general) {
            general.session = key;
        }
        if !is_local {
            self.by_id.insert(id, key);
        }
        key
    }

    /// Opens a session for a command of the user. [`Server::close_local`] must follow.
    pub fn open_local(&mut self, now: Instant) -> SessionKey {
        self.insert_session(now, Arc::from(""), true)
    }

    pub fn close_local(&mut self, now: Instant, key: SessionKey) {
        self.end_session(now, key);
        self.drop_ended_session(key);
    }

    /// Opens a session. `None` if there are too many that cannot be moved to disk.
    pub fn open(&mut self, now: Instant) -> Option<SessionKey> {
        let id = self.ids.issue(&self.name);
        self.open_as(now, &id)
    }

    /// The same, under an id that an earlier daemon gave to its client.
    pub fn open_as(&mut self, now: Instant, id: &str) -> Option<SessionKey> {
        if let Some(unanswered) = self.by_id.remove(id) {
            // Its `initialize` was recorded and not answered, and begins again.
            self.retire(now, unanswered);
        }
        self.move_absent_to_disk();
        let has_room = self.by_id.len() < MAX_SESSIONS;
        has_room.then(|| self.insert_session(now, id.into(), false))
    }

    /// Ends expired sessions, stops tracking inactive ones, and stops idle runs of single sessions.
    pub fn sweep(&mut self, now: Instant) {
        let time = self.clock.at(now);
        let is_expired = |key: &SessionKey| {
            let session = self.sessions.get(*key);
            session.is_some_and(|session| self.facts(session).is_expired(time))
        };
        let expired: Vec<_> = self.by_id.values().copied().filter(is_expired).collect();
        if !expired.is_empty() && !self.is_frozen {
            tracing::info!(server = %self.name, count = expired.len(), "sessions expired");
            for key in expired {
                self.end_session(now, key);
                self.release_run(key);
                self.drop_ended_session(key);
            }
        }
        let mut active = std::mem::take(&mut self.active);
        active.retain(|key| self.untrack_if_inactive(now, *key));
        self.active = active;
        self.end_unneeded_runs(now);
    }

    /// Stores when sessions were last used.
    pub fn save_last_used(&mut self, now: Instant) {
        // Also without changes, because this also saves the clock by which sessions on disk age.
        let keys: Vec<_> = self.by_id.values().copied().collect();
        let used = keys.into_iter().filter_map(|key| self.unsaved_use(now, key)).collect();
        if !self.is_frozen {
            self.store.touched(self.clock.at(now), used);
        }
    }

    /// A session is about to be loaded from disk. [`Server::end_load`] must follow.
    pub fn begin_load(&mut self, id: &str) {
        self.loading.entry(id.to_owned()).or_default().count += 1;
    }

    pub fn end_load(&mut self, id: &str) {
        if let Some(loading) = self.loading.get_mut(id) {
            loading.count -= 1;
            if loading.count == 0 {
                self.loading.remove(id);
            }
        }
    }

    /// The record of a session was read from disk, if there is one. If it was lost, the session is created again for a
    /// client of the version `if_lost`.
    pub fn loaded(
        &mut self,
        now: Instant,
        id: &str,
        found: Option<SessionRecord>,
        if_lost: Option<ProtocolVersion>,
    ) -> Option<SessionKey> {
        let has_ended = self.loading.get(id).is_some_and(|loading| loading.has_ended);
        let is_recreated = found.is_none();
        let record = match found {
            Some(record) => record,
            None => self.record_of_lost(now, id, if_lost?)?,
        };
        // Another request may have loaded and ended it while this one waited for its record.
        if *record.server != *self.name || has_ended {
            return None;
        }
        self.move_absent_to_disk();
        if let Some(session) = self.session(id) {
            // Another request was faster.
            return Some(session);
        }
        let key = self.insert_restored(now, record.clone());
        tracing::debug!(server = %self.name, session = id, "session restored");
        self.after_load(now, key);
        if is_recreated {
            if !self.is_frozen {
                self.store.save(record);
            }
            self.report_loss(key, id);
        }
        Some(key)
    }

    /// It is not known which notifications the client has missed and whether the run still has its subscriptions, so
    /// lists and resources are announced as changed and subscriptions are renewed.
    fn after_load(&mut self, now: Instant, key: SessionKey) {
        self.touch(now, key);
        self.track(key);
        let Some(session) = self.sessions.get(key).filter(|session| session.is_used()) else {
            return;
        };
        let client = session.client.clone();
        // Two lists may share a notification.
        let mut announced = BTreeSet::new();
        for kind in self.copies.offered() {
            if announced.insert(kind.changed()) {
                self.deliver(key, kind.changed_message(), None);
            }
        }
        self.announce_resources(key);
        if !self.is_shared() {
            return;
        }
        let Some(link) = self.availability.run().map(|run| run.link) else { return };
        let lowest = self.lowest_level_of_others(key);
        let level = client.level.filter(|level| lowest.is_none_or(|lowest| *level < lowest));
        self.restore_client_state(now, link, level.as_ref(), client.subscriptions.iter());
    }

    fn report_loss(&mut self, key: SessionKey, id: &str) {
        self.deliver(key, frame::log_message("warning", LOSS), None);
        let short = short_id(id);
        self.report(Report::Decision(Decision {
            server: self.name.to_string(),
            run: None,
            cause: "session-lost",
            detail: format!(
                "session {short} continues without its record: subscriptions and log level are lost"
            ),
        }));
    }

    /// A record for a session without one, if that may have been lost.
    fn record_of_lost(
        &self,
        now: Instant,
        id: &str,
        version: ProtocolVersion,
    ) -> Option<SessionRecord> {
        let is_ours = self.ids.is_of_earlier_era(&self.name, id);
        is_ours.then(|| self.empty_record(now, id, &self.name, version))
    }

    /// Keeps a session from being created again after its end. One of this era needs nothing for that.
    pub(crate) fn remember_end(&self, now: Instant, id: &str) {
        if self.ids.is_of_earlier_era(&self.name, id) {
            // A record without a server: no session is found by it.
            self.store.save(self.empty_record(now, id, "", ProtocolVersion::V2025_11_25));
        }
    }

    /// The record of a session of which nothing but the id and the version is known.
    fn empty_record(
        &self,
        now: Instant,
        id: &str,
        server: &str,
        version: ProtocolVersion,
    ) -> SessionRecord {
        let params = json!({
            "protocolVersion": version.as_str(),
            "capabilities": {},
            "clientInfo": {"name": "unknown", "version": "unknown"},
        });
        SessionRecord {
            id: id.to_owned(),
            server: server.to_owned(),
            params: params.to_string().into(),
            version: version.as_str().to_owned(),
            initialized: true,
            level: None,
            subscriptions: Vec::new(),
            run: None,
            upstream: None,
            used_at: self.clock.at(now),
        }
    }

    /// Moves sessions of absent clients to disk if too many are in memory.
    fn move_absent_to_disk(&mut self) {
        if self.by_id.len() < self.move_to_disk_at || self.is_frozen {
            return;
        }
        let keys = self.by_id.values().copied();
        let facts = keys.filter_map(|key| Some((key, self.facts(self.sessions.get(key)?))));
        let moved = to_move_to_disk(facts, MOVE_TO_DISK_AT - MOVE_BATCH);
        tracing::info!(server = %self.name, count = moved.len(), "sessions moved to disk");
        for key in moved {
            self.move_to_disk(key);
        }
        // Even if few could be moved, the next scan waits for [`MOVE_BATCH`] more sessions.
        self.move_to_disk_at = MOVE_TO_DISK_AT.max(self.by_id.len() + MOVE_BATCH);
    }

    fn move_to_disk(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(record) = self.record_of(session) else { return };
        let (id, has_own_run) = (Arc::clone(&session.id), session.has_own_run());
        if !self.store.move_to_disk(record) {
            return;
        }
        self.by_id.remove(&id);
        if let Some(session) = self.sessions.remove(key) {
            self.drop_own_run(session.own_run.as_deref());
            self.remove_stream(session.general);
        }
        if has_own_run {
            self.report(Report::StopSessionRun(id, SessionRunEnd::Idle));
        }
    }
}

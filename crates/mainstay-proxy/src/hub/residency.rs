//! Which sessions of a server are in memory, which are on disk only, and which are active.
//!
//! Every session has a record on disk from its initialization on. When too many sessions are in memory, those
//! of absent clients are dropped from it, and loaded again when their clients return
//! ([`Hub::load_from_disk`]). The decisions are in `presence`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::availability::RunLink;
use super::presence::to_move_to_disk;
use super::session::Session;
use super::{Hub, lock};
use crate::frame::{self, InitializeResult};
use crate::front::{Lookup, ProtocolVersion, Session as _};
use crate::lists::ListKind;
use crate::record::SessionRecord;
use crate::upstream;

/// From this number of sessions on, those of absent clients are moved to disk.
pub(super) const MOVE_TO_DISK_AT: usize = 4096;

/// How many sessions are moved at a time, because the selection scans all sessions.
const MOVE_BATCH: usize = MOVE_TO_DISK_AT / 8;

/// The limit of sessions in memory. It is reached only if none can be moved to disk, because their clients
/// are present or they are being opened.
const MAX_SESSIONS: usize = 20_000;

impl Hub {
    /// Takes up a session that an earlier daemon had.
    pub fn restore(self: &Arc<Self>, record: SessionRecord) {
        let session = Session::restored(Arc::clone(self), record);
        self.find_own_run(&session);
        session.track_if_active();
        self.all_sessions().insert(session.id().to_owned(), session);
    }

    /// Ends expired sessions, and stops tracking inactive ones.
    pub fn sweep(&self) {
        let now = self.now();
        let over = |session: &Session| session.facts().is_expired(now);
        let expired: Vec<Session> = self.everyone().into_iter().filter(over).collect();
        if !expired.is_empty() && !self.is_frozen() {
            tracing::info!(server = %self.name, count = expired.len(), "sessions expired");
            for session in expired {
                if let Some(session) = self.end_session(session.id()) {
                    self.release_run(&session);
                }
            }
        }
        lock(&self.active).retain(|session| {
            session.upgrade().is_some_and(|session| session.untrack_if_inactive(now))
        });
        self.end_unneeded_runs();
    }

    /// Notes on disk when sessions were last used.
    pub fn note_use(&self) {
        // Called even without changes, because this also saves the clock by which sessions on disk age.
        let used = self.everyone().iter().filter_map(Session::unsaved_use).collect();
        self.write_fence.pass(|state_store| state_store.touched(self.now(), used));
    }

    /// Opens a session. `None` if there are too many that cannot be moved to disk.
    pub(super) fn open(self: &Arc<Self>) -> Option<Session> {
        self.open_as(self.ports.ids.issue(&self.name))
    }

    /// The same, under an id that an earlier daemon gave to its client.
    pub(super) fn open_as(self: &Arc<Self>, id: String) -> Option<Session> {
        self.move_absent_to_disk();
        let session = Session::new(Arc::clone(self), id, true);
        let mut sessions = self.all_sessions();
        if sessions.len() >= MAX_SESSIONS {
            return None;
        }
        sessions.insert(session.id().to_owned(), session.clone());
        Some(session)
    }

    /// Loads a session from disk. If its record was lost, it is created again for a client of the version `if_lost`.
    pub(super) async fn load_from_disk(
        self: &Arc<Self>,
        id: &str,
        if_lost: Option<ProtocolVersion>,
    ) -> Result<Session, Lookup> {
        let load = self.pending_loads.begin(id);
        let found = self.ports.state_store.find(id).await.map_err(|_| Lookup::Unreadable)?;
        let is_recreated = found.is_none();
        let record = found.or_else(|| self.record_of_lost(id, if_lost?));
        // Another request may have loaded and ended it while this one waited for its record.
        let is_ours = |record: &SessionRecord| record.server == self.name && !load.session_ended();
        let record = record.filter(is_ours);
        let record = record.ok_or(Lookup::NoSuchSession)?;
        self.move_absent_to_disk();
        let session = {
            let mut sessions = self.all_sessions();
            if let Some(session) = sessions.get(id) {
                // Another request was faster.
                return Ok(session.clone());
            }
            let session = Session::restored(Arc::clone(self), record.clone());
            sessions.insert(id.to_owned(), session.clone());
            session
        };
        tracing::debug!(server = %self.name, session = id, "session restored");
        session.after_load();
        if is_recreated {
            self.write_fence.pass(|state_store| state_store.save(record));
            session.report_loss();
        }
        Ok(session)
    }

    /// Moves sessions of absent clients to disk if too many are in memory.
    fn move_absent_to_disk(&self) {
        if self.session_count() < self.move_to_disk_at.load(Ordering::Relaxed) || self.is_frozen() {
            return;
        }
        let everyone = self.everyone();
        let facts = everyone.iter().map(|session| (session, session.facts()));
        let moved = to_move_to_disk(facts, MOVE_TO_DISK_AT - MOVE_BATCH);
        tracing::info!(server = %self.name, count = moved.len(), "sessions moved to disk");
        for session in moved {
            self.move_to_disk(session);
        }
        // Even if few could be moved, the next scan waits for [`MOVE_BATCH`] more sessions.
        let next = MOVE_TO_DISK_AT.max(self.session_count() + MOVE_BATCH);
        self.move_to_disk_at.store(next, Ordering::Relaxed);
    }

    fn move_to_disk(&self, session: &Session) {
        let Some(record) = session.record() else { return };
        if self.write_fence.pass(|state_store| state_store.move_to_disk(record)) != Some(true) {
            return;
        }
        self.all_sessions().remove(session.id());
        session.leave_memory();
        if session.is_isolated() {
            self.ports.isolation.stop(&self.name, session.id());
        }
    }

    /// Tracks a session that may be active.
    pub(super) fn add_active(&self, session: &Session) {
        lock(&self.active).push(session.downgrade());
    }

    /// The only active session. If none is active, the only session there is.
    pub(super) fn only_session(&self) -> Option<Session> {
        let now = self.now();
        let mut active = lock(&self.active);
        let mut only = None;
        let mut index = 0;
        while let Some(session) = active.get(index) {
            match session.upgrade().filter(|session| session.untrack_if_inactive(now)) {
                // An inactive session is removed when it is found.
                None => drop(active.swap_remove(index)),
                Some(_) if only.is_some() => return None,
                Some(session) => {
                    only = Some(session);
                    index += 1;
                }
            }
        }
        drop(active);
        only.or_else(|| {
            let sessions = self.all_sessions();
            let first = sessions.values().next();
            first.filter(|_| sessions.len() == 1).cloned()
        })
    }
}

/// Sessions that are being loaded, so that one that ends in the meantime stays ended.
#[derive(Debug, Default)]
pub(super) struct PendingLoads {
    all: Mutex<Vec<(String, Arc<AtomicBool>)>>,
}

/// Guard for one load in progress.
struct PendingLoad<'a> {
    loads: &'a PendingLoads,
    ended: Arc<AtomicBool>,
}

impl PendingLoads {
    fn begin(&self, id: &str) -> PendingLoad<'_> {
        let ended = Arc::new(AtomicBool::new(false));
        lock(&self.all).push((id.to_owned(), Arc::clone(&ended)));
        PendingLoad { loads: self, ended }
    }

    pub(super) fn session_ended(&self, id: &str) {
        for (_, ended) in lock(&self.all).iter().filter(|(loading, _)| loading == id) {
            ended.store(true, Ordering::Relaxed);
        }
    }
}

impl PendingLoad<'_> {
    fn session_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for PendingLoad<'_> {
    fn drop(&mut self) {
        lock(&self.loads.all).retain(|(_, ended)| !Arc::ptr_eq(ended, &self.ended));
    }
}

impl Session {
    /// Called after the session was loaded. It is unknown which notifications the client has missed and
    /// whether the run still has its subscriptions, so lists and resources are announced as changed and
    /// subscriptions are renewed.
    fn after_load(&self) {
        self.touch();
        self.track_if_active();
        if !self.facts().is_used {
            return;
        }
        let hello = self.hub().last_hello();
        let offered =
            hello.as_ref().and_then(|hello| InitializeResult::read(hello.get().as_bytes()));
        let kinds = ListKind::ALL.into_iter();
        let kinds =
            kinds.filter(|kind| offered.as_ref().is_some_and(|it| it.has(kind.capability())));
        // Two lists may share a notification.
        let mut told = BTreeSet::new();
        for kind in kinds.filter(|kind| told.insert(kind.changed())) {
            self.hear(kind.changed_message(), None);
        }
        let terms = self.terms();
        for uri in &terms.subscriptions {
            self.hear(frame::resource_updated(uri), None);
        }
        let run = self.hub().present().run().cloned();
        if (terms.level.is_none() && terms.subscriptions.is_empty()) || !self.hub().is_shared() {
            return;
        }
        let (Some(run), session) = (run, self.clone()) else { return };
        // It ends when the run does, at the latest.
        drop(tokio::spawn(async move {
            let RunLink::Lines(conn) = &run.link else { return };
            let least = session.hub().least_level(&session);
            if let Some(level) =
                terms.level.filter(|level| least.is_none_or(|least| *level < least))
            {
                let params = upstream::string_param("level", level.as_str());
                conn.ask_own("logging/setLevel", Some(&params)).await.ok();
            }
            for uri in &terms.subscriptions {
                let params = upstream::string_param("uri", uri);
                conn.ask_own("resources/subscribe", Some(&params)).await.ok();
            }
        }));
    }
}

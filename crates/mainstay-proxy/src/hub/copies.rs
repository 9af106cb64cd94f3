//! The last good copies of what a server says of itself, and how they are kept good.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::availability::{Run, RunLink};
use super::{Hub, lock};
use crate::catch_panic;
use crate::frame::{InitializeResult, Parsed};
use crate::lists::{ListKind, Lists, Next, Walk};
use crate::upstream::{self, Hello, UpstreamError};

/// A list that is not there by then is given up.
const READING: Duration = Duration::from_secs(60);

/// A server that says that its lists have changed may say so many times.
const MOMENT: Duration = Duration::from_millis(200);

/// What a server last said of itself.
pub(super) struct Copies {
    hello: Mutex<Option<Arc<RawValue>>>,
    lists: Mutex<Lists>,
    /// The run whose lists were read last.
    read: watch::Sender<u64>,
    /// The run whose tool list is known; 0 if the list may have changed since.
    tools: AtomicU64,
    /// Whether they are about to be read again.
    stale: AtomicBool,
    /// How often a change was announced.
    announcements: AtomicU64,
    /// Held while lists are read, so that they are read one after the other.
    reading: tokio::sync::Mutex<()>,
}

/// The form in which copies are kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    hello: Option<Box<RawValue>>,
    lists: Box<RawValue>,
    /// The run whose tool list this is.
    #[serde(default)]
    tools_of: u64,
}

/// The lists of a run that were read.
struct ReadLists {
    /// How many changes had been announced before.
    announcements: u64,
    /// The lists that the server has, and whether each of them could be read.
    lists: Vec<(ListKind, bool)>,
}

impl Copies {
    /// As an earlier daemon kept them. One that cannot be read is as good as none.
    pub(super) fn restored(kept: Option<&[u8]>) -> Self {
        let kept: Option<Kept> = kept.and_then(|kept| serde_json::from_slice(kept).ok());
        let tools = AtomicU64::new(kept.as_ref().map_or(0, |kept| kept.tools_of));
        let (hello, lists) = kept.map(|kept| (kept.hello, kept.lists)).unzip();
        let lists = lists.and_then(|lists| Lists::restore(lists.get().as_bytes()).ok());
        Self {
            hello: Mutex::new(hello.flatten().map(Arc::from)),
            lists: Mutex::new(lists.unwrap_or_default()),
            read: watch::Sender::new(0),
            tools,
            stale: AtomicBool::new(false),
            announcements: AtomicU64::new(0),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Whether the lists are those of this run.
    pub(super) fn are_of(&self, generation: u64) -> bool {
        *self.read.borrow() == generation
    }

    /// Whether the tool list is of this run, or of a later one.
    pub(super) fn has_tools_of(&self, generation: u64) -> bool {
        let known = self.tools.load(Ordering::Relaxed);
        known != 0 && known >= generation
    }

    pub(super) fn hello(&self) -> Option<Arc<RawValue>> {
        lock(&self.hello).clone()
    }

    pub(super) fn set_hello(&self, hello: &Hello) {
        *lock(&self.hello) = Some(Arc::from(hello.result.clone()));
    }

    pub(super) fn lists(&self) -> MutexGuard<'_, Lists> {
        lock(&self.lists)
    }

    fn kept(&self) -> Option<Vec<u8>> {
        let hello = self.hello().map(|hello| hello.as_ref().to_owned());
        let lists = serde_json::from_slice(&self.lists().stored()).ok()?;
        let tools_of = self.tools.load(Ordering::Relaxed);
        serde_json::to_vec(&Kept { hello, lists, tools_of }).ok()
    }
}

impl Hub {
    /// Reads all lists of a run, in the background. Clients are told which of them differ from those that they know.
    pub(super) fn read_lists(&self, run: Arc<Run>) {
        let Some(hub) = self.me.upgrade() else { return };
        // It ends when the run does, at the latest.
        catch_panic::spawn(async move {
            let read = hub.read_all(&run).await;
            // Some servers complete their lists only after the handshake, and announce it.
            tokio::select! {
                () = run.closed() => {}
                () = sleep(MOMENT) => hub.tell_news(&read),
            }
        });
    }

    /// The server announces that a list has changed. It is read again, and clients are told if it has: many servers
    /// announce their lists at each start.
    pub(super) fn lists_changed(&self, notification: &Parsed) {
        if let Some(method) = notification.method() {
            self.lists().announced(method);
        }
        self.lists_may_have_changed();
    }

    /// The copies are stale, and are made again in a moment: once, however often this is said.
    pub(super) fn lists_may_have_changed(&self) {
        let (Some(run), Some(hub)) = (self.availability.borrow().run().cloned(), self.me.upgrade())
        else {
            return;
        };
        self.copies.read.send_replace(0);
        self.copies.tools.store(0, Ordering::Relaxed);
        self.copies.announcements.fetch_add(1, Ordering::Relaxed);
        if !self.copies.stale.swap(true, Ordering::Relaxed) {
            // It ends when the run does, at the latest.
            catch_panic::spawn(async move {
                sleep(MOMENT).await;
                hub.copies.stale.store(false, Ordering::Relaxed);
                let read = hub.read_all(&run).await;
                hub.tell_news(&read);
            });
        }
    }

    /// Waits until the lists of that run have been read, but not for ever.
    pub(super) async fn lists_of(&self, generation: u64, patience: Duration) {
        let mut read = self.copies.read.subscribe();
        // If they cannot be read in time, the copies are what they are.
        timeout(patience, read.wait_for(|read| *read >= generation)).await.ok();
    }

    /// A list of this run was passed on to a client.
    pub(super) fn list_passed(&self, generation: u64, kind: ListKind) {
        if !self.copies.are_of(generation) {
            self.lists().passed_unsettled(kind);
        }
    }

    /// Tells clients which lists have changed, unless another change was announced since: then they are read again.
    fn tell_news(&self, read: &ReadLists) {
        if self.copies.announcements.load(Ordering::Relaxed) != read.announcements {
            return;
        }
        let mut told = BTreeSet::new();
        for (kind, is_read) in &read.lists {
            // Two lists may share a notification.
            if self.lists().take_news(*kind, *is_read) && told.insert(kind.changed()) {
                self.everybody(|session| session.hear(kind.changed_message(), None));
            }
        }
    }

    /// Reads the lists that a server has.
    async fn read_all(&self, run: &Run) -> ReadLists {
        let _one_at_a_time = self.copies.reading.lock().await;
        let announcements = self.copies.announcements.load(Ordering::Relaxed);
        let mut lists = Vec::new();
        for kind in ListKind::ALL {
            let offered = InitializeResult::read(run.hello.result.get().as_bytes())
                .is_some_and(|hello| hello.has(kind.capability()));
            if !offered {
                continue;
            }
            let read = timeout(READING, read_list(run, kind)).await;
            let is_read = match read.unwrap_or_else(|_| Err(never_came(kind))) {
                Ok(pages) => self.lists().offer(kind, pages).is_ok(),
                Err(error) => {
                    tracing::debug!(server = %self.name(), list = kind.method(), %error,
                        "a list cannot be read");
                    false
                }
            };
            if kind == ListKind::Tools && is_read {
                self.copies.tools.store(run.generation, Ordering::Relaxed);
            }
            lists.push((kind, is_read));
        }
        self.copies.read.send_replace(run.generation);
        if let Some(kept) = self.copies.kept() {
            self.write_fence().pass(|state_store| state_store.save_copy(self.name(), kept));
        }
        ReadLists { announcements, lists }
    }
}

fn never_came(kind: ListKind) -> UpstreamError {
    upstream::protocol(kind.method(), "nothing at all")
}

/// All pages of a list.
async fn read_list(run: &Run, kind: ListKind) -> Result<Vec<Bytes>, UpstreamError> {
    let mut walk = Walk::new(kind);
    let mut params = None;
    loop {
        let page = match &run.link {
            RunLink::Lines(conn) => conn.ask_own(kind.method(), params.as_deref()).await?,
            RunLink::Http(http) => http.ask_own(kind.method(), params.as_deref()).await?,
        };
        let page = Bytes::from(String::from(Box::<str>::from(page)));
        match walk.take(page).map_err(|error| UpstreamError::Protocol(error.to_string()))? {
            Next::Ask(cursor) => params = Some(upstream::string_param("cursor", &cursor)),
            Next::Complete | Next::Loops => return Ok(walk.into_pages()),
        }
    }
}

//! The last good copies of a server's handshake and lists, and how they are kept up to date.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::Handshake;
use mainstay_mcp::lists::{ListKind, Lists, Next, Walk};
use mainstay_mcp::upstream::{self, Hello, UpstreamError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tracing::debug;

use crate::links::{LinkKey, OwnPurpose, OwnRequest};
use crate::server::Server;
use crate::timers::Timer;

/// A list that is not read by then is given up.
const LIST_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A server that announces changes of its lists may do so many times.
const LIST_DEBOUNCE: Duration = Duration::from_millis(200);

/// The last good copies of a server's handshake and lists.
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) hello: Option<Arc<RawValue>>,
    pub(crate) lists: Lists,
    /// The run whose lists were read last; 0 if they may have changed since.
    lists_generation: u64,
    /// The run whose tool list is known; 0 if the list may have changed since.
    tools_generation: u64,
    /// How often a change was announced.
    announcements: u64,
    reading: Option<Reading>,
    /// The links whose lists are to be read next.
    queue: VecDeque<(LinkKey, Why)>,
    /// When lists are read again whose change was announced.
    read_again_at: Option<Instant>,
    /// What was read, and when the differing lists are announced to clients.
    announce_at: Option<(Instant, ReadLists)>,
}

/// Why lists are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    NewRun,
    Announced,
}

#[derive(Debug)]
struct Reading {
    link: LinkKey,
    generation: u64,
    why: Why,
    kinds: VecDeque<ListKind>,
    walk: Walk,
    until: Instant,
    read: ReadLists,
}

/// The lists of a run that were read.
#[derive(Debug)]
struct ReadLists {
    /// How many changes had been announced before.
    announcements: u64,
    /// The lists that the server has, and whether each of them could be read.
    lists: Vec<(ListKind, bool)>,
}

/// The form in which copies are stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    hello: Option<Box<RawValue>>,
    lists: Box<RawValue>,
    #[serde(default, rename = "tools_of")]
    tools_generation: u64,
}

impl Copies {
    /// As an earlier daemon stored them. What cannot be read is ignored.
    pub(crate) fn restored(stored: Option<&[u8]>) -> Self {
        let stored: Option<Stored> = stored.and_then(|stored| serde_json::from_slice(stored).ok());
        let tools_generation = stored.as_ref().map_or(0, |stored| stored.tools_generation);
        let (hello, lists) = stored.map(|stored| (stored.hello, stored.lists)).unzip();
        let lists = lists.and_then(|lists| Lists::restore(lists.get().as_bytes()));
        Self {
            hello: hello.flatten().map(Arc::from),
            lists: lists.unwrap_or_default(),
            lists_generation: 0,
            tools_generation,
            announcements: 0,
            reading: None,
            queue: VecDeque::new(),
            read_again_at: None,
            announce_at: None,
        }
    }

    pub(crate) fn set_hello(&mut self, hello: &Hello) {
        self.hello = Some(Arc::from(hello.result.clone()));
    }

    /// Whether the lists are those of this run.
    pub(crate) fn are_of(&self, generation: u64) -> bool {
        self.lists_generation == generation
    }

    pub(crate) fn is_read_up_to(&self, generation: u64) -> bool {
        self.lists_generation >= generation
    }

    /// Whether the tool list is of this run, or of a later one.
    pub(crate) fn has_tools_of(&self, generation: u64) -> bool {
        self.tools_generation != 0 && self.tools_generation >= generation
    }

    fn stored(&self) -> Option<Vec<u8>> {
        let hello = self.hello.as_ref().map(|hello| hello.as_ref().to_owned());
        let lists = serde_json::from_slice(&self.lists.stored()).ok()?;
        serde_json::to_vec(&Stored { hello, lists, tools_generation: self.tools_generation }).ok()
    }

    /// The lists that the server offers.
    pub(crate) fn offered(&self) -> Vec<ListKind> {
        let hello = self.hello.as_ref().and_then(|it| Handshake::read(it.get().as_bytes()));
        let is_offered =
            |kind: &ListKind| hello.as_ref().is_some_and(|it| it.has(kind.capability()));
        ListKind::ALL.into_iter().filter(is_offered).collect()
    }
}

impl Server {
    /// Reads all lists of a run. Those that differ from what clients know are announced to them.
    pub(crate) fn read_lists_of_new_run(&mut self, now: Instant, link: LinkKey) {
        self.copies.queue.push_back((link, Why::NewRun));
        self.read_next_lists(now);
    }

    /// The server announces that lists have changed. They are read again in a moment, once, however often this is
    /// said, and real changes are announced to clients: many servers announce their lists at each start.
    pub(crate) fn list_changed_received(&mut self, now: Instant) {
        if self.availability.run().is_none() {
            return;
        }
        self.copies.lists_generation = 0;
        self.copies.tools_generation = 0;
        self.copies.announcements += 1;
        if self.copies.read_again_at.is_none() {
            self.copies.read_again_at = Some(now + LIST_DEBOUNCE);
            self.timers.set(now + LIST_DEBOUNCE, Timer::Lists);
        }
    }

    pub(crate) fn lists_due(&mut self, now: Instant) {
        if self.copies.announce_at.as_ref().is_some_and(|(at, _)| now >= *at)
            && let Some((_, read)) = self.copies.announce_at.take()
        {
            self.send_list_changed(&read);
        }
        if self.copies.read_again_at.is_some_and(|at| now >= at) {
            self.copies.read_again_at = None;
            if let Some(link) = self.availability.run().map(|run| run.link) {
                self.copies.queue.push_back((link, Why::Announced));
            }
        }
        if let Some(reading) = &self.copies.reading
            && now >= reading.until
        {
            let (link, method) = (reading.link, reading.walk.kind().method());
            self.cancel_list_request(link);
            self.list_read(now, Err(upstream::protocol(method, "nothing at all")));
        }
        self.read_next_lists(now);
    }

    /// Begins to read the lists of the next link, unless others are being read.
    fn read_next_lists(&mut self, now: Instant) {
        while self.copies.reading.is_none()
            && let Some((link, why)) = self.copies.queue.pop_front()
        {
            let Some(generation) = self.links.get(link).map(|link| link.generation) else {
                continue;
            };
            let announcements = self.copies.announcements;
            let read = ReadLists { announcements, lists: Vec::new() };
            let kinds = self.copies.offered().into();
            let walk = Walk::new(ListKind::Tools);
            self.copies.reading =
                Some(Reading { link, generation, why, kinds, walk, until: now, read });
            self.read_next_list(now);
        }
    }

    fn read_next_list(&mut self, now: Instant) {
        let Some(reading) = &mut self.copies.reading else { return };
        let Some(kind) = reading.kinds.pop_front() else { return self.all_lists_read(now) };
        reading.walk = Walk::new(kind);
        reading.until = now + LIST_READ_TIMEOUT;
        let link = reading.link;
        self.timers.set(now + LIST_READ_TIMEOUT, Timer::Lists);
        self.ask(now, link, OwnRequest::new(OwnPurpose::ListPage, kind.method(), None));
    }

    /// A page of a list was read, or cannot be.
    pub(crate) fn list_page_read(
        &mut self,
        now: Instant,
        link: LinkKey,
        result: Result<Box<RawValue>, UpstreamError>,
    ) {
        let Some(reading) = self.copies.reading.as_mut().filter(|it| it.link == link) else {
            return;
        };
        let kind = reading.walk.kind();
        let page = match result {
            Ok(page) => Bytes::from(String::from(Box::<str>::from(page))),
            Err(error) => return self.list_read(now, Err(error)),
        };
        match reading.walk.take(page) {
            Ok(Next::Ask(cursor)) => {
                let params = upstream::string_param("cursor", &cursor);
                self.ask(
                    now,
                    link,
                    OwnRequest::new(OwnPurpose::ListPage, kind.method(), Some(params)),
                );
            }
            Ok(Next::Complete | Next::Loops) => self.list_read(now, Ok(())),
            Err(error) => self.list_read(now, Err(UpstreamError::Protocol(error.to_string()))),
        }
    }

    /// A list was read to its end, or cannot be.
    fn list_read(&mut self, now: Instant, result: Result<(), UpstreamError>) {
        let Some(reading) = &mut self.copies.reading else { return };
        let kind = reading.walk.kind();
        let walk = std::mem::replace(&mut reading.walk, Walk::new(kind));
        let is_read = match result {
            Ok(()) => self.copies.lists.offer(kind, walk.into_pages()).is_ok(),
            Err(error) => {
                debug!(server = %self.name, list = kind.method(), %error, "a list cannot be read");
                false
            }
        };
        if kind == ListKind::Tools && is_read {
            self.copies.tools_generation = reading.generation;
        }
        reading.read.lists.push((kind, is_read));
        self.read_next_list(now);
    }

    fn all_lists_read(&mut self, now: Instant) {
        let Some(Reading { generation, why, read, .. }) = self.copies.reading.take() else {
            return;
        };
        self.copies.lists_generation = generation;
        if let Some(stored) = self.copies.stored().filter(|_| !self.is_frozen) {
            self.store.save_copy(&self.name, stored);
        }
        self.answer_awaited_lists(now);
        match why {
            Why::Announced => self.send_list_changed(&read),
            // Some servers complete their lists only after the handshake, and announce it.
            Why::NewRun => {
                self.copies.announce_at = Some((now + LIST_DEBOUNCE, read));
                self.timers.set(now + LIST_DEBOUNCE, Timer::Lists);
            }
        }
        self.read_next_lists(now);
    }

    /// Announces changed lists to clients, unless another change was announced since: then they are read again.
    fn send_list_changed(&mut self, read: &ReadLists) {
        if self.copies.announcements != read.announcements {
            return;
        }
        let mut announced = BTreeSet::new();
        for (kind, is_read) in &read.lists {
            // Two lists may share a notification.
            if self.copies.lists.take_unannounced_change(*kind, *is_read)
                && announced.insert(kind.changed())
            {
                for session in self.sessions.keys() {
                    self.deliver(session, kind.changed_message(), None);
                }
            }
        }
    }
}

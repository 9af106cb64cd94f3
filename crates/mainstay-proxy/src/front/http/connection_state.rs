//! The state of one connection: the request being read, and the current stage.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use super::eviction::{Activity, Stage, TickClock};
use super::serve::Pending;
use super::store::{
    ConnectionStore, IDLE, MAX_DATA, MAX_ID, READING, READING_LONG, RESPONSE, STREAMING,
    StoredConnection, WRITING,
};
use super::unfinished::{Framing, UnfinishedResponse};
use crate::intake_gate::IntakeGate;

/// The state of one connection. A request is inside the [`IntakeGate`] from its first byte until it is taken.
#[derive(Debug)]
pub(super) struct ConnectionState {
    intake_gate: Arc<IntakeGate>,
    was_read: AtomicBool,
    /// Whether something was read that belongs to no request that was taken.
    is_begun: AtomicBool,
    taken: Notify,
    /// The [`Framing`] of responses whose length is not known.
    framing: AtomicU8,
    /// Whether the listener ends, and no other daemon continues its requests.
    ends_with_listener: AtomicBool,
    /// The response that is left to the next daemon.
    unfinished: Mutex<Option<Box<UnfinishedResponse>>>,
    left: Notify,
    clock: Arc<TickClock>,
    /// The [`Stage`], the tick of its start or last progress, and [`USED`], packed into one word.
    activity: AtomicU64,
    /// The tick at which the client stopped reading; 0 while it reads.
    blocked: AtomicU32,
    /// The copy of the connection that survives this daemon, the kind of state that was recorded, and the length of its
    /// data.
    stored: OnceLock<Box<dyn StoredConnection>>,
    recorded: AtomicU8,
    recorded_len: AtomicUsize,
    /// How many bytes were written.
    written: AtomicU64,
    /// How many bytes were read since the last request was complete. `usize::MAX` if that is not known.
    request_bytes: AtomicUsize,
    /// Whether the client sent another request before it had the response, of which nothing is recorded.
    is_pipelined: AtomicBool,
    /// The state to record when all that there is of a streamed response was written. Empty if it is recorded, if there
    /// is more to write, and if the next daemon does not know the stream.
    resume_point: Mutex<Vec<u8>>,
}

/// Set once a complete request was read.
const USED: u64 = 1 << 8;

impl ConnectionState {
    pub(super) fn new(intake_gate: &Arc<IntakeGate>, clock: &Arc<TickClock>) -> Arc<Self> {
        let conn = Self {
            intake_gate: Arc::clone(intake_gate),
            was_read: AtomicBool::new(false),
            is_begun: AtomicBool::new(false),
            taken: Notify::new(),
            framing: AtomicU8::new(Framing::Chunked as u8),
            ends_with_listener: AtomicBool::new(false),
            unfinished: Mutex::new(None),
            left: Notify::new(),
            clock: Arc::clone(clock),
            activity: AtomicU64::new(0),
            blocked: AtomicU32::new(0),
            stored: OnceLock::new(),
            recorded: AtomicU8::new(STREAMING),
            recorded_len: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            request_bytes: AtomicUsize::new(0),
            is_pipelined: AtomicBool::new(false),
            resume_point: Mutex::default(),
        };
        conn.set_stage(Stage::New);
        Arc::new(conn)
    }

    /// Marks a connection that was inherited from another daemon, which has written so many bytes to it.
    pub(super) fn mark_used(&self, written: u64) {
        self.written.store(written, Ordering::Relaxed);
        self.activity.fetch_or(USED, Ordering::Relaxed);
        self.set_stage(Stage::Idle);
    }

    /// Whether anything was ever read.
    pub(super) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// Whether more may be read.
    pub(super) fn may_read(&self) -> bool {
        !self.intake_gate.is_closed() || self.is_begun()
    }

    /// Whether this daemon ends, and others continue its sessions.
    pub(super) fn is_ending(&self) -> bool {
        self.intake_gate.is_closed()
    }

    /// The listener ends, and no other daemon continues its requests: one whose response is cut is given up.
    pub(super) fn end_with_listener(&self) {
        self.ends_with_listener.store(true, Ordering::Relaxed);
    }

    pub(super) fn ends_with_listener(&self) -> bool {
        self.ends_with_listener.load(Ordering::Relaxed)
    }

    /// Whether another daemon takes over the connection.
    pub(super) fn is_passed_on(&self) -> bool {
        self.intake_gate.has_successor()
    }

    /// Marks a connection of which there is a copy already, with this state.
    pub(super) fn mark_stored(&self, stored: Box<dyn StoredConnection>, pending: &Pending) {
        if self.stored.set(stored).is_ok() {
            let (kind, data) = pending.encode(self.written.load(Ordering::Relaxed));
            self.recorded.store(kind, Ordering::Relaxed);
            self.recorded_len.store(data.len(), Ordering::Relaxed);
        }
    }

    /// From now on there is a copy of the connection that survives this daemon, if there is room.
    /// Says whether the copy is new.
    pub(super) fn store(&self, store: &dyn ConnectionStore, socket: BorrowedFd<'_>) -> bool {
        if let Some(stored) = self.stored.get() {
            stored.renew(socket);
            return false;
        }
        let stored = store.add(socket).and_then(|stored| self.stored.set(stored).ok());
        if stored.is_some() {
            let kind = if self.was_read() { READING_LONG } else { READING };
            self.record(kind, b"");
        }
        stored.is_some()
    }

    /// Records what is to be done on the connection if this daemon is killed.
    pub(super) fn record(&self, kind: u8, data: &[u8]) {
        // Until it is recorded, what was read of a request must stay, and a zero byte must end it.
        let offset = match self.recorded_len.load(Ordering::Relaxed) {
            len @ 1.. if len + 1 + data.len() <= MAX_DATA => len + 1,
            _ => 0,
        };
        if let Some(stored) = self.stored.get()
            && !self.is_pipelined.load(Ordering::Relaxed)
        {
            stored.record(kind, offset, data);
            self.recorded.store(kind, Ordering::Relaxed);
        }
        self.recorded_len.store(0, Ordering::Relaxed);
    }

    /// Records that a request was taken and is not answered. Before its response, nothing more is written.
    pub(super) fn record_taken(&self, kind: u8, id: &[u8]) {
        let mut data = [0; size_of::<u64>() + MAX_ID];
        let (written, rest) = data.split_at_mut(size_of::<u64>());
        written.copy_from_slice(&self.written.load(Ordering::Relaxed).to_le_bytes());
        rest[..id.len()].copy_from_slice(id);
        self.record(kind, &data[..size_of::<u64>() + id.len()]);
    }

    /// Whether a request is being read that is too long to be recorded.
    pub(super) fn is_too_long_to_record(&self) -> bool {
        match self.recorded.load(Ordering::Relaxed) {
            READING_LONG => true,
            READING if self.recorded_len.load(Ordering::Relaxed) == MAX_DATA => {
                self.record(READING_LONG, b"");
                true
            }
            _ => false,
        }
    }

    /// Lets `read` read the next bytes of a request into the memory where they are recorded. It is given at most `len`
    /// bytes of room and returns how many it read. `false` if nothing is recorded: there is no copy of the connection,
    /// or the bytes are not part of the request that is read next.
    pub(super) fn read_recorded(
        &self,
        len: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        let (Some(stored), Some(offset)) = (self.stored.get(), self.next_offset()) else {
            return false;
        };
        self.recorded.store(READING, Ordering::Relaxed);
        let end = offset + stored.read(READING, offset, len, read);
        self.recorded_len.store(end, Ordering::Relaxed);
        if end == 0 {
            // Nothing was there to be read.
            self.record(IDLE, b"");
        }
        true
    }

    /// Where in the record of a request the next bytes belong.
    fn next_offset(&self) -> Option<usize> {
        let is_next = match self.recorded.load(Ordering::Relaxed) {
            READING => return Some(self.recorded_len.load(Ordering::Relaxed)),
            IDLE => true,
            // hyper also reads while it writes a response, to notice a client that goes.
            STREAMING | WRITING => self.is_response_complete() && !self.is_blocked(),
            _ => false,
        };
        (is_next && !self.is_pipelined.load(Ordering::Relaxed)).then_some(0)
    }

    /// Something was read that is not recorded. Stores a copy of the connection if there was no room for it before;
    /// otherwise the client has sent a request before it had the response to the last one, and no daemon can continue the
    /// connection from now on.
    pub(super) fn read_unrecorded(
        &self,
        bytes: &[u8],
        store: &dyn ConnectionStore,
        socket: Option<BorrowedFd<'_>>,
    ) {
        if self.stored.get().is_some() {
            self.set_pipelined();
        } else if let Some(socket) = socket
            && self.store(store, socket)
            && !self.was_read()
        {
            self.record(READING, bytes);
            self.recorded_len.store(bytes.len(), Ordering::Relaxed);
        }
    }

    /// A streamed response waits for more to write. If this daemon is killed then, the next one writes the rest.
    pub(super) fn set_resume_point(&self, response: &UnfinishedResponse) {
        if self.stored.get().is_some() {
            let state = response.encode();
            *mainstay_core::lock(&self.resume_point) =
                if state.len() <= MAX_DATA { state } else { Vec::new() };
        }
    }

    pub(super) fn clear_resume_point(&self) {
        mainstay_core::lock(&self.resume_point).clear();
    }

    /// Something is about to be written. Recorded before that, so that no other daemon writes it again.
    pub(super) fn start_writing(&self) {
        if self.recorded.load(Ordering::Relaxed) == RESPONSE {
            self.record(STREAMING, b"");
        }
    }

    /// All that there is was written.
    pub(super) fn flushed(&self) {
        match self.stage() {
            Stage::Streaming | Stage::Listening => {
                let rest = std::mem::take(&mut *mainstay_core::lock(&self.resume_point));
                if !rest.is_empty() {
                    // What is recorded must not be overwritten while it is valid.
                    self.start_writing();
                    self.record(RESPONSE, &rest);
                }
            }
            Stage::Idle if self.recorded.load(Ordering::Relaxed) == WRITING => {
                self.record(IDLE, b"");
            }
            Stage::New | Stage::Idle | Stage::Head | Stage::Body | Stage::Answering => {}
        }
    }

    /// Something of a response was written, which the next daemon could not continue. If this daemon is killed before
    /// that is recorded, the client most likely sends another request, by which the next daemon notices it.
    fn written(&self) {
        if self.stage() == Stage::Body {
            // `100 Continue`, which is not the response.
            return;
        }
        let kind = if self.is_response_complete() { WRITING } else { STREAMING };
        if self.recorded.load(Ordering::Relaxed) != kind {
            self.record(kind, b"");
        }
    }

    /// Whether all of the response is known, and written or about to be.
    fn is_response_complete(&self) -> bool {
        matches!(self.stage(), Stage::New | Stage::Idle | Stage::Head)
    }

    /// So many bytes were read, if that is known.
    pub(super) fn read(&self, bytes: Option<usize>) {
        let before = self.request_bytes.load(Ordering::Relaxed);
        let sum = bytes.and_then(|bytes| before.checked_add(bytes)).unwrap_or(usize::MAX);
        self.request_bytes.store(sum, Ordering::Relaxed);
        self.was_read.store(true, Ordering::Relaxed);
        if !self.is_begun.swap(true, Ordering::Relaxed) {
            self.intake_gate.step_in();
        }
        match self.stage() {
            Stage::New | Stage::Idle => self.set_stage(Stage::Head),
            Stage::Body => self.set_stage(Stage::Body),
            // The time limit of a head starts with its first byte. Bytes that arrive while a request is in
            // progress belong to the next request, which is not parsed yet.
            Stage::Head | Stage::Answering | Stage::Streaming | Stage::Listening => {}
        }
    }

    /// The head of a request is complete.
    pub(super) fn head_read(&self) {
        self.set_stage(Stage::Body);
    }

    /// The request is complete, and has this length. If more was read, the client has sent the next request before it
    /// had the response, and the start of that is recorded nowhere.
    pub(super) fn request_ends(&self, length: usize) {
        let read = self.request_bytes.load(Ordering::Relaxed);
        if read > length && read != usize::MAX {
            self.set_pipelined();
        }
    }

    fn set_pipelined(&self) {
        self.record(STREAMING, b"");
        self.is_pipelined.store(true, Ordering::Relaxed);
    }

    /// The request that was being read is with its session.
    pub(super) fn taken(&self) {
        self.request_bytes.store(0, Ordering::Relaxed);
        self.activity.fetch_or(USED, Ordering::Relaxed);
        self.set_stage(Stage::Answering);
        if self.is_begun.swap(false, Ordering::Relaxed) {
            self.intake_gate.step_out();
            self.taken.notify_waiters();
        }
    }

    /// The response is streamed from here on. A client that only listens can reopen its stream.
    pub(super) fn start_streaming(&self, only_listens: bool) {
        self.set_stage(if only_listens { Stage::Listening } else { Stage::Streaming });
    }

    /// A response whose length is not known needs this framing, unless it needs a stricter one already.
    pub(super) fn require(&self, framing: Framing) {
        self.framing.fetch_max(framing as u8, Ordering::Relaxed);
    }

    /// The framing of a response whose length is not known.
    pub(super) fn framing(&self) -> Framing {
        let framing = self.framing.load(Ordering::Relaxed);
        let all = [Framing::Chunked, Framing::ChunkedThenClose, Framing::UntilClose];
        all[usize::from(framing)]
    }

    /// The response stops here, and its rest is left to the next daemon.
    pub(super) fn leave_response(&self, response: UnfinishedResponse) {
        *mainstay_core::lock(&self.unfinished) = Some(Box::new(response));
        self.left.notify_waiters();
    }

    /// Resolves when the response is [left](Self::leave_response) to the next daemon.
    pub(super) async fn response_left(&self) {
        let mut left = std::pin::pin!(self.left.notified());
        left.as_mut().enable();
        if !self.is_response_left() {
            left.await;
        }
    }

    pub(super) fn is_response_left(&self) -> bool {
        mainstay_core::lock(&self.unfinished).is_some()
    }

    pub(super) fn take_unfinished(&self) -> Option<Box<UnfinishedResponse>> {
        mainstay_core::lock(&self.unfinished).take()
    }

    /// Whether the last write is pending because the client does not read.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) != 0
    }

    /// The response is complete.
    pub(super) fn answered(&self) {
        self.clear_resume_point();
        self.set_stage(if self.is_begun() { Stage::Head } else { Stage::Idle });
    }

    /// So many bytes were written, or nothing because the client does not read.
    pub(super) fn record_write(&self, bytes: usize, is_pending: bool) {
        let written = self.written.load(Ordering::Relaxed);
        self.written.store(written + bytes as u64, Ordering::Relaxed);
        let blocked = self.blocked.load(Ordering::Relaxed);
        if !is_pending {
            self.written();
        } else if self.recorded.load(Ordering::Relaxed) == WRITING {
            // The rest of it is lost with this daemon.
            self.record(STREAMING, b"");
        }
        if is_pending && blocked == 0 {
            self.blocked.store(self.clock.now(), Ordering::Relaxed);
        } else if !is_pending && blocked != 0 {
            self.blocked.store(0, Ordering::Relaxed);
        }
    }

    /// The current stage and its age.
    pub(super) fn activity(&self) -> Activity {
        let (now, activity) = (self.clock.now(), self.activity.load(Ordering::Relaxed));
        let blocked = self.blocked.load(Ordering::Relaxed);
        let since = u32::try_from(activity >> 32).unwrap_or(u32::MAX);
        Activity {
            stage: Stage::of(activity),
            used: activity & USED != 0,
            age: now.wrapping_sub(since),
            blocked: (blocked != 0).then(|| now.wrapping_sub(blocked)),
        }
    }

    /// Resolves when no request is half read.
    pub(super) async fn at_rest(&self) {
        let mut taken = std::pin::pin!(self.taken.notified());
        // From here on no notification is missed.
        taken.as_mut().enable();
        if self.is_begun() {
            taken.await;
        }
    }

    fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed)
    }

    fn stage(&self) -> Stage {
        Stage::of(self.activity.load(Ordering::Relaxed))
    }

    /// Called only by the connection's task, so load and store do not race.
    fn set_stage(&self, stage: Stage) {
        let used = self.activity.load(Ordering::Relaxed) & USED;
        let since = u64::from(self.clock.now()) << 32;
        self.activity.store(since | used | stage as u64, Ordering::Relaxed);
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.taken();
    }
}

//! Connections that survive the death of the daemon.
//!
//! The holder keeps a copy of each connection that is in use, so that the connection stays open when the daemon is
//! killed. What the next daemon must know of a connection (whether it is idle, which request was not answered) is in
//! memory that the daemon shares with the holder: to record it costs no system call, and it survives the daemon.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::SendFlags;

use super::message::ToHolder;
use super::{HolderChannel, ListenAddr};

/// The longest data of a state.
pub const MAX_DATA: usize = (WORDS - 1) * 8;

/// The kind of state of a connection that is closed when its daemon dies.
pub const CLOSE: u8 = 0;

/// The kind of state of an idle connection.
pub const IDLE: u8 = 1;

/// The kind of state of a connection with a response that one daemon has passed on to another. The data is that of
/// [`Unfinished::state`](super::Unfinished::state).
pub const RESPONSE: u8 = 2;

/// The version of the layout of the memory, of its headers and of the kinds of state that the holder knows.
pub(super) const FORMAT: u32 = 1;

/// A state is one word, the header, and then the data.
pub(super) const WORDS: usize = 256;

/// How many connections can be stored. Memory that is not used costs nothing.
pub(super) const SLOTS: u32 = 16 * 1024;

/// In words.
const MEMORY: usize = SLOTS as usize * WORDS;

/// The connections of this daemon that its holder keeps a copy of; clones share it.
#[derive(Debug, Clone)]
pub struct ConnectionStore(Arc<Shared>);

struct Shared {
    memory: &'static [AtomicU64],
    file: OwnedFd,
    /// The number of holders so far. The present one has only connections that were sent to it.
    holder: AtomicU32,
    slots: Mutex<Slots>,
}

struct Slots {
    channel: HolderChannel,
    /// Whether the holder has the memory.
    is_shared: bool,
    /// The slots below this number have been used.
    used: u32,
    free: Vec<u32>,
    /// Those that are to be forgotten by the holder.
    unsent: Vec<u32>,
    /// Whether the holder forgets connections that are dropped here.
    is_ready: bool,
}

impl ConnectionStore {
    /// An empty store. From now on the holder has no connections of daemons before this one.
    pub fn new(channel: HolderChannel) -> io::Result<Self> {
        let file = memfd_create("mainstay connections", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (MEMORY * 8) as u64)?;
        let memory = map(file.as_fd())?;
        channel.share_memory(file.as_fd())?;
        let (free, unsent) = (Vec::new(), Vec::new());
        let slots = Slots { channel, is_shared: true, used: 0, free, unsent, is_ready: false };
        let shared = Shared { memory, file, holder: AtomicU32::new(0), slots: Mutex::new(slots) };
        Ok(Self(Arc::new(shared)))
    }

    /// Another holder has taken over, or this one has executed another program. Each connection is sent to it when it is
    /// used next ([`StoredConnection::renew`]).
    pub fn replace_holder(&self, channel: HolderChannel) {
        let mut slots = self.slots();
        slots.channel = channel;
        slots.is_shared = false;
        let forgotten = std::mem::take(&mut slots.unsent);
        slots.free.extend(forgotten);
        self.0.holder.fetch_add(1, Ordering::Relaxed);
        slots.share(self.0.file.as_fd());
    }

    /// Has the holder keep a copy of a connection that was accepted at an address. `None` if it cannot be reached at once, or
    /// too many are stored. It is closed when this daemon dies, unless another state is recorded.
    pub fn add(
        &self,
        listen_addr: &ListenAddr,
        socket: BorrowedFd<'_>,
    ) -> Option<StoredConnection> {
        self.add_with(listen_addr, socket, SendFlags::DONTWAIT)
    }

    /// The same, but waits until the holder can be reached.
    pub fn add_and_wait(
        &self,
        listen_addr: &ListenAddr,
        socket: BorrowedFd<'_>,
    ) -> Option<StoredConnection> {
        self.add_with(listen_addr, socket, SendFlags::empty())
    }

    /// This daemon serves. Until now, connections that were dropped here stayed open, for the next daemon if this one
    /// could not start.
    pub fn ready(&self) {
        let mut slots = self.slots();
        slots.is_ready = true;
        slots.forget_unsent();
    }

    /// Sends the holder what it could not be sent before: the memory, and which connections to forget.
    pub fn send_unsent(&self) {
        let mut slots = self.slots();
        slots.share(self.0.file.as_fd());
        slots.forget_unsent();
    }

    #[expect(unsafe_code, reason = "what is read goes directly into the memory of its slot")]
    fn add_with(
        &self,
        listen_addr: &ListenAddr,
        socket: BorrowedFd<'_>,
        flags: SendFlags,
    ) -> Option<StoredConnection> {
        let mut slots = self.slots();
        if !slots.share(self.0.file.as_fd()) {
            return None;
        }
        slots.forget_unsent();
        let slot = slots.free.last().copied().unwrap_or(slots.used);
        if slot == SLOTS {
            return None;
        }
        let memory = &self.0.memory[slot as usize * WORDS..][..WORDS];
        let [header, data @ ..] = memory else { return None };
        header.store(Header::of(CLOSE, 0..0).pack(), Ordering::Relaxed);
        slots.channel.store(slot, listen_addr, socket, flags).ok()?;
        let is_reused = slots.free.pop().is_some();
        if !is_reused {
            slots.used += 1;
        }
        // SAFETY: a slot is in use by one connection at a time: it is free again when the connection is dropped.
        let bytes = unsafe { bytes_of(data) };
        let data = Data { bytes, used: if is_reused { MAX_DATA } else { 0 } };
        Some(StoredConnection {
            store: self.clone(),
            listen_addr: listen_addr.clone(),
            slot,
            header,
            data: Mutex::new(data),
            holder: AtomicU32::new(self.0.holder.load(Ordering::Relaxed)),
        })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // No code leaves what is locked here half changed.
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn renew(&self, slot: u32, listen_addr: &ListenAddr, socket: BorrowedFd<'_>) -> bool {
        self.is_shared && self.channel.store(slot, listen_addr, socket, SendFlags::DONTWAIT).is_ok()
    }

    fn forget(&mut self, slot: u32) {
        self.unsent.push(slot);
        self.forget_unsent();
    }

    /// Shares the memory with the holder. Returns whether the holder has it.
    fn share(&mut self, memory: BorrowedFd<'_>) -> bool {
        self.is_shared = self.is_shared || self.channel.share_memory(memory).is_ok();
        self.is_shared
    }

    /// A slot is used again when the holder was asked to forget its connection.
    fn forget_unsent(&mut self) {
        while self.is_ready
            && let Some(slot) = self.unsent.pop()
        {
            if self.channel.forget(slot).is_err() {
                return self.unsent.push(slot);
            }
            self.free.push(slot);
        }
    }
}

/// A connection of which the holder has a copy, until this is dropped.
#[derive(Debug)]
pub struct StoredConnection {
    store: ConnectionStore,
    listen_addr: ListenAddr,
    slot: u32,
    header: &'static AtomicU64,
    data: Mutex<Data>,
    /// The holder that has the copy.
    holder: AtomicU32,
}

#[derive(Debug)]
struct Data {
    bytes: &'static mut [u8],
    /// All bytes from here on are zero.
    used: usize,
}

impl StoredConnection {
    /// Records what the next daemon must know if this one is killed now: the kind of state and its data, which is
    /// written at `offset`. What is before `offset` stays valid for the former state until the new one is. What is
    /// beyond [`MAX_DATA`] is cut off.
    pub fn record(&self, kind: u8, offset: usize, data: &[u8]) {
        let start = offset.min(MAX_DATA);
        let end = MAX_DATA.min(start + data.len());
        if !data.is_empty() {
            let mut memory = self.data();
            memory.bytes[start..end].copy_from_slice(&data[..end - start]);
            memory.used = memory.used.max(end);
        }
        self.header.store(Header::of(kind, start..end).pack(), Ordering::Release);
    }

    /// Appends to the first `offset` bytes of the data: `read` fills the start of a slice of at most `len` bytes, which
    /// are zero, and returns how many bytes it filled. They are part of the state from the moment they are in the
    /// slice, even if this daemon is killed before `read` returns. In that case they end at the first zero byte.
    pub fn read(
        &self,
        kind: u8,
        offset: usize,
        len: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> usize {
        let mut data = self.data();
        let start = offset.min(MAX_DATA);
        let end = MAX_DATA.min(start + len);
        let used = std::mem::replace(&mut data.used, end);
        if start < used {
            data.bytes[start..used].fill(0);
        }
        let appended_to = |end| Header { kind, data: 0..end, is_appended_to: true }.pack();
        self.header.store(appended_to(start), Ordering::Release);
        let filled = read(&mut data.bytes[start..end]).min(end - start);
        data.used = start + filled;
        self.header.store(appended_to(start + filled), Ordering::Release);
        filled
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        // `used` is right or too large at any moment.
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the connection to the present holder, if that does not have it.
    pub fn renew(&self, socket: BorrowedFd<'_>) {
        let holder = self.store.0.holder.load(Ordering::Relaxed);
        if self.holder.load(Ordering::Relaxed) != holder
            && self.store.slots().renew(self.slot, &self.listen_addr, socket)
        {
            self.holder.store(holder, Ordering::Relaxed);
        }
    }
}

/// What a state begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: u8,
    /// Where the data is.
    pub(super) data: Range<usize>,
    /// Whether the data continues up to the next zero byte.
    pub(super) is_appended_to: bool,
}

impl Header {
    fn of(kind: u8, data: Range<usize>) -> Self {
        Self { kind, data, is_appended_to: false }
    }

    fn pack(&self) -> u64 {
        let bytes = |at| u16::try_from(at).unwrap_or(u16::MAX).to_le_bytes();
        let [[start, start_high], [end, end_high]] = [self.data.start, self.data.end].map(bytes);
        let is_appended_to = u8::from(self.is_appended_to);
        u64::from_ne_bytes([self.kind, start, start_high, end, end_high, is_appended_to, 0, 0])
    }

    pub(super) fn unpack(header: [u8; 8]) -> Self {
        let [kind, start, start_high, end, end_high, is_appended_to, ..] = header;
        let at = |low, high| usize::from(u16::from_le_bytes([low, high])).min(MAX_DATA);
        let end = at(end, end_high);
        let data = at(start, start_high).min(end)..end;
        Self { kind, data, is_appended_to: is_appended_to != 0 }
    }
}

impl Drop for StoredConnection {
    fn drop(&mut self) {
        // The next user of the slot gets them.
        self.data().bytes = &mut [];
        self.store.slots().forget(self.slot);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionStore").field("file", &self.file).finish_non_exhaustive()
    }
}

impl HolderChannel {
    /// Replaces all stored connections by an empty store with this memory.
    fn share_memory(&self, memory: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&ToHolder::ShareMemory { format: FORMAT }, &[memory], SendFlags::DONTWAIT)
    }

    fn store(
        &self,
        slot: u32,
        listen_addr: &ListenAddr,
        socket: BorrowedFd<'_>,
        flags: SendFlags,
    ) -> io::Result<()> {
        self.send(&ToHolder::Store { slot, listen_addr: listen_addr.clone() }, &[socket], flags)
    }

    fn forget(&self, slot: u32) -> io::Result<()> {
        self.send(&ToHolder::Forget { slot }, &[], SendFlags::DONTWAIT)
    }
}

/// The mapping stays until this process ends.
#[expect(unsafe_code, reason = "no safe wrapper exists: another process could truncate the file")]
fn map(file: BorrowedFd<'_>) -> io::Result<&'static [AtomicU64]> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new, as long as the file, and never unmapped. Only this process, which never truncates the
    // file, and its holder, which only reads it, have it open. Headers are accessed atomically, the data of a slot
    // through one exclusive slice, and pages are aligned.
    let memory = unsafe {
        let start = mmap(null_mut(), MEMORY * 8, protection, MapFlags::SHARED, file, 0)?;
        std::slice::from_raw_parts(start.cast::<AtomicU64>(), MEMORY)
    };
    Ok(memory)
}

/// The bytes of a part of the memory.
///
/// # Safety
///
/// The part must be of the memory of a store, and not be accessed in another way as long as the bytes are used.
#[expect(unsafe_code, reason = "bytes are read into the memory without a copy in between")]
unsafe fn bytes_of(words: *const [AtomicU64]) -> &'static mut [u8] {
    // SAFETY: the words are never unmapped, and initialized. Atomic words may be changed through a shared reference, and
    // the caller promises that this is the only one in use.
    unsafe {
        std::slice::from_raw_parts_mut(words.cast_mut().cast(), words.len() * size_of::<u64>())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(kind: u8, start in 0..=MAX_DATA, len in 0..=MAX_DATA, is_appended_to: bool) {
            let header = Header { kind, data: start..(start + len).min(MAX_DATA), is_appended_to };
            prop_assert_eq!(Header::unpack(header.pack().to_ne_bytes()), header);
        }

        #[test]
        fn any_header_can_be_read(header: [u8; 8]) {
            let Header { data, .. } = Header::unpack(header);
            prop_assert!(data.start <= data.end && data.end <= MAX_DATA);
        }
    }
}

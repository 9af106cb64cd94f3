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
use super::{Link, Place};

/// The longest data of a state.
pub const MAX_DATA: usize = (WORDS - 1) * 8;

/// The kind of state of a connection that is closed when its daemon dies.
pub const CLOSE: u8 = 0;

/// The kind of state of a connection on which no client waits.
pub const IDLE: u8 = 1;

/// A state is one word with its kind and the place of its data, and then the data.
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
    link: Link,
    /// The slots below this number have been used.
    used: u32,
    free: Vec<u32>,
    /// Those that the holder could not be told to forget yet.
    unsent: Vec<u32>,
}

impl ConnectionStore {
    /// An empty store. From now on the holder has no connections of daemons before this one.
    pub fn new(link: Link) -> io::Result<Self> {
        let file = memfd_create("mainstay connections", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (MEMORY * 8) as u64)?;
        let memory = map(file.as_fd())?;
        link.share_memory(file.as_fd())?;
        let slots = Slots { link, used: 0, free: Vec::new(), unsent: Vec::new() };
        let shared = Shared { memory, file, holder: AtomicU32::new(0), slots: Mutex::new(slots) };
        Ok(Self(Arc::new(shared)))
    }

    /// Another holder has taken over, or this one has executed another program. Each connection is sent to it when it is
    /// used next ([`StoredConnection::renew`]).
    pub fn replace_holder(&self, link: Link) -> io::Result<()> {
        let mut slots = self.slots();
        link.share_memory(self.0.file.as_fd())?;
        slots.link = link;
        let forgotten = std::mem::take(&mut slots.unsent);
        slots.free.extend(forgotten);
        self.0.holder.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Has the holder keep a copy of a connection that was accepted at a place. `None` if it cannot be told at once, or
    /// too many are stored. It is closed when this daemon dies, unless another state is recorded.
    pub fn add(&self, place: &Place, socket: BorrowedFd<'_>) -> Option<StoredConnection> {
        self.add_with(place, socket, SendFlags::DONTWAIT)
    }

    /// The same, but waits until the holder can be told.
    pub fn add_and_wait(&self, place: &Place, socket: BorrowedFd<'_>) -> Option<StoredConnection> {
        self.add_with(place, socket, SendFlags::empty())
    }

    /// Tells the holder which connections to forget that it could not be told before.
    pub fn forget_unsent(&self) {
        self.slots().forget_unsent();
    }

    fn add_with(
        &self,
        place: &Place,
        socket: BorrowedFd<'_>,
        flags: SendFlags,
    ) -> Option<StoredConnection> {
        let mut slots = self.slots();
        slots.forget_unsent();
        let slot = slots.free.last().copied().unwrap_or(slots.used);
        if slot == SLOTS {
            return None;
        }
        self.state(slot)[0].store(header(CLOSE, 0..0), Ordering::Relaxed);
        slots.link.store(slot, place, socket, flags).ok()?;
        if slots.free.pop().is_none() {
            slots.used += 1;
        }
        let holder = AtomicU32::new(self.0.holder.load(Ordering::Relaxed));
        Some(StoredConnection { store: self.clone(), slot, holder })
    }

    fn state(&self, slot: u32) -> &'static [AtomicU64] {
        &self.0.memory[slot as usize * WORDS..][..WORDS]
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // No code leaves what is locked here half changed.
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn forget(&mut self, slot: u32) {
        self.unsent.push(slot);
        self.forget_unsent();
    }

    /// A slot is used again when the holder has been told to forget its connection.
    fn forget_unsent(&mut self) {
        while let Some(slot) = self.unsent.pop() {
            if self.link.forget(slot).is_err() {
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
    slot: u32,
    /// The holder that has the copy.
    holder: AtomicU32,
}

impl StoredConnection {
    /// Records what the next daemon must know if this one is killed now: the kind of state and its data. The data is
    /// what was recorded from `start` to `offset` before, and then `data`. What is before `offset` stays valid for the
    /// former state until the new one is. What is longer than [`MAX_DATA`] is cut off.
    pub fn record(&self, kind: u8, start: usize, offset: usize, data: &[u8]) {
        let [head, words @ ..] = self.store.state(self.slot) else { return };
        let offset = offset.min(MAX_DATA);
        let data = &data[..data.len().min(MAX_DATA - offset)];
        write(words, offset, data);
        head.store(header(kind, start.min(offset)..offset + data.len()), Ordering::Release);
    }

    /// Sends the connection to the present holder, if that does not have it.
    pub fn renew(&self, place: &Place, socket: BorrowedFd<'_>) {
        let holder = self.store.0.holder.load(Ordering::Relaxed);
        if self.holder.load(Ordering::Relaxed) != holder
            && self.store.slots().link.store(self.slot, place, socket, SendFlags::DONTWAIT).is_ok()
        {
            self.holder.store(holder, Ordering::Relaxed);
        }
    }
}

fn header(kind: u8, data: Range<usize>) -> u64 {
    let bytes = |at| u16::try_from(at).unwrap_or(u16::MAX).to_le_bytes();
    let [[start, start_high], [end, end_high]] = [data.start, data.end].map(bytes);
    u64::from_ne_bytes([kind, start, start_high, end, end_high, 0, 0, 0])
}

/// The kind of a state, and where its data is.
pub(super) fn read_header(header: [u8; 8]) -> (u8, Range<usize>) {
    let [kind, start, start_high, end, end_high, ..] = header;
    let at = |low, high| usize::from(u16::from_le_bytes([low, high])).min(MAX_DATA);
    let end = at(end, end_high);
    (kind, at(start, start_high).min(end)..end)
}

/// Writes bytes at an offset into words.
fn write(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let (mut words, start) = (words[offset / 8..].iter(), offset % 8);
    let mut rest = bytes;
    if start > 0
        && let Some(word) = words.next()
    {
        let (first, more) = rest.split_at(rest.len().min(8 - start));
        let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        bytes[start..][..first.len()].copy_from_slice(first);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        rest = more;
    }
    let (whole, last) = rest.as_chunks::<8>();
    for (bytes, word) in whole.iter().zip(&mut words) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !last.is_empty()
        && let Some(word) = words.next()
    {
        let mut bytes = [0; 8];
        bytes[..last.len()].copy_from_slice(last);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

impl Drop for StoredConnection {
    fn drop(&mut self) {
        self.store.slots().forget(self.slot);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionStore").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Link {
    /// Replaces all stored connections by an empty store with this memory.
    fn share_memory(&self, memory: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&ToHolder::ShareMemory, &[memory], SendFlags::DONTWAIT)
    }

    fn store(
        &self,
        slot: u32,
        place: &Place,
        socket: BorrowedFd<'_>,
        flags: SendFlags,
    ) -> io::Result<()> {
        self.send(&ToHolder::Store { slot, place: place.clone() }, &[socket], flags)
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
    // file, and its holder, which only reads it, have it open. All access is atomic, and pages are aligned.
    let memory = unsafe {
        let start = mmap(null_mut(), MEMORY * 8, protection, MapFlags::SHARED, file, 0)?;
        std::slice::from_raw_parts(start.cast::<AtomicU64>(), MEMORY)
    };
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_are_written_at_any_offset(parts in prop::collection::vec(prop::collection::vec(1..=255_u8, 0..30), 0..8)) {
            let words: Vec<AtomicU64> = (0..32).map(|_| AtomicU64::new(u64::MAX)).collect();
            let mut expected = Vec::new();
            for part in parts {
                write(&words, expected.len(), &part);
                expected.extend(part);
            }
            let read: Vec<u8> =
                words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
            prop_assert_eq!(&read[..expected.len()], &expected);
        }

        #[test]
        fn a_header_is_read_as_it_was_written(kind: u8, start in 0..=MAX_DATA, len in 0..=MAX_DATA) {
            let data = start..(start + len).min(MAX_DATA);
            prop_assert_eq!(read_header(header(kind, data.clone()).to_ne_bytes()), (kind, data));
        }

        #[test]
        fn any_header_can_be_read(header: [u8; 8]) {
            let (_, data) = read_header(header);
            prop_assert!(data.start <= data.end && data.end <= MAX_DATA);
        }
    }
}

//! Returns free memory to the system after a peak.
//!
//! The allocator of glibc keeps freed memory for later use, and by itself returns only what is at the end of
//! its heap. After a flood of connections that is almost nothing.

use std::fs;

/// Less free memory is not worth a trim.
const MIN_FREE: usize = 4 << 20;

/// Decides when to call `malloc_trim`.
#[derive(Debug, Default)]
pub struct HeapTrimmer {
    /// What was free after the last trim, or less. The allocator counts as free what it has returned already.
    free: usize,
    /// The resident memory after the last trim, or less.
    resident: usize,
}

impl HeapTrimmer {
    /// Returns free memory to the system if much has accumulated since the last trim. Call it periodically:
    /// it takes microseconds, or milliseconds if there is something to return. The result is the number of
    /// bytes returned.
    pub fn trim(&mut self) -> Option<usize> {
        let (resident, free) = (resident()?, free());
        if !self.is_due(resident, free) {
            self.free = self.free.min(free);
            self.resident = if self.resident == 0 { resident } else { self.resident.min(resident) };
            return None;
        }
        malloc_trim();
        (self.resident, self.free) = (self::resident()?, self::free());
        Some(resident.saturating_sub(self.resident))
    }

    /// Whether much was freed since the last trim, or a peak came and went between two calls.
    fn is_due(&self, resident: usize, free: usize) -> bool {
        if self.resident == 0 {
            return false;
        }
        let freed = free.saturating_sub(self.free);
        let grown = resident.saturating_sub(self.resident);
        let is_much = |bytes: usize| bytes >= MIN_FREE + resident / 8;
        is_much(freed) || (is_much(grown) && free >= grown / 2)
    }
}

/// The resident memory of this process.
fn resident() -> Option<usize> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

/// Memory that the allocator holds and that is not in use.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "it is a function of the C library")]
fn free() -> usize {
    // SAFETY: it only reads the state of the allocator, under the allocator's own locks.
    let info = unsafe { libc::mallinfo() };
    // The field is a signed 32-bit number that wraps around at 4 GB.
    usize::try_from(info.fordblks.cast_unsigned()).unwrap_or(usize::MAX)
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "it is a function of the C library")]
fn malloc_trim() {
    // SAFETY: it returns unused pages to the system, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators return memory by themselves.
#[cfg(not(target_env = "gnu"))]
fn free() -> usize {
    0
}

#[cfg(not(target_env = "gnu"))]
fn malloc_trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn trimming_is_due_when_much_was_freed_or_a_peak_has_passed() {
        let trimmer = HeapTrimmer { free: 3 * MB, resident: 16 * MB };
        assert!(trimmer.is_due(130 * MB, 110 * MB), "a peak has passed");
        assert!(!trimmer.is_due(130 * MB, 4 * MB), "it is in use");
        assert!(!trimmer.is_due(17 * MB, 5 * MB), "it is too little");
        assert!(trimmer.is_due(24 * MB, 11 * MB));
        // The rest of a peak is freed after a first trim, without any growth.
        let trimmer = HeapTrimmer { free: 400 * MB, resident: 200 * MB };
        assert!(!trimmer.is_due(200 * MB, 400 * MB));
        assert!(trimmer.is_due(200 * MB, 500 * MB));
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn memory_is_returned_once_after_a_peak() {
        let mut trimmer = HeapTrimmer::default();
        assert_eq!(trimmer.trim(), None, "nothing is known yet");
        // Some blocks in between stay, so that nothing is free at the end of the heap.
        let block = || vec![1_u8; 4000];
        let mut all: Vec<_> = (0..20_000).map(|_| block()).collect();
        let mut n = 0;
        all.retain(|_| {
            n += 1;
            n % 100 == 0
        });
        let returned = trimmer.trim().expect("there is much");
        assert!(returned > 20 * MB, "{returned}");
        assert_eq!(trimmer.trim(), None);
        let more: Vec<_> = (0..20_000).map(|_| block()).collect();
        assert_eq!(trimmer.trim(), None, "it is in use");
        drop(more);
        assert!(trimmer.trim().is_some());
        assert_eq!(all.len(), 200);
    }
}

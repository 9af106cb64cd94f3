//! What happens after a panic.
//!
//! Every process installs a panic hook that aborts the process, unless the panic [is caught](is_caught). To
//! continue without a task that others rely on would be worse than a restart: the holder starts the next
//! daemon, which reads its state from disk. Work that shares no state, or only [locked](lock) state, runs in
//! a [`CatchScope`]: there a panic unwinds and ends only that work.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread would end only what runs in the current [`CatchScope`].
pub fn is_caught() -> bool {
    CAUGHT.get()
}

/// While this value exists, a panic on this thread does not abort the process.
#[must_use]
#[derive(Debug)]
pub struct CatchScope {
    outer: bool,
}

impl CatchScope {
    /// The caller must catch the panic, or run in a task whose executor does.
    pub fn enter() -> Self {
        Self { outer: CAUGHT.replace(true) }
    }
}

impl Drop for CatchScope {
    fn drop(&mut self) {
        CAUGHT.set(self.outer);
    }
}

/// Runs work, and catches a panic. The error is the message of the panic.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let _scope = CatchScope::enter();
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| message(&*payload).to_owned())
}

/// Locks state that tasks share. If a panic has poisoned the lock, the state may be inconsistent, and the
/// process aborts.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|_| end_process("a panic left shared state inconsistent"))
}

/// Panics outside of every scope.
#[cold]
fn end_process(why: &str) -> ! {
    CAUGHT.set(false);
    panic!("{why}");
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_is_returned_with_its_message() {
        assert_eq!(catch(|| 7), Ok(7));
        assert_eq!(catch(|| panic!("no {}", "luck")), Err::<(), _>("no luck".to_owned()));
        assert_eq!(catch(|| panic!("no luck")), Err::<(), _>("no luck".to_owned()));
        assert!(!is_caught(), "the scope ended with the work");
    }

    #[test]
    fn scopes_nest() {
        let nested = catch(|| (catch(is_caught), is_caught()));
        assert_eq!(nested, Ok((Ok(true), true)));
    }

    #[test]
    fn a_poisoned_lock_ends_the_process() {
        let shared = Mutex::new(1);
        let after = catch(|| {
            *lock(&shared) += 1;
            panic!("after the lock");
        });
        assert!(after.is_err());
        assert_eq!(*lock(&shared), 2, "the lock was free");
        let half = catch(|| {
            let _guard = lock(&shared);
            panic!("in the middle");
        });
        assert!(half.is_err());
        // Without a panic hook, the panic arrives here.
        let seen = catch(|| {
            let caught = catch_unwind(AssertUnwindSafe(|| drop(lock(&shared))));
            (caught.is_err(), is_caught())
        });
        assert_eq!(seen, Ok((true, false)), "the panic was outside of every scope");
    }
}

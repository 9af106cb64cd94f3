//! The daemon's end.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use super::Place;

/// What a daemon starts with.
#[derive(Debug)]
pub struct Welcome {
    /// The process of the holder.
    pub holder_pid: u32,
    /// The instance lock. While this is open the instance stays locked, even without the holder.
    pub lock: OwnedFd,
    /// The listeners that are open already.
    pub listeners: Vec<(Place, OwnedFd)>,
    /// Whether another daemon still serves: this one prepares, says so and waits for [`Order::Go`].
    pub standby: bool,
    /// Why the daemon that should have replaced the former one did not.
    pub replacement_failed: Option<String>,
    /// How the daemon before this one died, and the end of what it wrote to standard error.
    pub last_words: Option<String>,
    /// How often [`Link::pulse`] is expected.
    pub watchdog: Option<Duration>,
}

/// What the holder wants of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The standby may serve.
    Go,
    /// A successor is prepared: accept nothing more, let go of state and shims, say
    /// [`Link::yielded`].
    GiveWay,
    /// There will be no successor, and why. Whoever has not yielded goes on.
    NotReplaced(String),
    /// The holder has died. A daemon that serves starts another one ([`Link::replace_holder`]); a
    /// standby, or one that has yielded, does not.
    HolderGone,
}

/// The daemon's way to its holder.
#[derive(Debug, Clone)]
pub struct Link {}

impl Link {
    /// Reads the welcome; a thread of its own then hands every order to `obey`, the last of which is
    /// [`Order::HolderGone`]. `obey` must not wait for answers of this link.
    pub fn take_up(
        socket: OwnedFd,
        obey: impl FnMut(Order) + Send + 'static,
    ) -> io::Result<(Self, Welcome)> {
        let _ = (socket, obey);
        todo!()
    }

    /// Opens a listener, or gives the one again that is open there.
    pub fn bind(&self, place: &Place) -> io::Result<OwnedFd> {
        let _ = place;
        todo!()
    }

    /// Closes a listener.
    pub fn release(&self, place: &Place) -> io::Result<()> {
        let _ = place;
        todo!()
    }

    /// A standby could serve now; it then waits for [`Order::Go`].
    pub fn prepared(&self) -> io::Result<()> {
        todo!()
    }

    /// The daemon serves.
    pub fn ready(&self) -> io::Result<()> {
        todo!()
    }

    /// The daemon cannot start, and why. It is not tried again.
    pub fn failed(&self, word: &[u8]) -> io::Result<()> {
        let _ = word;
        todo!()
    }

    /// The daemon ends on purpose. The listeners are released when this returns.
    pub fn ending(&self) -> io::Result<()> {
        todo!()
    }

    /// Asks for a successor; what became of it comes as an [`Order`].
    pub fn replace(&self, exe: &Path, fallback: Option<&Path>) -> io::Result<()> {
        let _ = (exe, fallback);
        todo!()
    }

    /// Accepts nothing more, state and shims are let go: the successor may go.
    pub fn yielded(&self) -> io::Result<()> {
        todo!()
    }

    /// Tells the watchdog that this daemon is well.
    pub fn pulse(&self) -> io::Result<()> {
        todo!()
    }

    /// The holder is gone: starts another one, `exe args`, with all that this daemon holds.
    pub fn replace_holder(
        exe: &Path,
        args: &[OsString],
        lock: BorrowedFd<'_>,
        held: &[(Place, BorrowedFd<'_>)],
        obey: impl FnMut(Order) + Send + 'static,
    ) -> io::Result<(Self, u32)> {
        let _ = (exe, args, lock, held, obey);
        todo!()
    }
}

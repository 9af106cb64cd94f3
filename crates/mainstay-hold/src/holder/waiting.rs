//! Waits for the lock on behalf of a service manager.
//!
//! When the holder of a service is killed, its daemon continues with a holder that it has started, and the manager starts
//! the service again: that one waits here. The manager knows only this one, so a signal to it is meant for the holder
//! that serves. It is passed on if that holder is in the same control group; one that was started elsewhere is left
//! alone.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::lock;
use super::notify::Notify;
use super::signals::Signals;
use crate::poll::Sources;
use crate::procfs;

/// Waits until the lock is ours, or `None` after a signal. Resets the manager's watchdog meanwhile.
pub(super) fn wait(
    taken: File,
    state_dir: &Path,
    notify: &Notify,
    signals: &mut Signals,
) -> io::Result<Option<File>> {
    let (sender, locked) = mpsc::channel();
    // Its other end is closed when the lock was sent.
    let (done, done_when_closed) = UnixStream::pair()?;
    let wait = move || {
        let _wait_was_ended = sender.send(lock::wait(taken));
        drop(done_when_closed);
    };
    thread::Builder::new().name("lock".into()).spawn(wait)?;
    let mut ending = false;
    loop {
        let mut sources = Sources::new();
        sources.add((), done.as_fd(), PollFlags::IN);
        sources.add((), signals.as_fd(), PollFlags::IN);
        sources.wait(notify.watchdog())?;
        if signals.count() > 0 {
            ending = true;
            notify.stopping();
            if !notify.is_connected() || pass_on(state_dir).is_err() {
                return Ok(None);
            }
        }
        if let Ok(lock) = locked.try_recv() {
            return lock.map(|lock| (!ending).then_some(lock));
        }
        notify.pulse();
    }
}

/// Asks the holder that has the lock to end, if it belongs to the same service as we do.
fn pass_on(state_dir: &Path) -> io::Result<()> {
    let pid = lock::owner(state_dir)?.ok_or(ErrorKind::NotFound)?;
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(ErrorKind::NotFound)?;
    // The descriptor is opened before the group is checked, so that both are of the same process.
    let process = pidfd_open(process, PidfdFlags::empty())?;
    if procfs::control_group(pid)? != procfs::control_group(std::process::id())? {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(pidfd_send_signal(&process, Signal::TERM)?)
}

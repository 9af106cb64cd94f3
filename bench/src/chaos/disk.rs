//! The disk of the state directory: small, and full when it is to be.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tokio::time::{Instant, sleep};

/// Far more than the state ever takes.
const OPTIONS: &CStr = c"size=64m,mode=700";

/// Room that was given back meanwhile is taken so soon.
const POLL: Duration = Duration::from_millis(20);

/// A mounted file system. It is unmounted when dropped.
#[derive(Debug)]
pub(super) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Mounts an empty one at a new directory.
    pub(super) fn mount(at: PathBuf) -> io::Result<Self> {
        fs::create_dir(&at)?;
        mount("tmpfs", &at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, OPTIONS)?;
        Ok(Self { at })
    }

    /// Fills it for a while.
    pub(super) async fn be_full(&self, time: Duration) -> io::Result<()> {
        let (path, until) = (self.at.join("filler"), Instant::now() + time);
        let filled = fill(&path, until).await;
        fs::remove_file(&path).and(filled)
    }
}

async fn fill(path: &Path, until: Instant) -> io::Result<()> {
    let mut filler = File::create(path)?;
    let zeros = vec![0; 1 << 16];
    while Instant::now() < until {
        match filler.write(&zeros) {
            Err(error) if error.kind() == ErrorKind::StorageFull => sleep(POLL).await,
            written => drop(written?),
        }
    }
    Ok(())
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It ends with our mount namespace at the latest.
        unmount(&self.at, UnmountFlags::DETACH).ok();
    }
}

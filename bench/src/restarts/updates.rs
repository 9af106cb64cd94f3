//! A Mainstay that may be replaced, and a version that cannot take its place.
//!
//! The other version is the same program with the name of its socket changed for one that cannot be
//! opened: it rehearses well, has the old daemon give way, and then fails.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::rig::{BenchError, Instance, Programs};

/// The first eight bytes of `daemon.sock`. In an optimized program the name may be cut up into machine
/// words; this is the first of them.
const SOCKET: &[u8; 8] = b"daemon.s";
const UNUSABLE: &[u8; SOCKET.len()] = b"no/dir.s";

/// The two programs, in a directory of their own.
pub(super) struct Versions {
    directory: TempDir,
}

impl Versions {
    /// Copies of this program.
    pub(super) fn of(mainstay: &Path) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("mainstay-versions-").tempdir()?;
        let versions = Self { directory };
        fs::copy(mainstay, versions.good())?;
        let mut bytes = fs::read(mainstay)?;
        if spoil(&mut bytes) == 0 {
            return Err(io::Error::other("the program does not name its socket"));
        }
        fs::write(versions.flawed(), bytes)?;
        Ok(versions)
    }

    /// The programs of an instance that runs the good one.
    pub(super) fn programs(&self) -> io::Result<Programs> {
        Programs::beside_this(Some(&self.good()))
    }

    /// Tries to update to the flawed one, which must be undone.
    pub(super) async fn fail(&self, instance: &Instance) -> Result<(), BenchError> {
        let flawed = self.flawed();
        match instance.mainstay(&["update", "--from", &flawed.to_string_lossy()]).await {
            Err(BenchError::Failed { stderr, .. })
                if stderr.contains("is restored and running") =>
            {
                Ok(())
            }
            Ok(_) => Err(BenchError::Wrong("an update to what cannot serve succeeded".to_owned())),
            Err(error) => Err(error),
        }
    }

    fn good(&self) -> PathBuf {
        self.directory.path().join("mainstay")
    }

    fn flawed(&self) -> PathBuf {
        self.directory.path().join("flawed")
    }
}

/// Changes the socket's name everywhere, and says how often it was there.
fn spoil(bytes: &mut [u8]) -> usize {
    let places: Vec<_> = bytes
        .windows(SOCKET.len())
        .enumerate()
        .filter_map(|(at, window)| (window == SOCKET).then_some(at))
        .collect();
    for at in &places {
        bytes[*at..at + SOCKET.len()].copy_from_slice(UNUSABLE);
    }
    places.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_changed_everywhere_and_nothing_else() {
        let mut bytes = b"a daemon.sock, daemon.sock; daemon.d".to_vec();
        assert_eq!(spoil(&mut bytes), 2);
        assert_eq!(bytes, b"a no/dir.sock, no/dir.sock; daemon.d");
    }
}

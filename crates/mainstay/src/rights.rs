//! Help for paths without access.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;

/// The file or directory that denies access to a path.
#[derive(Debug, Clone, Copy)]
struct Barrier<'a> {
    path: &'a Path,
    owner: u32,
    is_dir: bool,
}

/// What the user can do about a path without access. The nearest visible ancestor denies it.
pub(crate) fn advice(path: &Path) -> String {
    let look = |path| {
        let found = fs::metadata(path).ok()?;
        Some(Barrier { path, owner: found.uid(), is_dir: found.is_dir() })
    };
    advise(path.ancestors().find_map(look), geteuid().as_raw())
}

fn advise(barrier: Option<Barrier<'_>>, user: u32) -> String {
    match barrier {
        Some(Barrier { path, owner, is_dir }) if owner == user => {
            let mode = if is_dir { 700 } else { 600 };
            format!("you own it, but its mode denies access: chmod {mode} {}", path.display())
        }
        Some(_) | None => {
            "it belongs to another user; set MAINSTAY_HOME to a directory of yours".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(owner: u32, is_dir: bool, expected: &str) {
        let barrier = Barrier { path: Path::new("/m/run"), owner, is_dir };
        assert_eq!(advise(Some(barrier), 1000), expected);
    }

    #[test]
    fn the_advice_depends_on_the_owner() {
        check(1000, true, "you own it, but its mode denies access: chmod 700 /m/run");
        check(1000, false, "you own it, but its mode denies access: chmod 600 /m/run");
        let foreign = "it belongs to another user; set MAINSTAY_HOME to a directory of yours";
        check(0, true, foreign);
        assert_eq!(advise(None, 1000), foreign);
    }

    #[test]
    fn the_nearest_visible_ancestor_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let text = advice(&dir.path().join("run/daemon.sock"));
        assert!(text.ends_with(&format!("chmod 700 {}", dir.path().display())), "{text}");
    }
}

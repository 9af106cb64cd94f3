//! The surroundings as they really are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{Os, Surroundings};

/// A user on this machine. The environment is the user's, taken once by the caller.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The user's home directory.
    pub home: PathBuf,
    /// The user's environment.
    pub env: BTreeMap<String, String>,
}

impl Machine {
    /// Looks at these surroundings.
    pub fn look<T>(&self, look: impl FnOnce(&Surroundings<'_>) -> T) -> T {
        look(&Surroundings {
            os: if cfg!(target_os = "macos") { Os::MacOs } else { Os::Linux },
            home: &self.home,
            env: &|name| self.env.get(name).cloned(),
            exists: &Path::exists,
            on_path: &|program| self.finds(program),
        })
    }

    fn finds(&self, program: &str) -> bool {
        let path = self.env.get("PATH").map(String::as_str).unwrap_or_default();
        std::env::split_paths(path).any(|dir| {
            let file = dir.join(program);
            dir.is_absolute() && file.is_file() && access(&file, Access::EXEC_OK).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_is_on_the_search_path_if_it_can_be_run() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("cursor");
        let path = format!("relative:{}", dir.path().display());
        let machine = Machine {
            home: dir.path().to_owned(),
            env: BTreeMap::from([("PATH".to_owned(), path)]),
        };
        let found = || machine.look(|around| (around.on_path)("cursor"));
        assert!(!found());
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(!found());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(found());
    }
}

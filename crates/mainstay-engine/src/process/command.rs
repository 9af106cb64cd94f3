//! Finds a server's program and composes its environment.

use std::collections::{BTreeMap, HashSet};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mainstay_core::ProcessSpec;

use crate::{RunKey, StartError};

/// The variable that marks every process of a run, so that orphans can be found.
pub(crate) const MARK: &str = "MAINSTAY_RUN";

/// The value of [`MARK`] for a run: `INSTANCE/SERVER/GENERATION`.
pub(crate) fn mark(instance: &str, key: &RunKey) -> String {
    format!("{instance}/{}/{}", key.server, key.run)
}

/// The environment of a server: allow-listed variables, the search path, what its user gave, and
/// the mark, later ones winning.
pub(crate) fn environment(
    daemon: &[(OsString, OsString)],
    path: &OsStr,
    spec: &ProcessSpec,
    mark: &str,
) -> Vec<(OsString, OsString)> {
    let inherited =
        daemon.iter().filter(|(name, _)| name.to_str().is_some_and(mainstay_core::is_inherited));
    let mut all: BTreeMap<OsString, OsString> =
        inherited.map(|(name, value)| (name.clone(), value.clone())).collect();
    all.insert("PATH".into(), path.to_owned());
    all.extend(spec.env.iter().map(|(name, value)| (name.into(), value.reveal().into())));
    all.insert(MARK.into(), mark.into());
    all.into_iter().collect()
}

/// Finds the program a command names: a path if it has a slash (relative ones from `cwd`),
/// otherwise the first executable of that name on `path`.
pub(crate) fn find_program(command: &str, cwd: &Path, path: &OsStr) -> Result<PathBuf, StartError> {
    if command.contains('/') {
        let program = cwd.join(command);
        return match executable(&program) {
            Ok(()) => Ok(program),
            Err(error) => Err(StartError::NotExecutable { program, why: plain(&error) }),
        };
    }
    let mut present = None;
    for directory in env::split_paths(path).filter(|directory| directory.is_absolute()) {
        let program = directory.join(command);
        match executable(&program) {
            Ok(()) => return Ok(program),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => present = present.or(Some((program, error))),
        }
    }
    Err(match present {
        Some((program, error)) => StartError::NotExecutable { program, why: plain(&error) },
        None => StartError::NotFound {
            program: command.to_owned(),
            searched: path.to_string_lossy().into_owned(),
        },
    })
}

/// One search path after the other, each directory once.
pub(crate) fn join_paths(first: &OsStr, second: &OsStr) -> OsString {
    let mut seen = HashSet::new();
    let all = env::split_paths(first).chain(env::split_paths(second));
    let once = all.filter(|path| !path.as_os_str().is_empty() && seen.insert(path.clone()));
    // Parts of a split path cannot contain its separator.
    env::join_paths(once).unwrap_or_else(|_| second.to_owned())
}

/// Whether a working directory can be used.
pub(crate) fn check_directory(cwd: &Path) -> Result<(), StartError> {
    let why = match fs::metadata(cwd) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "it is not a directory".to_owned(),
        Err(error) => plain(&error),
    };
    Err(StartError::BadDirectory { cwd: cwd.to_owned(), why })
}

fn executable(program: &Path) -> io::Result<()> {
    let found = fs::metadata(program).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => io::ErrorKind::NotFound.into(),
        _ => error,
    })?;
    if found.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::other("it is not marked as executable (`chmod +x` does that)"));
    }
    Ok(())
}

/// An IO error without the number that std appends.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "it does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_core::{EnvVar, RunId, Transport};

    use super::*;

    fn file(dir: &Path, name: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_first_executable_on_the_path_wins() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        file(&one, "tool", 0o644);
        let good = file(&two, "tool", 0o755);
        let path = env::join_paths([&one, &two]).unwrap();
        assert_eq!(find_program("tool", Path::new("/"), &path).unwrap(), good);
        assert_eq!(find_program("two/tool", dir.path(), OsStr::new("")).unwrap(), good);
    }

    #[test]
    fn joined_paths_have_each_directory_once() {
        let joined = |a: &str, b: &str| join_paths(a.as_ref(), b.as_ref()).into_string().unwrap();
        assert_eq!(joined("/a:/b", "/b:/c:/a"), "/a:/b:/c");
        assert_eq!(joined("", "/c"), "/c");
    }

    #[test]
    fn missing_and_unusable_programs_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "data", 0o644);
        let path = dir.path().as_os_str();
        let check = |command: &str, expected: &str| {
            let error = find_program(command, dir.path(), path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("nope", "program `nope` was not found on the search path");
        check("data", "not marked as executable");
        check("./nope", "it does not exist");
        check("./", "it is a directory");
    }

    #[test]
    fn a_server_gets_what_is_allowed_and_what_it_was_given() {
        let spec = ProcessSpec {
            command: vec!["x".to_owned()],
            cwd: "/".into(),
            env: BTreeMap::from([
                ("LANG".to_owned(), EnvVar::new("C")),
                ("TOKEN".to_owned(), EnvVar::new("t")),
            ]),
            path: None,
            transport: Transport::Stdio,
        };
        let daemon = [("HOME", "/h"), ("LANG", "de"), ("SECRET", "s"), ("LC_ALL", "C")]
            .map(|(name, value)| (name.into(), value.into()));
        let key = RunKey::new("time".parse().unwrap(), RunId::new(7));
        let all = environment(&daemon, OsStr::new("/bin"), &spec, &mark("i", &key));
        let all: Vec<(&str, &str)> =
            all.iter().map(|(n, v)| (n.to_str().unwrap(), v.to_str().unwrap())).collect();
        assert_eq!(
            all,
            [
                ("HOME", "/h"),
                ("LANG", "C"),
                ("LC_ALL", "C"),
                ("MAINSTAY_RUN", "i/time/7"),
                ("PATH", "/bin"),
                ("TOKEN", "t"),
            ]
        );
    }
}

//! Whether a container engine is there. Only servers in containers need one.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{Check, Level};
use crate::context::Caller;
use crate::engine_host::{self, Files};

/// What was looked at.
const NAME: &str = "container engine";

/// Sockets of engines for everybody.
const SHARED: [&str; 2] = ["/var/run/docker.sock", "/run/podman/podman.sock"];

/// Sockets of engines of one user: in the directory of the session, and at home.
const OF_SESSION: [&str; 2] = ["docker.sock", "podman/podman.sock"];
const AT_HOME: [&str; 6] = [
    ".docker/run/docker.sock",
    ".docker/desktop/docker.sock",
    ".orbstack/run/docker.sock",
    ".colima/default/docker.sock",
    ".rd/docker.sock",
    ".local/share/containers/podman/machine/podman.sock",
];

/// The engine that the caller's environment names, or else those in the usual places.
pub(super) fn engine_check(caller: &Caller, files: &impl Files) -> Check {
    match engine_host::host(None, caller, files) {
        Err(error) => Check::new(NAME, Level::Warn, error.to_string()).help(engine_host::HELP),
        Ok(Some(host)) => match host.strip_prefix("unix://") {
            Some(path) => judge(&[(path.into(), connect(Path::new(path)))]),
            None => Check::new(NAME, Level::Ok, format!("{host}, which was not tried")),
        },
        Ok(None) => {
            let found = places(caller).into_iter().filter(|path| path.exists());
            judge(&found.map(|path| (path.clone(), connect(&path))).collect::<Vec<_>>())
        }
    }
}

fn connect(socket: &Path) -> io::Result<()> {
    UnixStream::connect(socket).map(drop)
}

/// Where an engine may be.
fn places(caller: &Caller) -> Vec<PathBuf> {
    let under = |variable: &str, paths: &[&str]| -> Vec<PathBuf> {
        let dir = caller.var(variable).filter(|dir| !dir.is_empty());
        dir.map(|dir| paths.iter().map(|path| Path::new(dir).join(path)).collect())
            .unwrap_or_default()
    };
    let shared = SHARED.into_iter().map(PathBuf::from);
    let session = under("XDG_RUNTIME_DIR", &OF_SESSION);
    shared.chain(session).chain(under("HOME", &AT_HOME)).collect()
}

/// What the sockets that were found amount to.
fn judge(found: &[(PathBuf, io::Result<()>)]) -> Check {
    if found.is_empty() {
        let detail = "none found; only servers in containers (`--image`) need one";
        return Check::new(NAME, Level::Ok, detail);
    }
    let told: Vec<String> = found.iter().map(|(path, tried)| tell(path, tried)).collect();
    let detail = told.join("; ");
    if found.iter().any(|(_, tried)| tried.is_ok()) {
        return Check::new(NAME, Level::Ok, detail);
    }
    let forbidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let forbidden = found.iter().any(|(_, tried)| tried.as_ref().is_err_and(forbidden));
    Check::new(NAME, Level::Warn, detail).help(if forbidden {
        "become a member of the group that owns the socket (often `docker`), and log in anew"
    } else {
        "start it; only servers in containers need one"
    })
}

fn tell(socket: &Path, tried: &io::Result<()>) -> String {
    let socket = socket.display();
    match tried {
        Ok(()) => format!("{socket} takes connections"),
        Err(error) => format!("{socket}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::engine_host::Disk;

    fn check(found: &[(&str, Option<io::ErrorKind>)], level: Level, detail: &str, help: &str) {
        let tried = |kind: &Option<io::ErrorKind>| kind.map_or(Ok(()), |kind| Err(kind.into()));
        let found: Vec<_> =
            found.iter().map(|(path, kind)| (PathBuf::from(path), tried(kind))).collect();
        let check = judge(&found);
        let given = (check.level, check.detail.as_str(), check.help.unwrap_or_default());
        assert_eq!(given, (level, detail, help.to_owned()));
    }

    #[test]
    fn one_engine_that_can_be_reached_is_enough() {
        let (forbidden, refused) =
            (Some(io::ErrorKind::PermissionDenied), Some(io::ErrorKind::ConnectionRefused));
        let none = "none found; only servers in containers (`--image`) need one";
        check(&[], Level::Ok, none, "");
        let both = "/d: permission denied; /p takes connections";
        check(&[("/d", forbidden), ("/p", None)], Level::Ok, both, "");
        let group =
            "become a member of the group that owns the socket (often `docker`), and log in anew";
        check(&[("/d", forbidden)], Level::Warn, "/d: permission denied", group);
        let start = "start it; only servers in containers need one";
        check(&[("/d", refused)], Level::Warn, "/d: connection refused", start);
    }

    #[test]
    fn the_engine_that_was_named_is_the_one_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("engine.sock");
        let named = |host: String| {
            let caller = Caller { env: vec![("DOCKER_HOST".into(), host.into())], cwd: None };
            let check = engine_check(&caller, &Disk);
            (check.level, check.detail)
        };
        let host = format!("unix://{}", socket.display());
        let (level, detail) = named(host.clone());
        assert_eq!(level, Level::Warn, "{detail}");
        let _engine = UnixListener::bind(&socket).unwrap();
        let fine = (Level::Ok, format!("{} takes connections", socket.display()));
        assert_eq!(named(host), fine);
        let elsewhere = (Level::Ok, "tcp://far:2375, which was not tried".to_owned());
        assert_eq!(named("tcp://far:2375".to_owned()), elsewhere);
    }

    #[test]
    fn the_usual_places_are_those_of_this_user() {
        let env = [("HOME", "/home/me"), ("XDG_RUNTIME_DIR", "/run/user/1")];
        let caller = Caller { env: env.map(|(k, v)| (k.into(), v.into())).into(), cwd: None };
        let places = places(&caller);
        for expected in
            ["/var/run/docker.sock", "/run/user/1/podman/podman.sock", "/home/me/.rd/docker.sock"]
        {
            assert!(places.contains(&PathBuf::from(expected)), "{expected}");
        }
    }
}

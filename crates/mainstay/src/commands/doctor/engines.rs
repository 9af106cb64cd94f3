//! Checks for a container engine. Only servers in containers need one.

use std::io;
use std::os::unix::net::UnixStream;

use mainstay_daemon::discover::{self, Address, Candidate, Files};

use super::{Check, Level};
use crate::context::Caller;
use crate::engine_host;

const NAME: &str = "container engine";

/// The result of a connection attempt.
type Tried = io::Result<Contact>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// It accepts connections.
    Made,
    /// It is on another machine, which is not contacted.
    NotTried,
}

/// The engine that the caller's environment names, or else those in the usual places.
pub(super) fn engine_check(caller: &Caller, files: &dyn Files) -> Check {
    let env = engine_host::env(caller);
    let found = match discover::named(None, &env, files) {
        Err(error) => {
            return Check::new(NAME, Level::Warn, error.to_string()).help(engine_host::HELP);
        }
        Ok(Some(named)) => vec![named],
        Ok(None) => {
            let usual = discover::candidates(None, &env, files);
            usual.into_iter().filter(|candidate| is_there(&candidate.address)).collect()
        }
    };
    let tried = found.into_iter().map(|candidate| {
        let tried = connect(&candidate.address);
        (candidate, tried)
    });
    summarize(&tried.collect::<Vec<_>>())
}

fn is_there(address: &Address) -> bool {
    match address {
        Address::Unix(path) => path.exists(),
        Address::Tcp { .. } => true,
    }
}

fn connect(address: &Address) -> Tried {
    match address {
        Address::Unix(path) => UnixStream::connect(path).map(|_| Contact::Made),
        Address::Tcp { .. } => Ok(Contact::NotTried),
    }
}

/// One check for all engines that were found.
fn summarize(found: &[(Candidate, Tried)]) -> Check {
    if found.is_empty() {
        let detail = "none found; only servers in containers (`--image`) need one";
        return Check::new(NAME, Level::Ok, detail);
    }
    let described: Vec<String> =
        found.iter().map(|(engine, tried)| describe(engine, tried)).collect();
    let detail = described.join("; ");
    if found.iter().any(|(_, tried)| tried.is_ok()) {
        return Check::new(NAME, Level::Ok, detail);
    }
    let forbidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let forbidden = found.iter().any(|(_, tried)| tried.as_ref().is_err_and(forbidden));
    Check::new(NAME, Level::Warn, detail).help(if forbidden {
        "join the group that owns the socket (often `docker`), then log in again"
    } else {
        "start it; only servers in containers need one"
    })
}

fn describe(Candidate { address, from }: &Candidate, tried: &Tried) -> String {
    match tried {
        Ok(Contact::Made) => format!("{from} at {address} accepts connections"),
        Ok(Contact::NotTried) => format!("{from} at {address} (not tried)"),
        Err(error) => format!("{from} at {address}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use mainstay_daemon::discover::Disk;

    use super::*;

    fn check(found: &[(&str, Option<io::ErrorKind>)], level: Level, detail: &str, help: &str) {
        let tried = |(path, kind): &(&str, Option<io::ErrorKind>)| {
            let engine = Candidate { address: Address::Unix(path.into()), from: "Colima".into() };
            (engine, kind.map_or(Ok(Contact::Made), |kind| Err(kind.into())))
        };
        let check = summarize(&found.iter().map(tried).collect::<Vec<_>>());
        let given = (check.level, check.detail.as_str(), check.help.unwrap_or_default());
        assert_eq!(given, (level, detail, help.to_owned()));
    }

    #[test]
    fn one_reachable_engine_is_enough() {
        let (forbidden, refused) =
            (Some(io::ErrorKind::PermissionDenied), Some(io::ErrorKind::ConnectionRefused));
        let none = "none found; only servers in containers (`--image`) need one";
        check(&[], Level::Ok, none, "");
        let denied = "Colima at unix:///d: permission denied";
        let both = format!("{denied}; Colima at unix:///p accepts connections");
        check(&[("/d", forbidden), ("/p", None)], Level::Ok, &both, "");
        let group = "join the group that owns the socket (often `docker`), then log in again";
        check(&[("/d", forbidden)], Level::Warn, denied, group);
        let start = "start it; only servers in containers need one";
        check(&[("/d", refused)], Level::Warn, "Colima at unix:///d: connection refused", start);
    }

    #[test]
    fn the_named_engine_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("engine.sock");
        let named = |host: &str| {
            let caller = Caller { env: vec![("DOCKER_HOST".into(), host.into())], cwd: None };
            let check = engine_check(&caller, &Disk);
            (check.level, check.detail)
        };
        let host = format!("unix://{}", socket.display());
        let (level, detail) = named(&host);
        assert_eq!(level, Level::Warn, "{detail}");
        let _engine = UnixListener::bind(&socket).unwrap();
        let fine = format!("DOCKER_HOST at {host} accepts connections");
        assert_eq!(named(&host), (Level::Ok, fine));
        let elsewhere = "DOCKER_HOST at tcp://far:2375 (not tried)".to_owned();
        assert_eq!(named("tcp://far:2375"), (Level::Ok, elsewhere));
        assert_eq!(named("ssh://far").0, Level::Warn);
    }
}

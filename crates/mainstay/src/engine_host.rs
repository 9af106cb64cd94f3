//! Where the caller's container engine is reached.
//!
//! The daemon finds an engine by itself, but it does not know the caller's environment: whoever has
//! pointed their own tools elsewhere, with `DOCKER_HOST`, `CONTAINER_HOST` or a Docker context, means
//! that engine here too. What is chosen is stored with the server.

use std::io;
use std::path::{Path, PathBuf};

use mainstay_core::{EngineKind, ServerSpec, Workload};
use serde::Deserialize;

use crate::context::Caller;
use crate::error::CliError;

/// What to do about a [`HostError`].
pub(crate) const HELP: &str = "correct it (`docker context ls` shows all contexts), or set DOCKER_HOST to the engine's address";

/// Docker's name for having chosen no context.
const DEFAULT: &str = "default";

/// Why it cannot be told which engine the caller means.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error("`{}` cannot be read: {source}", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    #[error("`{}` makes no sense: {source}", file.display())]
    Unparsable { file: PathBuf, source: serde_json::Error },
    #[error("there is no Docker context `{name}` in `{}`, but {from} names it", dir.display())]
    NoContext { name: String, dir: PathBuf, from: String },
    #[error("the Docker context `{0}` has no address of an engine")]
    NoAddress(String),
}

impl From<HostError> for CliError {
    fn from(error: HostError) -> Self {
        Self::failed(error.to_string(), HELP)
    }
}

/// The files in which an engine may be named.
pub(crate) trait Files {
    fn read(&self, file: &Path) -> io::Result<String>;
    /// What is in a directory, in a fixed order; nothing if there is none.
    fn list(&self, dir: &Path) -> Vec<PathBuf>;
}

/// The files of this machine.
#[derive(Debug)]
pub(crate) struct Disk;

impl Files for Disk {
    fn read(&self, file: &Path) -> io::Result<String> {
        std::fs::read_to_string(file)
    }

    fn list(&self, dir: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        entries.sort();
        entries
    }
}

/// Notes the caller's engine in the spec of a container that names none.
pub(crate) fn settle(
    spec: &mut ServerSpec,
    caller: &Caller,
    files: &impl Files,
) -> Result<(), HostError> {
    match &mut spec.workload {
        Workload::Container(container) if container.host.is_none() => {
            container.host = host(container.engine, caller, files)?;
        }
        Workload::Container(_) | Workload::Process(_) | Workload::Remote(_) => {}
    }
    Ok(())
}

/// The address of the engine that the caller means; none if the daemon is to find one.
pub(crate) fn host(
    engine: Option<EngineKind>,
    caller: &Caller,
    files: &impl Files,
) -> Result<Option<String>, HostError> {
    let var = |name: &str| {
        let value = caller.var(name).and_then(|value| value.to_str());
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    match engine {
        // Docker's contexts are not Podman's, but its users set DOCKER_HOST for other tools' sake.
        Some(EngineKind::Podman) => Ok(var("CONTAINER_HOST").or_else(|| var("DOCKER_HOST"))),
        Some(EngineKind::Docker) | None => match var("DOCKER_HOST") {
            Some(host) => Ok(Some(host)),
            None => of_context(var, files),
        },
    }
}

/// The address that Docker's present context has.
fn of_context(
    var: impl Fn(&str) -> Option<String>,
    files: &impl Files,
) -> Result<Option<String>, HostError> {
    let dir = var("DOCKER_CONFIG").map(PathBuf::from);
    let Some(dir) = dir.or_else(|| Some(Path::new(&var("HOME")?).join(".docker"))) else {
        return Ok(None);
    };
    let (name, from) = if let Some(name) = var("DOCKER_CONTEXT") {
        (Some(name), "DOCKER_CONTEXT".to_owned())
    } else {
        let file = dir.join("config.json");
        (read::<Config>(&file, files)?.current_context, format!("`{}`", file.display()))
    };
    match name.filter(|name| !name.is_empty() && name != DEFAULT) {
        Some(name) => address(&name, &dir, &from, files).map(Some),
        None => Ok(None),
    }
}

fn address(name: &str, dir: &Path, from: &str, files: &impl Files) -> Result<String, HostError> {
    let dir = dir.join("contexts/meta");
    for entry in files.list(&dir) {
        let context: Context = read(&entry.join("meta.json"), files)?;
        if context.name == name {
            let host = context.endpoints.docker.host.filter(|host| !host.is_empty());
            return host.ok_or_else(|| HostError::NoAddress(name.to_owned()));
        }
    }
    Err(HostError::NoContext { name: name.to_owned(), dir, from: from.to_owned() })
}

/// What a file says; a file that is not there says nothing.
fn read<T: Default + for<'de> Deserialize<'de>>(
    file: &Path,
    files: &impl Files,
) -> Result<T, HostError> {
    let text = match files.read(file) {
        Ok(text) => text,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(T::default());
        }
        Err(source) => return Err(HostError::Unreadable { file: file.to_owned(), source }),
    };
    serde_json::from_str(&text)
        .map_err(|source| HostError::Unparsable { file: file.to_owned(), source })
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    current_context: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Context {
    name: String,
    endpoints: Endpoints,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Endpoints {
    docker: Endpoint,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Endpoint {
    host: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Files in memory; what has no text cannot be read.
    struct Memory(BTreeMap<PathBuf, Option<&'static str>>);

    impl Files for Memory {
        fn read(&self, file: &Path) -> io::Result<String> {
            let found = self.0.get(file).ok_or(io::ErrorKind::NotFound)?;
            Ok(found.ok_or(io::ErrorKind::PermissionDenied)?.to_owned())
        }

        fn list(&self, dir: &Path) -> Vec<PathBuf> {
            let inside = self.0.keys().filter_map(|file| file.strip_prefix(dir).ok());
            inside.filter_map(|file| Some(dir.join(file.components().next()?))).collect()
        }
    }

    const COLIMA: &str =
        r#"{"Name":"colima","Metadata":{},"Endpoints":{"docker":{"Host":"unix:///c.sock"}}}"#;

    fn check(
        engine: Option<EngineKind>,
        env: &[(&str, &str)],
        files: &[(&str, Option<&'static str>)],
        expected: Result<Option<&str>, &str>,
    ) {
        let env = env.iter().map(|(key, value)| (key.into(), value.into())).collect();
        let caller = Caller { env, cwd: None };
        let files = Memory(files.iter().map(|(path, text)| (path.into(), *text)).collect());
        let found = host(engine, &caller, &files).map_err(|error| error.to_string());
        let found = found.as_ref().map(Option::as_deref).map_err(String::as_str);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_variable_wins_over_every_file() {
        let broken = [("/h/.docker/config.json", Some("{"))];
        let env = [("HOME", "/h"), ("DOCKER_HOST", "unix:///d"), ("DOCKER_CONTEXT", "x")];
        check(None, &env, &broken, Ok(Some("unix:///d")));
        check(Some(EngineKind::Docker), &env, &broken, Ok(Some("unix:///d")));
    }

    #[test]
    fn podman_has_a_variable_of_its_own_and_no_contexts() {
        let podman = Some(EngineKind::Podman);
        let env = [("CONTAINER_HOST", "unix:///p"), ("DOCKER_HOST", "unix:///d")];
        check(podman, &env, &[], Ok(Some("unix:///p")));
        check(podman, &env[1..], &[], Ok(Some("unix:///d")));
        check(podman, &[("CONTAINER_HOST", ""), ("DOCKER_CONTEXT", "x")], &[], Ok(None));
        check(None, &env[..1], &[], Ok(None));
    }

    #[test]
    fn a_context_is_looked_up_by_its_name() {
        let files = [
            ("/h/.docker/config.json", Some(r#"{"auths":{},"currentContext":"colima"}"#)),
            ("/h/.docker/contexts/meta/00/meta.json", Some(r#"{"Name":"other"}"#)),
            ("/h/.docker/contexts/meta/ff/meta.json", Some(COLIMA)),
        ];
        let home = ("HOME", "/h");
        check(None, &[home], &files, Ok(Some("unix:///c.sock")));
        check(None, &[home, ("DOCKER_HOST", "")], &files, Ok(Some("unix:///c.sock")));
        check(None, &[home, ("DOCKER_CONTEXT", "default")], &files, Ok(None));
        let other = "the Docker context `other` has no address of an engine";
        check(None, &[home, ("DOCKER_CONTEXT", "other")], &files, Err(other));
        let none = "there is no Docker context `x` in `/h/.docker/contexts/meta`, but DOCKER_CONTEXT \
                    names it";
        check(None, &[home, ("DOCKER_CONTEXT", "x")], &files, Err(none));
        check(None, &[("HOME", "/h"), ("DOCKER_CONFIG", "/none")], &files, Ok(None));
        check(None, &[("DOCKER_CONFIG", "/h/.docker")], &files, Ok(Some("unix:///c.sock")));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named() {
        let file = "/h/.docker/config.json";
        let home = [("HOME", "/h")];
        check(None, &home, &[], Ok(None));
        check(None, &[], &[], Ok(None));
        check(None, &home, &[(file, Some("{}"))], Ok(None));
        let unreadable = "`/h/.docker/config.json` cannot be read: permission denied";
        check(None, &home, &[(file, None)], Err(unreadable));
        let unparsable = "`/h/.docker/config.json` makes no sense: EOF while parsing an object at \
                          line 1 column 1";
        check(None, &home, &[(file, Some("{"))], Err(unparsable));
        let gone = "there is no Docker context `x` in `/h/.docker/contexts/meta`, but \
                    `/h/.docker/config.json` names it";
        check(None, &home, &[(file, Some(r#"{"currentContext":"x"}"#))], Err(gone));
    }

    #[test]
    fn only_a_container_without_an_engine_gets_one() {
        let caller = Caller { env: vec![("DOCKER_HOST".into(), "unix:///d".into())], cwd: None };
        let settled = |workload: serde_json::Value| {
            let spec = serde_json::json!({ "name": "time", "workload": workload });
            let mut spec: ServerSpec = serde_json::from_value(spec).unwrap();
            settle(&mut spec, &caller, &Memory(BTreeMap::new())).unwrap();
            spec.workload
        };
        let host = |workload| match workload {
            Workload::Container(container) => container.host,
            other => panic!("{other:?}"),
        };
        let image = |host: Option<&str>| serde_json::json!({ "image": "time", "host": host });
        let container = settled(serde_json::json!({ "container": image(None) }));
        assert_eq!(host(container).as_deref(), Some("unix:///d"));
        let container = settled(serde_json::json!({ "container": image(Some("unix:///x")) }));
        assert_eq!(host(container).as_deref(), Some("unix:///x"));
    }
}

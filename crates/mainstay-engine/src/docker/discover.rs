//! Where container engines may be reached on this machine. Nothing is opened here: files are read and
//! listed by whoever calls.
//!
//! Docker comes before Podman, and of each what the user says (`DOCKER_HOST`, the chosen context,
//! `CONTAINER_HOST`) before the places where it listens by default. Whether one answers is not known here, and neither is which: a socket called
//! Docker's may be Podman's.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use mainstay_core::EngineKind;
use serde_json::Value;

/// The port of an engine that is reached by TCP, without and with TLS.
const PORTS: (u16, u16) = (2375, 2376);

/// Where an engine may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// A socket of this machine.
    Unix(PathBuf),
    /// A host and its port.
    Tcp { host_port: String, tls: Option<TlsFiles> },
}

/// What proves who speaks on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TlsFiles {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// An address, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) address: Address,
    /// For people: "`DOCKER_HOST`", "the Docker context `x`", "Colima".
    pub(crate) from: String,
}

/// Why a text is no [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(
        "an engine cannot be reached by SSH: forward its socket \
         (`ssh -L /tmp/engine.sock:/var/run/docker.sock HOST`) and give `unix:///tmp/engine.sock`"
    )]
    Ssh,
    #[error("a named pipe exists on Windows only: give a `unix://` or `tcp://` address")]
    NamedPipe,
    #[error(
        "`fd://` is where an engine is told to listen, not where it is reached: \
         give its socket, such as `unix:///var/run/docker.sock`"
    )]
    Descriptor,
    #[error("`{0}` names no socket by an absolute path: write it as `unix:///PATH`")]
    Socket(String),
    #[error("`{0}` names no host: write it as `tcp://HOST:PORT`")]
    Host(String),
    #[error("`{0}` is no address of an engine: write it as `unix:///PATH` or `tcp://HOST:PORT`")]
    Scheme(String),
}

/// Candidate addresses for an engine of that kind (or any), in the order in which they are tried,
/// without duplicates. What the user named and cannot be used is left out; [`unusable`] tells why.
pub(crate) fn candidates(
    kind: Option<EngineKind>,
    env: &Env,
    read: &dyn Fn(&Path) -> Option<String>,
    list: &dyn Fn(&Path) -> Vec<PathBuf>,
) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for (from, address) in places(kind, env, read, list) {
        let Ok(address) = address else { continue };
        if !found.iter().any(|known| same_place(&known.address, &address)) {
            found.push(Candidate { address, from });
        }
    }
    found
}

/// What the user named as the place of an engine of that kind, and cannot be used: where it was found,
/// and why.
pub(crate) fn unusable(
    kind: Option<EngineKind>,
    env: &Env,
    read: &dyn Fn(&Path) -> Option<String>,
    list: &dyn Fn(&Path) -> Vec<PathBuf>,
) -> Vec<(String, AddressError)> {
    let places = places(kind, env, read, list).into_iter();
    places.filter_map(|(from, address)| Some((from, address.err()?))).collect()
}

/// The environment in which engines are looked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Env(Vec<(OsString, OsString)>);

impl Env {
    pub(crate) fn new(variables: Vec<(OsString, OsString)>) -> Self {
        Self(variables)
    }

    /// The value of a variable; none if it is empty or not text.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().rev().find(|(key, _)| key == name)?;
        value.to_str().filter(|value| !value.is_empty())
    }

    /// An absolute path that a variable holds.
    fn dir(&self, name: &str) -> Option<&Path> {
        self.get(name).map(Path::new).filter(|path| path.is_absolute())
    }

    /// The files by which TCP is spoken to, if that is to be by TLS.
    fn tls(&self) -> Option<TlsFiles> {
        let own = self.get("DOCKER_CERT_PATH").map(PathBuf::from);
        let usual = || self.get("DOCKER_TLS_VERIFY").and_then(|_| self.docker_config());
        own.or_else(usual).map(|dir| TlsFiles::in_dir(&dir))
    }

    /// Where Docker's own tools keep their settings.
    fn docker_config(&self) -> Option<PathBuf> {
        let own = self.dir("DOCKER_CONFIG").map(Path::to_path_buf);
        own.or_else(|| Some(self.dir("HOME")?.join(".docker")))
    }
}

impl Address {
    /// Reads an address as `DOCKER_HOST` carries it. One by TCP is spoken to by TLS if `DOCKER_TLS_VERIFY`
    /// or `DOCKER_CERT_PATH` is set.
    pub(crate) fn parse(text: &str, env: &Env) -> Result<Self, AddressError> {
        let (scheme, rest) = match text.split_once("://") {
            Some(parts) => parts,
            // As Docker's own tools read it.
            None if text.starts_with('/') => ("unix", text),
            None => return Err(AddressError::Scheme(text.to_owned())),
        };
        match scheme {
            "unix" if rest.starts_with('/') && rest.len() > 1 => Ok(Self::Unix(rest.into())),
            "unix" => Err(AddressError::Socket(text.to_owned())),
            "tcp" => Self::tcp(text, rest, env.tls()),
            "http" => Self::tcp(text, rest, None),
            "ssh" => Err(AddressError::Ssh),
            "npipe" => Err(AddressError::NamedPipe),
            "fd" => Err(AddressError::Descriptor),
            _ => Err(AddressError::Scheme(text.to_owned())),
        }
    }

    fn tcp(text: &str, rest: &str, tls: Option<TlsFiles>) -> Result<Self, AddressError> {
        let wrong = || AddressError::Host(text.to_owned());
        let authority = rest.trim_end_matches('/');
        let (host, port) = split_port(authority).ok_or_else(wrong)?;
        let sound = |char: char| char.is_ascii_alphanumeric() || "._-[]:%".contains(char);
        if host.is_empty() || !host.chars().all(sound) {
            return Err(wrong());
        }
        let default = if tls.is_some() { PORTS.1 } else { PORTS.0 };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?,
            None => default,
        };
        Ok(Self::Tcp { host_port: format!("{host}:{port}"), tls })
    }
}

/// Splits a port from a host; the colons of an IPv6 address, which stands in brackets, are no port's.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let end_of_host = authority.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match authority[end_of_host..].find(':') {
        Some(colon) => authority.split_at(end_of_host + colon),
        None => return Some((authority, None)),
    };
    let bare_ipv6 = !host.starts_with('[') && port[1..].contains(':');
    (!bare_ipv6).then_some((host, Some(&port[1..])))
}

impl TlsFiles {
    fn in_dir(dir: &Path) -> Self {
        Self { ca: dir.join("ca.pem"), cert: dir.join("cert.pem"), key: dir.join("key.pem") }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host_port, .. } => write!(f, "tcp://{host_port}"),
        }
    }
}

/// Where a place is named, and what is named there.
type Place = (String, Result<Address, AddressError>);

fn places(
    kind: Option<EngineKind>,
    env: &Env,
    read: &dyn Fn(&Path) -> Option<String>,
    list: &dyn Fn(&Path) -> Vec<PathBuf>,
) -> Vec<Place> {
    let variable =
        |name: &str, proofs: &Env| Some((name.to_owned(), Address::parse(env.get(name)?, proofs)));
    // Those who use Podman by Docker's tools set it too.
    let mut places = Vec::from_iter(variable("DOCKER_HOST", env));
    if is_sought(kind, EngineKind::Docker) {
        places.extend(context(env, read, list));
        places.extend(usual_docker(env));
    }
    if is_sought(kind, EngineKind::Podman) {
        // The proofs that the environment names are meant for Docker.
        places.extend(variable("CONTAINER_HOST", &Env::default()));
        places.extend(usual_podman(env));
    }
    places
}

/// The context that Docker's own tools would use; none if it is the default one.
fn context(
    env: &Env,
    read: &dyn Fn(&Path) -> Option<String>,
    list: &dyn Fn(&Path) -> Vec<PathBuf>,
) -> Option<Place> {
    let config = env.docker_config()?;
    let json = |path: &Path| serde_json::from_str::<Value>(&read(path)?).ok();
    let current =
        || Some(json(&config.join("config.json"))?.get("currentContext")?.as_str()?.to_owned());
    let name = env.get("DOCKER_CONTEXT").map(str::to_owned).or_else(current)?;
    let (dir, meta) = list(&config.join("contexts/meta")).into_iter().find_map(|dir| {
        let meta = json(&dir.join("meta.json"))?;
        (meta.get("Name")?.as_str()? == name).then_some((dir, meta))
    })?;
    let host = meta.pointer("/Endpoints/docker/Host")?.as_str()?;
    // The environment's files are not meant for it; its own lie beside it.
    let address = Address::parse(host, &Env::default()).map(|address| match address {
        Address::Tcp { host_port, .. } => {
            let files = config.join("contexts/tls").join(dir.file_name().unwrap_or_default());
            let files = TlsFiles::in_dir(&files.join("docker"));
            let tls = read(&files.ca).is_some().then_some(files);
            Address::Tcp { host_port, tls }
        }
        Address::Unix(path) => Address::Unix(path),
    });
    Some((format!("the Docker context `{name}`"), address))
}

fn usual_docker(env: &Env) -> impl Iterator<Item = Place> {
    let home = env.dir("HOME");
    let places = [
        (Some(Path::new("/var/run")), "docker.sock", "Docker"),
        (env.dir("XDG_RUNTIME_DIR"), "docker.sock", "rootless Docker"),
        (home, ".docker/run/docker.sock", "Docker Desktop"),
        (home, ".docker/desktop/docker.sock", "Docker Desktop"),
        (home, ".orbstack/run/docker.sock", "OrbStack"),
        (home, ".colima/default/docker.sock", "Colima"),
        (home, ".colima/docker.sock", "Colima"),
        (home, ".config/colima/default/docker.sock", "Colima"),
        (home, ".rd/docker.sock", "Rancher Desktop"),
    ];
    places.into_iter().filter_map(socket)
}

fn usual_podman(env: &Env) -> impl Iterator<Item = Place> {
    let machine = ".local/share/containers/podman/machine/podman.sock";
    let places = [
        (env.dir("XDG_RUNTIME_DIR"), "podman/podman.sock", "rootless Podman"),
        (Some(Path::new("/run")), "podman/podman.sock", "Podman"),
        (env.dir("HOME"), machine, "the Podman machine"),
    ];
    places.into_iter().filter_map(socket)
}

fn socket((base, path, from): (Option<&Path>, &str, &str)) -> Option<Place> {
    Some((from.to_owned(), Ok(Address::Unix(base?.join(path)))))
}

fn is_sought(kind: Option<EngineKind>, of: EngineKind) -> bool {
    kind.is_none_or(|kind| kind == of)
}

/// Whether two addresses lead to the same place.
fn same_place(one: &Address, other: &Address) -> bool {
    match (one, other) {
        (Address::Unix(one), Address::Unix(other)) => short(one) == short(other),
        (Address::Tcp { host_port: one, .. }, Address::Tcp { host_port: other, .. }) => {
            one == other
        }
        (Address::Unix(_), Address::Tcp { .. }) | (Address::Tcp { .. }, Address::Unix(_)) => false,
    }
}

/// A path without the link that Linux has at `/var/run`.
fn short(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or(path.to_owned(), |rest| Path::new("/run").join(rest))
}

#[cfg(test)]
mod tests;

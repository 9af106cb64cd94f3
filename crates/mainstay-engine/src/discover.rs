//! Finds the addresses of container engines on this machine. Files are read through [`Files`]; no
//! connection is made.
//!
//! Docker comes before Podman, and the user's settings (`DOCKER_HOST`, the chosen context,
//! `CONTAINER_HOST`) before the default addresses. Whether an engine answers is not known
//! here, nor which kind it is: Podman may listen on Docker's socket.
//!
//! A written [`Address`] is complete, so one process can use what another has found in its environment.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use mainstay_core::EngineKind;
use serde_json::Value;

/// The default ports for TCP, without and with TLS.
const PORTS: (u16, u16) = (2375, 2376);

/// Precedes the directory of the certificates in a written address.
const CERTIFICATES: &str = "certs=";

/// Docker's name for the absence of a context.
const NO_CONTEXT: &str = "default";

/// The address of an engine. It is written as `unix:///PATH`, `tcp://HOST:PORT` or
/// `tcp://HOST:PORT?certs=/DIR`, and read back the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket of this machine.
    Unix(PathBuf),
    /// A host and its port.
    Tcp {
        /// `HOST:PORT`.
        host_port: String,
        /// Present if TLS is used.
        tls: Option<TlsFiles>,
    },
}

/// The directory of `ca.pem`, `cert.pem` and `key.pem`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsFiles(PathBuf);

/// An address, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The address.
    pub address: Address,
    /// For users: "`DOCKER_HOST`", "the Docker context `x`", "Colima".
    pub from: String,
}

/// Why a text is not an [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "an engine cannot be reached by SSH: forward its socket \
         (`ssh -L /tmp/engine.sock:/var/run/docker.sock HOST`) and give `unix:///tmp/engine.sock`"
    )]
    Ssh,
    #[error("a named pipe exists on Windows only: give a `unix://` or `tcp://` address")]
    NamedPipe,
    #[error(
        "`fd://` makes an engine listen, but cannot be connected to: \
         give its socket, such as `unix:///var/run/docker.sock`"
    )]
    Descriptor,
    #[error("`{0}` has no absolute path of a socket: write it as `unix:///PATH`")]
    Socket(String),
    #[error("`{0}` has no valid host and port: write it as `tcp://HOST:PORT`")]
    Host(String),
    #[error("the directory of the certificates must be an absolute path, not `{0}`")]
    Certificates(String),
    #[error(
        "`{0}` is not the address of an engine: write it as `unix:///PATH` or `tcp://HOST:PORT`"
    )]
    Scheme(String),
}

/// An address in the user's settings that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{from}: {why}")]
pub struct Unusable {
    /// The setting.
    pub from: String,
    /// Why it cannot be used.
    pub why: String,
}

/// Access to the files that may name engines.
pub trait Files {
    /// The text of a file.
    fn read(&self, file: &Path) -> io::Result<String>;

    /// The entries of a directory in a fixed order; none if it does not exist.
    fn list(&self, dir: &Path) -> Vec<PathBuf>;
}

/// The files of this machine.
#[derive(Debug)]
pub struct Disk;

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

/// Addresses of engines of that kind (or any), in the order in which they are tried,
/// without duplicates. For settings that cannot be used, see [`unusable`].
pub fn candidates(kind: Option<EngineKind>, env: &Env, files: &dyn Files) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for candidate in places(kind, env, files).into_iter().flatten() {
        if !found.iter().any(|known| same_place(&known.address, &candidate.address)) {
            found.push(candidate);
        }
    }
    found
}

/// The settings for engines of that kind that cannot be used.
pub fn unusable(kind: Option<EngineKind>, env: &Env, files: &dyn Files) -> Vec<Unusable> {
    places(kind, env, files).into_iter().filter_map(Result::err).collect()
}

/// The engine that the user's settings choose; none if they choose none.
pub fn named(
    kind: Option<EngineKind>,
    env: &Env,
    files: &dyn Files,
) -> Result<Option<Candidate>, Unusable> {
    let place = match kind {
        Some(EngineKind::Podman) => container_host(env).or_else(|| docker_host(env)),
        // `CONTAINER_HOST` alone does not choose Podman, because Docker comes first.
        Some(EngineKind::Docker) | None => docker_host(env).or_else(|| context(env, files)),
    };
    place.transpose()
}

/// The environment variables of the user.
#[derive(Debug, Clone, Default)]
pub struct Env(Vec<(OsString, OsString)>);

impl Env {
    /// Of two variables with the same name the last one counts.
    pub fn new(variables: Vec<(OsString, OsString)>) -> Self {
        Self(variables)
    }

    /// The value of a variable; none if it is empty or not text.
    fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().rev().find(|(key, _)| key == name)?;
        value.to_str().filter(|value| !value.is_empty())
    }

    /// An absolute path that a variable holds.
    fn dir(&self, name: &str) -> Option<&Path> {
        self.get(name).map(Path::new).filter(|path| path.is_absolute())
    }

    /// The certificates for TCP, if TLS is enabled.
    fn tls(&self) -> Result<Option<TlsFiles>, AddressError> {
        let own = self.get("DOCKER_CERT_PATH").map(PathBuf::from);
        let usual = || self.get("DOCKER_TLS_VERIFY").and_then(|_| self.docker_config());
        own.or_else(usual).map(|dir| TlsFiles::in_dir(&dir)).transpose()
    }

    /// The directory of Docker's settings.
    fn docker_config(&self) -> Option<PathBuf> {
        let own = self.dir("DOCKER_CONFIG").map(Path::to_path_buf);
        own.or_else(|| Some(self.dir("HOME")?.join(".docker")))
    }
}

impl Address {
    /// Parses the value of `DOCKER_HOST`. TCP uses TLS if `DOCKER_TLS_VERIFY` or `DOCKER_CERT_PATH` is set.
    fn given(text: &str, env: &Env) -> Result<Self, AddressError> {
        if text.starts_with("tcp://") && !text.contains('?') {
            return Self::tcp(text, &text["tcp://".len()..], env.tls()?);
        }
        text.parse()
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

impl FromStr for Address {
    type Err = AddressError;

    /// Parses what [`fmt::Display`] writes, and other forms that Docker accepts.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = match text.split_once("://") {
            Some(parts) => parts,
            // As Docker does.
            None if text.starts_with('/') => ("unix", text),
            None => return Err(AddressError::Scheme(text.to_owned())),
        };
        match scheme {
            "unix" if rest.starts_with('/') && rest.len() > 1 => Ok(Self::Unix(rest.into())),
            "unix" => Err(AddressError::Socket(text.to_owned())),
            "tcp" => match rest.split_once('?') {
                Some((rest, query)) => {
                    let dir = query.strip_prefix(CERTIFICATES);
                    let dir = dir.ok_or_else(|| AddressError::Host(text.to_owned()))?;
                    Self::tcp(text, rest, Some(TlsFiles::in_dir(Path::new(dir))?))
                }
                None => Self::tcp(text, rest, None),
            },
            "http" => Self::tcp(text, rest, None),
            "ssh" => Err(AddressError::Ssh),
            "npipe" => Err(AddressError::NamedPipe),
            "fd" => Err(AddressError::Descriptor),
            _ => Err(AddressError::Scheme(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host_port, tls: None } => write!(f, "tcp://{host_port}"),
            Self::Tcp { host_port, tls: Some(files) } => {
                write!(f, "tcp://{host_port}?{CERTIFICATES}{}", files.0.display())
            }
        }
    }
}

/// Splits host and port. An IPv6 address is in brackets, so its colons do not count.
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
    fn in_dir(dir: &Path) -> Result<Self, AddressError> {
        if !dir.is_absolute() {
            return Err(AddressError::Certificates(dir.display().to_string()));
        }
        Ok(Self(dir.to_owned()))
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    pub(crate) fn cert(&self) -> PathBuf {
        self.0.join("cert.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.0.join("key.pem")
    }
}

/// An address from one source.
type Place = Result<Candidate, Unusable>;

fn place(from: impl Into<String>, address: Result<Address, impl fmt::Display>) -> Place {
    let from = from.into();
    match address {
        Ok(address) => Ok(Candidate { address, from }),
        Err(why) => Err(Unusable { from, why: why.to_string() }),
    }
}

fn places(kind: Option<EngineKind>, env: &Env, files: &dyn Files) -> Vec<Place> {
    let mut places = Vec::new();
    if kind == Some(EngineKind::Podman) {
        places.extend(container_host(env));
    }
    // Users of Podman with Docker's tools set it too.
    places.extend(docker_host(env));
    if kind != Some(EngineKind::Podman) {
        places.extend(context(env, files));
        places.extend(default_docker(env));
    }
    if kind.is_none() {
        places.extend(container_host(env));
    }
    if kind != Some(EngineKind::Docker) {
        places.extend(default_podman(env));
    }
    places
}

fn docker_host(env: &Env) -> Option<Place> {
    let name = "DOCKER_HOST";
    Some(place(name, Address::given(env.get(name)?, env)))
}

fn container_host(env: &Env) -> Option<Place> {
    let name = "CONTAINER_HOST";
    // The certificates in the environment are meant for Docker.
    Some(place(name, env.get(name)?.parse::<Address>()))
}

/// The context that Docker's tools use; none if it is the default one.
fn context(env: &Env, files: &dyn Files) -> Option<Place> {
    let config = env.docker_config()?;
    let (name, from) = if let Some(name) = env.get("DOCKER_CONTEXT") {
        (name.to_owned(), "DOCKER_CONTEXT".to_owned())
    } else {
        let file = config.join("config.json");
        let from = format!("`{}`", file.display());
        match current_context(&file, files) {
            Ok(name) => (name?, from),
            Err(why) => return Some(Err(Unusable { from, why })),
        }
    };
    if name.is_empty() || name == NO_CONTEXT {
        return None;
    }
    let dir = config.join("contexts/meta");
    let found = files.list(&dir).into_iter().find_map(|dir| {
        let meta: Value = serde_json::from_str(&files.read(&dir.join("meta.json")).ok()?).ok()?;
        (meta.get("Name")?.as_str()? == name).then_some((dir, meta))
    });
    let Some((meta_dir, meta)) = found else {
        let why = format!("there is no Docker context `{name}` in `{}`", dir.display());
        return Some(Err(Unusable { from, why }));
    };
    let certs = config.join("contexts/tls").join(meta_dir.file_name().unwrap_or_default());
    let address = context_address(&meta, &certs.join("docker"), files);
    Some(place(format!("the Docker context `{name}`"), address))
}

fn current_context(file: &Path, files: &dyn Files) -> Result<Option<String>, String> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let text = match files.read(file) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
        Err(error) => return Err(format!("it cannot be read: {error}")),
    };
    let config = serde_json::from_str::<Value>(&text);
    let config = config.map_err(|error| format!("it is not valid JSON: {error}"))?;
    Ok(config.get("currentContext").and_then(Value::as_str).map(str::to_owned))
}

/// The address of a context. Its certificates are in its own directory, not in the environment.
fn context_address(meta: &Value, certs: &Path, files: &dyn Files) -> Result<Address, String> {
    let host = meta.pointer("/Endpoints/docker/Host").and_then(Value::as_str);
    let host = host.filter(|host| !host.is_empty()).ok_or("it has no address of an engine")?;
    match host.parse::<Address>().map_err(|error| error.to_string())? {
        Address::Tcp { host_port, tls: None } => {
            let own = TlsFiles::in_dir(certs).map_err(|error| error.to_string())?;
            let tls = files.read(&own.ca()).is_ok().then_some(own);
            Ok(Address::Tcp { host_port, tls })
        }
        address @ (Address::Tcp { tls: Some(_), .. } | Address::Unix(_)) => Ok(address),
    }
}

fn default_docker(env: &Env) -> impl Iterator<Item = Place> {
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

fn default_podman(env: &Env) -> impl Iterator<Item = Place> {
    let machine = ".local/share/containers/podman/machine/podman.sock";
    let places = [
        (env.dir("XDG_RUNTIME_DIR"), "podman/podman.sock", "rootless Podman"),
        (Some(Path::new("/run")), "podman/podman.sock", "Podman"),
        (env.dir("HOME"), machine, "the Podman machine"),
    ];
    places.into_iter().filter_map(socket)
}

fn socket((base, path, from): (Option<&Path>, &str, &str)) -> Option<Place> {
    let address = Address::Unix(base?.join(path));
    Some(Ok(Candidate { address, from: from.to_owned() }))
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

/// Resolves the symbolic link `/var/run`.
fn short(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or(path.to_owned(), |rest| Path::new("/run").join(rest))
}

#[cfg(test)]
mod tests;

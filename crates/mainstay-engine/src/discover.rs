//! Where container engines may be reached on this machine. Files are read by way of [`Files`]; no
//! connection is made.
//!
//! Docker comes before Podman, and of each what the user says (`DOCKER_HOST`, the chosen context,
//! `CONTAINER_HOST`) before the places where it listens by default. Whether one answers is not known
//! here, and neither is which: a socket called Docker's may be Podman's.
//!
//! An [`Address`] is written with all that is needed to use it, so what one process finds in its
//! environment another one can use without that environment.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use mainstay_core::EngineKind;
use serde_json::Value;

/// The port of an engine that is reached by TCP, without and with TLS.
const PORTS: (u16, u16) = (2375, 2376);

/// Begins the part of a written address that says where the certificates are.
const CERTIFICATES: &str = "certs=";

/// Docker's name for having chosen no context.
const NO_CONTEXT: &str = "default";

/// Where an engine may be reached. It is written as `unix:///PATH`, `tcp://HOST:PORT` or
/// `tcp://HOST:PORT?certs=/DIR`, and read back the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket of this machine.
    Unix(PathBuf),
    /// A host and its port.
    Tcp {
        /// Both, with a colon between them.
        host_port: String,
        /// By which files TLS is spoken, if it is.
        tls: Option<TlsFiles>,
    },
}

/// What proves who speaks on both sides: files of one directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// An address, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The address.
    pub address: Address,
    /// For people: "`DOCKER_HOST`", "the Docker context `x`", "Colima".
    pub from: String,
}

/// Why a text is no [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is behind SSH.
    #[error(
        "an engine cannot be reached by SSH: forward its socket \
         (`ssh -L /tmp/engine.sock:/var/run/docker.sock HOST`) and give `unix:///tmp/engine.sock`"
    )]
    Ssh,
    /// It is a named pipe.
    #[error("a named pipe exists on Windows only: give a `unix://` or `tcp://` address")]
    NamedPipe,
    /// It is a descriptor.
    #[error(
        "`fd://` is where an engine is told to listen, not where it is reached: \
         give its socket, such as `unix:///var/run/docker.sock`"
    )]
    Descriptor,
    /// It has no path of a socket.
    #[error("`{0}` names no socket by an absolute path: write it as `unix:///PATH`")]
    Socket(String),
    /// It has no host, or one that makes no sense.
    #[error("`{0}` names no host: write it as `tcp://HOST:PORT`")]
    Host(String),
    /// The directory of the certificates is not known for sure.
    #[error("`{0}`, where certificates are to be, is no absolute path")]
    Certificates(String),
    /// It is something else.
    #[error("`{0}` is no address of an engine: write it as `unix:///PATH` or `tcp://HOST:PORT`")]
    Scheme(String),
}

/// What the user named as the place of an engine, and cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{from}: {why}")]
pub struct Unusable {
    /// Where it was named.
    pub from: String,
    /// Why it cannot be used.
    #[source]
    pub why: PlaceError,
}

/// Why what the user named cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It is no address of an engine.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The file in which it is named cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file in which it is named makes no sense.
    #[error("it makes no sense: {0}")]
    Unparsable(serde_json::Error),
    /// There is no such Docker context.
    #[error("there is no Docker context `{name}` in `{}`", dir.display())]
    NoContext {
        /// Which one.
        name: String,
        /// Where contexts are.
        dir: PathBuf,
    },
    /// There is such a Docker context, but it leads nowhere.
    #[error("it has no address of an engine")]
    NoAddress,
}

/// The files in which engines may be named.
pub trait Files {
    /// The text of a file.
    fn read(&self, file: &Path) -> io::Result<String>;

    /// What is in a directory, in a fixed order; nothing if there is none.
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

/// Candidate addresses for an engine of that kind (or any), in the order in which they are tried,
/// without duplicates. What the user named and cannot be used is left out; [`unusable`] tells why.
pub fn candidates(kind: Option<EngineKind>, env: &Env, files: &dyn Files) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for candidate in places(kind, env, files).into_iter().flatten() {
        if !found.iter().any(|known| same_place(&known.address, &candidate.address)) {
            found.push(candidate);
        }
    }
    found
}

/// What the user named as the place of an engine of that kind, and cannot be used.
pub fn unusable(kind: Option<EngineKind>, env: &Env, files: &dyn Files) -> Vec<Unusable> {
    places(kind, env, files).into_iter().filter_map(Result::err).collect()
}

/// The one engine that the user means by naming it; none if they name none.
pub fn named(
    kind: Option<EngineKind>,
    env: &Env,
    files: &dyn Files,
) -> Result<Option<Candidate>, Unusable> {
    let place = match kind {
        Some(EngineKind::Podman) => container_host(env).or_else(|| docker_host(env)),
        // Docker comes before Podman, so its variable does not say that Podman is meant.
        Some(EngineKind::Docker) | None => docker_host(env).or_else(|| context(env, files)),
    };
    place.transpose()
}

/// The environment in which engines are looked for.
#[derive(Debug, Clone, Default)]
pub struct Env(Vec<(OsString, OsString)>);

impl Env {
    /// These variables; of two with the same name the last one counts.
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

    /// The files by which TCP is spoken to, if that is to be by TLS.
    fn tls(&self) -> Result<Option<TlsFiles>, AddressError> {
        let own = self.get("DOCKER_CERT_PATH").map(PathBuf::from);
        let usual = || self.get("DOCKER_TLS_VERIFY").and_then(|_| self.docker_config());
        own.or_else(usual).map(|dir| TlsFiles::in_dir(&dir)).transpose()
    }

    /// Where Docker's own tools keep their settings.
    fn docker_config(&self) -> Option<PathBuf> {
        let own = self.dir("DOCKER_CONFIG").map(Path::to_path_buf);
        own.or_else(|| Some(self.dir("HOME")?.join(".docker")))
    }
}

impl Address {
    /// Reads an address as `DOCKER_HOST` carries it: one by TCP is spoken to by TLS if
    /// `DOCKER_TLS_VERIFY` or `DOCKER_CERT_PATH` is set.
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

    /// Reads what [`fmt::Display`] writes, and what else leads to an engine without an environment.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = match text.split_once("://") {
            Some(parts) => parts,
            // As Docker's own tools read it.
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
                write!(f, "tcp://{host_port}?{CERTIFICATES}{}", files.dir().display())
            }
        }
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
    fn in_dir(dir: &Path) -> Result<Self, AddressError> {
        if !dir.is_absolute() {
            return Err(AddressError::Certificates(dir.display().to_string()));
        }
        Ok(Self { ca: dir.join("ca.pem"), cert: dir.join("cert.pem"), key: dir.join("key.pem") })
    }

    fn dir(&self) -> &Path {
        self.ca.parent().expect("it was joined to a directory")
    }
}

/// What is named somewhere.
type Place = Result<Candidate, Unusable>;

fn place(from: impl Into<String>, address: Result<Address, impl Into<PlaceError>>) -> Place {
    let from = from.into();
    match address {
        Ok(address) => Ok(Candidate { address, from }),
        Err(why) => Err(Unusable { from, why: why.into() }),
    }
}

fn places(kind: Option<EngineKind>, env: &Env, files: &dyn Files) -> Vec<Place> {
    let mut places = Vec::new();
    if kind == Some(EngineKind::Podman) {
        places.extend(container_host(env));
    }
    // Those who use Podman by Docker's tools set it too.
    places.extend(docker_host(env));
    if is_sought(kind, EngineKind::Docker) {
        places.extend(context(env, files));
        places.extend(usual_docker(env));
    }
    if kind.is_none() {
        places.extend(container_host(env));
    }
    if is_sought(kind, EngineKind::Podman) {
        places.extend(usual_podman(env));
    }
    places
}

fn docker_host(env: &Env) -> Option<Place> {
    let name = "DOCKER_HOST";
    Some(place(name, Address::given(env.get(name)?, env)))
}

fn container_host(env: &Env) -> Option<Place> {
    let name = "CONTAINER_HOST";
    // The proofs that the environment names are meant for Docker.
    Some(place(name, env.get(name)?.parse::<Address>()))
}

/// The context that Docker's own tools would use; none if it is the default one.
fn context(env: &Env, files: &dyn Files) -> Option<Place> {
    let config = env.docker_config()?;
    let (name, from) = match chosen_context(&config, env, files) {
        Ok(chosen) => chosen?,
        Err(unusable) => return Some(Err(unusable)),
    };
    let dir = config.join("contexts/meta");
    let found = files.list(&dir).into_iter().find_map(|dir| {
        let meta: Value = serde_json::from_str(&files.read(&dir.join("meta.json")).ok()?).ok()?;
        (meta.get("Name")?.as_str()? == name).then_some((dir, meta))
    });
    let Some((meta_dir, meta)) = found else {
        return Some(Err(Unusable { from, why: PlaceError::NoContext { name, dir } }));
    };
    let proofs = config.join("contexts/tls").join(meta_dir.file_name().unwrap_or_default());
    let address = context_address(&meta, &proofs.join("docker"), files);
    Some(place(format!("the Docker context `{name}`"), address))
}

/// The name of that context, and where it is named.
fn chosen_context(
    config: &Path,
    env: &Env,
    files: &dyn Files,
) -> Result<Option<(String, String)>, Unusable> {
    let (name, from) = if let Some(name) = env.get("DOCKER_CONTEXT") {
        (Some(name.to_owned()), "DOCKER_CONTEXT".to_owned())
    } else {
        let file = config.join("config.json");
        let from = format!("`{}`", file.display());
        match current_context(&file, files) {
            Ok(name) => (name, from),
            Err(why) => return Err(Unusable { from, why }),
        }
    };
    Ok(name.filter(|name| !name.is_empty() && name != NO_CONTEXT).map(|name| (name, from)))
}

/// The context that Docker's own tools would use unless they are told otherwise.
fn current_context(file: &Path, files: &dyn Files) -> Result<Option<String>, PlaceError> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let text = match files.read(file) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
        Err(error) => return Err(PlaceError::Unreadable(error)),
    };
    let config: Value = serde_json::from_str(&text).map_err(PlaceError::Unparsable)?;
    Ok(config.get("currentContext").and_then(Value::as_str).map(str::to_owned))
}

/// Where a context leads. The environment's proofs are not meant for it; its own lie beside it.
fn context_address(meta: &Value, proofs: &Path, files: &dyn Files) -> Result<Address, PlaceError> {
    let host = meta.pointer("/Endpoints/docker/Host").and_then(Value::as_str);
    let host = host.filter(|host| !host.is_empty()).ok_or(PlaceError::NoAddress)?;
    match host.parse()? {
        Address::Tcp { host_port, tls: None } => {
            let own = TlsFiles::in_dir(proofs)?;
            let tls = files.read(&own.ca).is_ok().then_some(own);
            Ok(Address::Tcp { host_port, tls })
        }
        address @ (Address::Tcp { tls: Some(_), .. } | Address::Unix(_)) => Ok(address),
    }
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
    let address = Address::Unix(base?.join(path));
    Some(Ok(Candidate { address, from: from.to_owned() }))
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

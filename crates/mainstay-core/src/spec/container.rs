//! A server in a container: its image, and what it is allowed.
//!
//! The defaults are strict. Whatever loosens them is a field of its own, so that it can be shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EnvVar, Transport};
use crate::human_bytes;
use crate::text::text_newtype;

/// The tag of an image that was named without one.
const LATEST: &str = "latest";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerSpec {
    pub image: ImageRef,
    /// The arguments of its entry point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Which kind of engine runs it; none until one has been chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// Where that engine is reached, such as `unix:///var/run/docker.sock`; none until one has been
    /// found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Variables given by the user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvVar>,
    /// What it sees of this machine's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The network it is in; none for the engine's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The user in the container; none for the image's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default)]
    pub limits: Limits,
    /// How it speaks MCP; a port is one inside the container.
    #[serde(default)]
    pub transport: Transport,
}

impl ContainerSpec {
    /// A container of this image with defaults.
    pub fn new(image: ImageRef) -> Self {
        Self {
            image,
            args: Vec::new(),
            engine: None,
            host: None,
            env: BTreeMap::new(),
            volumes: Vec::new(),
            network: None,
            user: None,
            limits: Limits::default(),
            transport: Transport::default(),
        }
    }
}

/// A kind of container engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Docker, and engines that cannot be distinguished from it.
    Docker,
    /// Podman, which has Docker's API.
    Podman,
}

impl EngineKind {
    /// The engine as the word that flags, tables and JSON carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a container is allowed. The default is what a well-behaved server needs, and no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How much memory it may use, in bytes; none for no limit.
    pub memory: Option<u64>,
    /// How many processes it may have; none for no limit.
    pub pids: Option<u32>,
    /// Capabilities it keeps; all others are dropped.
    pub cap_add: BTreeSet<String>,
    /// Whether its processes may gain privileges, as by a set-uid program.
    pub new_privileges: bool,
    /// Whether it may not write to its own files.
    pub read_only: bool,
    /// Whether its first process is a small one that passes on signals and collects orphans, and the
    /// server the second.
    pub init: bool,
}

impl Limits {
    /// The memory a container may use unless its user says otherwise.
    pub const MEMORY: u64 = 512 * 1024 * 1024;
    /// The processes a container may have unless its user says otherwise.
    pub const PIDS: u32 = 256;

    /// Everything that is looser than the default, in words; the network is part of that.
    pub fn loosened(&self, network: Option<&str>) -> Vec<String> {
        let memory = match self.memory {
            None => Some("no memory limit".to_owned()),
            Some(bytes) if bytes > Self::MEMORY => {
                let (given, usual) = (human_bytes(bytes), human_bytes(Self::MEMORY));
                Some(format!("memory {given} instead of {usual}"))
            }
            Some(_) => None,
        };
        let pids = match self.pids {
            None => Some("no limit of processes".to_owned()),
            Some(pids) if pids > Self::PIDS => {
                Some(format!("{pids} processes instead of {}", Self::PIDS))
            }
            Some(_) => None,
        };
        let capabilities = self.cap_add.iter().map(|name| match name.as_str() {
            "ALL" => "keeps all capabilities".to_owned(),
            name => format!("keeps capability {name}"),
        });
        let privileges = self.new_privileges.then(|| "may gain privileges".to_owned());
        let network = (network == Some("host")).then(|| "host network".to_owned());
        capabilities.chain(privileges).chain(network).chain(memory).chain(pids).collect()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: Some(Self::MEMORY),
            pids: Some(Self::PIDS),
            cap_add: BTreeSet::new(),
            new_privileges: false,
            read_only: false,
            init: true,
        }
    }
}

/// A directory, file or named volume that a container sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Volume {
    /// An absolute path of this machine, or the name of a volume.
    pub source: String,
    /// An absolute path in the container.
    pub target: String,
    /// Whether it cannot be written to.
    pub read_only: bool,
}

/// Why a text is not a [`Volume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// It has too few or too many parts.
    #[error("write it as SOURCE:TARGET or SOURCE:TARGET:ro")]
    Shape,
    #[error("its target must be an absolute path in the container")]
    Target,
    /// The source is a relative path, which means something else elsewhere.
    #[error("its source must be an absolute path or the name of a volume")]
    Source,
    #[error("it may end with `:ro` or `:rw` only")]
    Mode,
}

impl FromStr for Volume {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, target, read_only) = match parts[..] {
            [source, target] | [source, target, "rw"] => (source, target, false),
            [source, target, "ro"] => (source, target, true),
            [_, _, _] => return Err(VolumeError::Mode),
            _ => return Err(VolumeError::Shape),
        };
        if source.is_empty() || text.contains('\0') {
            return Err(VolumeError::Shape);
        }
        if !target.starts_with('/') {
            return Err(VolumeError::Target);
        }
        let name = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
        let named = source.starts_with(|char: char| char.is_ascii_alphanumeric())
            && source.chars().all(name);
        if !source.starts_with('/') && !named {
            return Err(VolumeError::Source);
        }
        Ok(Self { source: source.to_owned(), target: target.to_owned(), read_only })
    }
}

impl TryFrom<String> for Volume {
    type Error = VolumeError;

    fn try_from(text: String) -> Result<Self, VolumeError> {
        text.parse()
    }
}

impl From<Volume> for String {
    fn from(volume: Volume) -> Self {
        volume.to_string()
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.target)?;
        if self.read_only { f.write_str(":ro") } else { Ok(()) }
    }
}

/// The name of an image, with a tag or a digest; `latest` if it was given without.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageRef(String);

/// Why a text is not an [`ImageRef`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    #[error("the name of an image must not be empty")]
    Empty,
    /// Names are in lower case.
    #[error("the name of an image is in lower case; only its tag may have capitals")]
    Case,
    /// It has invalid characters.
    #[error(
        "it is not the name of an image: write it as [REGISTRY/]NAME[:TAG] or [REGISTRY/]NAME@DIGEST"
    )]
    Malformed,
}

text_newtype!(ImageRef, ImageError);

impl ImageRef {
    /// The name without tag and digest, and the tag or digest.
    pub fn parts(&self) -> (&str, &str) {
        // A tag was added when there was none.
        split(&self.0).unwrap_or((&self.0, LATEST))
    }
}

/// Splits a name from its tag or digest. The colon of a registry's port does not count.
fn split(text: &str) -> Option<(&str, &str)> {
    text.split_once('@').or_else(|| {
        let (name, tag) = text.rsplit_once(':')?;
        (!tag.contains('/')).then_some((name, tag))
    })
}

impl FromStr for ImageRef {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        if text.is_empty() {
            return Err(ImageError::Empty);
        }
        let (name, version) = split(text).unwrap_or((text, LATEST));
        let path = name.split_once('/').map_or(name, |(_, path)| path);
        if path.contains(|char: char| char.is_ascii_uppercase()) {
            return Err(ImageError::Case);
        }
        let part = |part: &str| {
            let ends = |char: char| char.is_ascii_alphanumeric();
            part.starts_with(ends)
                && part.ends_with(ends)
                && part.chars().all(|char| ends(char) || "._-:".contains(char))
        };
        let tag = |char: char| char.is_ascii_alphanumeric() || "._-:".contains(char);
        let sound = name.split('/').all(part)
            && !path.contains(':')
            && !version.is_empty()
            && version.chars().all(tag)
            && version.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '_');
        if !sound {
            return Err(ImageError::Malformed);
        }
        let joint = if text.contains('@') { '@' } else { ':' };
        Ok(Self(format!("{name}{joint}{version}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_tag_or_a_digest() {
        let check = |text: &str, expected: (&str, &str)| {
            assert_eq!(text.parse::<ImageRef>().unwrap().parts(), expected, "{text}");
        };
        check("time", ("time", "latest"));
        check("mcp/time:1.2-Beta_3", ("mcp/time", "1.2-Beta_3"));
        check("localhost:5000/mcp/time", ("localhost:5000/mcp/time", "latest"));
        check("ghcr.io/a/b__c:x", ("ghcr.io/a/b__c", "x"));
        check("a@sha256:00ff", ("a", "sha256:00ff"));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let check = |text: &str, expected| {
            assert_eq!(text.parse::<ImageRef>(), Err(expected), "{text}");
        };
        check("", ImageError::Empty);
        check("Time", ImageError::Case);
        check("mcp/Time", ImageError::Case);
        for text in ["a b", "-a", "a/", "/a", "a:", "a::b", "a@", "a//b", "a:b/c:d:e", "a\n", "ä"]
        {
            check(text, ImageError::Malformed);
        }
    }

    #[test]
    fn only_what_is_looser_than_the_default_is_told() {
        let strict = Limits {
            memory: Some(Limits::MEMORY / 2),
            pids: Some(1),
            read_only: true,
            init: false,
            ..Limits::default()
        };
        for limits in [Limits::default(), strict] {
            for network in [None, Some("none"), Some("mine")] {
                assert_eq!(limits.loosened(network), [""; 0]);
            }
        }
        let loose = Limits {
            memory: Some(4 * Limits::MEMORY),
            pids: Some(1_000),
            cap_add: ["NET_ADMIN", "CHOWN"].map(str::to_owned).into(),
            new_privileges: true,
            ..Limits::default()
        };
        let expected = [
            "keeps capability CHOWN",
            "keeps capability NET_ADMIN",
            "may gain privileges",
            "host network",
            "memory 2 GiB instead of 512 MiB",
            "1000 processes instead of 256",
        ];
        assert_eq!(loose.loosened(Some("host")), expected);
        let cap_add = ["ALL".to_owned()].into();
        let unlimited = Limits { memory: None, pids: None, cap_add, ..Limits::default() };
        let expected = ["keeps all capabilities", "no memory limit", "no limit of processes"];
        assert_eq!(unlimited.loosened(None), expected);
    }

    #[test]
    fn a_volume_is_written_as_it_is_read() {
        for text in ["/a:/b", "/a b:/c:ro", "data.1:/d"] {
            assert_eq!(text.parse::<Volume>().unwrap().to_string(), text);
        }
        assert_eq!("/a:/b:rw".parse::<Volume>().unwrap().to_string(), "/a:/b");
    }

    #[test]
    fn what_is_no_volume_is_refused_with_a_reason() {
        let check = |text: &str, expected| {
            assert_eq!(text.parse::<Volume>(), Err(expected), "{text}");
        };
        check("/a", VolumeError::Shape);
        check(":/a", VolumeError::Shape);
        check("/a:/b:ro:z", VolumeError::Shape);
        check("/a:b", VolumeError::Target);
        check("./a:/b", VolumeError::Source);
        check("a/b:/b", VolumeError::Source);
        check("/a:/b:z", VolumeError::Mode);
    }
}

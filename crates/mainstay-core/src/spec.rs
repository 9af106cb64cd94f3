//! The spec of a server, as it is stored and exported.
//!
//! Stored specs stay readable: a field that was added later has a default, and a field that was moved is also
//! read from its old place.

mod clients;
mod container;
mod proxy;
mod remote;
mod stored;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::clients::{ClientSettings, NoSuchMode, RefreshMode};
pub use self::container::{
    ContainerSpec, EngineKind, ImageError, ImageRef, Limits, Volume, VolumeError,
};
pub use self::proxy::{ProxyProblem, ProxySettings, TimeLimit};
pub use self::remote::{HeaderError, HeaderName, HeaderValue, RemoteSpec, RemoteUrl, UrlError};
use self::stored::Stored;
use crate::policy::{LONGEST, LONGEST_STOP_TIMEOUT, SHORTEST_SILENCE};
use crate::{RestartPolicy, ServerName};

/// Engines refuse to start a container with less.
const LEAST_MEMORY: u64 = 6 * 1024 * 1024;

/// Whether a server should run. Besides the spec, nothing else about a server is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// It should be up.
    On,
    /// It should be stopped.
    Off,
    /// It should be stopped and removed.
    Gone,
}

/// One server as its user described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct ServerSpec {
    /// Its name, unique in one instance of Mainstay.
    pub name: ServerName,
    pub workload: Workload,
    /// When it is started again.
    pub restart: RestartPolicy,
    /// How Mainstay passes requests to it.
    pub proxy: ProxySettings,
    /// Which clients get an entry for it.
    pub clients: ClientSettings,
}

/// What is run, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    Process(ProcessSpec),
    Container(ContainerSpec),
    Remote(RemoteSpec),
}

/// What kind of workload a run is, and so which engine it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    Process,
    Container,
    /// A server that is reached by a URL.
    Remote,
}

impl WorkloadKind {
    pub const ALL: [Self; 3] = [Self::Process, Self::Container, Self::Remote];
}

impl Workload {
    pub fn kind(&self) -> WorkloadKind {
        match self {
            Self::Process(_) => WorkloadKind::Process,
            Self::Container(_) => WorkloadKind::Container,
            Self::Remote(_) => WorkloadKind::Remote,
        }
    }

    /// The name of the engine that runs it.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Process(_) => "process",
            Self::Container(container) => container.engine.unwrap_or(EngineKind::Docker).as_str(),
            Self::Remote(_) => "remote",
        }
    }

    /// How it speaks MCP, as the word that tables and JSON carry.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Process(process) => process.transport.as_str(),
            Self::Container(container) => container.transport.as_str(),
            Self::Remote(_) => "streamable-http",
        }
    }

    /// How it speaks MCP; none if it is reached by a URL.
    pub fn local_transport(&self) -> Option<&Transport> {
        match self {
            Self::Process(process) => Some(&process.transport),
            Self::Container(container) => Some(&container.transport),
            Self::Remote(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// The program and its arguments; never empty in a valid spec.
    pub command: Vec<String>,
    /// Where it runs: an absolute path.
    pub cwd: PathBuf,
    /// Variables given by the user, added to the allow-listed ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvVar>,
    /// The search path of the user who created the server; the login PATH is searched after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default)]
    pub transport: Transport,
}

/// The value of an environment variable. It may be a secret, so debug output redacts it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnvVar(String);

impl EnvVar {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EnvVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// How a server on this machine speaks MCP.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Lines on standard input and output.
    #[default]
    Stdio,
    /// Streamable HTTP on a loopback port.
    StreamableHttp {
        port: u16,
        /// The path of its endpoint, beginning with `/` and without a query.
        path: String,
    },
}

impl Transport {
    /// The transport as the word that flags, tables and JSON carry.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::StreamableHttp { .. } => "streamable-http",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("server `{0}` has no command: give one after `--`")]
    NoCommand(ServerName),
    #[error("the working directory `{}` of server `{name}` is not an absolute path", cwd.display())]
    RelativeCwd { name: ServerName, cwd: PathBuf },
    /// A text contains a NUL byte, which cannot be passed to a process.
    #[error("{what} of server `{name}` contains a NUL byte")]
    Nul { name: ServerName, what: String },
    /// A name of a variable is empty or contains `=`.
    #[error("`{variable}` of server `{name}` is not the name of an environment variable")]
    BadVariable { name: ServerName, variable: String },
    /// An HTTP server needs a real port and the path of a URL.
    #[error("server `{name}`: {problem}")]
    BadEndpoint { name: ServerName, problem: String },
    /// A duration is absurdly long.
    #[error("`restart.{field}` of server `{name}` is longer than 10 years")]
    TooLong { name: ServerName, field: &'static str },
    /// A healthy run may be slow for a moment.
    #[error("`restart.{field}` of server `{name}` is too short: give at least 1s")]
    TooShort { name: ServerName, field: &'static str },
    /// `daemon stop` would not wait for it.
    #[error("`restart.stop-timeout` of server `{0}` is too long: give at most 90s")]
    LongStop(ServerName),
    /// A start that may take no time could never succeed.
    #[error("`restart.start-timeout` of server `{0}` must be above zero")]
    NoTimeToStart(ServerName),
    /// A container that speaks HTTP must be reachable.
    #[error("server `{0}` speaks HTTP, so it cannot be without a network")]
    Unreachable(ServerName),
    #[error("`{capability}` of server `{name}` is not a capability: write it like NET_ADMIN")]
    BadCapability { name: ServerName, capability: String },
    /// A limit is so low that nothing could run.
    #[error("`limits.{field}` of server `{name}` is too low: give at least {least}")]
    TooLow { name: ServerName, field: &'static str, least: &'static str },
    #[error("server `{name}`: {problem}")]
    BadProxy { name: ServerName, problem: ProxyProblem },
}

impl ServerSpec {
    /// Checks what types alone cannot.
    pub fn validate(&self) -> Result<(), SpecError> {
        match &self.workload {
            Workload::Process(process) => {
                self.validate_process(process)?;
                self.validate_endpoint(&process.transport)?;
            }
            Workload::Container(container) => {
                self.validate_container(container)?;
                self.validate_endpoint(&container.transport)?;
            }
            // Its types guarantee validity.
            Workload::Remote(_) => {}
        }
        self.validate_policy()?;
        let checked = self.proxy.check(&self.workload);
        checked.map_err(|problem| SpecError::BadProxy { name: self.name.clone(), problem })
    }

    fn validate_process(&self, process: &ProcessSpec) -> Result<(), SpecError> {
        let name = || self.name.clone();
        if process.command.first().is_none_or(String::is_empty) {
            return Err(SpecError::NoCommand(name()));
        }
        if !process.cwd.is_absolute() {
            return Err(SpecError::RelativeCwd { name: name(), cwd: process.cwd.clone() });
        }
        if process.command.iter().any(|part| part.contains('\0')) {
            return Err(SpecError::Nul { name: name(), what: "the command".to_owned() });
        }
        self.validate_env(&process.env)
    }

    fn validate_container(&self, container: &ContainerSpec) -> Result<(), SpecError> {
        let name = || self.name.clone();
        let limits = &container.limits;
        let too_low = |field, least| SpecError::TooLow { name: self.name.clone(), field, least };
        if limits.memory.is_some_and(|memory| memory < LEAST_MEMORY) {
            return Err(too_low("memory", "6 MiB"));
        }
        if limits.pids == Some(0) {
            return Err(too_low("pids", "1"));
        }
        let odd = |name: &&String| {
            name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        };
        if let Some(capability) = limits.cap_add.iter().find(odd) {
            return Err(SpecError::BadCapability { name: name(), capability: capability.clone() });
        }
        let texts = container.args.iter().chain(&container.network).chain(&container.user);
        if texts.chain(&container.host).any(|text| text.contains('\0')) {
            return Err(SpecError::Nul { name: name(), what: "an argument".to_owned() });
        }
        let speaks_http = container.transport != Transport::Stdio;
        if speaks_http && container.network.as_deref() == Some("none") {
            return Err(SpecError::Unreachable(name()));
        }
        self.validate_env(&container.env)
    }

    fn validate_env(&self, env: &BTreeMap<String, EnvVar>) -> Result<(), SpecError> {
        let name = || self.name.clone();
        for (variable, value) in env {
            if variable.is_empty() || variable.contains(['=', '\0']) {
                return Err(SpecError::BadVariable { name: name(), variable: variable.clone() });
            }
            if value.reveal().contains('\0') {
                return Err(SpecError::Nul {
                    name: name(),
                    what: format!("variable `{variable}`"),
                });
            }
        }
        Ok(())
    }

    fn validate_endpoint(&self, transport: &Transport) -> Result<(), SpecError> {
        let problem = match transport {
            Transport::Stdio => None,
            Transport::StreamableHttp { port: 0, .. } => {
                Some("the target port must not be 0".to_owned())
            }
            Transport::StreamableHttp { path, .. } => path_problem(path),
        };
        problem.map_or(Ok(()), |problem| {
            Err(SpecError::BadEndpoint { name: self.name.clone(), problem })
        })
    }

    fn validate_policy(&self) -> Result<(), SpecError> {
        let too_long = |(field, duration)| (duration > LONGEST).then_some(field);
        if let Some(field) = self.restart.durations().find_map(too_long) {
            return Err(SpecError::TooLong { name: self.name.clone(), field });
        }
        let too_short = |(field, limit)| (limit < SHORTEST_SILENCE).then_some(field);
        if let Some(field) = self.restart.silence_limits().find_map(too_short) {
            return Err(SpecError::TooShort { name: self.name.clone(), field });
        }
        if self.restart.stop_timeout > LONGEST_STOP_TIMEOUT {
            return Err(SpecError::LongStop(self.name.clone()));
        }
        if self.restart.start_timeout.is_zero() {
            return Err(SpecError::NoTimeToStart(self.name.clone()));
        }
        Ok(())
    }
}

/// Why a text cannot be the path of a URL.
fn path_problem(path: &str) -> Option<String> {
    let shown = path.escape_debug();
    if !path.starts_with('/') {
        return Some(format!("the path `{shown}` must begin with `/`"));
    }
    let wrong = path.chars().find(|&char| !is_path_char(char))?;
    Some(format!("the path `{shown}` contains {wrong:?}, which the path of a URL cannot"))
}

/// Whether a URL may have this in its path unescaped (RFC 3986). The single quote
/// is excluded because many programs take it for the end of a URL.
fn is_path_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || "/-._~%!$&()*+,;=:@".contains(char)
}

#[cfg(test)]
mod tests;

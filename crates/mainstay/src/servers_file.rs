//! Servers as one reviewable TOML file, version 1.
//!
//! ```toml
//! version = 1
//!
//! [servers.time]
//! command = ["uvx", "mcp-server-time"]
//! cwd = "/home/me"
//! env.TOKEN = { from-env = "TOKEN" }
//! clients = ["cursor"]
//! proxy.replay = ["convert"]
//! restart.max = 3
//!
//! [servers.notes]
//! image = "mcp/filesystem:latest"
//! args = ["/notes"]
//! volumes = ["/home/me/notes:/notes:ro"]
//! limits.memory = "1g"
//!
//! [servers.docs]
//! url = "https://example.com/mcp"
//! headers.authorization = { from-env = "DOCS_AUTHORIZATION" }
//! ```
//!
//! Only what differs from the default is written, and never the value of a variable or a header. Values in
//! URLs and arguments that may be secrets are written as `HIDDEN-BY-MAINSTAY`, which reading refuses. Reading
//! refuses unknown keys, with line and column, and files of a newer version.

mod read;
mod redact;
mod schema;
mod write;

use mainstay_core::{ServerName, ServerSpec, SpecError, Workload};

use self::read::Values;
use self::schema::{File, Head};
use crate::context::Caller;

const VERSION: u32 = 1;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{}", .0.to_string().trim_end())]
    Toml(#[from] toml::de::Error),
    #[error("the file has version {0}, and this program reads version {VERSION}")]
    Version(u32),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("server `{name}`: {problem}")]
    Server { name: ServerName, problem: String },
    #[error("these variables are not set in your environment: {}", .0.join(", "))]
    Unset(Vec<String>),
}

impl ReadError {
    pub(crate) fn help(&self) -> Option<String> {
        let help = match self {
            Self::Version(_) => "use a newer version of Mainstay",
            Self::Unset(_) => "set them and try again: the file has only their names",
            Self::Toml(_) | Self::Spec(_) | Self::Server { .. } => return None,
        };
        Some(help.to_owned())
    }
}

/// The file's text for these servers.
pub(crate) fn write(specs: &[ServerSpec]) -> String {
    let mut text = format!("version = {VERSION}\n");
    for spec in specs {
        write::write_server(&mut text, spec);
    }
    text
}

/// The servers of a file, each of them valid. Variables come from the caller's environment; what the file leaves out
/// because it may be a secret comes from those of the servers `held` that are replaced.
pub(crate) fn read(
    text: &str,
    caller: &Caller,
    held: &[ServerSpec],
) -> Result<Vec<ServerSpec>, ReadError> {
    let Head { version } = toml::from_str(text)?;
    if version != VERSION {
        return Err(ReadError::Version(version));
    }
    let file: File = toml::from_str(text)?;
    let mut unset = Vec::new();
    let mut specs = Vec::new();
    for (name, server) in file.servers {
        let held = held.iter().find(|held| held.name == name).map(|held| &held.workload);
        let spec = server.into_spec(name, &mut Values { caller, held, unset: &mut unset })?;
        spec.validate()?;
        refuse_placeholder(&spec)?;
        specs.push(spec);
    }
    if unset.is_empty() {
        return Ok(specs);
    }
    unset.sort();
    unset.dedup();
    Err(ReadError::Unset(unset))
}

/// Whether the text contains the placeholder of redacted values.
pub(crate) fn has_placeholder(text: &str) -> bool {
    text.contains(redact::PLACEHOLDER)
}

/// Refuses a server with redacted values.
fn refuse_placeholder(spec: &ServerSpec) -> Result<(), ReadError> {
    let is_redacted = match &spec.workload {
        Workload::Process(process) => process.command.iter().any(|text| has_placeholder(text)),
        Workload::Container(container) => container.args.iter().any(|text| has_placeholder(text)),
        Workload::Remote(remote) => has_placeholder(remote.url.as_str()),
    };
    if !is_redacted {
        return Ok(());
    }
    let problem =
        format!("replace {} with the values that the export left out", redact::PLACEHOLDER);
    Err(ReadError::Server { name: spec.name.clone(), problem })
}

#[cfg(test)]
mod tests;

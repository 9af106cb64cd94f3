//! What the daemon tells about clients and their files. These are the shapes that `--json` prints.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mainstay_core::ServerName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One client, as `client ls --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientInfo {
    /// What it is called on the command line.
    pub id: String,
    /// What its makers call it.
    pub product: String,
    /// Whether it is installed.
    pub installed: bool,
    /// What shows that, for people.
    pub installed_because: Option<String>,
    /// Whether it gets entries for all servers that name no clients of their own.
    pub chosen: bool,
    /// Its file.
    pub file: PathBuf,
    /// Whether that file exists.
    pub exists: bool,
    /// The entries in its file; then those of ours that are not in it.
    pub entries: Vec<ClientEntry>,
    /// Why its file cannot be read, or not be written although entries are to be in it.
    pub problem: Option<String>,
}

/// One entry of a client's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientEntry {
    /// Its name, which is the server's if it is ours.
    pub name: String,
    /// Whose it is, and how it stands.
    pub standing: EntryStanding,
    /// Whether one of our servers is to have an entry of this name here.
    #[serde(default)]
    pub wanted: bool,
    /// Whether it is somebody else's and leads to our server all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads_to_server: bool,
    /// Those of our fields that say something else than what we wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drifted: Vec<String>,
    /// Our fields in it, if it is ours and in the file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub says: BTreeMap<String, Value>,
    /// The names of the user's own fields in it; their values may be secrets and are not shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_fields: Vec<String>,
}

/// Whose an entry is, and how it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EntryStanding {
    /// It is ours, as we wrote it.
    Ours,
    /// It is ours, but somebody changed some of our fields.
    Drifted,
    /// It is ours, and taken out: it is added again when the server is ready.
    Away,
    /// It was ours, and somebody took it out.
    Withdrawn,
    /// It is ours and meant to be there, but is not.
    Missing,
    /// It is somebody else's.
    Foreign,
}

/// A server's entry in one client's file, as `status --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Registration {
    /// The client's id.
    pub client: String,
    /// What its makers call it.
    pub product: String,
    /// Its file.
    pub file: PathBuf,
    /// How the entry stands.
    pub standing: EntryStanding,
}

/// What was done to one client's file about one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientReport {
    /// The client's id.
    pub client: String,
    /// The server.
    pub server: ServerName,
    /// What was done, in one word.
    pub done: ClientDone,
    /// The same in one line for people, with the file.
    pub text: String,
}

/// What was done to a client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientDone {
    /// The entry was added, or added again.
    Added,
    /// It was brought up to date.
    Updated,
    /// It was removed.
    Removed,
    /// Nothing had to be done.
    Nothing,
    /// It is added once the server is ready.
    Waits,
    /// It was left alone, because it is not ours or was changed or removed by hand.
    Left,
    /// It could not be done.
    Failed,
}

impl ClientDone {
    /// Whether it is reported to the user.
    pub fn is_worth_telling(self) -> bool {
        self != Self::Nothing
    }
}

//! Types about clients and their files, as `--json` prints them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mainstay_core::ServerName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One client, as `client ls --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientInfo {
    /// Its id on the command line.
    pub id: String,
    /// The name of the product.
    pub product: String,
    /// Whether it is installed.
    pub installed: bool,
    /// Why it counts as installed, as text.
    pub installed_because: Option<String>,
    /// Whether it gets entries for all servers that name no clients of their own.
    pub chosen: bool,
    /// Its file.
    pub file: PathBuf,
    /// Whether that file exists.
    pub exists: bool,
    /// The entries in its file; then those of Mainstay that are not in it.
    pub entries: Vec<ClientEntry>,
    /// Why its file cannot be read, or cannot be written although it should have entries.
    pub problem: Option<String>,
}

/// One entry of a client's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientEntry {
    /// Its name; for an entry of Mainstay, that of the server.
    pub name: String,
    /// Who wrote it, and its state.
    pub standing: EntryStanding,
    /// Whether a server should have an entry of this name here.
    #[serde(default)]
    pub wanted: bool,
    /// Whether it is the user's own entry for a server of Mainstay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads_to_server: bool,
    /// Fields of Mainstay with changed values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drifted: Vec<String>,
    /// The fields that Mainstay wrote, if the entry is in the file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub says: BTreeMap<String, Value>,
    /// The names of the user's own fields in it; their values may be secrets and are not shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_fields: Vec<String>,
}

/// Who wrote an entry, and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EntryStanding {
    /// As Mainstay wrote it.
    Ours,
    /// Written by Mainstay, but some of its fields were changed.
    Drifted,
    /// Removed by Mainstay until the server is ready.
    Away,
    /// Written by Mainstay, and removed by hand.
    Withdrawn,
    /// It should exist, but does not.
    Missing,
    /// The user's own entry.
    Foreign,
}

/// A server's entry in one client's file, as `status --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Registration {
    /// The client's id.
    pub client: String,
    /// The name of the product.
    pub product: String,
    /// Its file.
    pub file: PathBuf,
    /// The state of the entry.
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
    /// The same as one line of text, with the file.
    pub text: String,
}

/// What was done to a client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientDone {
    /// The entry was added, or added again.
    Added,
    /// It was updated.
    Updated,
    /// It was removed.
    Removed,
    /// Nothing had to be done.
    Nothing,
    /// It is added once the server is ready.
    Waits,
    /// It was not changed, because it is the user's own, or was changed or removed by hand.
    Left,
    /// It could not be done.
    Failed,
}

impl ClientDone {
    /// Whether it is shown to the user.
    pub fn is_worth_telling(self) -> bool {
        self != Self::Nothing
    }
}

//! The whole change of a file: ledger, locks, read, edit, check, backup, and the way to the disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use mainstay_clients::{Machine, Purpose, Registrar};
use serde::Serialize;

use super::edit::target;
use super::{ClientBenchError, Cost, Document, Stopwatch};

#[derive(Debug, Serialize)]
pub(super) struct Times {
    pub(super) add: Cost,
    pub(super) remove: Cost,
    /// What the same bytes take with nothing of ours: a temporary file, brought to disk and moved into
    /// place, and the directory.
    pub(super) disk: Cost,
}

/// Adds an entry and removes it, in the same file again and again.
pub(super) fn measure(document: &Document, edits: u32) -> Result<Times, ClientBenchError> {
    let Document { client, text, .. } = document;
    let root = tempfile::tempdir().map_err(ClientBenchError::SetUp)?;
    let home = root.path().join("home");
    let file = home.join(document.path);
    set_up(&file, text).map_err(ClientBenchError::SetUp)?;
    let registrar =
        Registrar::new(root.path().join("state"), Machine { home, env: BTreeMap::new() });
    let server = "time".parse().expect("a short word is a name");
    let (mut add, mut remove) = (Stopwatch::default(), Stopwatch::default());
    let mut disk = Stopwatch::default();
    for _ in 0..edits {
        let change = add.time(|| registrar.add(client.id, &server, &target()))?;
        if !change.wrote() {
            return Err(ClientBenchError::Harmed { client: client.id, what: "nothing was added" });
        }
        let removed = remove.time(|| registrar.remove(client.id, &server, Purpose::ForGood));
        removed.into_iter().collect::<Result<Vec<_>, _>>()?;
        let left = fs::read_to_string(&file).map_err(ClientBenchError::SetUp)?;
        if left != *text {
            return Err(ClientBenchError::Harmed { client: client.id, what: "its bytes changed" });
        }
        disk.time(|| replace(&file, text)).map_err(ClientBenchError::SetUp)?;
    }
    Ok(Times { add: add.cost(), remove: remove.cost(), disk: disk.cost() })
}

fn set_up(file: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    fs::write(file, text)
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let temporary = file.with_extension("tmp");
    let mut new = File::create(&temporary)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    fs::rename(&temporary, file)?;
    File::open(file.parent().unwrap_or(file))?.sync_all()
}

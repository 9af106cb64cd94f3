//! The result of an operation.

use std::fmt;
use std::path::PathBuf;

use crate::ledger::{Done, Left};
use crate::table::Client;

/// What an operation did to one file. Displayed as one line.
#[derive(Debug, Clone)]
pub struct Change {
    pub client: &'static Client,
    pub file: PathBuf,
    /// The name of the server and of its entry.
    pub server: String,
    pub done: Done,
    /// The user's own fields in a permanently removed entry.
    pub own_fields: Vec<String>,
    /// Whether the client rejects the file, for a reason that is not our entry.
    pub is_rejected: bool,
}

impl Change {
    /// Whether the file was changed.
    pub fn wrote(&self) -> bool {
        match self.done {
            Done::Added | Done::Updated | Done::Removed | Done::PutBack => true,
            Done::AlreadyThere | Done::NotThere | Done::Left(_) => false,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_done(f)?;
        if self.is_rejected {
            let product = self.client.product;
            write!(
                f,
                "; the file begins with a byte order mark, which {product} rejects: save it without"
            )?;
        }
        Ok(())
    }
}

impl Change {
    fn fmt_done(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, server, .. } = self;
        let file = self.file.display();
        let place = format!("{} ({file})", client.product);
        match &self.done {
            Done::Added => write!(f, "added `{server}` to {place}"),
            Done::Updated => write!(f, "brought `{server}` up to date in {place}"),
            Done::Removed => {
                write!(f, "removed `{server}` from {place}")?;
                match self.own_fields.as_slice() {
                    [] => Ok(()),
                    [one] => write!(f, ", with your field `{one}`"),
                    [several @ .., last] => {
                        let several = several.join("`, `");
                        write!(f, ", with your fields `{several}` and `{last}`")
                    }
                }
            }
            Done::PutBack => write!(f, "put `{server}` back into {place}"),
            Done::AlreadyThere => write!(f, "`{server}` is already in {place}"),
            Done::NotThere => write!(f, "`{server}` is not in {place}"),
            Done::Left(Left::Foreign) => {
                write!(f, "left `{server}` in {place} alone: Mainstay did not write this entry")
            }
            Done::Left(Left::Drifted { fields }) => {
                let fields = fields.join("`, `");
                write!(f, "left `{server}` in {place} alone: `{fields}` was changed by hand")
            }
            Done::Left(Left::Withdrawn) => {
                write!(f, "left `{server}` out of {place}: it was removed by hand")
            }
        }
    }
}

//! The schemas of the store there have been. A released step never changes: files were made with it.

use super::schema::{Schema, Step};

/// The store of intent.
pub(super) const INTENT: Schema = Schema {
    steps: &[
        Step {
            what: "servers, and what belongs to the instance as a whole",
            make: |tx| {
                tx.execute_batch(
                    "CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL)
                         STRICT, WITHOUT ROWID;
                     CREATE TABLE servers (
                         name TEXT PRIMARY KEY,
                         spec TEXT NOT NULL,
                         wanted TEXT NOT NULL,
                         created_at TEXT NOT NULL
                     ) STRICT, WITHOUT ROWID;",
                )
            },
        },
        Step {
            what: "clients that were chosen or named",
            make: |tx| {
                tx.execute_batch(
                    "CREATE TABLE clients (
                         id TEXT PRIMARY KEY,
                         chosen INTEGER NOT NULL,
                         around TEXT NOT NULL
                     ) STRICT, WITHOUT ROWID;",
                )
            },
        },
    ],
    synchronous: "full",
};

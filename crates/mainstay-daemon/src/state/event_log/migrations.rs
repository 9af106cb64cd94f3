//! The schemas of the event log there have been. A released step never changes: files were made with it.

use crate::state::store::schema::{Schema, Step};

/// The event log.
pub(super) const EVENTS: Schema = Schema {
    steps: &[
        Step { what: "events", make: |tx| tx.execute_batch(FIRST) },
        Step {
            what: "who writes, and how far servers have come",
            make: |tx| {
                // The first version numbered a file before it made the tables, and may have died between.
                tx.execute_batch(FIRST)?;
                tx.execute_batch(
                    "CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL)
                         STRICT, WITHOUT ROWID;
                     CREATE TABLE progress (
                         server TEXT PRIMARY KEY,
                         content TEXT NOT NULL
                     ) STRICT, WITHOUT ROWID;",
                )
            },
        },
    ],
    synchronous: "normal",
};

const FIRST: &str = "
    CREATE TABLE IF NOT EXISTS events (
        number INTEGER PRIMARY KEY,
        at TEXT NOT NULL,
        server TEXT,
        run INTEGER,
        event TEXT NOT NULL,
        cause TEXT,
        detail TEXT NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS events_by_server ON events (server, number);";

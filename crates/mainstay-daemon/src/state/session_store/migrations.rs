//! The schemas of the file of sessions there have been. A released step never changes: files were made with
//! it.

use crate::state::store::schema::{Schema, Step};

/// The file of sessions.
pub(super) const SESSIONS: Schema = Schema {
    steps: &[
        Step {
            what: "sessions, and the last good copies of what servers said",
            make: |tx| {
                // The first version numbered a file after it had made the tables, and may have died between.
                tx.execute_batch(
                    "CREATE TABLE IF NOT EXISTS sessions (
                         id TEXT PRIMARY KEY,
                         server TEXT NOT NULL,
                         params BLOB NOT NULL,
                         version TEXT NOT NULL,
                         initialized INTEGER NOT NULL,
                         level TEXT,
                         subscriptions TEXT NOT NULL,
                         created_at INTEGER NOT NULL,
                         used_at INTEGER NOT NULL
                     ) STRICT, WITHOUT ROWID;
                     CREATE INDEX IF NOT EXISTS sessions_by_server ON sessions (server);
                     CREATE TABLE IF NOT EXISTS copies (
                         server TEXT PRIMARY KEY,
                         content BLOB NOT NULL
                     ) STRICT;",
                )
            },
        },
        Step {
            what: "the runs that sessions have met",
            make: |tx| tx.execute_batch("ALTER TABLE sessions ADD COLUMN run INTEGER"),
        },
        Step {
            what: "the sessions of servers that speak HTTP, which those of clients go on in",
            make: |tx| tx.execute_batch("ALTER TABLE sessions ADD COLUMN upstream TEXT"),
        },
        Step {
            what: "the session clock, which stands still while the machine sleeps",
            make: |tx| {
                // How long sessions slept is unknown, so all ages start at zero.
                tx.execute_batch(
                    "ALTER TABLE sessions DROP COLUMN created_at;
                     ALTER TABLE sessions DROP COLUMN used_at;
                     ALTER TABLE sessions ADD COLUMN used INTEGER NOT NULL DEFAULT 0;
                     CREATE TABLE clock (milliseconds INTEGER NOT NULL) STRICT;
                     INSERT INTO clock VALUES (0);",
                )
            },
        },
    ],
    synchronous: "normal",
};

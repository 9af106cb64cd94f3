//! The schemas of the three databases. A released step never changes: files exist that were made with it.

use super::store::schema::Schema;

/// The table of events, and more SQL.
macro_rules! events_table {
    ($more:literal) => {
        concat!(
            "CREATE TABLE IF NOT EXISTS events (
                 number INTEGER PRIMARY KEY,
                 at TEXT NOT NULL,
                 server TEXT,
                 run INTEGER,
                 event TEXT NOT NULL,
                 cause TEXT,
                 detail TEXT NOT NULL
             ) STRICT;
             CREATE INDEX IF NOT EXISTS events_by_server ON events (server, number);",
            $more
        )
    };
}

/// The store of intent.
pub(crate) const INTENT: Schema = Schema {
    file: "state.db",
    what: "store",
    synchronous: "full",
    steps: &[
        // Servers, and values of the instance as a whole.
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
         CREATE TABLE servers (
             name TEXT PRIMARY KEY,
             spec TEXT NOT NULL,
             wanted TEXT NOT NULL,
             created_at TEXT NOT NULL
         ) STRICT, WITHOUT ROWID;",
        // Clients that were chosen or named.
        "CREATE TABLE clients (
             id TEXT PRIMARY KEY,
             chosen INTEGER NOT NULL,
             around TEXT NOT NULL
         ) STRICT, WITHOUT ROWID;",
    ],
};

/// The event log.
pub(crate) const EVENTS: Schema = Schema {
    file: "events.db",
    what: "event log",
    synchronous: "normal",
    steps: &[
        events_table!(""),
        // The number of the writer, and the progress of servers. The first version set the schema number before it
        // created the tables, and may have died in between.
        events_table!(
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
             CREATE TABLE progress (
                 server TEXT PRIMARY KEY,
                 content TEXT NOT NULL
             ) STRICT, WITHOUT ROWID;"
        ),
    ],
};

/// The sessions of clients.
pub(crate) const SESSIONS: Schema = Schema {
    file: "sessions.db",
    what: "file of sessions",
    synchronous: "normal",
    steps: &[
        // Sessions, and the list copies of servers. The first version set the schema number after it had created the
        // tables, and may have died in between.
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
        // The last run of each session.
        "ALTER TABLE sessions ADD COLUMN run INTEGER",
        // The upstream sessions of servers that speak HTTP.
        "ALTER TABLE sessions ADD COLUMN upstream TEXT",
        // The session clock, which stands still while the machine sleeps. How long sessions slept is unknown, so all
        // ages start at zero.
        "ALTER TABLE sessions DROP COLUMN created_at;
         ALTER TABLE sessions DROP COLUMN used_at;
         ALTER TABLE sessions ADD COLUMN used INTEGER NOT NULL DEFAULT 0;
         CREATE TABLE clock (milliseconds INTEGER NOT NULL) STRICT;
         INSERT INTO clock VALUES (0);",
    ],
};

//! The writer thread of the event log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Receiver;

use jiff::Timestamp;
use mainstay_api::EventRecord;
use mainstay_core::ServerName;
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;

use super::{Numbered, Part, Progress};

/// How many events are kept.
const KEEP: u64 = 50_000;

/// How many are kept in memory while they cannot be written.
const PENDING: usize = 1000;

/// How many events are read at a time.
const PAGE: usize = 1000;

/// Events are pruned after this many new ones.
const PRUNE_EVERY: u64 = 1000;

#[derive(Debug)]
pub(super) enum Request {
    Record(Numbered),
    SetProgress { server: ServerName, progress: Option<Progress> },
    Read { server: Option<ServerName>, part: Part, to: oneshot::Sender<Vec<Numbered>> },
    Close,
}

pub(super) struct Writer {
    connection: Connection,
    /// Writers are numbered, and only the newest writes.
    number: u64,
    pending: VecDeque<Numbered>,
    progress: BTreeMap<ServerName, Option<Progress>>,
    since_prune: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    Failing,
    /// Another writer has taken over.
    Fenced,
}

impl Writer {
    /// Takes over the log, and returns the number of the last event.
    pub(super) fn take_over(mut connection: Connection) -> rusqlite::Result<(Self, u64)> {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute(
            "INSERT INTO meta (key, value) VALUES ('writer', 1)
             ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1",
            [],
        )?;
        let number = newest_writer(&tx)?;
        let last: u64 =
            tx.query_row("SELECT coalesce(max(number), 0) FROM events", [], |row| row.get(0))?;
        tx.commit()?;
        let writer = Self {
            connection,
            number,
            pending: VecDeque::new(),
            progress: BTreeMap::new(),
            since_prune: 0,
            state: State::Ok,
        };
        Ok((writer, last))
    }

    pub(super) fn run(mut self, requests: &Receiver<Request>) {
        while let Ok(request) = requests.recv() {
            let mut next = Some(request);
            let mut closing = false;
            // Everything that is waiting goes into one transaction.
            while let Some(request) = next {
                match request {
                    Request::Record(event) => self.pending.push_back(event),
                    Request::SetProgress { server, progress } => {
                        self.progress.insert(server, progress);
                    }
                    Request::Read { server, part, to } => {
                        self.write();
                        // The receiver may have been dropped.
                        to.send(self.read(server.as_ref(), part)).ok();
                    }
                    Request::Close => closing = true,
                }
                next = requests.try_recv().ok();
            }
            self.write();
            if closing {
                return;
            }
        }
    }

    fn write(&mut self) {
        if self.pending.is_empty() && self.progress.is_empty() {
            return;
        }
        match self.write_pending() {
            Ok(true) => {
                self.since_prune += self.pending.len() as u64;
                self.written(State::Ok);
            }
            Ok(false) => {
                if self.state != State::Fenced {
                    tracing::info!("another daemon writes the event log now");
                }
                self.written(State::Fenced);
            }
            Err(error) => {
                if self.state != State::Failing {
                    tracing::error!(%error, "events cannot be written; the newest are kept in memory");
                }
                self.state = State::Failing;
                let excess = self.pending.len().saturating_sub(PENDING);
                self.pending.drain(..excess);
            }
        }
        self.prune();
    }

    fn written(&mut self, state: State) {
        self.pending.clear();
        self.progress.clear();
        self.state = state;
    }

    fn prune(&mut self) {
        if self.since_prune < PRUNE_EVERY {
            return;
        }
        self.since_prune = 0;
        let pruned = self.connection.execute(
            "DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?1
             AND number NOT IN (SELECT max(number) FROM events WHERE run IS NOT NULL
                                GROUP BY server)",
            [KEEP],
        );
        if let Err(error) = pruned {
            tracing::warn!(%error, "old events cannot be removed");
        }
    }

    /// Writes everything that is pending, or nothing. Returns false if another writer has taken over.
    fn write_pending(&mut self) -> rusqlite::Result<bool> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if newest_writer(&tx)? != self.number {
            return Ok(false);
        }
        write_events(&tx, &self.pending)?;
        write_progress(&tx, &self.progress)?;
        tx.commit()?;
        Ok(true)
    }

    fn read(&self, server: Option<&ServerName>, part: Part) -> Vec<Numbered> {
        let (after, limit, order) = match part {
            Part::Last(count) => (0, count.min(PAGE), "DESC"),
            Part::After(number) => (number, PAGE, "ASC"),
        };
        let select = || -> rusqlite::Result<Vec<Numbered>> {
            let mut select = self.connection.prepare_cached(&format!(
                "SELECT number, at, server, run, event, cause, detail FROM events
                 WHERE (?1 IS NULL OR server = ?1) AND number > ?2 ORDER BY number {order} LIMIT ?3"
            ))?;
            let limit = limit as u64;
            let server = server.map(ServerName::as_str);
            select.query_map(params![server, after, limit], numbered)?.collect()
        };
        let mut events = select().unwrap_or_else(|error| {
            tracing::error!(%error, "the event log cannot be read");
            Vec::new()
        });
        events.sort_unstable_by_key(|(number, _)| *number);
        let unwritten = self.pending.iter().filter(|(number, event)| {
            *number > after && (server.is_none() || event.server.as_ref() == server)
        });
        events.extend(unwritten.cloned());
        if let Part::Last(count) = part {
            let excess = events.len().saturating_sub(count);
            events.drain(..excess);
        }
        events
    }
}

fn newest_writer(tx: &Transaction<'_>) -> rusqlite::Result<u64> {
    let select = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'writer'";
    tx.prepare_cached(select)?.query_row([], |row| row.get(0))
}

fn write_events(tx: &Transaction<'_>, events: &VecDeque<Numbered>) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(
        "INSERT OR REPLACE INTO events (number, at, server, run, event, cause, detail)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for (number, event) in events {
        insert.execute(params![
            number,
            event.at.to_string(),
            event.server.as_ref().map(ServerName::as_str),
            event.run,
            event.event,
            event.cause,
            event.detail,
        ])?;
    }
    Ok(())
}

fn write_progress(
    tx: &Transaction<'_>,
    all: &BTreeMap<ServerName, Option<Progress>>,
) -> rusqlite::Result<()> {
    for (server, progress) in all {
        let server = server.as_str();
        match progress {
            Some(progress) => {
                let content = serde_json::to_string(progress)
                    .expect("numbers and text can be written as JSON");
                tx.prepare_cached(
                    "INSERT OR REPLACE INTO progress (server, content) VALUES (?1, ?2)",
                )?
                .execute([server, &content])?;
            }
            None => {
                tx.prepare_cached("DELETE FROM progress WHERE server = ?1")?.execute([server])?;
            }
        }
    }
    Ok(())
}

fn numbered(row: &Row<'_>) -> rusqlite::Result<Numbered> {
    let at: String = row.get(1)?;
    let server: Option<String> = row.get(2)?;
    let event = EventRecord {
        at: at.parse().unwrap_or(Timestamp::UNIX_EPOCH),
        server: server.and_then(|name| name.parse().ok()),
        run: row.get(3)?,
        event: row.get(4)?,
        cause: row.get(5)?,
        detail: row.get(6)?,
    };
    Ok((row.get(0)?, event))
}

//! What an edit of a client's file takes, and whether one ever does harm.
//!
//! The only measure that uses code of Mainstay's: what it times is a function, which no command line
//! shows alone. Everything is checked by comparing whole files, not by asking that code.

mod deaths;
mod document;
mod edit;
mod whole;

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use mainstay_clients::ClientError;
use mainstay_clients::edit::EditError;
use mainstay_clients::table::OnlyStdio;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tokio::time::Instant;

use crate::rig::{self, BenchError, Table, milliseconds};
use crate::stats::Percentiles;
use document::Document;

/// Measures edits of clients' files.
#[derive(Debug, clap::Parser)]
#[command(name = "client-bench", version)]
pub struct Options {
    /// How large the files are, in bytes.
    #[arg(long, default_value_t = 1_000_000)]
    size: usize,
    /// How often each is edited.
    #[arg(long, default_value_t = 200)]
    edits: u32,
    /// The tests of mainstay-clients, as a program: lets processes die in the middle of their edits.
    #[arg(long, value_name = "FILE")]
    tests: Option<PathBuf>,
    /// How many of them die.
    #[arg(long, default_value_t = 10_000)]
    deaths: u32,
    /// Also write the figures to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum ClientBenchError {
    /// The surroundings could not be set up.
    #[error("the files could not be set up")]
    SetUp(#[source] io::Error),
    /// A text could not be edited.
    #[error("a text could not be edited")]
    Edit(#[from] EditError),
    /// An entry could not be made.
    #[error("there is no entry for a client")]
    Entry(#[from] OnlyStdio),
    /// An entry could not be added or removed.
    #[error("a file could not be edited")]
    File(#[from] ClientError),
    /// A file is not what it should be after an edit.
    #[error("{client}'s file is wrong after an edit: {what}")]
    Harmed {
        /// Whose file.
        client: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A file was damaged, or what somebody else wrote was lost.
    #[error("a death did harm (seed {seed}): {said}")]
    Death {
        /// Repeats it.
        seed: u64,
        /// What the tests said.
        said: String,
    },
    /// The figures could not be stored.
    #[error("the figures could not be stored")]
    Store(#[from] BenchError),
}

/// What was found out about one file.
#[derive(Debug, Serialize)]
struct OfFile {
    client: &'static str,
    format: &'static str,
    bytes: usize,
    /// Of the text alone.
    edit: edit::Times,
    /// The same with everything that makes it safe.
    whole: whole::Times,
}

#[derive(Debug, Serialize)]
struct Figures {
    edits: u32,
    files: Vec<OfFile>,
    deaths: Option<deaths::Figures>,
}

impl Figures {
    fn tables(&self) -> String {
        let edits = self.edits;
        let mut texts = table(format!("the text alone, {edits} times"));
        let mut wholes = table(format!("the whole change, {edits} times"));
        for file in &self.files {
            let OfFile { client, format, bytes, edit, whole } = file;
            let row = |what| format!("{what}: {format}, {bytes} bytes ({client})");
            texts = texts.row(row("add"), edit.add.cells()).row(row("remove"), edit.remove.cells());
            wholes = wholes
                .row(row("add"), whole.add.cells())
                .row(row("remove"), whole.remove.cells())
                .row(row("the disk alone"), whole.disk.cells());
        }
        let mut text = format!("{texts}\n\n{wholes}");
        if let Some(deaths) = &self.deaths {
            // Writing to a string cannot fail.
            write!(text, "\n\n{deaths}").ok();
        }
        text
    }
}

/// Measures, stores the figures if asked to, and returns them as small tables.
pub fn run(options: &Options) -> Result<String, ClientBenchError> {
    let figures = take(options)?;
    rig::store(options.out.as_deref(), &figures)?;
    Ok(figures.tables())
}

fn take(options: &Options) -> Result<Figures, ClientBenchError> {
    let documents = Document::all(options.size);
    let files = documents.iter().map(|document| of_file(document, options.edits));
    let files = files.collect::<Result<_, _>>()?;
    let tests = options.tests.as_deref();
    let deaths = tests.map(|tests| deaths::measure(tests, options.deaths)).transpose()?;
    Ok(Figures { edits: options.edits, files, deaths })
}

fn of_file(document: &Document, edits: u32) -> Result<OfFile, ClientBenchError> {
    Ok(OfFile {
        client: document.client.id,
        format: document.format,
        bytes: document.text.len(),
        edit: edit::measure(document, edits)?,
        whole: whole::measure(document, edits)?,
    })
}

/// How long one kind of change takes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cost {
    /// By the clock on the wall.
    wall: Percentiles,
    /// Of the processor alone: it waits for no disk and for no neighbour.
    cpu: Percentiles,
}

impl Cost {
    /// A row for [`table`].
    fn cells(self) -> Vec<String> {
        let Self { wall, cpu } = self;
        [wall.p50_us, wall.p99_us, cpu.p50_us, cpu.p99_us].map(milliseconds).to_vec()
    }
}

fn table(title: String) -> Table {
    Table::new(title, &["p50", "p99", "CPU p50", "CPU p99"])
}

/// Times one kind of change.
#[derive(Debug, Default)]
struct Stopwatch {
    wall: Vec<Duration>,
    cpu: Vec<Duration>,
}

impl Stopwatch {
    fn time<T>(&mut self, change: impl FnOnce() -> T) -> T {
        let (begun, used) = (Instant::now(), cpu_time());
        let result = change();
        self.wall.push(begun.elapsed());
        self.cpu.push(cpu_time().saturating_sub(used));
        result
    }

    fn cost(self) -> Cost {
        Cost { wall: Percentiles::of(self.wall), cpu: Percentiles::of(self.cpu) }
    }
}

/// What this thread has used of the processor.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

//! Counts the user-mode instructions per call, which do not depend on the load of the machine.
//!
//! The daemon runs under `valgrind --tool=callgrind`. A short and a long series of calls are made, each with a
//! Mainstay of its own; the difference of the instructions, divided by that of the calls, is the price of one call.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;

use super::throughput::mainstay;
use crate::load::{Crew, Tool, Work};
use crate::rig::{BenchError, Instance, Programs, Table, Upstream, with_instance};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The lengths of the two series.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(14);
/// The name of the profile of the last series.
const LAST: &str = "last.out";

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// An earlier `mainstay` to compare with.
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// valgrind, 3.20 or later (earlier ones do not know `pidfd_open`).
    #[arg(long, value_name = "FILE", default_value = "valgrind")]
    valgrind: PathBuf,
    /// Keep the profiles of the long series in this directory, for `callgrind_annotate`.
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    upstream: &'static str,
    sessions: u32,
    before: Option<f64>,
    now: f64,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        let table =
            Table::new("user-mode instructions per call", &["before", "now", "now / before"]);
        self.rows.iter().fold(table, |table, row| {
            let optional = |value: Option<f64>, digits: usize| {
                value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let ratio = row.before.map(|before| row.now / before);
            let cells =
                vec![optional(row.before, 0), format!("{:.0}", row.now), optional(ratio, 3)];
            table.row(format!("{}, {} sessions", row.upstream, row.sessions), cells)
        })
    }
}

pub(super) async fn measure(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    let earlier = options.before.as_deref().map(|before| Programs::beside_this(Some(before)));
    let earlier = earlier.transpose().map_err(BenchError::SetUp)?;
    let mut rows = Vec::new();
    for (upstream, name) in [(Upstream::Http, "HTTP upstream"), (Upstream::Stdio, "stdio upstream")]
    {
        for sessions in [1, 32] {
            let price = async |programs, which: &str| {
                let counted = Counted::of(programs, &options.valgrind)?;
                let price = counted.price(upstream, sessions).await?;
                if let Some(dir) = &options.profiles {
                    let name = format!("{upstream:?}-{sessions}-{which}.out").to_lowercase();
                    counted.keep(&dir.join(name)).map_err(BenchError::SetUp)?;
                }
                Ok::<_, BenchError>(price)
            };
            let before = match &earlier {
                Some(earlier) => Some(price(earlier, "before").await?),
                None => None,
            };
            let now = price(programs, "now").await?;
            rows.push(Row { upstream: name, sessions, before, now });
        }
    }
    Ok(Figures { rows })
}

/// A Mainstay whose instructions are counted.
struct Counted {
    programs: Programs,
    folder: TempDir,
}

/// What a series of calls took.
#[derive(Debug, Clone, Copy)]
struct Series {
    calls: f64,
    instructions: f64,
}

impl Counted {
    fn of(programs: &Programs, valgrind: &Path) -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::SetUp)?;
        let wrapper = folder.path().join("mainstay");
        let launcher = folder.path().join("noauxv.py");
        // What servers and shims do is not counted, nor is what commands do.
        let text = format!(
            "#!/bin/sh\nexec python3 '{}' '{}' --quiet --tool=callgrind --trace-children=yes \
             --trace-children-skip='*fixture-mcp' --trace-children-skip-by-arg=__shim --callgrind-out-file='{}/%p.out' '{}' \"$@\"\n",
            launcher.display(),
            valgrind.display(),
            folder.path().display(),
            programs.mainstay().display()
        );
        let executable = fs::Permissions::from_mode(0o755);
        fs::write(&launcher, include_str!("noauxv.py"))
            .and_then(|()| fs::write(&wrapper, text))
            .and_then(|()| fs::set_permissions(&wrapper, executable))
            .map_err(BenchError::SetUp)?;
        Ok(Self { programs: programs.clone().with_mainstay(wrapper), folder })
    }

    /// Copies the profile of the last series.
    fn keep(&self, to: &Path) -> io::Result<()> {
        fs::copy(self.folder.path().join(LAST), to).map(drop)
    }

    async fn price(&self, upstream: Upstream, sessions: u32) -> Result<f64, BenchError> {
        let short = self.series(upstream, sessions, SHORT).await?;
        let long = self.series(upstream, sessions, LONG).await?;
        Ok((long.instructions - short.instructions) / (long.calls - short.calls))
    }

    async fn series(
        &self,
        upstream: Upstream,
        sessions: u32,
        length: Duration,
    ) -> Result<Series, BenchError> {
        let measured = with_instance(&self.programs, async |instance| {
            call(instance, upstream, sessions, length).await
        });
        let (calls, daemon) = measured.await?;
        let path = self.folder.path().join(format!("{daemon}.out"));
        let instructions = total(&path).map_err(BenchError::SetUp)?;
        fs::rename(&path, self.folder.path().join(LAST)).map_err(BenchError::SetUp)?;
        Ok(Series { calls, instructions })
    }
}

/// Makes calls for a while, and returns their number and the process that is counted.
async fn call(
    instance: &Instance,
    upstream: Upstream,
    sessions: u32,
    length: Duration,
) -> Result<(f64, u32), BenchError> {
    let contestant = mainstay(instance, "fixture", upstream).await?;
    let work =
        Work { sessions, tool: Tool::Echo, tool_prefix: String::new(), size: 64, timeout: TIMEOUT };
    let mut crew = Crew::open(&contestant.endpoint, &work).await?;
    let report = crew.slice(Duration::ZERO, length, &[]).await?;
    crew.close().await;
    if !report.is_clean() {
        return Err(BenchError::Wrong(report.render(false)));
    }
    Ok((report.calls_per_s * length.as_secs_f64(), instance.daemon_pid().await?))
}

/// How many instructions a process has executed, by what callgrind wrote at its end.
fn total(path: &Path) -> io::Result<f64> {
    let text = fs::read_to_string(path)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| io::Error::other(format!("{} has no total", path.display())))
}

//! The whole promise on one screen: what happens to servers, engine and daemon, what a client sees of it,
//! and how long that took.
//!
//! Each row is a story that is played against one built Mainstay and asserts all that it says; its figure
//! was measured just then. Each server has one client, which opens one session and never another. Rows
//! are played in order, and the later ones use the sessions of the earlier ones: that these outlive
//! everything is the promise. A row that fails does not keep the next ones from being played.
//!
//! Rows with containers need an engine of their own and this program inside its network namespace;
//! `scripts/seeds` sees to both. Without an engine they are named as left out.

mod client;
mod containers;
mod daemon;
mod schedule;
mod screen;
mod servers;
mod stage;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::docker::{self, Engine};
use crate::rig::{self, BenchError, Instance, Programs, unless_interrupted, with_instance};
pub(crate) use daemon::newer_program;
use screen::Screen;
use stage::Stage;

/// The rows that need an engine.
const CONTAINER_ROWS: [&str; 5] = [
    containers::KILLED,
    containers::STOPPED,
    containers::RESTARTED,
    containers::OUTAGE,
    containers::REMOVED,
];

/// Shows what Mainstay promises, row by row with its measured figure.
#[derive(Debug, clap::Parser)]
#[command(name = "seeds", version)]
pub struct Options {
    /// The directory of the engine to use, as `scripts/docker up` made it.
    #[arg(long, value_name = "DIR", requires = "script")]
    engine: Option<PathBuf>,
    /// `scripts/docker`, which ends and starts it.
    #[arg(long, value_name = "FILE", requires = "engine")]
    script: Option<PathBuf>,
    /// The program to show; by default `mainstay` beside this program. A copy of it is used.
    #[arg(long, value_name = "FILE")]
    mainstay: Option<PathBuf>,
}

impl Options {
    fn engine(&self) -> Option<Engine> {
        Some(Engine::new(self.engine.clone()?, self.script.clone()?))
    }
}

/// Plays all rows and shows them as they are played. Says whether all of them held.
pub fn run(options: &Options, out: &mut impl Write) -> Result<bool, BenchError> {
    let bin = tempfile::Builder::new().prefix("mainstay-seeds-").tempdir();
    let bin = bin.map_err(BenchError::SetUp)?;
    let engine = options.engine();
    let programs =
        copy_program(options.mainstay.as_deref(), bin.path()).map_err(BenchError::SetUp)?;
    let programs = match &engine {
        Some(engine) => programs.with_var("DOCKER_HOST", docker::host(&engine.socket())),
        None => programs,
    };
    rig::block_on(with_instance(&programs, async |instance| {
        unless_interrupted(play(instance, bin.path(), engine.as_ref(), out)).await
    }))
}

/// Copies the program to where an update may replace it.
pub(crate) fn copy_program(built: Option<&Path>, bin: &Path) -> std::io::Result<Programs> {
    let built = match built {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("mainstay"),
    };
    let program = bin.join("mainstay");
    fs::copy(built, &program)?;
    Programs::beside_this(Some(&program))
}

async fn play(
    instance: &Instance,
    bin: &Path,
    engine: Option<&Engine>,
    out: &mut impl Write,
) -> Result<bool, BenchError> {
    let mut screen = Screen::new(out);
    let mut stage = Stage::new(instance, bin)?;
    let stage = &mut stage;
    screen.open();
    screen.row(servers::KILLED, Box::pin(servers::killed(stage))).await;
    screen.row(servers::STABLE, Box::pin(servers::stable(stage))).await;
    screen.row(servers::CRASHES, Box::pin(servers::crashes(stage))).await;
    screen.row(servers::REFRESHED, Box::pin(servers::refreshed(stage))).await;
    match engine {
        Some(engine) => {
            screen.row(containers::KILLED, Box::pin(containers::killed(stage, engine))).await;
            screen.row(containers::STOPPED, Box::pin(containers::stopped(stage, engine))).await;
            screen.row(containers::RESTARTED, Box::pin(containers::restarted(stage, engine))).await;
            screen.row(containers::OUTAGE, Box::pin(containers::outage(stage, engine))).await;
            screen.row(containers::REMOVED, Box::pin(containers::removed(stage, engine))).await;
        }
        None => CONTAINER_ROWS.iter().for_each(|title| screen.left_out(title)),
    }
    screen.row(daemon::KILLED, Box::pin(daemon::killed(stage))).await;
    screen.row(daemon::IN_FLIGHT, Box::pin(daemon::in_flight(stage))).await;
    screen.row(daemon::RELOADED, Box::pin(daemon::reloaded(stage))).await;
    screen.row(daemon::UPDATED, Box::pin(daemon::updated(stage))).await;
    screen.row(daemon::LATE, Box::pin(daemon::late(stage))).await;
    screen.row(daemon::STOPPED, Box::pin(daemon::stopped(stage))).await;
    screen.row(stage::SESSIONS, Box::pin(stage.sessions())).await;
    screen.close()
}

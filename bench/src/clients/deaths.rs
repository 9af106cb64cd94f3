//! Processes that die in the middle of their edits.
//!
//! The play itself is the test `crash` of mainstay-clients, which says what is checked after each
//! death; here it is given more rounds.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::ClientBenchError;

/// The tests end at the first harm, so figures tell of none.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    deaths: u32,
    seed: u64,
    seconds: f64,
}

pub(super) fn measure(tests: &Path, deaths: u32) -> Result<Figures, ClientBenchError> {
    let seed =
        getrandom::u64().map_err(|error| ClientBenchError::SetUp(io::Error::other(error)))?;
    let begun = Instant::now();
    let output = Command::new(tests)
        .arg("crash::")
        .env("MAINSTAY_EDIT_ROUNDS", deaths.to_string())
        .env("MAINSTAY_EDIT_SEED", seed.to_string())
        .output()
        .map_err(ClientBenchError::SetUp)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // A program without such tests succeeds too.
    if !output.status.success() || said.contains(" 0 passed") {
        return Err(ClientBenchError::Death { seed, said });
    }
    Ok(Figures { deaths, seed, seconds: begun.elapsed().as_secs_f64() })
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = Duration::from_secs_f64(self.seconds.round());
        write!(
            f,
            "{} deaths in the middle of edits: 0 damaged files, 0 lost edits of a client that locks \
             (seed {}, {took:?})",
            self.deaths, self.seed
        )
    }
}

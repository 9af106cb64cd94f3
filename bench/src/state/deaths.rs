//! Processes that die while they change a store.
//!
//! The play itself is the test `crash` of mainstay-daemon, which says what is checked after each death;
//! here it is given more rounds.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use tokio::time::Instant;

use super::StateBenchError;

/// What the test says of itself.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Tally {
    deaths: u64,
    /// Changes that were acknowledged before a death, all of which were there after it.
    acknowledged: u64,
    /// Deaths after which the change that was being made was there, though nobody had been told.
    kept: u64,
    /// Deaths before the first change was acknowledged: while the store was opened, or brought forward.
    early: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    #[serde(flatten)]
    tally: Tally,
    seed: u64,
    seconds: f64,
}

pub(super) fn measure(tests: &Path, deaths: u32) -> Result<Figures, StateBenchError> {
    let seed = getrandom::u64().map_err(|error| StateBenchError::SetUp(io::Error::other(error)))?;
    let begun = Instant::now();
    let output = Command::new(tests)
        .args(["store::tests::crash::", "--nocapture"])
        .env("MAINSTAY_STATE_ROUNDS", deaths.to_string())
        .env("MAINSTAY_STATE_SEED", seed.to_string())
        .output()
        .map_err(StateBenchError::SetUp)?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // A program without such tests succeeds too, but says nothing.
    let tally = said.lines().find_map(tally).filter(|_| output.status.success());
    let tally = tally.ok_or(StateBenchError::Death { seed, said })?;
    Ok(Figures { tally, seed, seconds: begun.elapsed().as_secs_f64() })
}

fn tally(line: &str) -> Option<Tally> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "deaths")?;
    let ["deaths", deaths, "acknowledged", acknowledged, "kept", kept, "early", early] =
        words[at..]
    else {
        return None;
    };
    Some(Tally {
        deaths: deaths.parse().ok()?,
        acknowledged: acknowledged.parse().ok()?,
        kept: kept.parse().ok()?,
        early: early.parse().ok()?,
    })
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { deaths, acknowledged, kept, early } = self.tally;
        write!(
            f,
            "store: {deaths} deaths, {early} of them before the first change: 0 unreadable states, 0 of \
             {acknowledged} acknowledged changes lost, {kept} changes there that nobody had been told of \
             (seed {}, {:.0} s)",
            self.seed, self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tally_is_found_among_what_else_is_said() {
        let line = "test store::tests::crash::x ... deaths 300 acknowledged 588 kept 148 early 130";
        let expected = Tally { deaths: 300, acknowledged: 588, kept: 148, early: 130 };
        assert_eq!(tally(line), Some(expected));
        assert_eq!(tally("test result: ok. 1 passed"), None);
    }
}

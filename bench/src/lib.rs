//! What the tests and figures of Mainstay stand on.
//!
//! - [`fixture`]: a small, fast MCP server that misbehaves on request (binary `fixture-mcp`);
//! - [`load`]: a closed-loop load generator that checks every answer (binary `mcpload`);
//! - [`supervise`]: how fast and how cheaply Mainstay keeps servers alive (binary `supervise-bench`);
//! - [`docker`]: the same for servers in containers, beside Docker's own restarts (binary `docker-bench`);
//! - [`proxy`]: what Mainstay costs and bears as a proxy, beside its peers (binary `proxy-bench`);
//! - [`restarts`]: what clients notice of the daemon's own restarts (binary `restart-bench`);
//! - [`silence`]: which silent servers are killed, and how soon (binary `silence-bench`);
//! - [`seeds`]: the whole promise on one screen, each row with its figure (binary `seeds`);
//! - [`chaos`]: faults in a random order, and whether clients were told the truth (binary `chaos`);
//! - [`clients`]: what an edit of a client's file takes, and that it does no harm (binary `client-bench`);
//! - [`state`]: whether the state survives whatever kills who changes it (binary `state-bench`).
//!
//! Nothing here but [`clients`] depends on Mainstay's own crates, so that a mistake in them cannot hide in here.

use std::error::Error;
use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;

mod answer;
pub mod chaos;
pub mod clients;
pub mod docker;
pub mod fixture;
pub mod load;
mod procfs;
pub mod proxy;
mod random;
pub mod restarts;
mod rig;
pub mod seeds;
pub mod silence;
pub mod state;
mod stats;
pub mod supervise;

/// An error with its causes, as one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string cannot fail.
        write!(text, ": {error}").ok();
        cause = error.source();
    }
    text
}

/// How a program ends: with success if its outcome is true, and with the error on stderr if there was one.
pub fn exit_code<E: Error>(program: &str, outcome: Result<bool, E>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "{program}: {}", chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}

/// Prints a line to stdout, and returns whether that worked.
#[must_use]
pub fn print_line(line: impl Display) -> bool {
    writeln!(io::stdout(), "{line}").is_ok()
}

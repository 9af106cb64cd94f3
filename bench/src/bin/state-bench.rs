//! Kills whoever changes the state; see [`mainstay_bench::state`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::chain;
use mainstay_bench::state::{self, Options};

fn main() -> ExitCode {
    match state::run(&Options::parse()) {
        Ok(text) if writeln!(io::stdout(), "{text}").is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "state-bench: {}", chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}

//! Kills and restarts everything, and checks what clients were told; see [`mainstay_bench::chaos`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::chain;
use mainstay_bench::chaos::{self, Options};

fn main() -> ExitCode {
    match chaos::run(&Options::parse(), &mut io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "chaos: {}", chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}

//! Shows the whole promise on one screen; see [`mainstay_bench::seeds`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::chain;
use mainstay_bench::seeds::{self, Options};

fn main() -> ExitCode {
    match seeds::run(&Options::parse(), &mut io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "seeds: {}", chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}

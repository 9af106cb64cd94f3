//! Measures the restarts of a built Mainstay; see [`mainstay_bench::restarts`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::chain;
use mainstay_bench::restarts::{self, Options, Report};

fn main() -> ExitCode {
    match restarts::run(&Options::parse()) {
        Ok(Report { text, clean }) => {
            let told = writeln!(io::stdout(), "{text}").is_ok();
            if told && clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "restart-bench: {}", chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}

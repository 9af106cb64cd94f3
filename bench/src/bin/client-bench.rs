//! Measures edits of clients' files; see [`mainstay_bench::clients`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::chain;
use mainstay_bench::clients::{self, Options};

fn main() -> ExitCode {
    match clients::run(&Options::parse()) {
        Ok(text) if writeln!(io::stdout(), "{text}").is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "client-bench: {}", chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}

//! The load generator; see [`mainstay_bench::load`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::chain;
use mainstay_bench::load::{self, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    match load::run(&options) {
        Ok(report) => {
            let clean = report.is_clean();
            let printed = writeln!(io::stdout(), "{}", report.render(options.json()));
            if clean && printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "mcpload: {}", chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}

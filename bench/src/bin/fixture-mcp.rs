//! The fixture MCP server; see [`mainstay_bench::fixture`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::fixture::{self, Facts, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    let result = Facts::collect().and_then(|facts| fixture::run(options, facts));
    match result {
        Ok(code) => code,
        Err(error) => {
            // With stderr gone as well there is nobody left to tell.
            writeln!(io::stderr(), "fixture-mcp: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

//! The load generator; see [`mainstay_bench::load`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::load::{self, Options};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    let options = Options::parse();
    let report = load::run(&options);
    exit_code(
        "mcpload",
        report.map(|report| print_line(report.render(options.json())) && report.is_clean()),
    )
}

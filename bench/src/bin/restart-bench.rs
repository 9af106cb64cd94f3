//! Measures the restarts of a built Mainstay; see [`mainstay_bench::restarts`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::restarts::{self, Options, Report};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    let report = restarts::run(&Options::parse());
    exit_code("restart-bench", report.map(|Report { text, clean }| print_line(text) && clean))
}

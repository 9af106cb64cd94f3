//! Measures which silent servers are killed; see [`mainstay_bench::silence`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::silence::{self, Options, Report};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    let report = silence::run(&Options::parse());
    exit_code("silence-bench", report.map(|Report { text, clean }| print_line(text) && clean))
}

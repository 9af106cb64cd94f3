//! Measures a built Mainstay; see [`mainstay_bench::supervise`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::supervise::{self, Options};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    exit_code("supervise-bench", supervise::run(&Options::parse()).map(print_line))
}

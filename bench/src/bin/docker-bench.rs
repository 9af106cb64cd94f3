//! Measures a built Mainstay with containers; see [`mainstay_bench::docker`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::docker::{self, Options};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    exit_code("docker-bench", docker::run(&Options::parse()).map(print_line))
}

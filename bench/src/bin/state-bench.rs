//! Kills whoever changes the state; see [`mainstay_bench::state`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::state::{self, Options};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    exit_code("state-bench", state::run(&Options::parse()).map(print_line))
}

//! Measures edits of clients' files; see [`mainstay_bench::clients`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::clients::{self, Options};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    exit_code("client-bench", clients::run(&Options::parse()).map(print_line))
}

//! Measures a built Mainstay as a proxy; see [`mainstay_bench::proxy`].

use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::proxy::{self, Options};
use mainstay_bench::{exit_code, print_line};

fn main() -> ExitCode {
    exit_code("proxy-bench", proxy::run(&Options::parse()).map(print_line))
}

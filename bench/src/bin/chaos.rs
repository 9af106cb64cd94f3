//! Kills and restarts everything, and checks what clients were told; see [`mainstay_bench::chaos`].

use std::io;
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::chaos::{self, Options};
use mainstay_bench::exit_code;

fn main() -> ExitCode {
    exit_code("chaos", chaos::run(&Options::parse(), &mut io::stdout()))
}

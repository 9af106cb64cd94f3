//! Shows the whole promise on one screen; see [`mainstay_bench::seeds`].

use std::io;
use std::process::ExitCode;

use clap::Parser as _;
use mainstay_bench::exit_code;
use mainstay_bench::seeds::{self, Options};

fn main() -> ExitCode {
    exit_code("seeds", seeds::run(&Options::parse(), &mut io::stdout()))
}

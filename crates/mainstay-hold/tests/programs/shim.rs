//! A shim without the rest of Mainstay, for tests and measurements.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(run_dir) => mainstay_hold::shim::main(Path::new(&run_dir)),
        None => ExitCode::from(2),
    }
}

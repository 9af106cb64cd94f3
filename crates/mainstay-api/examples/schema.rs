//! Prints the schema of the machine-readable output, to be checked in as `schema/v1.json`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &mainstay_api::schema())?;
    out.write_all(b"\n")
}

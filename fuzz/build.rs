//! Takes the frame reader from the engine, to which it is private, and lowers its limit, so that
//! lines which are too long are as cheap to make as others.

use std::{env, error::Error, fs, path::Path};

const SOURCE: &str = "../crates/mainstay-engine/src/lines.rs";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SOURCE}");
    let source = fs::read_to_string(SOURCE)?;
    let lowered = source.replace("16 * 1024 * 1024", "4096");
    if lowered == source {
        return Err(format!("{SOURCE} no longer says its limit in these words").into());
    }
    // Module documentation cannot be included into a module.
    let lines: Vec<_> = lowered.lines().filter(|line| !line.starts_with("//!")).collect();
    #[expect(clippy::disallowed_methods, reason = "a build script is told its place in this way")]
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("lines.rs"), lines.join("\n"))?;
    Ok(())
}

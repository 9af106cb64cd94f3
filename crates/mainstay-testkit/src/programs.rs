//! The programs that tests drive.

use std::env;
use std::path::PathBuf;

/// A program of this workspace, as it was built for the tests that call this.
///
/// # Panics
///
/// If it has not been built: a test that needs it cannot do without.
pub fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test knows its own program");
    let deps = test.parent().expect("a program is in a directory");
    let path = deps.parent().expect("tests are built in a directory of their own").join(name);
    assert!(path.exists(), "{name} is not built: run `cargo build --workspace --bins` first");
    path
}

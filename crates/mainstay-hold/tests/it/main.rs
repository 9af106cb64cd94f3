//! Drives real shims with real processes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod cgroup;
mod ending;
mod fence;
mod holder;
mod output;
mod start;
mod support;
mod writing;

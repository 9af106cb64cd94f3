//! The engines against the real thing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod docker;
mod odd_shims;
mod process;
mod remote;
mod support;

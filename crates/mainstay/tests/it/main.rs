//! Drives the built program as a user would.

#![expect(clippy::unwrap_used, reason = "a test that cannot set its scene has failed")]

mod env;
mod help;
mod import;
mod no_daemon;
mod usage;

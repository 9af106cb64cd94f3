//! That what tests stand on holds.

#![expect(clippy::unwrap_used, reason = "a test that cannot set its scene has failed")]

mod docker;

//! What tests share: the conformance suite for engines, an engine without workloads, container engines and
//! cgroups of their own, and the programs that tests drive.
//!
//! Only tests depend on this crate.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod cgroup;
pub mod conformance;
pub mod dice;
pub mod docker;
pub mod fake_engine;
pub mod programs;
pub mod samples;

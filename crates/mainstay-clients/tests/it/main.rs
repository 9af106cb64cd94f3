//! Clients' files in a home of their own: golden files per client, the writer under faults, and entries
//! through their life.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod crash;
mod depth;
mod entries;
mod golden;
mod home;
mod instances;
mod locks;
mod looks;
mod moves;
mod put_back;
mod traces;
mod writer;
mod written_back;

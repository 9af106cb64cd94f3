//! Clients' files in a home of their own: golden files per client, the writer under faults, and entries
//! through their life.

mod golden;
mod home;

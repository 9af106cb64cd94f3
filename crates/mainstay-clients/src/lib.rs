//! The only code that edits AI clients' config files.
//!
//! - [`edit`]: pure functions from text to text that change one entry and no other byte.
//! - [`table`]: the clients as data: where their files are, what an entry looks like, how they lock.

pub mod edit;
pub mod table;

pub use table::{Client, Machine, Os, Surroundings, Target, clients};

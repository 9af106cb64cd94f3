//! The only code that edits AI clients' config files.
//!
//! Empty today: servers are not registered with clients yet. The rules it will keep: an edit is a pure
//! function from text to text that changes one entry and no other byte; writing is apart from it.

pub mod edit;

//! Entries in clients' files: which clients have them, when they are removed and added again, and that no other byte is
//! changed.
//!
//! Most tests have two texts of the same file: without Mainstay's entry, and with it and the user's additions to it. The
//! file is always one or the other, byte for byte.

mod desktop;
mod manual_edits;
mod refresh;
mod selection;
pub(crate) mod setup;
mod unusable_files;
